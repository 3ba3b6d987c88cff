"""A value that refuses late writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal, Never, cast, final

from ..errors import StaleFenceError
from ..lock.engine import Engine
from ..lock.misuse import NotEntered
from ..lock.options import lock_name, reject_unknown
from ..lock.sources import Client, engine_of, source_of
from ..transport.keys import key
from ..transport.request import Request, Script
from ..transport.steps.checks import wrong_types
from ..transport.steps.family import Family, Kind
from ..transport.steps.snapshots import Content, Snapshot

_READ: Final = Script("fenced_read", "forms", moves=True)
_WRITE: Final = Script("fenced_write", "forms", moves=True)

Form = Literal["bytes", "json"]
_MOST: Final = 2**63 - 1


def read_register(now_us: int, found: Mapping[str, Content]) -> Snapshot:
    """A register, which stays for ever and has no holder. Its content is the user's."""
    return Snapshot(now_us, stands=bool(found[""]), problems=wrong_types({"": "hash"}, found))


REGISTERS: Final = Family(read=read_register, passive="", shallow=True)
KINDS: Final = (Kind(REGISTERS, "fencedregister", "FencedRegister", needs=("hget", "hlen", "hset")),)


@final
class FencedSteps:
    """The steps of one register under its name."""

    __slots__ = ("_keys", "_lane")

    def __init__(self, prefix: str, name: str) -> None:
        self._keys = (key(prefix, "fencedregister", name),)
        # One lane for all: what a holder writes is not to be overtaken by what it wrote before.
        self._lane = self._keys[0].decode()

    def write(self, form: Form, value: bytes, fencing_token: int) -> Request[int | None]:
        """Writes, unless a newer fencing token has written before: None, or that one."""
        return Request(_WRITE, self._keys, (str(fencing_token), form, value), _newer, lane=self._lane)

    def read(self) -> Request[tuple[Form, bytes] | None]:
        """The last value that was written, or None."""
        return Request(_READ, self._keys, (), _written, lane=self._lane)


def _newer(raw: Any) -> int | None:
    return int(raw) if raw else None


def _written(raw: Any) -> tuple[Form, bytes] | None:
    if not raw:
        return None
    form, value = raw
    return ("json" if form == b"json" else "bytes"), value


@final
class FencedRegister(NotEntered):
    """A value on the server that only the newest holder of a lock can write.

    A holder that was paused for longer than its ttl does not yet know that another task has the lock. When
    the newer holder has written, a late write of the paused holder is refused, because its fencing token is
    smaller.

    ```python
    balance = FencedRegister(redis, "balance")
    async with Lock(redis, "balance") as lease:
        old = await balance.read() or 0
        await balance.write(old + 10, lease.fencing_token)
    ```

    A holder may write as often as it likes. The newest token that has *written* counts: until the next holder
    writes, the previous holder can still write. Use the tokens of only one lock for a register.

    Value and token do not expire, and have a name space of their own. If the server loses its data, it loses
    both; fencing tokens still rise.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        name: Any non-empty str of at most 1 KiB in UTF-8.

    Raises:
        TypeError, ValueError: An argument is wrong; before any I/O.
    """

    __slots__ = ("_name", "_source")

    _instead = "call its write(value, fencing_token) or its read()"

    def __init__(self, client: Client, name: str, **unknown: Never) -> None:
        reject_unknown("FencedRegister", unknown)
        self._source = source_of(client)
        self._name = lock_name(name)

    @property
    def name(self) -> str:
        """Name of the register."""
        return self._name

    async def write(self, value: Any, fencing_token: int) -> None:
        """Writes the value, if no newer fencing token has written before.

        Args:
            value: `bytes`, which are kept unchanged, or what JSON can hold: None, bool, numbers, str, and
                lists and dicts of these.
            fencing_token: `lease.fencing_token` of the lock that guards this register, or another number from
                0 to 2**63 - 1 that rises with each holder.

        Raises:
            TypeError, ValueError: An argument is wrong, or the value has more bytes than the session's
                `largest_value`; before any I/O.
            StaleFenceError: A newer token has written. This write has changed nothing, or, if its reply was
                lost, it was written over.
            BackendError: Redis refused, or did not answer within the session's `command_timeout`; then the
                value may have been written.
            SessionClosedError: The session is closed.

        Cancelled before the answer arrived, it may have written the value or not.
        """
        form, text = _encoded(value)
        token = _checked(fencing_token)
        engine = engine_of(self._source, self)
        engine.settings.check_value(text)
        seen = await engine.ask(self._steps(engine).write(form, text, token))
        if seen is not None:
            raise StaleFenceError(self._name, fencing_token=token, seen=seen)

    async def read(self) -> Any:
        """The value of the last write, or None: `bytes` unchanged, anything else as JSON returns it.

        Raises:
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`.
            SessionClosedError: The session is closed.

        Cancelled, it changes nothing.
        """
        engine = engine_of(self._source, self)
        written = await engine.ask(self._steps(engine).read())
        if written is None:
            return None
        form, text = written
        return json.loads(text) if form == "json" else text

    def _steps(self, engine: Engine) -> FencedSteps:
        return FencedSteps(engine.settings.prefix, self._name)

    def __repr__(self) -> str:
        return f"<FencedRegister {self._name!r}>"


def _encoded(value: object) -> tuple[Form, bytes]:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "bytes", bytes(cast("bytes", value))
    try:
        return "json", json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"value must be bytes or what JSON can hold: {error}") from None


def _checked(fencing_token: object) -> int:
    allowed = (
        f"fencing_token must be an int from 0 to 2**63 - 1, as lease.fencing_token is, not {fencing_token!r}"
    )
    if isinstance(fencing_token, bool) or not isinstance(fencing_token, int):
        raise TypeError(f"{allowed} ({type(fencing_token).__name__})")
    if not 0 <= fencing_token <= _MOST:
        raise ValueError(allowed)
    return int(fencing_token)
