"""The answers of the middlewares themselves, as `application/problem+json` (RFC 9457)."""

from __future__ import annotations

import json
import math
from typing import Final, final

from ._record import Record, Unkept

CONTENT_TYPE: Final = "application/problem+json"


@final
class Problem(Exception):  # noqa: N818 - an answer, and not an error of the program
    """Raised in place of the handler's answer.

    The answer names neither the key nor the user nor a server: the log does.

    Attributes:
        status: The HTTP status.
        reason: One word for programs; a client can tell the answers with status 409 apart by it.
        title: One line for people.
        detail: The way out for the client.
        retry_after: Whole seconds; None where sending the request again does not help.
    """

    def __init__(
        self, status: int, reason: str, title: str, detail: str, *, retry_after: int | None = None
    ) -> None:
        self.status = status
        self.reason = reason
        self.title = title
        self.detail = detail
        self.retry_after = retry_after
        super().__init__(f"{status} {title}: {detail}")

    def record(self, documentation: str | None) -> Record:
        """The answer.

        Args:
            documentation: URL of a page that tells clients how to use the key.
        """
        headers = [(b"content-type", CONTENT_TYPE.encode())]
        if self.retry_after is not None:
            headers.append((b"retry-after", str(self.retry_after).encode()))
        if documentation is not None:
            headers.append((b"link", f'<{documentation}>; rel="describedby"'.encode()))
        body = {
            "type": documentation or "about:blank",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "reason": self.reason,
        }
        text = json.dumps(body).encode()
        headers.append((b"content-length", str(len(text)).encode()))
        return Record(self.status, tuple(headers), text)


@final
class Failed(Exception):  # noqa: N818 - the way in which an answer that is not kept leaves SingleFlight
    """The handler ended without an answer that must be kept."""

    def __init__(self, *, answer: Record | Unkept | None = None, error: BaseException | None = None) -> None:
        self.answer = answer
        self.error = error
        self.reason = error.reason if isinstance(error, Problem) else ""
        super().__init__(self.reason)  # SingleFlight tells its text to waiters in other processes

    def get(self) -> Record | Unkept:
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        return self.answer


def missing(header: str) -> Problem:
    """The client has to send a key, and sent none."""
    return Problem(
        400,
        "missing",
        f"{header} is missing",
        f"This operation is done once for each key: send a new {header} with each new request, and the same "
        "one when you send a request again.",
    )


def malformed(detail: str) -> Problem:
    """The header is not a key."""
    return Problem(400, "malformed", "The idempotency key is malformed", detail)


def anonymous() -> Problem:
    """Who asks is not known. All unknown users would be one, and read the answers of each other."""
    return Problem(
        400,
        "anonymous",
        "The request does not say who sends it",
        "An idempotency key belongs to the one who sends it. Nothing was done: say who you are, in the way "
        "that this service asks for.",
    )


def reused() -> Problem:
    """The key came with another request before."""
    return Problem(
        422,
        "reused",
        "The idempotency key is already used",
        "This key was sent before with another method, path or body. Send a new key with a new request.",
    )


def running(retry_after: float) -> Problem:
    """The first request has not ended."""
    return Problem(
        409,
        "running",
        "A request with this idempotency key is outstanding",
        "The first request with this key is still being worked on. Send it again later with the same key.",
        retry_after=max(1, math.ceil(retry_after)),
    )


def crashed() -> Problem:
    """The first request has begun, and no answer was recorded."""
    return Problem(
        409,
        "crashed",
        "The outcome of the first request is not known",
        "A request with this key was begun, and its server ended before an answer was recorded. It may have "
        "taken effect or not. Find out whether it did before you send a request with a new key.",
    )


def not_kept() -> Problem:
    """The first request is done, and its answer is gone."""
    return Problem(
        409,
        "not-kept",
        "The answer of the first request was not kept",
        "The request with this key was done, and is not done again. Its answer was given to the first "
        "request only, because it could not be stored.",
    )


def failed() -> Problem:
    """The first request, which this one waited for, has failed."""
    return Problem(
        503,
        "failed",
        "The first request has failed",
        "The first request with this key failed while this one waited for it, and nothing was recorded. Send "
        "it again with the same key.",
        retry_after=1,
    )


def of_another(reason: str) -> Problem:
    """The answer of a request that has waited for another one.

    Args:
        reason: That of the problem which ended the other one; empty if its handler failed.
    """
    for problem in (crashed(), answer_too_long(), reused(), not_kept()):
        if problem.reason == reason:
            return problem
    return failed()


def unavailable() -> Problem:
    """Whether the request was done cannot be told."""
    return Problem(
        503,
        "unavailable",
        "Idempotency keys cannot be looked up",
        "Nothing was done: the service that knows the keys does not answer. Send it again with the same key.",
        retry_after=1,
    )


def too_long(most: int) -> Problem:
    """The body cannot be compared without being held in memory."""
    return Problem(
        413,
        "too-long",
        "The request is too long",
        f"With an idempotency key, the body of a request has at most {most} bytes. Nothing was done.",
    )


def answer_too_long() -> Problem:
    """The transaction was rolled back, for its answer cannot be stored with it."""
    return Problem(
        500,
        "answer-too-long",
        "The answer is too long to be kept",
        "Nothing was done: the answer to this request cannot be stored under its idempotency key.",
    )
