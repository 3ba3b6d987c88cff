"""The command in a fork whose streams are not three pipes: a terminal, or one for both outputs."""

from __future__ import annotations

import os
import pty
import select
import sys

from aiolocks.cli import main


def main_on_a_terminal() -> None:
    """On a pseudo terminal of its own, as whose keyboard and screen stdin and stdout serve."""
    pid, terminal = pty.fork()
    if pid == 0:
        encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
        sys.stdin = open(0, encoding=encoding)  # noqa: SIM115 - they last as long as the process
        sys.stdout = open(1, "w", buffering=1, encoding=encoding)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, encoding=encoding, errors="backslashreplace")  # noqa: SIM115
        main()
        return
    goes_to = {0: terminal, terminal: 1}
    while terminal in goes_to:
        for source in select.select(list(goes_to), [], [])[0]:
            try:
                data = os.read(source, 65536)
            except OSError:  # nobody has the terminal open any more
                data = b""
            if data:
                os.write(goes_to[source], data)
            else:
                del goes_to[source]
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) % 256)


def main_with_one_output() -> None:
    """What it says on stderr comes on stdout, in the order in which it is said."""
    os.dup2(1, 2)
    main()
