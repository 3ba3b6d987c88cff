"""Uses that cannot work: of what is for threads, in coroutines, other processes and green threads."""

from __future__ import annotations

import sys
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage] - as `get_running_loop`, without an error
from typing import TYPE_CHECKING, ClassVar, Never

from ..errors import ConfigurationError
from ..lock.misuse import hide_unknown


class SyncOnly:
    """Entered by `with`, and at home in one process: says so to `async with`, and to `pickle`."""

    __slots__ = ()

    _elsewhere: ClassVar[str]  # the way to have it in another process

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        hide_unknown(cls)

    if not TYPE_CHECKING:  # to a type checker, there are no such methods

        def __aenter__(self) -> Never:
            raise TypeError(
                f"write `with` instead of `async with`: {self!r} is for threads; in a coroutine, take the "
                "classes of aiolocks itself"
            )

        def __aexit__(self, *_: object) -> None: ...  # `async with` asks for it before it calls the other

        def __reduce__(self) -> Never:
            raise TypeError(f"{self!r} cannot be pickled or copied: {self._elsewhere}")


def refuse_in_coroutines() -> None:
    """Refuses to block an event loop.

    Raises:
        RuntimeError: One runs in this thread.
    """
    if _get_running_loop() is None:
        return
    raise RuntimeError(
        "aiolocks.sync would block the event loop that runs in this thread: in a coroutine write `async "
        "with` and the classes of aiolocks itself, or call the function by asyncio.to_thread()"
    )


def refuse_green_threads() -> None:
    """Refuses where threads have been replaced: the event loop would stand still with the one that waits.

    Raises:
        ConfigurationError: gevent or eventlet has replaced them.
    """
    for name in ("gevent", "eventlet"):
        if _replaced_by(name):
            raise ConfigurationError(
                f"aiolocks.sync needs the threads of the operating system, which {name} has replaced in this "
                "process: take workers that are processes or threads (celery --pool=prefork or threads, "
                f"gunicorn --worker-class=gthread), or do not let {name} patch threads"
            )


def _replaced_by(name: str) -> bool:
    if name == "gevent":
        patched = getattr(sys.modules.get("gevent.monkey"), "is_module_patched", None)
        return patched is not None and bool(patched("threading") or patched("thread") or patched("_thread"))
    patched = getattr(sys.modules.get("eventlet.patcher"), "is_monkey_patched", None)
    return patched is not None and bool(patched("thread"))
