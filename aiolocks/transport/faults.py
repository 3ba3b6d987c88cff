"""The one seam at which the driver's errors become the library's."""

from __future__ import annotations

import copy
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, final

import redis.exceptions as driver

from ..errors import BackendError, ConfigurationError, LockError, SessionClosedError

# The server is there and may serve the same request a moment later.
_TRANSIENT: Final = {
    "ASK": "the slot is being moved to another node",
    "BUSY": "a script has been running for too long on it",
    "CLUSTERDOWN": "its cluster has no majority",
    "KILLED": "the script was killed by an administrator",
    "LOADING": "it is loading its data",
    "MAXCLIENTS": "it has as many clients as it allows (maxclients)",
    "MASTERDOWN": "it is a replica that has lost its master",
    "MISCONF": "it cannot persist its data and refuses writes",
    "NOREPLICAS": "it has fewer replicas than min-replicas-to-write",
    "READONLY": "it is a replica: the master has changed",
    "TRYAGAIN": "the slot is being moved to another node",
    "UNBLOCKED": "its role has changed",
    "UNKILLABLE": "a script that cannot be killed is running on it",
}
_FOREIGN: Final = (
    "the key holds something that aiolocks did not write: delete this key with DEL, or give aiolocks a "
    "prefix of its own"
)
# It may pass, and it may last: a waiter for a lock is told at once, and what goes on by itself goes on.
_LASTING: Final = {
    "CROWDED": "so many steps of this name came in a short time that it remembers no more of them, and one "
    "that is sent again would count twice: ask again in some seconds, or count several steps at once",
    "OOM": "it is out of memory (maxmemory)",
}
# The same request would be refused again: the caller is told at once.
_FATAL: Final = {
    "CROSSSLOT": "it is a node of a cluster: give a redis.asyncio.RedisCluster, not a Redis",
    "MOVED": "it is a node of a cluster: give a redis.asyncio.RedisCluster, not a Redis",
    "NOAUTH": "it wants a password: give the client its credentials",
    "NOCLUSTER": "it is not a node of a cluster: give a redis.asyncio.Redis, not a RedisCluster",
    "NOPERM": "this user may not do it: see the minimal ACL in the documentation",
    "WRONGPASS": "the user name or the password is wrong",
    "FOREIGN": _FOREIGN,
    "WRONGTYPE": _FOREIGN,
}
# Of these, some are the end of one request, and no state of the server.
_STATES: Final = (_TRANSIENT.keys() | _LASTING.keys()) - {"ASK", "CROWDED", "KILLED", "TRYAGAIN", "UNBLOCKED"}
_KNOWN: Final = _TRANSIENT | _LASTING | _FATAL
# Inside a script the code is not the first word; 6.2 also puts a dash before it.
_CODE: Final = re.compile(r"(?<![A-Z])(" + "|".join(_KNOWN) + r")\b")
# The error of a script for a value that has not our form: it names the key by its number.
_FOREIGN_KEY: Final = re.compile(r"FOREIGN (\d+)")
# An unknown or refused command is quoted with its first arguments, and tokens are among them.
_QUOTED_ARGUMENTS: Final = re.compile(r",? with args beginning with.*", re.DOTALL)
# How Redis 6.2, 7 and Valkey 9 word a denial of what a script calls.
_INNER_DENIAL: Final = re.compile(
    r"can't run this command or subcommand|can't access at least one of the keys|ACL failure in script"
)
# The texts of NOAUTH, where redis-py has taken its code away and kept it nowhere (before version 6.4).
_NO_CREDENTIALS: Final = re.compile(r"Authentication required|HELLO must be called with")
# With more words behind it in a cluster; for the text alone, redis-py has a connection error.
_TOO_MANY: Final = "max number of clients"
# The errors of a script that begins on a key that the node has, and goes on to a key that it has not.
_HALF_WAY: Final = re.compile(r"non local key|while the cluster is down")
_CODES: Final = (
    (driver.TryAgainError, "TRYAGAIN"),
    (driver.MasterDownError, "MASTERDOWN"),  # before its base class
    (driver.ClusterDownError, "CLUSTERDOWN"),
    (driver.BusyLoadingError, "LOADING"),
    (driver.ReadOnlyError, "READONLY"),
    (driver.MovedError, "MOVED"),
    (driver.AskError, "ASK"),  # after its subclass
    (driver.ClusterCrossSlotError, "CROSSSLOT"),
)
# Of these, some are connection errors in redis-py; all were sent by the server.
_ANSWERS: Final = (
    driver.AuthenticationError,
    driver.AuthorizationError,
    driver.BusyLoadingError,
    driver.ResponseError,
)


