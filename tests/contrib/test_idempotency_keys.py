"""The header, the table of the draft, and the record, without any server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from aiolocks.contrib.idempotency import IdempotencyMiddleware
from aiolocks.contrib.idempotency import _problems as problems
from aiolocks.contrib.idempotency._content import chosen, content_of
from aiolocks.contrib.idempotency._keys import LONGEST, fingerprint_of, name_of, parsed
from aiolocks.contrib.idempotency._problems import Problem
from aiolocks.contrib.idempotency._record import RECORDS, Record, Unkept
from tests.support import examples  # noqa: F401 - for its effect


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ('"8e03978e-40d5-43dd-bc93-6894a57f9324"', "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        ("8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        (' "a b" ', "a b"),
        (r'"a\"b\\c"', 'a"b\\c'),
        ('"abc";version=1', "abc"),
        ("a/b:c=", "a/b:c="),
        (f'"{"x" * LONGEST}"', "x" * LONGEST),
    ],
)
def test_a_key_is_a_string_with_or_without_quotation_marks(value: str, key: str) -> None:
    assert parsed([value]) == key


@pytest.mark.parametrize(
    "value",
    [
        '""',
        "",
        " ",
        '"abc',
        'abc"',
        r'"a\b"',
        '"ä"',
        "a b",
        "a,b",
        '"a", "b"',
        '"\t"',
        "x" * (LONGEST + 1),
        '"a"b',
    ],
)
def test_all_else_is_malformed(value: str) -> None:
    with pytest.raises(Problem) as raised:
        parsed([value])
    assert (raised.value.status, raised.value.reason) == (400, "malformed")


def test_the_header_stands_there_once_or_not_at_all() -> None:
    assert parsed([]) is None
    with pytest.raises(Problem, match="more than once"):
        parsed(['"a"', '"a"'])


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=LONGEST))
def test_every_string_comes_back(key: str) -> None:
    quoted = key.replace("\\", "\\\\").replace('"', '\\"')
    assert parsed([f'"{quoted}"']) == key


def test_the_key_of_another_user_is_another_key() -> None:
    keys = ("k", "b:k", "#", "%23", "k" * 255, "l" * 255)
    names = {name_of(user, key) for user in ("a", "b", "a:b") for key in keys}
    assert len(names) == 18
    assert all(len(name.encode()) <= 250 and name.isascii() for name in names)
    assert "secret" not in name_of("secret", "k")


def test_each_part_of_a_request_is_in_its_fingerprint() -> None:
    requests = [
        ("POST", "/a", b"", b"x"),
        ("PATCH", "/a", b"", b"x"),
        ("POST", "/ab", b"", b"x"),
        ("POST", "/a", b"b", b"x"),
        ("POST", "/a", b"", b"y"),
        ("POST", "/a", b"x", b""),
    ]
    assert len({fingerprint_of(*request) for request in requests}) == len(requests)


@given(
    st.integers(100, 599),
    # No replay repeats a cookie.
    st.lists(st.tuples(st.binary().filter(lambda name: name.lower() != b"set-cookie"), st.binary())).map(
        tuple
    ),
    st.binary(),
)
def test_a_record_comes_back_byte_for_byte(
    status: int, headers: tuple[tuple[bytes, bytes], ...], body: bytes
) -> None:
    record = Record(status, headers, body)
    assert RECORDS.loads(RECORDS.dumps(record)) == record


def test_what_was_streamed_is_not_recorded() -> None:
    with pytest.raises(TypeError, match="streamed"):
        RECORDS.dumps(Unkept("the answer is streamed"))


def test_a_problem_is_what_the_draft_shows() -> None:
    record = problems.missing("Idempotency-Key").record("https://developer.example.com/idempotency")
    assert json.loads(record.body) == {
        "type": "https://developer.example.com/idempotency",
        "title": "Idempotency-Key is missing",
        "status": 400,
        "detail": "This operation is done once for each key: send a new Idempotency-Key with each new "
        "request, and the same one when you send a request again.",
        "reason": "missing",
    }
    assert dict(record.headers) == {
        b"content-type": b"application/problem+json",
        b"link": b'<https://developer.example.com/idempotency>; rel="describedby"',
        b"content-length": str(len(record.body)).encode(),
    }
    assert b'"about:blank"' in problems.reused().record(None).body


def test_waiters_elsewhere_are_told_what_ended_the_first() -> None:
    assert problems.of_another("crashed").status == 409
    assert problems.of_another("").reason == "failed"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scope": "me"}, "scope must be a function"),
        ({"methods": "POST"}, "methods must be a collection"),
        ({"header": ""}, "header must be"),
        ({"on_crash": "rerun"}, "on_crash must be"),
        ({"keeps": 500}, "keeps must be a function"),
        ({"max_body": -1}, "max_body must be"),
        ({"store": object()}, "store must have find"),
        ({"keep": 0}, "keep"),
        ({"timeout": 3}, "no argument 'timeout'"),
    ],
)
def test_options_are_checked_at_once(options: dict[str, Any], message: str) -> None:
    from redis.asyncio import Redis

    async def app(*_: Any) -> None: ...

    with pytest.raises((TypeError, ValueError), match=message):
        IdempotencyMiddleware(app, Redis(), **{"scope": lambda _: "me", **options})


MIXED = "multipart/mixed; boundary=b"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("application/json", b'{"a":1,"b":2}'), ("application/json", b' {"b": 2,\n"a": 1}')),
        (
            ("application/vnd.shop+json", b'[{"a":"x","b":null}]'),
            ("Application/JSON", b'[{"b":null,"a":"\\u0078"}]'),
        ),
        (("application/json", '{"a":"ä"}'.encode()), ("application/json", '{"a":"ä"}'.encode("utf-16"))),
        (
            (MIXED, b"--b\r\n\r\nx\r\n--b--"),
            ('multipart/mixed; boundary="c d"', b"--c d\r\n\r\nx\r\n--c d--"),
        ),
        (
            (MIXED, b"--b  \r\n\r\nx\r\n--b--\r\n"),
            (MIXED.replace("=b", "=x+y"), b"--x+y\r\n\r\nx\r\n--x+y--\r\n"),
        ),
    ],
)
def test_the_same_content(one: tuple[str, bytes], other: tuple[str, bytes]) -> None:
    assert content_of(*one) == content_of(*other) != one[1]
    assert chosen("body", *one) != chosen("body", *other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("application/json", b'{"a":1}'), ("application/json", b'{"a":1.0}')),
        (("application/json", b'{"a":1}'), ("application/json", b'{"a":"1"}')),
        (("application/json", b'{"a":["number","1"]}'), ("application/json", b'{"a":1}')),
        (("application/json", b"[1,2]"), ("application/json", b"[2,1]")),
        (("application/json", b'{"a":1,"a":2}'), ("application/json", b'{"a":2,"a":1}')),
        (("application/json", b'{"a":1'), ("application/json", b'{"a": 1')),
        (("text/plain", b'{"a":1}'), ("text/plain", b'{"a": 1}')),
        ((MIXED, b"--b\r\n\r\nx\r\n--b--"), (MIXED, b"--b\r\n\r\ny\r\n--b--")),
        (
            (MIXED, b"--b\r\n\r\nx\r\n--b\r\n\r\ny\r\n--b--"),
            (MIXED, b"--b\r\n\r\nx\r\n--bb\r\n\r\ny\r\n--b--"),
        ),
        (("multipart/mixed", b"--b\r\n\r\nx\r\n--b--"), ("multipart/mixed", b"--c\r\n\r\nx\r\n--c--")),
        ((MIXED, b"no parts"), (MIXED, b"none")),
        (("application/json", b"[" * 100_000), ("application/json", b"[" * 100_001)),
        (("application/json", b"\xff"), ("application/json", b"\xfe")),
        (("application/json", b"9" * 5_000), ("application/json", b"9" * 5_001)),
    ],
)
def test_another_content(one: tuple[str, bytes], other: tuple[str, bytes]) -> None:
    assert content_of(*one) != content_of(*other)


def test_a_fingerprint_of_ones_own() -> None:
    assert chosen(lambda content_type, body: f"{content_type} {len(body)}", "a/b", b"xyz") == b"a/b 3"
    assert chosen(lambda _, body: body[:1], "a/b", b"xyz") == b"x"
    with pytest.raises(TypeError, match="fingerprint must return bytes or a str, not int"):
        chosen(lambda *_: 1, "a/b", b"")


@pytest.mark.parametrize("wrong", ["bytes", "Body", None, 1])
def test_another_fingerprint_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match='fingerprint must be "body", "content" or a function'):
        IdempotencyMiddleware(lambda *_: None, Redis(), scope=lambda _: "me", fingerprint=wrong)  # type: ignore[arg-type]
