"""The faults of a server before there is one."""


class ServerStartError(RuntimeError):
    """Raised when a server could not be started: none was found, it ended at once, or it did not answer.

    The message ends with the last lines of the server's log, where there is one.
    """
