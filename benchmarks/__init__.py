"""How fast aiolocks is: beside the floor of the same work, and beside what else one could use.

Run as `python -m benchmarks`; see its `--help`. To add a workload, write its module in
`benchmarks/workloads` and name it in `benchmarks/workloads/__init__.py`.
"""
