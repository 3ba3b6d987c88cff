"""The faults of a server before there is one."""


class ServerStartError(RuntimeError):
    """Raised when a server could not be started: there is no program, it ended at once, or it did not answer.

    If the program has written a log, the message ends with its last 12 lines.
    """
