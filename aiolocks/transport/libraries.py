"""The client libraries that a session can drive: redis-py, and valkey-py, which began as a copy of it.

Both have the same classes and methods, each under names of its own. `library_of` finds the library from the
class of a client or of a connection; valkey-py is imported only where there is such a class.

The transport catches the errors of redis-py. So an error that concerns a client of valkey-py is made one of a
class that is derived from both libraries' (`Library.own`): the transport knows it, and the user finds an
error of the library that made the client as the cause of a `BackendError`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, Final, TypeVar, final

import redis.exceptions as driver

T = TypeVar("T")

_NAMES: Final = {"redis": "Redis", "valkey": "Valkey"}
"""The packages, and how each names its classes."""
_OF_REDIS: Final = (driver.RedisError, driver.RedisClusterException)


@final
class Library:
    """The classes of one library that the transport needs.

    Attributes:
        name: As it is called on the package index.
        client: Of one server.
        cluster: Of a cluster.
        blocking: The classes of clients that are not for asyncio.
        partial: The classes of what a client makes, which is no client itself.
        connection: The base of all connections.
        ssl_connection: The base of connections with TLS.
        own_connect: The library's own ways of making a connection.
        pool: The pool of connections.
        single_try: Makes the policy of a connection that tries everything once.
        for_command: The arguments by which a pool gives a connection: in some versions, a command's name.
        nameless: The arguments with which a connection says nothing of its client, by `CLIENT`.
    """

    def __init__(self, package: str) -> None:
        named = _NAMES[package]
        self._package = package
        self.name = f"{package}-py"
        blocking: Any = import_module(package)
        client: Any = import_module(f"{package}.asyncio.client")
        cluster: Any = import_module(f"{package}.asyncio.cluster")
        connection: Any = import_module(f"{package}.asyncio.connection")
        retry: Any = import_module(f"{package}.asyncio.retry")
        backoff: Any = import_module(f"{package}.backoff")
        self.client: Any = getattr(client, named)
        self.cluster: Any = getattr(cluster, f"{named}Cluster")
        self.blocking: tuple[Any, ...] = getattr(blocking, named), getattr(blocking, f"{named}Cluster")
        self.partial: tuple[Any, ...] = client.Pipeline, client.PubSub
        self.connection: Any = connection.AbstractConnection
        self.ssl_connection: Any = connection.SSLConnection
        self.own_connect = {connection.Connection._connect, connection.UnixDomainSocketConnection._connect}
        self.pool: Any = connection.ConnectionPool
        self.single_try: Callable[[], Any] = lambda: retry.Retry(backoff.NoBackoff(), 0)
        named_first = inspect.signature(self.pool.get_connection).parameters["command_name"]
        known = inspect.signature(self.connection.__init__).parameters
        says = ("driver_info",) if "driver_info" in known else ("lib_name", "lib_version")
        self.nameless: dict[str, None] = dict.fromkeys(("client_name", *says))
        self.for_command = ("EVALSHA",) if named_first.default is inspect.Parameter.empty else ()

    def is_client(self, client: object) -> bool:
        """Whether it is a client for asyncio, of one server or of a cluster."""
        return isinstance(client, (self.client, self.cluster)) and not isinstance(client, self.partial)

    def own(self, error: Exception) -> Exception:
        """The same error, of a class that is derived from this library's and from redis-py's.

        An error of neither library is returned as it is.
        """
        if self._package == "redis" or (both := _both(type(error), self._package)) is type(error):
            return error
        made = both.__new__(both, *error.args)
        vars(made).update(vars(error))
        return made

    @contextmanager
    def errors(self) -> Generator[None, None, None]:
        """Makes errors that the library raises in this scope errors of redis-py too."""
        try:
            yield
        except Exception as error:
            if (own := self.own(error)) is error:
                raise
            raise own from error.__cause__

    async def attempt(self, attempt: Coroutine[Any, Any, T]) -> T:
        """The same for what is awaited."""
        with self.errors():
            return await attempt


_made: Final[dict[tuple[Any, str], type[Exception]]] = {}
"""The classes that `_both` has made."""


def _both(cls: type[Exception], package: str) -> type[Exception]:
    """The class for errors of `cls`; itself where it is of no library, or of both."""
    if (known := _made.get((cls, package))) is not None:
        return known
    errors = import_module(f"{package}.exceptions")
    named = _NAMES[package]
    theirs = (getattr(errors, f"{named}Error"), getattr(errors, f"{named}ClusterException"))
    of_redis, is_theirs = issubclass(cls, _OF_REDIS), issubclass(cls, theirs)
    if of_redis == is_theirs:
        return cls
    other, names = (errors, ("Redis", named)) if of_redis else (driver, (named, "Redis"))
    # The base of each tree has a counterpart, so one is found.
    counterpart = next(
        found
        for base in cls.__mro__
        if isinstance(found := getattr(other, base.__name__.replace(*names), None), type)
    )
    # The `__repr__` of redis-py shows less, and reads an attribute that an error of valkey-py does not have.
    members = {"__module__": cls.__module__, "__repr__": BaseException.__repr__}
    return _made.setdefault((cls, package), type(cls.__name__, (cls, counterpart), members))


@cache
def _library(package: str) -> Library:
    return Library(package)


REDIS: Final = _library("redis")


def library_of(cls: type) -> Library | None:
    """The library that a class, or one of its bases, is from; None for any other class."""
    packages = (base.__module__.partition(".")[0] for base in cls.__mro__)
    found = next((package for package in packages if package in _NAMES), None)
    return None if found is None else _library(found)
