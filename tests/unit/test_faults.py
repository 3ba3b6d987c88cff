"""Every server's errors, word for word, become the right fault: to be tried again, or told at once."""

from __future__ import annotations

import asyncio
import ssl

import pytest
import redis.exceptions as driver

from aiolocks import BackendError
from aiolocks.transport import faults
from aiolocks.transport.replies import Replies, error_of

KEYS = (b"aiolocks:lock:{n}", b"aiolocks:lock.fence:{n}")
SHA = "54e326db3931fb63747c7aa9948eb6f30a449911"
TOKEN = "ab" * 16

# How a server wraps what went wrong inside a script.
REDIS_6_2 = "ERR Error running script (call to f_" + SHA + "): @user_script:31: @user_script: 31: {}"
REDIS_7 = "{} script: " + SHA + ", on @user_script:31."
VALKEY_9 = "{} script: on @user_script:31."

OOM = "OOM command not allowed when used memory > 'maxmemory'."
READONLY = "READONLY You can't write against a read only replica."
NOREPLICAS = "NOREPLICAS Not enough good replicas to write."
WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
MASTERDOWN = "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."
BUSY = "BUSY {} is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
MISCONF = (
    "MISCONF {0} is configured to save RDB snapshots, but {1} to persist {2} disk. Commands that may modify "
    "the data set are disabled, because this instance is configured to report errors during writes if RDB "
    "snapshotting fails (stop-writes-on-bgsave-error option). Please check the {0} logs for details about "
    "the RDB error."
)
MISCONF_6_2 = MISCONF.format("Redis", "it is currently not able", "on")
MISCONF_7 = MISCONF.format("Redis", "it's currently unable", "to")
MISCONF_VALKEY = MISCONF.format("Valkey", "it's currently unable", "to")
DENIED_COMMAND = "The user executing the script can't run this command or subcommand"
DENIED_KEY = (
    "The user executing the script can't access at least one of the keys mentioned in the command arguments"
)
VALKEY_DENIED_COMMAND = "User u has no permissions to run the 'time' command"
NO_HELLO = (
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH "
    "<user> <pass> option can be used to authenticate the client and select the RESP protocol version at the "
    "same time"
)


def read(text: str) -> Exception:
    """The exception that a connection makes of a server's error reply."""
    return error_of(text)


def everywhere(text: str) -> list[str]:
    """The same error outside of a script, and from inside one on each server."""
    return [text, REDIS_6_2.format(f"-{text}"), REDIS_7.format(text), VALKEY_9.format(text)]


TRANSIENT = [
    *everywhere(READONLY),
    *everywhere(NOREPLICAS),
    MISCONF_6_2,
    REDIS_6_2.format(f"-{MISCONF_6_2}"),
    MISCONF_7,
    REDIS_7.format(MISCONF_7),
    MISCONF_VALKEY,
    VALKEY_9.format(MISCONF_VALKEY),
    MASTERDOWN,
    BUSY.format("Redis"),
    BUSY.format("Valkey"),
    "LOADING Redis is loading the dataset in memory",
    "LOADING Valkey is loading the dataset in memory",
    "CLUSTERDOWN The cluster is down",
    "CLUSTERDOWN Hash slot not served",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
]
FATAL = [
    *((text, "something that aiolocks did not write") for text in everywhere(WRONGTYPE)),
    (REDIS_6_2.format(WRONGTYPE), "something that aiolocks did not write"),  # really without the dash
    ("NOAUTH Authentication required.", "credentials"),
    ("Protocol error: unauthenticated multibulk length", "credentials"),
    ("Protocol error: unauthenticated bulk length", "credentials"),
    (NO_HELLO, "credentials"),
    ("WRONGPASS invalid username-password pair or user is disabled.", "password is wrong"),
    ("ERR invalid password", "password is wrong"),
    # Not allowed: the request itself.
    ("NOPERM this user has no permissions to run the 'evalsha' command or its subcommand", "minimal ACL"),
    ("NOPERM this user has no permissions to run the 'evalsha' command", "minimal ACL"),
    ("NOPERM User u has no permissions to run the 'evalsha' command", "minimal ACL"),
    ("NOPERM this user has no permissions to access one of the keys used as arguments", "minimal ACL"),
    ("NOPERM No permissions to access a key", "minimal ACL"),
    # Not allowed: what the script does.
    (REDIS_6_2.format(DENIED_COMMAND), "minimal ACL"),
    (REDIS_6_2.format(DENIED_KEY), "minimal ACL"),
    (REDIS_7.format(f"ERR {DENIED_COMMAND}"), "minimal ACL"),
    (REDIS_7.format(f"ERR {DENIED_KEY}"), "minimal ACL"),
    (VALKEY_9.format(f"ERR ACL failure in script: {VALKEY_DENIED_COMMAND}"), "minimal ACL"),
    (VALKEY_9.format("ERR ACL failure in script: No permissions to access a key"), "minimal ACL"),
    # The wrong one of the two clients.
    ("CROSSSLOT Keys in request don't hash to the same slot", "give a redis.asyncio.RedisCluster"),
    ("ERR This instance has cluster support disabled", "give a redis.asyncio.Redis, not a RedisCluster"),
]
MOVED = "MOVED 3999 127.0.0.1:6381"
UNKNOWN = [
    "ERR unknown command 'FOO', with args beginning with: 'a' 'b' ",
    "ERR Error compiling script (new function): user_script:1: unexpected symbol near '<eof>'",
    VALKEY_9.format("ERR user_script:1: attempt to concatenate a nil value"),
]


