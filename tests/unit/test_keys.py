"""Names become keys: no two the same, and all of one name in one cluster slot."""

from __future__ import annotations

import fnmatch

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from redis.crc import key_slot

from aiolocks.transport.keys import ANY_KEY, ParsedKey, every_key, key, parse, prefix_of, slot_of

# Short, and made of what could be mistaken for our own punctuation: collisions are near if there are any.
tricky = st.text(alphabet="a:{}%#.5B7D3A", min_size=1, max_size=8)
names = tricky | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
prefixes = st.text(alphabet="a:#.%", min_size=1, max_size=6)
kinds = st.sampled_from(["lock", "rwlock"])
roles = st.sampled_from(["", "fence", "queue"])
places = st.tuples(prefixes, kinds, names, roles)


def hash_tag(name: str) -> str | None:
    """The part that Redis hashes, by its specification; None for the whole."""
    _, opened, rest = name.partition("{")
    tag, closed, _ = rest.partition("}")
    return tag if opened and closed and tag else None


@pytest.mark.parametrize(
    ("name", "role", "expected"),
    [
        ("orders:17", "", b"aiolocks:lock:{orders:17}"),
        ("orders:17", "fence", b"aiolocks:lock.fence:{orders:17}"),
        ("user:{42}:cart", "", b"aiolocks:lock:#user%3A{42}:cart"),
        ("50%{42}", "fence", b"aiolocks:lock.fence:#50%25{42}"),
        ("{}", "", b"aiolocks:lock:{%7B%7D}"),
        ("{}{a}", "", b"aiolocks:lock:{%7B%7D%7Ba%7D}"),
        ("100%", "", b"aiolocks:lock:{100%25}"),
        ("a\n\0\u00e9", "", b"aiolocks:lock:{a\n\0\xc3\xa9}"),
    ],
)
def test_golden_keys(name, role, expected) -> None:
    assert key("aiolocks", "lock", name, role) == expected


@given(places, places)
@example(("a", "lock", "b", ""), ("a:lock", "lock", "b", ""))
@example(("a", "lock", "{b}", ""), ("a", "lock", "#{b}", ""))
@example(("a", "lock", "%7Bb%7D", ""), ("a", "lock", "{b", ""))
@example(("a", "lock", ":{b}", ""), ("a", "lock", "%3A{b}", ""))
@example(("a:lock", "lock", "x{b}", ""), ("a", "lock", "lock:x{b}", ""))
def test_two_different_places_never_share_a_key(one, other) -> None:
    assume(one != other)
    assert key(*one) != key(*other)


@given(names)
def test_all_roles_of_a_name_share_a_slot(name) -> None:
    slots = {key_slot(key("aiolocks", "lock", name, role)) for role in ("", "fence", "queue")}

    assert len(slots) == 1


@given(st.binary(max_size=8) | tricky.map(str.encode))
def test_the_slot_of_a_key_is_the_one_that_redis_py_computes(raw) -> None:
    assert slot_of(raw) == key_slot(raw)


@given(names)
def test_the_whole_name_is_the_hash_tag_unless_it_has_one(name) -> None:
    slot = key_slot(key("aiolocks", "lock", name))

    if (tag := hash_tag(name)) is not None:
        assert slot == key_slot(tag.encode()) == key_slot(name.encode())
    else:
        assert slot == key_slot(key("other", "rwlock", name, "fence"))


@pytest.mark.parametrize(
    "name", ["a", " ", "\0", "}{", "a}b", "{", "{a", "{{a}}", "x{a}{b}", "{a}", "%", "🔒"]
)
def test_odd_names_have_a_hash_tag_of_their_own(name) -> None:
    assert hash_tag(key("aiolocks", "lock", name).decode()) is not None


@given(prefixes, kinds, names, roles | st.just("bell.0123.r.-inf_inf"))
def test_a_key_tells_what_it_is_the_key_of(prefix, kind, name, role) -> None:
    assert parse(prefix, key(prefix, kind, name, role)) == ParsedKey(kind, role, name)


@given(prefixes, st.binary(max_size=20) | tricky.map(str.encode))
def test_what_is_read_as_a_key_is_one(prefix, rest) -> None:
    raw = prefix.encode() + b":" + rest
    place = parse(prefix, raw)

    assert place is None or key(prefix, place.kind, place.name, place.role) == raw


@pytest.mark.parametrize(
    "raw",
    [
        b"a:",
        b"a:lock",
        b"a:lock:",
        b"a:lock:name",
        b"a:lock:{}",
        b"a:lock:{a}b}",
        b"a:lock:{a",
        b"a:lock:{%41}",
        b"a:lock:{%7b}",
        b"a:lock:#",
        b"a:lock:#a",
        b"a:lock:#a{}",
        b"a:lock:#a:b{c}",
        b"a:lock.:{b}",
        b"a::{b}",
        b"a:lock:lock:{b}",
        b"a:lock:{\xff}",
        b"b:lock:{b}",
    ],
)
def test_what_is_no_key_of_ours_is_not_read_as_one(raw) -> None:
    assert parse("a", raw) is None


@pytest.mark.parametrize(
    ("prefix", "pattern"),
    [("aiolocks", b"aiolocks:*"), ("a*b?c[d]e\\f", b"a\\*b\\?c\\[d\\]e\\\\f:*"), ("ü^-", "ü^-:*".encode())],
)
def test_the_pattern_of_all_keys_takes_the_prefix_for_what_it_is(prefix, pattern) -> None:
    assert every_key(prefix) == pattern


@given(prefixes, kinds, names, roles)
@example("a:b", "lock", "x:{y}:z", "queue")
def test_the_prefix_of_a_key_can_be_told(prefix, kind, name, role) -> None:
    raw = key(prefix, kind, name, role)

    assert prefix_of(raw) == prefix
    assert fnmatch.fnmatchcase(raw.decode(), ANY_KEY.decode())


@pytest.mark.parametrize("raw", [b"text", b"a:b:c", b"lock:{a}", b"{a}", b"\xff:lock:{a}", b""])
def test_what_is_no_key_of_ours_has_no_prefix(raw) -> None:
    assert prefix_of(raw) is None
