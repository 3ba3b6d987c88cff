"""Errors of FastAPI, Starlette and aiohttp that are answers: the same in the process of another caller.

This module does not import the frameworks: a process that has not loaded one serves no requests with it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast, final

_STARLETTE: Final = "starlette.exceptions"
_FASTAPI: Final = "fastapi.exceptions"
_AIOHTTP: Final = "aiohttp.web_exceptions"
_FRAMEWORKS: Final = (_FASTAPI, _STARLETTE, _AIOHTTP)
_LARGEST: Final = 8192
"""Characters of what is told beside the status."""

_OF_A_BODY: Final = ("content-length", "content-encoding", "transfer-encoding")


def answer_of(error: BaseException) -> str:
    """What another process needs to give the same answer, as JSON; empty for any other error."""
    framework = _framework_of(error)
    if framework is None:
        return ""
    known: Any = error
    if framework == _AIOHTTP:
        told = {"of": framework, "class": type(error).__name__, "status": known.status, "text": known.text}
        told["reason"] = known.reason
    else:
        told = {"of": framework, "status": known.status_code, "detail": _plain(known.detail)}
    headers = cast("Mapping[str, str]", known.headers or {})
    told["headers"] = {name: value for name, value in headers.items() if name.lower() not in _OF_A_BODY}
    text = json.dumps(told)
    if len(text) > _LARGEST:
        text = json.dumps({"of": framework, "status": told["status"]})
    return text


@final
class Told(NamedTuple):
    """What `answer_of` has told, read."""

    status: int
    framework: str
    headers: dict[str, str]
    more: dict[str, Any]


def told_by(answer: str) -> Told | None:
    """What `answer_of` has told; None if it is none of that."""
    try:
        more: dict[str, Any] = json.loads(answer)
        headers = {str(name): str(value) for name, value in more.get("headers", {}).items()}
        return Told(int(more["status"]), str(more["of"]), headers, more)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def error_of(told: Told) -> Exception | None:
    """The error that gives that answer in this process; None where no framework is loaded."""
    status, framework, headers, more = told
    detail: object = more.get("detail", more.get("text"))
    for name in (framework, _FASTAPI, _STARLETTE, _AIOHTTP):
        module: Any = sys.modules.get(name) if name in _FRAMEWORKS else None
        if module is None:
            continue
        if name != _AIOHTTP:
            plain = {one: value for one, value in headers.items() if one.lower() != "content-type"}
            made: Exception = module.HTTPException(status, detail, headers=plain or None)
            return made
        return _of_aiohttp(module, status, more, headers)
    return None


def _of_aiohttp(
    module: Any, status: int, told: Mapping[str, Any], headers: dict[str, str]
) -> Exception | None:
    """Without the constructor of its class: each has arguments of its own."""
    base: Any = module.HTTPException
    cls: Any = getattr(module, str(told.get("class")), None)
    if not (isinstance(cls, type) and issubclass(cls, base) and getattr(cls, "status_code", -1) == status):
        cls = type("HTTPException", (base,), {"status_code": status, "__module__": module.__name__})
    text = told.get("text")
    if "detail" in told:
        text = json.dumps({"detail": told["detail"]})
        headers = {**headers, "Content-Type": "application/json"}
    make: Any = cls.__new__
    error: Any = make(cls)
    reason = told.get("reason")
    base.__init__(error, headers=headers, reason=None if reason is None else str(reason), text=text)
    return cast("Exception", error)


def _framework_of(error: BaseException) -> str | None:
    for cls in type(error).__mro__:
        if cls.__name__ == "HTTPException" and cls.__module__ in _FRAMEWORKS:
            return cls.__module__
    return None


def _plain(detail: object) -> object:
    try:
        json.dumps(detail)
    except (TypeError, ValueError, RecursionError):
        return str(detail)
    return detail
