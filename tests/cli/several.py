"""Several command lines in one process, one after the other: most of what each takes is Python's start."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from tests.cli.conftest import Aiolocks, Ended

_PROGRAM = """
import json, sys
from aiolocks.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    status = 0
    try:
        main()
    except SystemExit as end:
        status = end.code or 0
    print(f"\\0{status}\\0", end="", flush=True)
    print("\\0", end="", file=sys.stderr, flush=True)
"""


async def several(aiolocks: Aiolocks, *commands: tuple[str, ...], **kwargs: Any) -> list[Ended]:
    """How each of them ended."""
    program = (sys.executable, "-c", _PROGRAM)
    ended = await (await aiolocks(json.dumps(commands), program=program, **kwargs)).end(within=60)
    assert ended.status == 0, ended.err
    outs = re.findall("(.*?)\0(\\d+)\0", ended.out, re.DOTALL)
    errs = ended.err.split("\0")[:-1] or [""] * len(outs)  # on a terminal there is but one stream
    assert len(outs) == len(errs) == len(commands), ended
    return [Ended(int(status), out, err) for (out, status), err in zip(outs, errs, strict=True)]
