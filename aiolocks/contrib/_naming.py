"""Names of locks made from what a request says: `"order:{order_id}"`.

What a client sends must not decide which other lock is meant. So the values are percent-encoded, which leaves
nothing of them but letters, digits and `_.-~%`, and between two fields there must be something else: whatever
the values are, two requests have the same name only if all their values are the same.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Final, final
from urllib.parse import quote

from .._core.arguments import lock_name
from ._refusing import Refusal

_IN_VALUES: Final = frozenset(string.ascii_letters + string.digits + "_.-~%")
"""What percent-encoding leaves of a value, or puts there."""


@final
class NameTemplate:
    """A name with fields in braces; `{{` and `}}` are braces of the name itself.

    Args:
        text: The template.

    Raises:
        TypeError, ValueError: It is not a str, or has a field that is not a plain identifier, or two that run
            into each other.
    """

    __slots__ = ("_parts", "fields", "text")

    def __init__(self, text: str) -> None:
        self.text = lock_name(text)
        self._parts: list[tuple[str, str | None]] = []  # text, and the field behind it
        try:
            parsed = list(string.Formatter().parse(text))
        except ValueError as error:
            raise ValueError(f"name {text!r} is not a template: {error}") from None
        between = None  # nothing stands before the first field
        for literal, field, format_spec, conversion in parsed:
            if field is not None and (not field.isidentifier() or format_spec or conversion):
                shown = (
                    f"{{{field}{'!' + conversion if conversion else ''}{format_spec and ':' + format_spec}}}"
                )
                raise ValueError(
                    f"a field of the name must be the name of a parameter in braces, not {shown}: pass a "
                    "function for anything else"
                )
            between = literal if between is None else between + literal
            if field is not None:
                if self._parts and self._parts[-1][1] is not None and _IN_VALUES.issuperset(between):
                    raise ValueError(
                        f"between two fields of the name there must be a character that no value can have, "
                        f"such as ':', not {between!r}: two requests could share a name"
                    )
                self._parts.append((between, field))
                between = ""
        self._parts.append((between or "", None))
        self.fields = tuple(dict.fromkeys(field for _, field in self._parts if field is not None))

    def fill(self, values: Mapping[str, str]) -> str:
        """The name.

        Raises:
            Refusal: It would be longer than a name may be.
        """
        parts: list[str] = []
        for literal, field in self._parts:
            parts.append(literal)
            if field is not None:
                # Lone surrogates, which no encoding has, must not end in an error of ours either.
                parts.append(quote(values[field], safe="", errors="surrogatepass"))
        try:
            return lock_name("".join(parts))
        except ValueError:
            raise Refusal(400, "a value in this request is too long") from None

    def __repr__(self) -> str:
        return f"<NameTemplate {self.text!r}>"
