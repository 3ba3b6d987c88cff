"""Names of locks made from the values of a request: `"order:{order_id}"`."""

from __future__ import annotations

from collections.abc import Mapping

from .._core.naming import NameTemplate
from ._refusing import Refusal


def template_of(text: str) -> NameTemplate:
    """The template of a route.

    Raises:
        TypeError, ValueError: It is not as it should be.
    """
    return NameTemplate(text, otherwise="pass a function")


def filled(template: NameTemplate, values: Mapping[str, str]) -> str:
    """The name for one request.

    Raises:
        Refusal: The request's values make no name.
    """
    try:
        return template.fill(values)
    except ValueError:
        raise Refusal(400, "a value in this request is too long") from None