_EXPIRED: Final = 10
"""X509_V_ERR_CERT_HAS_EXPIRED, as OpenSSL counts."""
_GOES_ON: Final = "_goes_on"
"""Among the attributes of an error that is not transient: it may pass all the same."""

NAMELESS: Final = "?"
"""As nodes of a cluster call one that is to be reached by a name which they do not know."""
CONNECTING: Final = (driver.RedisError, OSError, TimeoutError)
"""The errors of an attempt to connect, and of questions on a connection that is only being made."""


@final
class TlsMismatchError(driver.ConnectionError):
    """Of client and server, only one speaks TLS."""


@final
class ClosedBehindError(driver.ConnectionError):
    """The connection has ended right behind a question that the library asks beside what is needed.

    Attributes:
        question: The first words of it.
    """

    def __init__(self, question: str) -> None:
        super().__init__(f"the server closes the connection on {question}")
        self.question = question


class UnusableNodeError(driver.ConnectionError):
    """A node of a cluster answers, and must not be used."""


@final
class NamelessError(UnusableNodeError):
    """The nodes of a cluster are to be reached by names that they do not have yet."""

    def __init__(self) -> None:
        super().__init__(
            "the nodes of the cluster have no names yet: set cluster-announce-hostname on each of them, or "
            "cluster-preferred-endpoint-type to ip"
        )


@final
class NoSlotsError(driver.ClusterDownError):
    """No node of a cluster serves any slot."""


@final
@dataclass(frozen=True, slots=True)
class Fault:
    """How a call ended without a reply.

    Attributes:
        error: The error to raise to the user.
        transient: The same request may succeed later, and what goes on by itself goes on: a renewal, a
            release, a candidate, an observer, a schedule. A task that sees only the error asks `goes_on`.
        lasting: It is transient, and may last: a waiter for a lock is told at once.
        demoted: The connection leads to a server that is no longer the master.
        unknown: The server may have executed the request, or may do so yet.
        foreign: The key holds something that aiolocks did not write.
        state: The server is in a state in which it refuses more than this request.
    """

    error: LockError
    transient: bool
    lasting: bool = False
    demoted: bool = False
    unknown: bool = True
    foreign: bool = False
    state: bool = False

    @property
    def passing(self) -> bool:
        """Whether a waiter for a lock waits for its end."""
        return self.transient and not self.lasting


def again(fault: Fault) -> Fault:
    """The same fault of another call, with an error of its own: each caller adds notes to its error."""
    error = copy.copy(fault.error)
    error.__cause__ = fault.error.__cause__
    return replace(fault, error=error)


def failed(text: str, cause: BaseException | None, *, transient: bool, **more: bool) -> Fault:
    """A fault whose error says the same of its end as the fault does."""
    error = BackendError(text)
    error.__cause__ = cause
    error.transient = transient
    return Fault(error, transient=transient, **more)


def refused(error: Exception, keys: tuple[bytes, ...] = ()) -> Fault:
    """The server answered with an error."""
    text = words_of(error)
    code = _code_of(error, text)
    meaning = _KNOWN.get(code)
    # Of a wrong type, the server does not say which key has it; most scripts do.
    named = keys if code == "WRONGTYPE" else keys[:1]
    if code == "FOREIGN" and (number := _FOREIGN_KEY.search(text)) is not None:
        named = keys[int(number[1]) - 1 : int(number[1])]
    of_key = " for key " + " or ".join(repr(key.decode(errors="replace")) for key in named)
    of_key = of_key if keys and code not in _TRANSIENT and code in _KNOWN else ""
    # A redirect says no more than a slot and an address.
    whole = f"{code} {text}" if isinstance(error, driver.AskError) else text
    said = f"{meaning} ({whole})" if meaning else text
    return failed(
        f"Redis refused{of_key}: {said}",
        error if text == str(error) else driver.ResponseError(text),
        transient=code in _TRANSIENT or code in _LASTING,
        lasting=code in _LASTING,
        demoted=code in ("READONLY", "MASTERDOWN"),
        unknown=False,
        foreign=code in ("FOREIGN", "WRONGTYPE"),
        state=code in _STATES,
    )


