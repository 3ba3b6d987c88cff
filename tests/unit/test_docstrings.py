"""The docstrings of public classes say the unit of each time that a field holds."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

import pytest

import aiolocks

CLASSES = [
    cls
    for cls in (getattr(aiolocks, name) for name in aiolocks.__all__)
    if isinstance(cls, type) and dataclasses.is_dataclass(cls)
]
UNITS = re.compile(r"\b(seconds|share|growth)\b", re.IGNORECASE)
"""And the share or the growth of something has none."""


def described(cls: type[Any]) -> dict[str, str]:
    """The text of each attribute, from `Attributes:` or `Args:`."""
    found = re.findall(r"^    (\w+): ((?:.|\n {8})*)", inspect.getdoc(cls) or "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_each_number_with_a_fraction_has_its_unit(cls: type[Any]) -> None:
    texts = described(cls)
    for field in dataclasses.fields(cls):
        if re.search(r"\bfloat\b", str(field.type)) and "tuple" not in str(field.type):
            text = texts[field.name]
            assert field.name == "seconds" or UNITS.search(text), f"{field.name}: {text}"
