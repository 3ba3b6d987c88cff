"""No script uses data as a key: a value that it has read names a key only if `bell_in` says so.

A caller may do more than the tenant whose data a script reads. If an entry of a sorted set or a field of a
hash were used as a key as it stands, that tenant could have keys deleted that it cannot reach itself.

The walk reads the scripts as they are written here: named functions begin and end at the left margin, and an
expression ends with its line unless a bracket is open.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.unit.test_scripts import SCRIPTS, SECTIONS

ONE_KEY = {
    *("GET", "SET", "PTTL", "PEXPIRE", "TYPE"),
    *("HDEL", "HEXISTS", "HGET", "HGETALL", "HINCRBY", "HKEYS", "HLEN", "HMGET", "HSET"),
    *(
        "ZADD",
        "ZCARD",
        "ZCOUNT",
        "ZRANGE",
        "ZRANGEBYLEX",
        "ZRANGEBYSCORE",
        "ZRANK",
        "ZREM",
        "ZREMRANGEBYRANK",
    ),
    *("ZREMRANGEBYSCORE", "ZSCORE"),
    *("LRANGE", "LSET", "LTRIM", "PERSIST", "RPUSH"),
}
KEYS_ALONE = {"DEL", "EXISTS", "UNLINK"}
NO_KEY = {"TIME"}

FIELDS = {"bell", "key", "log", "queue", "waits"}
"""Fields of records that hold keys."""

MAIN = ""
WRAPPER = re.compile(r"^local redis = \{.*?^end\}\n", re.MULTILINE | re.DOTALL)
"""Of `forms`: it passes on all its arguments."""
FUNCTION = re.compile(
    r"^local function (\w+)\(([^)]*)\)((?:[^\n]+ end$)|\n.*?^end$)", re.MULTILINE | re.DOTALL
)
ONE = r"\w+(?:\[[^=\n]*\])?"
ASSIGNED = re.compile(rf"(?:^|\s)(?:local )?({ONE}(?:, {ONE})*) = (?!=)")
LOOP = re.compile(r"\bfor \w+, (\w+) in i?pairs\(")
STOP = re.compile(r"\b(?:then|do|end|else|elseif|return|break|local|if)\b")


@dataclass
class Chunk:
    """A named function, or all that stands outside of them."""

    parameters: list[str]
    text: str
    sources: dict[str, list[str]] = field(default_factory=dict)
    """Of each name, the expressions that it is given."""


def expressions(text: str, at: int) -> list[str]:
    """Those of the list that begins there."""
    found, depth, begun, in_string = [], 0, at, False
    while at < len(text):
        one = text[at]
        if in_string or one == "'":
            in_string = (one == "'") != in_string
        elif one in "([{":
            depth += 1
        elif one in ")]}" and depth:
            depth -= 1
        elif not depth and (one in ")]}\n" or STOP.match(text, at)):
            break
        elif not depth and one == ",":
            found.append(text[begun:at])
            begun = at + 1
        at += 1
    return [one.strip() for one in (*found, text[begun:at])]


def parts(expression: str, word: str) -> list[str]:
    """The pieces between these words, outside of brackets."""
    found, depth, begun = [], 0, 0
    for match in re.finditer(rf"[(\[{{]|[)\]}}]|\b{word}\b", expression):
        if match[0] == word and not depth:
            found.append(expression[begun : match.start()])
            begun = match.end()
        elif match[0] != word:
            depth += 1 if match[0] in "([{" else -1
    return [one.strip() for one in (*found, expression[begun:])]


class Walk:
    """One script, with what stands in front of it."""

    def __init__(self, text: str) -> None:
        text = WRAPPER.sub("", re.sub(r"--.*", "", text))
        self.chunks = {
            match[1]: Chunk([one.strip() for one in match[2].split(",")], match[3])
            for match in FUNCTION.finditer(text)
        }
        self.chunks[MAIN] = Chunk([], FUNCTION.sub("", text))
        for chunk in self.chunks.values():
            for match in ASSIGNED.finditer(chunk.text):
                names = [one.split("[")[0] for one in match[1].split(", ")]
                given = expressions(chunk.text, match.end())
                for number, name in enumerate(names):
                    chunk.sources.setdefault(name, []).append(given[min(number, len(given) - 1)])
            for match in LOOP.finditer(chunk.text):
                chunk.sources.setdefault(match[1], []).append(expressions(chunk.text, match.end())[0])
        self._asked: set[tuple[str, str]] = set()

    def complaints(self) -> Iterator[str]:
        """The calls whose keys are, or may be, data."""
        for where, chunk in self.chunks.items():
            for match in re.finditer(r"\bredis\.p?call\(", chunk.text):
                command, *arguments = expressions(chunk.text, match.end())
                name = command.strip("'")
                if name in ONE_KEY:
                    keys = arguments[:1]
                elif name in KEYS_ALONE:
                    keys = arguments
                elif name in NO_KEY:
                    continue
                else:
                    yield f"{where}: which arguments of {command} are keys? Add it to a set of {__name__}"
                    continue
                for key in keys:
                    if not self.is_safe(where, key):
                        yield f"{where}: {command} of {key}"
                        self._asked.clear()  # keys that were taken for safe meanwhile may depend on that

    def is_safe(self, where: str, expression: str) -> bool:
        """Whether that is a key which the caller named, or a bell which was looked at."""
        either = parts(expression, "or")
        if len(either) > 1:
            return all(self.is_safe(where, one) for one in either)
        expression = parts(expression, "and")[-1]
        if expression in ("nil", "false") or re.match(
            r"(?:KEYS|ARGV)\b|bell_in\(|bell_of\(|queue_in\(", expression
        ):
            return True
        if inner := re.match(r"(?:unpack|string\.gsub|ipairs)\(", expression):
            return self.is_safe(where, expressions(expression, inner.end())[0])
        if expression.startswith("{"):
            items = [re.sub(r"^\w+ = ", "", one) for one in expressions(expression[1:].strip(), 0) if one]
            return all(self.is_safe(where, one) for one in items)
        if (call := re.fullmatch(r"(\w+)\(.*\)", expression)) and call[1] in self.chunks:
            text = self.chunks[call[1]].text
            given = [expressions(text, one.end())[0] for one in re.finditer(r"\breturn\b", text)]
            return all(self.is_safe(call[1], one) for one in given)
        if (record := re.fullmatch(r"\w+\.(\w+)", expression)) and record[1] in FIELDS:
            return self._is_safe_field(record[1])
        name = re.fullmatch(r"(\w+|\.\.\.)(?:[.\[].*)?", expression)
        return name is not None and self._is_safe_name(where, name[1])

    def _is_safe_field(self, name: str) -> bool:
        """Of a record: whatever is given to a field of this name, in a table or by an assignment."""
        if (name, "field") in self._asked:
            return True
        self._asked.add((name, "field"))
        return all(
            self.is_safe(where, expressions(chunk.text, match.end())[0])
            for where, chunk in self.chunks.items()
            if where != "bell_in"  # which looks at what it returns
            for match in re.finditer(rf"\b{name} = (?!=)", chunk.text)
        )

    def _is_safe_name(self, where: str, name: str) -> bool:
        if (where, name) in self._asked:  # it depends on itself, and on what is asked anyway
            return True
        self._asked.add((where, name))
        chunk = self.chunks[where]
        given = [(where, one) for one in chunk.sources.get(name, ())]
        if name in chunk.parameters:
            at = chunk.parameters.index(name)
            for caller, other in self.chunks.items():
                for match in re.finditer(rf"(?<![\w.]){where}\(", other.text):
                    said = expressions(other.text, match.end())
                    given += [(caller, one) for one in (said[at:] if name == "..." else said[at : at + 1])]
        elif not given:
            return where != MAIN and self._is_safe_name(MAIN, name)
        return all(self.is_safe(caller, one) for caller, one in given)


@pytest.mark.parametrize("name", [name for name in SCRIPTS if "+" not in name])
def test_no_script_uses_data_as_a_key(name) -> None:
    assert list(Walk(SCRIPTS[name].text.decode()).complaints()) == []


def test_a_bell_of_a_seat_is_one_that_was_looked_at() -> None:
    text = SECTIONS["queue"].decode()

    assert "local function bell_of(queue, entry) return bell_in(queue, entry, SEAT) end\n" in text
    assert [name for name, one in SCRIPTS.items() if one.text.count(b"function bell_in(") > 1] == []


@pytest.mark.parametrize(
    "text",
    [
        "local first = redis.call('ZRANGE', KEYS[1], 0, 0)[1]\nredis.call('DEL', first)",
        "redis.call('DEL', redis.call('HGET', KEYS[1], 'key'))",
        "redis.call('DEL', KEYS[1], redis.call('GET', KEYS[1]))",
        "local bell = KEYS[2]\nbell = redis.call('GET', KEYS[1])\nredis.call('SET', bell, 'rung')",
        "for _, key in ipairs(redis.call('HKEYS', KEYS[1])) do\n  redis.pcall('DEL', key)\nend",
        "local found = {}\nfound[#found + 1] = redis.call('GET', KEYS[1])\nredis.call('GET', found[1])",
        "local function ring(bell)\n  redis.call('DEL', bell)\nend\nring(redis.call('GET', KEYS[1]))",
        "local function drop(...)\n  redis.call('DEL', ...)\nend\ndrop(KEYS[1], redis.call('GET', KEYS[1]))",
        "local entry = redis.call('GET', KEYS[1])\nredis.call('DEL', string.sub(entry, 1, -17))",
        "local entry = redis.call('GET', KEYS[1])\nif entry then redis.call('DEL', 'x' .. entry) end",
        "local key = ARGV[1] == '1' and redis.call('GET', KEYS[1]) or KEYS[1]\nredis.call('DEL', key)",
        "local a, b = KEYS[1], redis.call('GET', KEYS[1])\nif a then redis.call('GET', b) end",
        "redis.call('RENAME', KEYS[1], redis.call('GET', KEYS[1]))",
        "local one = {\n  log = redis.call('GET', KEYS[1]), n = 1,\n}\nredis.call('RPUSH', one.log, 1)",
        "local one = {log = KEYS[1]}\none.log = redis.call('GET', KEYS[1])\nredis.call('RPUSH', one.log, 1)",
        "local function of()\n  return redis.call('GET', KEYS[1])\nend\nredis.call('DEL', of())",
    ],
)
def test_a_script_that_would_is_found(text) -> None:
    assert list(Walk(text).complaints()) != []


@pytest.mark.parametrize(
    "text",
    [
        "local lock, queue = KEYS[1], KEYS[2]\nredis.call('ZREM', queue, redis.call('GET', lock))",
        "local entry = redis.call('GET', KEYS[1])\nredis.call('DEL', entry and bell_in(KEYS[1], entry, 0))",
        "local SIDES = {\n  r = {KEYS[1], KEYS[2]},\n}\nredis.call('ZCARD', SIDES.r[1] or SIDES['r'][2])",
        "local function keep(key)\n  redis.call('PEXPIRE', key, 1)\nend\nkeep(KEYS[1])",
    ],
)
def test_a_script_that_does_not_is_let_be(text) -> None:
    assert list(Walk(text).complaints()) == []