NON_LOCAL = "Script attempted to access a non local key in a cluster node"
REDIRECTS = [
    ("MOVED 3999 127.0.0.1:6381", faults.Redirect(("127.0.0.1", 6381))),
    ("MOVED 3999 :6381", faults.Redirect(("", 6381))),
    ("MOVED 3999 ::1:6381", faults.Redirect(("::1", 6381))),
    ("ASK 3999 node.example:6381", faults.Redirect(("node.example", 6381), once=True)),
    ("TRYAGAIN Multiple keys request during rehashing of slot", faults.Redirect()),
    ("CLUSTERDOWN The cluster is down", faults.Redirect(lost=True)),
    ("CLUSTERDOWN Hash slot not served", faults.Redirect(lost=True)),
    (
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        faults.Redirect(lost=True),
    ),
    ("LOADING Redis is loading the dataset in memory", faults.Redirect(lost=True)),
    (REDIS_6_2.format(f"Lua {NON_LOCAL[0].lower()}{NON_LOCAL[1:]}"), faults.Redirect(begun=True)),
    (REDIS_7.format(f"ERR {NON_LOCAL}"), faults.Redirect(begun=True)),
    (VALKEY_9.format(f"ERR {NON_LOCAL}"), faults.Redirect(begun=True)),
    (
        VALKEY_9.format("ERR Script attempted execution while the cluster is down"),
        faults.Redirect(begun=True),
    ),
]


@pytest.mark.parametrize(("text", "redirect"), REDIRECTS)
def test_a_node_says_where_else_or_when(text, redirect) -> None:
    assert faults.redirect(read(text)) == redirect


@pytest.mark.parametrize(("text", "_"), [pair for pair in REDIRECTS if pair[1].to is None])
def test_what_is_turned_away_for_now_may_be_served_a_moment_later(text, _) -> None:
    assert faults.refused(read(text), KEYS).transient


@pytest.mark.parametrize("text", [text for text, _ in FATAL])
def test_other_answers_lead_nowhere_else(text) -> None:
    assert faults.redirect(read(text)) is None


@pytest.mark.parametrize("text", TRANSIENT)
def test_a_server_that_may_serve_a_moment_later_is_asked_again(text) -> None:
    fault = faults.refused(read(text), KEYS)

    assert fault.transient
    assert not fault.unknown


@pytest.mark.parametrize("text", everywhere(OOM))
def test_what_may_pass_and_may_last_is_told_to_waiters_only(text) -> None:
    fault = faults.refused(read(text), KEYS)

    assert fault.transient
    assert fault.lasting
    assert not fault.passing
    assert not fault.unknown
    assert "'aiolocks:lock:{n}'" in str(fault.error)
    assert "maxmemory" in str(fault.error)


@pytest.mark.parametrize(
    "error",
    [*map(read, TRANSIENT), read(OOM), *(read(text) for text, _ in FATAL), *map(read, UNKNOWN)],
    ids=str,
)
def test_the_error_says_the_same_as_the_fault(error) -> None:
    fault = faults.refused(error, KEYS)

    assert fault.error.transient == fault.transient  # type: ignore[attr-defined]


