"""The keys that kinds keep under a name, one file a family: roles, how they read, how they are freed.

Nothing here trusts what it reads: somebody else may have written it, half of it may have been evicted, and
between two keys of a scan anything may have happened.
"""
