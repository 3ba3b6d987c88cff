"""What a body says, whatever form a client has given it this time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from email.message import Message
from typing import Any, Literal

Fingerprint = Literal["body", "content"] | Callable[[str, bytes], bytes | str]
"""The part of a body that makes two requests the same one."""


def check_fingerprint(fingerprint: object) -> None:
    """What makes two bodies the same, as users give it."""
    if fingerprint not in ("body", "content") and not callable(fingerprint):
        raise ValueError(
            'fingerprint must be "body", "content" or a function of the content type and the body, not '
            f"{fingerprint!r}"
        )


def chosen(fingerprint: Any, content_type: str, body: bytes) -> bytes:
    """What is hashed of a body.

    Raises:
        TypeError: A function of the user gives something else than bytes or a str.
    """
    if fingerprint == "body":
        return body
    if fingerprint == "content":
        return content_of(content_type, body)
    made: Any = fingerprint(content_type, body)
    if isinstance(made, str):
        made = made.encode(errors="surrogatepass")
    if not isinstance(made, bytes):
        raise TypeError(f"fingerprint must return bytes or a str, not {type(made).__name__}")
    return made


def content_of(content_type: str, body: bytes) -> bytes:
    """The same for a document of JSON whose objects stand in another order, and for another boundary.

    A body that is neither, or not what its type says, is taken as it is.
    """
    header = Message()
    header["content-type"] = content_type
    sort = header.get_content_type()
    if sort == "application/json" or sort.endswith("+json"):
        return _json(body)
    boundary = header.get_boundary()
    if header.get_content_maintype() == "multipart" and boundary:
        return _parts(boundary.encode(errors="surrogateescape"), body)
    return body


def _json(body: bytes) -> bytes:
    """Numbers are as they are written: 1.0 is not 1."""

    def number(text: str) -> Any:
        return "number", text

    def object_(pairs: list[tuple[str, Any]]) -> Any:
        # A name that stands there twice stays: readers differ in which of the two they take.
        return "object", sorted(pairs, key=lambda pair: pair[0])

    try:
        document: Any = json.loads(
            body, parse_int=number, parse_float=number, parse_constant=number, object_pairs_hook=object_
        )
        return f"json:{document!r}".encode(errors="surrogatepass")
    except (ValueError, RecursionError):
        return body


def _parts(boundary: bytes, body: bytes) -> bytes:
    delimiter = re.compile(rb"(?:\A|\r\n)--" + re.escape(boundary) + rb"(?:--)?[ \t]*(?:\r\n|\Z)")
    parts = delimiter.split(body)
    if len(parts) < 3:
        return body
    return b"multipart:" + b"".join(b"%d:%b" % (len(part), part) for part in parts)
