"""The options that all middlewares have, checked when the application is made."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict, final

from ...lock.options import SHORTEST_TTL, Seconds, optional_seconds, reject_unknown, seconds
from .._handling import Handling
from ._content import Fingerprint, check_fingerprint
from ._problems import anonymous
from ._store import Store

OnCrash = Literal["refuse", "run"]


class Options(TypedDict, total=False):
    """The options of `IdempotencyMiddleware`, which describes them."""

    header: str
    methods: Collection[str]
    required: bool
    wait: Seconds
    keep: Seconds
    ttl: Seconds
    on_crash: OnCrash
    store: Store | None
    keeps: Callable[[int], bool]
    fingerprint: Fingerprint
    max_body: int
    max_answer: int
    max_kept: int | None
    retry_after: Seconds | None
    documentation: str | None


MAY_HAVE_HAD_EFFECT: Final = (402, 409, 410, 412)
"""Refusals that tell of the state of the thing that was asked for, which a handler alone knows. Other
refusals (401, 403, 404, 422, 423, …) come from code before the handler too."""


def final_answer(status: int) -> bool:
    """Whether an answer of a handler with this status is kept: all but 429 and 5xx."""
    return status < 500 and status != 429


def guessed_answer(status: int) -> bool:
    """Whether an answer is kept that may come from the handler, or from code before it."""
    return status < 400 or status in MAY_HAVE_HAD_EFFECT


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The options, checked.

    Raises:
        TypeError, ValueError: An option is not as it should be.
    """

    header: str = "Idempotency-Key"
    methods: Collection[str] = ("POST", "PATCH")
    required: bool = False
    wait: float = 0.0
    keep: float = 86_400.0
    ttl: float = 30.0
    on_crash: OnCrash = "refuse"
    store: Store | None = None
    keeps: Callable[[int], bool] | None = None
    fingerprint: Fingerprint = "body"
    max_body: int = 1024 * 1024
    max_answer: int = 64 * 1024
    max_kept: int | None = 16 * 1024 * 1024
    retry_after: float | None = None
    documentation: str | None = None

    @classmethod
    def of(cls, options: Options) -> Policy:
        """The options of the user."""
        given: Any = options
        reject_unknown(
            "the middleware", {name: given[name] for name in given if name not in Options.__annotations__}
        )
        # A store is the user's own database, and no other caller's locks are in it.
        if given.get("store") is not None:
            given = {"max_answer": 512 * 1024, **given}
        return cls(**given)

    def __post_init__(self) -> None:
        # Arguments are checked for callers without a type checker.
        methods: Any = self.methods
        if isinstance(methods, str):
            raise TypeError('methods must be a collection, as ("POST", "PATCH"), and not a str')
        object.__setattr__(self, "methods", frozenset(method.upper() for method in methods))
        header: Any = self.header
        if not isinstance(header, str) or not header.isascii() or not header:
            raise ValueError(f"header must be the name of a header, not {header!r}")
        object.__setattr__(self, "wait", seconds("wait", self.wait))
        object.__setattr__(self, "keep", seconds("keep", self.keep, least=1.0))
        object.__setattr__(self, "ttl", seconds("ttl", self.ttl, least=SHORTEST_TTL))
        object.__setattr__(self, "retry_after", optional_seconds("retry_after", self.retry_after))
        if self.on_crash not in ("refuse", "run"):
            raise ValueError(f'on_crash must be "refuse" or "run", not {self.on_crash!r}')
        if self.keeps is not None and not callable(self.keeps):
            raise TypeError(f"keeps must be a function of a status, not {self.keeps!r}")
        check_fingerprint(self.fingerprint)
        for name in ("max_body", "max_answer", "max_kept"):
            size: Any = getattr(self, name)
            if name == "max_kept" and size is None:
                continue
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise ValueError(f"{name} must be a number of bytes, not {size!r}")
        for method in ("find", "transaction"):
            if self.store is not None and not callable(getattr(self.store, method, None)):
                raise TypeError(
                    f"store must have find and transaction, as SQLAlchemyStore has, not {self.store!r}"
                )

    def is_result(
        self, status: int, headers: Iterable[tuple[bytes, bytes]], handling: Handling, *, marked: bool
    ) -> bool:
        """Whether an answer is the result of its request, which is kept; otherwise the next one is done.

        Args:
            status: The status of the answer.
            headers: The headers of the answer.
            handling: The request.
            marked: Each handler says that it begins: what comes without that is no handler's answer.
        """
        if marked and not handling.begun:
            return False
        if status >= 400 and any(name.lower() == b"retry-after" for name, _ in headers):
            return False  # it asks for the same request again. With 202 and 3xx it does not: work has begun
        keeps = self.keeps or (final_answer if handling.begun else guessed_answer)
        return keeps(status)


def check_scope(scope: object) -> None:
    """The function that says who asks."""
    if not callable(scope):
        raise TypeError(
            "scope must be a function that returns who asks, as the id of a user: the key of another user is "
            f"another key; not {type(scope).__name__}"
        )


def asker(given: object) -> str:
    """The result of that function, checked.

    Raises:
        Problem: It does not say who asks.
        TypeError: It says something else than who asks.
    """
    if given is None or given == "":
        raise anonymous()
    if not isinstance(given, str):
        raise TypeError(f"scope must return who asks, as a str, or None if nobody knows, not {given!r}")
    return given
