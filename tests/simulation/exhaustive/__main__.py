"""Walks the sorts that are named, and says how many states there are.

python -m tests.simulation.exhaustive                       all of them, with two clients
python -m tests.simulation.exhaustive fairlock --clients 3  one of them
python -m tests.simulation.exhaustive --write               the table of docs/reference/test-results.md
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.world.table import put

from .sorts import SORTS
from .walk import BrokenError, Walk

TABLE = ((2, 2, 1), (3, 1, 1), (3, 1, 2))
"""The rows of the table, for each sort: clients, waits of each, deaths."""


def walked(sort: str, clients: int, waits: int, deaths: int, most: int | None, depth: int | None) -> str:
    """The walk as a line of the table."""
    began = time.process_time()
    walk = Walk(SORTS[sort], clients, waits=waits, deaths=deaths)
    found = walk.run(depth=depth, most=most)
    how_far = "all" if found.whole else f"within {found.depth} steps"
    seconds = time.process_time() - began
    numbers = f"{found.states:,} | {found.steps:,}".replace(",", " ")
    return f"| {sort} | {clients} | {waits} | {deaths} | {numbers} | {how_far} | {seconds:.0f} |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.exhaustive")
    parser.add_argument("sorts", nargs="*", metavar="SORT", help=", ".join(SORTS))
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--waits", type=int, default=2, help="how often each client begins to wait")
    parser.add_argument("--deaths", type=int, default=1, help="how many clients may die")
    parser.add_argument("--depth", type=int, help="after so many steps it ends")
    parser.add_argument("--most", type=int, help="after so many states it ends")
    parser.add_argument("--write", action="store_true", help="put the table into the documentation")
    options = parser.parse_args()
    if unknown := set(options.sorts) - set(SORTS):
        parser.error(f"no such sort: {', '.join(unknown)}; there are {', '.join(SORTS)}")
    lines = [
        "| sort | clients | waits of each | deaths | states | steps | how far | CPU seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    given = (options.clients, options.waits, options.deaths)
    failed = 0
    for sort in options.sorts or SORTS:
        for clients, waits, deaths in TABLE if options.write else (given,):
            try:
                lines.append(walked(sort, clients, waits, deaths, options.most, options.depth))
            except BrokenError as error:
                failed += 1
                lines.append(f"{sort}: {error}")
            print(lines[-1], flush=True)
    if options.write and not failed:
        put("exhaustive", lines)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