def words_of(error: Exception) -> str:
    """What the server said, without the arguments that it quotes."""
    return _QUOTED_ARGUMENTS.sub("", str(error))


def _code_of(error: Exception, text: str) -> str:
    # redis-py strips the code from some errors and keeps it beside the text.
    code = str(getattr(error, "status_code", None) or "")
    if code not in _KNOWN:
        found = _CODE.search(text)
        code = found[1] if found else ""
    if isinstance(error, driver.AuthenticationError):
        code = code or ("NOAUTH" if _NO_CREDENTIALS.search(text) else "WRONGPASS")
    elif isinstance(error, driver.NoPermissionError) or _INNER_DENIAL.search(text):
        code = "NOPERM"
    elif "Protocol error: unauthenticated" in text:
        code = "NOAUTH"  # as it says to long requests
    elif "killed by user" in text:
        code = "KILLED"
    elif isinstance(error, driver.OutOfMemoryError):
        code = "OOM"
    elif _HALF_WAY.search(text):
        code = "TRYAGAIN"
    elif _TOO_MANY in text:
        code = "MAXCLIENTS"
    elif "cluster support disabled" in text:
        code = "NOCLUSTER"
    else:
        code = code or _code_of_class(error)
    return code


def refuses_hello(error: Exception, *, with_credentials: bool) -> bool:
    """Whether an error that answers `HELLO 3` is about RESP3, and not about who asks, or about now."""
    text = words_of(error)
    code = _code_of(error, text)
    if code == "NOAUTH":  # of a proxy that takes credentials by AUTH only, where they came with HELLO
        return with_credentials
    if code == "WRONGPASS" or code in _TRANSIENT or code in _LASTING:
        return False
    return not text.startswith("DENIED")  # before anything was read: the server is in protected mode


def _code_of_class(error: Exception) -> str:
    return next((code for cls, code in _CODES if isinstance(error, cls)), "")


@final
@dataclass(frozen=True, slots=True)
class Redirect:
    """A node of a cluster did not execute a request: another one does, or it does so later.

    Attributes:
        to: Host and port of the other one; None: to be tried again.
        once: The other one has it for this request only.
        begun: A part of it may have been executed.
        lost: It is not known who serves the slot.
        nameless: The other one has no name yet, by which it could be reached.
    """

    to: tuple[str, int] | None = None
    once: bool = False
    begun: bool = False
    lost: bool = False
    nameless: bool = False

    @property
    def mid_move(self) -> bool:
        """Whether the slot is being moved to another node."""
        return self.once or (self.to is None and not self.lost)


def redirect(error: Exception) -> Redirect | None:
    """The node or the time for which a request must wait, as a node's answer says; None for any other."""
    if isinstance(error, driver.AskError):
        if error.host == NAMELESS:
            return Redirect(lost=True, nameless=True)
        return Redirect((error.host, error.port), once=not isinstance(error, driver.MovedError))
    if isinstance(error, driver.TryAgainError):
        return Redirect()
    if isinstance(error, (driver.ClusterDownError, driver.MasterDownError, driver.BusyLoadingError)):
        return Redirect(lost=True)
    if _HALF_WAY.search(str(error)):
        return Redirect(begun=True)
    return None


def unreachable(error: BaseException) -> Fault:
    """No connection, or it broke."""
    agree = _disagreement(error) is None
    if agree:
        # Its text says all: the frames of the driver, and of the error of the system that it has come from,
        # would be three tracebacks for one server that is not there.
        error.__traceback__, error.__suppress_context__ = None, True
    return failed(f"Redis cannot be reached: {_said(error)}", error, transient=agree)


def withdrawn(fault: Fault) -> Fault:
    """The same fault at a server that accepted the same from this client before: a password, a certificate.

    An operator is changing it, and it will be right when both sides have the new one. A waiter for a lock is
    told at once all the same. Where a certificate has expired, the waiter is told that a person must act.
    """
    error = fault.error
    if fault.transient or not isinstance(error, BackendError):
        return fault
    error.transient = not any(_has_expired(link) for link in chain(error))
    vars(error)[_GOES_ON] = True
    return replace(fault, transient=True, lasting=True)