@pytest.mark.parametrize(("text", "hint"), [*FATAL, (MOVED, "give a redis.asyncio.RedisCluster")])
def test_what_would_be_refused_again_is_told_at_once(text, hint) -> None:
    fault = faults.refused(read(text), KEYS)

    assert not fault.transient
    assert not fault.unknown
    assert hint in str(fault.error)
    assert "'aiolocks:lock:{n}'" in str(fault.error)


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_is_not_known_is_told_at_once_in_the_servers_words(text) -> None:
    fault = faults.refused(read(text), KEYS)

    assert not fault.transient
    assert text.split(":")[0].split(" ", 1)[1].partition(", with args")[0] in str(fault.error)


@pytest.mark.parametrize("text", [*everywhere(READONLY), MASTERDOWN])
def test_a_replica_is_not_asked_again_on_this_connection(text) -> None:
    assert faults.refused(read(text)).demoted


@pytest.mark.parametrize("text", [*everywhere(WRONGTYPE), REDIS_6_2.format(WRONGTYPE)])
def test_another_type_of_key_was_written_by_others(text) -> None:
    assert faults.refused(read(text)).foreign


@pytest.mark.parametrize("text", [READONLY, OOM, *UNKNOWN])
def test_other_refusals_say_nothing_of_the_key(text) -> None:
    assert not faults.refused(read(text)).foreign


@pytest.mark.parametrize("text", [NOREPLICAS, OOM, BUSY.format("Redis"), MISCONF_7])
def test_a_master_in_trouble_is_still_the_master(text) -> None:
    assert not faults.refused(read(text)).demoted


@pytest.mark.parametrize("error", [*map(read, TRANSIENT), *(read(text) for text, _ in FATAL)], ids=str)
def test_the_drivers_error_is_the_cause(error) -> None:
    fault = faults.refused(error, KEYS)

    assert isinstance(fault.error, BackendError)
    assert fault.error.__cause__ is error


@pytest.mark.parametrize(
    "text",
    [
        f"ERR unknown command 'EVALSHA', with args beginning with: '{SHA}' '2' '{TOKEN}' ",  # Redis 7, Valkey
        f"ERR unknown command `EVALSHA`, with args beginning with: `{SHA}`, `2`, `{TOKEN}`, ",  # Redis 6.2
        f"ERR unknown command 'EVAL', with args beginning with: 'a\nb' '{TOKEN}' ",
    ],
)
def test_quoted_arguments_do_not_leak_a_token(text) -> None:
    error = faults.refused(read(text), KEYS).error

    assert TOKEN not in str(error)
    assert TOKEN not in str(error.__cause__)
    assert "unknown command" in str(error)


def test_a_word_that_only_looks_like_a_code_is_none() -> None:
    fault = faults.refused(driver.ResponseError("ERR MYBUSY BUSYGROUP READONLYISH are no codes"))

    assert not fault.transient
    assert not fault.demoted


@pytest.mark.parametrize(
    "error",
    [
        driver.ConnectionError("Connection closed by server."),
        driver.TimeoutError("Timeout reading from socket"),
        ConnectionResetError(104, "Connection reset by peer"),
        asyncio.IncompleteReadError(b"", 1),
        TimeoutError(),
    ],
    ids=repr,
)
def test_a_broken_connection_leaves_it_open_whether_the_request_was_executed(error) -> None:
    fault = faults.unreachable(error)

    assert fault.transient
    assert fault.unknown
    assert str(fault.error).startswith("Redis cannot be reached: ")
    assert fault.error.__cause__ is error


def test_silence_says_why() -> None:
    trouble = driver.ConnectionError("Connection refused.")
    fault = faults.unanswered(trouble)

    assert str(fault.error) == "Redis did not answer in time: Connection refused"
    assert fault.error.__cause__ is trouble
    assert fault.transient
    assert fault.unknown


def test_a_reply_that_is_none_of_ours_may_still_have_changed_something() -> None:
    fault = faults.unreadable(ValueError("x"))

    assert not fault.transient
    assert not fault.error.transient  # type: ignore[attr-defined]
    assert fault.unknown


