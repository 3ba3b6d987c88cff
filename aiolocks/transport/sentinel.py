"""The way to the master that Sentinel names: it is left as soon as a Sentinel names another one.

A master that is replaced on purpose lives on, and takes writes, for some ten seconds: Sentinel names the
promoted replica first, and makes the old master its replica last. A session that is connected to the old
master would go on there, beside all other sessions on the new one. So each session hears its Sentinels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, final

from .._logs import get_logger
from .._tasks import empty_context
from .._visible import in_line
from .connection import STALL, Fallback
from .dialect import OpenRaw
from .driver import AnsweredError, Executor, RawConnection, UnreadableReplyError, drivable
from .hearing import ANOTHER_MASTER, Ear, OnRung
from .on_demand import OnDemandTask
from .releases import Releases
from .request import UNREADABLE, Request, Words

log = get_logger("aiolocks.transport")

_ASK_EVERY: Final = 1.0
"""Seconds between two questions to a Sentinel: who is the master, or, if it tells that, whether it lives."""
_AGAIN: Final = 0.1
_AGAIN_MAXIMUM: Final = 5.0
"""Seconds before a Sentinel that is away is tried again: doubled from the first each time."""
_NEWS: Final = 5.0
"""Seconds after which each Sentinel has heard of another master: they tell each other every two."""
_SWITCHED: Final = b"+switch-master"
_PROMOTED: Final = b"+promoted-slave"
"""With this the Sentinel that leads the failover begins to name the other master. It tells `+switch-master`
when all other replicas follow the new master, which may take minutes."""


Address = tuple[str, int]


@final
class Naming:
    """The master of one service, as the client's Sentinels name it.

    Invariants:
    - of answers that differ, the one with the newer configuration counts, by its epoch: a Sentinel that is
      cut off from the other Sentinels goes on naming the old master. So no answer counts before all
      Sentinels have answered, or cannot be asked;
    - what a Sentinel tells by itself is newer than any answer before.

    Args:
        pool: The client's.
        renamed: Told the address when another master is named than before.

    Attributes:
        service: The name.
    """

    def __init__(
        self, pool: Any, loop: asyncio.AbstractEventLoop, renamed: Callable[[Address], object]
    ) -> None:
        manager = pool.sentinel_manager
        self.service: str = pool.service_name
        self._loop = loop
        self._renamed = renamed
        self._host: str | None = getattr(manager, "_force_master_ip", None)
        self._least_others: int = manager.min_other_sentinels
        self._epoch = 0
        self._newest: Address | None = None
        self._master: Address | None = None  # that was told, and since when (loop time)
        self._since = 0.0
        # redis-py sorts its list while it asks: one may stand in it twice for a moment.
        clients = {id(client): client for client in manager.sentinels}
        self._listening = [Listening(client, loop, self) for client in clients.values()]
        self._unasked = set(self._listening)
        self._silent: dict[Listening, BaseException] = {}  # Sentinels that cannot be asked, and why
        self._deaf = False  # none can, and the log says so
        for one in self._listening:
            one.start()

    @property
    def news(self) -> Address | None:
        """The master that was named a moment ago, of which some Sentinel may not have heard."""
        return self._master if self._loop.time() < self._since + _NEWS else None

    def answered(self, by: Listening, about: Any, address: Any) -> None:
        """A Sentinel has said what it knows of the master, and after that which address the master has.

        Raises:
            UnreadableReplyError: That cannot be read.
        """
        try:
            known = about if isinstance(about, dict) else dict(zip(about[::2], about[1::2], strict=True))
            epoch, others = int(known[b"config-epoch"]), int(known[b"num-other-sentinels"])
            master = bytes(address[0]).decode(), int(address[1])
        except UNREADABLE as error:
            raise UnreadableReplyError("a Sentinel's answer cannot be read") from error
        if others >= self._least_others and (epoch > self._epoch or self._newest is None):
            self._epoch, self._newest = epoch, master
        self._heard(by)
        self._asked(by)

    def told(self, channel: bytes, text: bytes) -> None:
        """A Sentinel has told of a change."""
        words = text.decode(errors="replace").split(" ")
        if channel == _SWITCHED and len(words) == 5:
            service, _, _, host, port = words
        elif channel == _PROMOTED and len(words) == 8:
            _, _, host, port, _, service, _, _ = words
        else:
            return
        if service == self.service:
            self._epoch += 1
            self._newest = host, int(port)
            self._follow()

    def unheard(self, by: Listening, error: BaseException) -> None:
        """This Sentinel cannot be asked."""
        self._silent[by] = error
        if len(self._silent) == len(self._listening) and not self._deaf:
            self._deaf = True
            log.warning(
                "no Sentinel of %r tells this session which master it names (%s): after a planned failover, "
                "the session goes on with the old master until that refuses. It asks again and again",
                self.service,
                in_line(error),
            )
        self._asked(by)

    def _heard(self, by: Listening) -> None:
        self._silent.pop(by, None)
        if self._deaf:
            self._deaf = False
            log.warning("a Sentinel of %r tells this session again which master it names", self.service)

    def _asked(self, by: Listening) -> None:
        self._unasked.discard(by)
        if not self._unasked:
            self._follow()

    def _follow(self) -> None:
        newest = self._newest
        if newest is None:
            return
        newest = self._host or newest[0], newest[1]
        if newest != self._master:
            self._master, self._since = newest, self._loop.time()
            self._renamed(newest)

    def stop(self) -> None:
        """Hears no more."""
        for one in self._listening:
            one.stop()

    async def aclose(self) -> None:
        for one in self._listening:
            await one.aclose()


@final
class Listening(OnDemandTask):
    """Hears one Sentinel, over a connection like its client's; where that is not allowed, it asks."""

    __slots__ = ("_client", "_naming", "_pause")

    _task_name = "aiolocks-sentinel"

    def __init__(self, client: Any, loop: asyncio.AbstractEventLoop, naming: Naming) -> None:
        super().__init__(loop, lambda: True, partial(naming.unheard, self))
        self._client = client
        self._naming = naming
        self._pause = _AGAIN

    async def _work(self) -> None:
        while not self._closed:  # redis-py may swallow a cancellation while it connects, before Python 3.12
            try:
                await (self._hear() if drivable(self._client) else self._ask_by_client())
            except Exception as error:  # noqa: BLE001 - whatever it is, other Sentinels are asked, and this one again
                log.debug("hearing a Sentinel: %s", in_line(error))
                self._naming.unheard(self, error)
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, _AGAIN_MAXIMUM)

    def _questions(self) -> tuple[Words, Words]:
        service = self._naming.service
        # The epoch first: of an address that comes with an older epoch, the next answer tells.
        return ("SENTINEL", "MASTER", service), ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)

    async def _hear(self) -> None:
        raw = await RawConnection.open(self._client.connection_pool, protocol=2, named=False)
        if self._closed:
            raw.abort()
            return
        ended: asyncio.Future[None] = self._loop.create_future()
        ear = Ear(
            raw,
            self._loop,
            silence=STALL,
            pushed=self._pushed,
            refused=lambda _words, _error: None,
            ended=lambda: ended.set_result(None),
        )
        try:
            # In one write, so that nothing happens between the answers and the subscription: after that, a
            # connection with RESP2 cannot ask any more.
            subscriptions = [("SUBSCRIBE", _SWITCHED), ("SUBSCRIBE", _PROMOTED)]
            *answers, switched, promoted = ear.ask_together(*self._questions(), *subscriptions)
            self._naming.answered(self, *[await answer for answer in answers])
            tells = await _allowed(switched) and await _allowed(promoted)
            self._pause = _AGAIN
            while not ended.done():
                await asyncio.wait((ended,), timeout=_ASK_EVERY)
                if tells:
                    await ear.ask("PING")
                else:
                    answers = ear.ask_together(*self._questions())
                    self._naming.answered(self, *[await answer for answer in answers])
        finally:
            ear.close()

    def _pushed(self, push: list[Any]) -> None:
        _, channel, text = push
        self._naming.told(channel, text)

    async def _ask_by_client(self) -> None:
        """Its connections cannot be driven."""
        execute = Executor(self._client.connection_pool, self._loop)
        try:
            while not self._closed:
                about, address = self._questions()
                answers = [await execute(lambda: about), await execute(lambda: address)]  # noqa: B023
                self._naming.answered(self, *answers)
                self._pause = _AGAIN
                await asyncio.sleep(_ASK_EVERY)
        finally:
            await execute.aclose()

    def stop(self) -> None:
        """Ends it, without waiting for the end."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()


async def _allowed(subscription: asyncio.Future[Any]) -> bool:
    try:
        await subscription
    except AnsweredError:
        return False
    return True


@final
class _Door:
    """Stands for the client's pool, where one of its connections asks for the master.

    Args:
        pool: The client's.
        news: Gives the master that was named a moment ago.
        leads: Told of the address for each connection.
    """

    def __init__(
        self, pool: Any, news: Callable[[], Address | None], leads: Callable[[Address], object]
    ) -> None:
        self.connection_class = pool.connection_class
        self._leads = leads
        self._news = news
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    @property
    def connection_kwargs(self) -> dict[str, Any]:
        return {**self._pool.connection_kwargs, "connection_pool": self}

    async def get_master_address(self) -> Any:
        """The first Sentinel that answers may not have heard of the newest master."""
        address = self._news() or await self._pool.get_master_address()
        self._leads(address)
        return address

    def fits(self, connection: Any) -> bool:
        """Whether no other master was named than the one that this connection leads to."""
        return self._news() in (None, (connection.host, connection.port))


class _Connect(Protocol):
    def __call__(self, door: Any, open_raw: OpenRaw, /) -> Fallback:
        """Makes the transport over such connections."""
        ...


@final
class NamedMaster:
    """The transport to the master that Sentinel names.

    Invariant: when another server takes the place of the connected one, the session asks the new server for
    each of its leases at once, and sends each release of the last seconds again: the new server may have
    neither.

    Args:
        pool: The client's.
        connect: Makes the transport to one server, from its door and a function that opens a connection.
        on_rung: Told of bells that were rung, and of another master.
    """

    by_slot = False

    def __init__(
        self, pool: Any, loop: asyncio.AbstractEventLoop, connect: _Connect, on_rung: OnRung
    ) -> None:
        self._pool = pool
        self._loop = loop
        self._on_rung = on_rung
        self._naming: Naming | None = None  # while there is, or was, a connection
        self._closed = False
        self._server: Address | None = None  # that serves, or is to
        self._opened: list[RawConnection] = []
        self._door: Any = _Door(pool, self._news, self._leads)
        self._line = connect(self._door, self._open_raw)
        self._releases = Releases(
            loop, self.send, lambda _: self._server, lambda: (self._server,), partial(on_rung, "local")
        )
        self.prove, self.arm, self.ignore_bell = self._line.prove, self._line.arm, self._line.ignore_bell
        self.forget = self._line.forget

    @property
    def hears(self) -> bool:
        return self._line.hears

    @property
    def way(self) -> str:
        return self._line.way

    @property
    def outage_told(self) -> bool:
        return self._line.outage_told

    @property
    def commands_sent(self) -> int:
        return self._line.commands_sent

    def send(self, call: Request[Any], *, at_once: bool = False, corked: bool = False) -> None:
        if self._naming is None and not self._closed:
            self._naming = Naming(self._pool, self._loop, self._renamed)
        self._releases.follow(call)
        self._line.send(call, at_once=at_once, corked=corked)

    async def _open_raw(self, protocol: int, patience: float, named: bool) -> RawConnection:  # noqa: FBT001
        while True:
            raw = await RawConnection.open(self._door, protocol=protocol, patience=patience, named=named)
            if self._news() in (None, raw.server[:2]):
                break
            raw.abort()  # another master was named meanwhile: the door leads there from now on
        self._opened = [one for one in (*self._opened, raw) if not one.transport.is_closing()]
        return raw

    def _leads(self, server: Address) -> None:
        """A connection to this server is being made."""
        former, self._server = self._server, server
        if former not in (None, server):
            self._loop.call_soon(self._moved_on, context=empty_context())

    def _news(self) -> Address | None:
        return None if self._naming is None else self._naming.news

    def _renamed(self, master: Address) -> None:
        """Sentinel names this master, and no other one any more."""
        former, self._server = self._server, master
        if former in (None, master):
            return  # there is no connection yet, or it leads there
        log.info(
            "Sentinel names %s:%s the master of %r: this session leaves %s:%s",
            *master,
            getattr(self._pool, "service_name", ""),
            *former,
        )
        self._line.leave()
        for raw in self._opened:  # `_line` may not have one yet that was opened just now
            raw.abort()
        self._loop.call_soon(self._moved_on, context=empty_context())  # behind the end of the connection

    def _moved_on(self) -> None:
        self._releases.look()
        self._on_rung(ANOTHER_MASTER, None)

    def rest(self) -> bool:
        if not self._line.rest():
            return False
        if self._naming is not None:
            self._naming.stop()
            self._naming = None
        return True

    async def aclose(self, grace: float) -> None:
        try:
            await self._line.aclose(grace)
        finally:
            self._closed = True
            naming, self._naming = self._naming, None
            if naming is not None:
                naming.stop()
        if naming is not None:
            await naming.aclose()
