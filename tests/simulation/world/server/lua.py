"""Scripts: the text as it is shipped, run by Lua 5.1.

One Lua serves all servers of a Python process: a script leaves nothing behind in it, for globals cannot be
written.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import lupa.lua51 as lupa

from .replies import Double, Refusal, Status, flat, number

_SET_UP = b"""
local raw = ...
local sandbox = {redis = {}, KEYS = {}, ARGV = {}}
for _, name in ipairs({
  'assert', 'error', 'getmetatable', 'ipairs', 'loadstring', 'math', 'next', 'pairs', 'pcall', 'rawequal',
  'rawget', 'rawset', 'select', 'setmetatable', 'string', 'table', 'tonumber', 'tostring', 'type', 'unpack',
  'xpcall', '_VERSION',
}) do
  sandbox[name] = _G[name]
end
local redis = sandbox.redis
local function answer(first, ...)
  if first == nil then return {...} end
  if first == true then return {ok = ...} end
  return first
end
redis.pcall = function(...) return answer(raw(...)) end
redis.call = function(...)
  local reply = answer(raw(...))
  if type(reply) == 'table' and reply.err then error(reply, 0) end
  return reply
end
redis.error_reply = function(text) return {err = text} end
redis.status_reply = function(text) return {ok = text} end
redis.replicate_commands = function() return true end
redis.log = function() end
setmetatable(sandbox, {
  __index = function(_, name)
    error('Script attempted to access nonexistent global variable \\'' .. tostring(name) .. '\\'', 2)
  end,
  __newindex = function() error('Attempt to modify a readonly table', 2) end,
})
local function load(text)
  local script, why = loadstring(text, '@user_script')
  if not script then return nil, why end
  return setfenv(script, sandbox)
end
local function run(script, count, ...)
  local keys = {}
  for i = 1, count do keys[i] = (select(i, ...)) end
  rawset(sandbox, 'KEYS', keys)
  rawset(sandbox, 'ARGV', {select(count + 1, ...)})
  local well, reply = pcall(script)
  if not well then
    return {err = type(reply) == 'table' and reply.err or 'ERR ' .. tostring(reply), inside = true}
  end
  if reply == true then return 1 end
  if type(reply) ~= 'table' or reply.err ~= nil or reply.ok ~= nil then return reply end
  local length = 0
  while reply[length + 1] ~= nil do
    length = length + 1
    if type(reply[length]) == 'table' then return reply end
  end
  if length > 200 then return reply end
  return true, unpack(reply, 1, length)
end
return load, run
"""
"""Values cross the border one by one, which is faster than a table. Into Lua, nil precedes the items of an
array, and true a status; out of it, true precedes the items of an array that contains no table."""

_SPREAD = 200
"""Longer arrays cross the border as a table: the stack of Lua has an end."""

_inside: Callable[[tuple[bytes, ...]], Any]


def _call(*words: Any) -> Any:
    """`redis.pcall`. It is called some fifty times in a script, and so made for speed."""
    try:
        for word in words:
            if type(word) is not bytes:
                words = tuple([word if type(word) is bytes else _text(word) for word in words])
                break
        reply = _inside(words)
    except Refusal as refusal:
        return _runtime().table_from({b"err": str(refusal).encode()})
    kind = type(reply)
    if kind is bytes or kind is int:
        return reply
    if reply is None:
        return False
    if kind is Status:
        return (True, bytes(reply))
    if kind is Double:
        return number(reply)
    items = flat(reply)
    if type(items) is not list:
        return items
    items = [item if type(item) is bytes else _to_lua(item) for item in items]
    return (None, *items) if len(items) <= _SPREAD else _runtime().table_from(items)


def _text(word: Any) -> bytes:
    if type(word) is int:
        return b"%d" % word
    if type(word) is float:
        return b"%.17g" % word
    raise Refusal("ERR Lua redis lib command arguments must be strings or integers")


def _to_lua(reply: Any) -> Any:
    kind = type(reply)
    if kind is bytes or kind is int:
        return reply
    if kind is Status:
        return _runtime().table_from({b"ok": bytes(reply)})
    if kind is list:
        return _runtime().table_from([_to_lua(item) for item in reply])
    return False if reply is None else reply


@cache
def _runtime() -> lupa.LuaRuntime:
    return lupa.LuaRuntime(
        encoding=None, register_eval=False, register_builtins=False, unpack_returned_tuples=True
    )


@cache
def _functions() -> tuple[Any, Any]:
    load, run = _runtime().execute(_SET_UP, _call)
    return load, run


@cache
def _loaded(text: bytes) -> Any:
    return _functions()[0](text)


def load(text: bytes) -> None:
    """Compiles it.

    Raises:
        Refusal: It is no Lua.
    """
    script = _loaded(text)
    if isinstance(script, tuple):
        raise Refusal(f"ERR Error compiling script (new function): {script[1].decode()}")


def run(
    text: bytes,
    keys: tuple[bytes, ...],
    arguments: tuple[bytes, ...],
    inside: Callable[[tuple[bytes, ...]], Any],
) -> Any:
    """Runs it; `inside` executes the commands that it calls.

    Raises:
        Refusal: It failed.
    """
    global _inside  # noqa: PLW0603 - Lua calls back without saying for whom
    load(text)
    _inside = inside
    return _from_lua(_functions()[1](_loaded(text), len(keys), *keys, *arguments))


def _from_lua(value: Any) -> Any:
    kind = type(value)
    if kind is bytes or kind is int:
        return value
    if kind is tuple:
        return [_from_lua_item(item) for item in value[1:]]
    if value is None or value is False:
        return None
    if kind is float:
        return int(value)
    if value is True:
        return []
    if (error := value[b"err"]) is not None:
        text = error.decode(errors="surrogateescape")
        raise Refusal(f"{text} script: on @user_script." if value[b"inside"] else text)
    if (status := value[b"ok"]) is not None:
        return Status(status)
    found = []
    while (item := value[len(found) + 1]) is not None:
        found.append(_from_lua_item(item))
    return found


def _from_lua_item(item: Any) -> Any:
    if item is True:
        return 1
    try:
        return _from_lua(item)
    except Refusal as refusal:
        return refusal