def goes_on(error: BackendError) -> bool:
    """Whether what goes on by itself asks again: candidates, observers, workers."""
    return error.transient or _GOES_ON in vars(error)


def _has_expired(error: BaseException) -> bool:
    return isinstance(error, ssl.SSLCertVerificationError) and error.verify_code == _EXPIRED


def nameless() -> Fault:
    """A node of a cluster has named no address of the one that serves a slot."""
    return unreachable(NamelessError())


def session_closed() -> Fault:
    """The end of a question to a session that is closed: no outage, so that no task asks again."""
    return Fault(SessionClosedError("the session is closed"), transient=False)


def unanswered(trouble: BaseException | None) -> Fault:
    """Nothing came back within the time that the caller had; `trouble` is what is known of why."""
    because = f": {_said(trouble)}" if trouble is not None else ""
    return failed(f"Redis did not answer in time{because}", trouble, transient=True)


SILENCE: Final = 0.1
"""Seconds without an answer that are no silence yet."""


def too_soon(error: LockError, patience: float) -> bool:
    """Whether a request ended so soon that its end says nothing of a server of which nothing else is known.

    Args:
        error: Of the request; that of `unanswered` has a cause where something is known.
        patience: Seconds that it had.
    """
    unanswered = isinstance(error, BackendError) and error.transient and error.__cause__ is None
    return unanswered and patience < SILENCE


def hung_up(size: int, times: int, error: BaseException | None, *, long: bool) -> Fault:
    """The server has closed each connection on which this request was on its way, and no other."""
    return failed(
        f"Redis closed {times} connections in a row while only this request was on its way, of {size} bytes: "
        "that may be more than its client-query-buffer-limit or proto-max-bulk-len",
        error,
        # No limit is that low: the server, or what stands before it, goes down again and again.
        transient=not long,
        lasting=True,
    )


def unreadable(error: Exception) -> Fault:
    """A reply came that no script of ours gives, as from a proxy that speaks another dialect."""
    return failed("Redis gave a reply that cannot be understood", error, transient=False)


def is_silence(error: BaseException | None) -> bool:
    """Whether nothing came back, so that it is not known what is the matter."""
    return isinstance(error, (TimeoutError, driver.TimeoutError))


def is_final(error: BaseException) -> bool:
    """Whether connecting again would fail in the same way (credentials, certificates, TLS, database)."""
    if _disagreement(error) is not None:
        return True
    answer = _answer(error)
    return answer is not None and not refused(answer).transient


def of_driver(error: BaseException, keys: tuple[bytes, ...] = ()) -> Fault:
    """Any error that a call of the driver's client, or connecting, raised."""
    if isinstance(error, ConfigurationError):
        return Fault(ConfigurationError(str(error)), transient=False, unknown=False)
    if (answer := _answer(error)) is not None:
        return refused(answer, keys)
    if isinstance(error, (driver.ConnectionError, driver.TimeoutError, OSError)):
        return unreachable(error)
    return failed(
        f"the Redis client failed: {_said(error)}",
        error,
        # The topology may be known again in a moment; a slot that is being moved sends redis-py to and fro.
        transient=isinstance(error, (driver.RedisClusterException, driver.ClusterError)),
    )


def _answer(error: BaseException) -> Exception | None:
    """The error that the server answered with, if it was one: some ways of connecting wrap it in another."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, _ANSWERS):
            return link
        link = link.__cause__
    return None


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what caused it, what caused that, and so on."""
    seen: set[int] = set()
    # A stream raises the same error again and again, also from what it has caused itself.
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _disagreement(error: BaseException) -> BaseException | None:
    """The error because of which client and server do not agree on TLS, or on a certificate."""
    of_tls = (ssl.SSLCertVerificationError, TlsMismatchError)
    return next((link for link in chain(error) if isinstance(link, of_tls)), None)


def _said(error: BaseException) -> str:
    said = str(error).rstrip(".") or type(error).__name__
    disagreement = _disagreement(error)
    if disagreement is None or str(disagreement) in said:
        return said
    return f"{said}: {disagreement}"  # redis-py before version 6 says that there was an error, and no more