@pytest.mark.parametrize(
    ("error", "transient", "unknown"),
    [
        (driver.ConnectionError("closed"), True, True),
        (driver.TimeoutError("slow"), True, True),
        (OSError(113, "No route to host"), True, True),
        (driver.BusyLoadingError("Redis is loading the dataset in memory"), True, False),
        (driver.AuthenticationError("invalid password"), False, False),
        (driver.ReadOnlyError("You can't write against a read only replica."), True, False),
        (driver.OutOfMemoryError("command not allowed"), True, False),
        (driver.NoPermissionError("this user has no permissions"), False, False),
        (driver.RedisClusterException("not all slots are covered"), True, True),
        (
            driver.ClusterError("TTL exhausted."),
            True,
            True,
        ),  # a slot that moves: sent to and fro for too long
        (ZeroDivisionError("a bug in a client"), False, True),
    ],
    ids=repr,
)
def test_whatever_a_client_raises_is_mapped(error, transient, unknown) -> None:
    fault = faults.of_driver(error, KEYS)

    assert (fault.transient, fault.unknown) == (transient, unknown)
    assert isinstance(fault.error, BackendError)
    assert fault.error.__cause__ is error
    assert fault.error.transient == transient


def wrapped(error: Exception) -> Exception:
    """As some ways of connecting do."""
    outer = driver.ConnectionError(f"connecting: {error}")
    outer.__cause__ = error
    return outer


def test_what_the_server_answered_is_found_inside_of_what_the_driver_made_of_it() -> None:
    fault = faults.of_driver(wrapped(read("NOAUTH Authentication required.")), KEYS)

    assert "credentials" in str(fault.error)
    assert not fault.transient
    assert faults.is_final(wrapped(read("NOAUTH Authentication required.")))
    assert not faults.is_final(wrapped(read("LOADING Redis is loading the dataset in memory")))


def certificate_refused() -> Exception:
    error = driver.ConnectionError("Error 1 connecting to localhost:6379.")
    error.__cause__ = ssl.SSLCertVerificationError("self-signed certificate")
    return error


@pytest.mark.parametrize(
    "error",
    [
        driver.AuthenticationError("invalid username-password pair"),
        driver.NoPermissionError("this user has no permissions to run the 'select' command"),
        driver.ResponseError("DB index is out of range"),
        certificate_refused(),
    ],
    ids=repr,
)
def test_there_is_no_use_in_connecting_again(error) -> None:
    assert faults.is_final(error)


@pytest.mark.parametrize(
    "error",
    [
        driver.ConnectionError("Connection refused"),
        driver.ConnectionError("max number of clients reached"),
        driver.BusyLoadingError("Redis is loading the dataset in memory"),
        read(MASTERDOWN),
        read(BUSY.format("Redis")),
        OSError(111, "Connection refused"),
        TimeoutError(),
    ],
    ids=lambda error: f"{error!r} {error}",
)
def test_connecting_again_may_help(error) -> None:
    assert not faults.is_final(error)


@pytest.mark.parametrize(
    "redirect", ["MOVED", "MOVED 1", "MOVED 1 nowhere", "ASK x 1.2.3.4:5", "ASK 1 2 3:4"]
)
def test_a_redirect_that_cannot_be_read_is_an_answer(redirect: str) -> None:
    """Of a server that lies, or of a proxy: the reader would raise in the middle of receiving."""
    error, after = Replies().read(f"-{redirect}\r\n+OK\r\n".encode())
    assert isinstance(error, driver.ResponseError)
    assert faults.redirect(error) is None
    fault = faults.refused(error, KEYS)
    assert not fault.transient
    assert "a redirect that cannot be read" in str(fault.error)
    assert after == b"OK"


def test_a_redirect_for_once_says_what_it_is() -> None:
    fault = faults.refused(read("ASK 5798 127.0.0.1:7002"), KEYS)
    assert fault.transient
    assert str(fault.error).endswith("the slot is being moved to another node (ASK 5798 127.0.0.1:7002)")


@pytest.mark.parametrize("long", [True, False])
def test_a_short_request_is_not_why_connections_are_closed(*, long: bool) -> None:
    fault = faults.hung_up(100, 2, None, long=long)

    assert fault.transient is not long
    assert not fault.passing


def test_what_was_accepted_before_may_be_accepted_again() -> None:
    fault = faults.withdrawn(faults.of_driver(driver.AuthenticationError("invalid password"), KEYS))

    assert fault.transient
    assert not fault.passing
    assert fault.error.transient  # type: ignore[attr-defined]
