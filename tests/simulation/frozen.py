"""Writes down what each sort of world has sent, for a change that is to send the same.

python -m tests.simulation.frozen    after a change that is to send something else; the diff says where
"""

from __future__ import annotations

from tests.simulation.test_world import FROZEN, OWN
from tests.simulation.world.kinds import KINDS
from tests.simulation.world.run import Runner
from tests.simulation.world.schedule import drawn


def main() -> None:
    lines = []
    with Runner() as runner:
        for kind in [kind for kind in KINDS if kind not in OWN]:
            for sort in ("calm", "faulty"):
                outcome = runner.run(drawn(kind, 1_000_000, faulty=sort == "faulty"))
                lines.append(f"{kind} {sort} {outcome.trace.wire()}\n")
    FROZEN.write_text("".join(lines))


if __name__ == "__main__":
    main()
