"""The docstrings of public names say the units of times, and the defaults of the code."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import aiolocks
import aiolocks.sync
import aiolocks.testing
from aiolocks.contrib import redis_py

CLASSES = [
    cls
    for cls in (getattr(aiolocks, name) for name in aiolocks.__all__)
    if isinstance(cls, type) and dataclasses.is_dataclass(cls)
]
UNITS = re.compile(r"\b(seconds|share|growth)\b", re.IGNORECASE)
"""And the share or the growth of something has none."""


def described(cls: Any) -> dict[str, str]:
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


MODULES = [aiolocks, aiolocks.sync, aiolocks.testing, redis_py]
for framework in ("fastapi", "aiohttp"):
    with contextlib.suppress(ImportError):  # it is not installed
        MODULES.append(importlib.import_module(f"aiolocks.contrib.{framework}"))


def callables() -> Iterator[tuple[str, Any]]:
    """Each public function, and each method and constructor of a public class."""
    for module in MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value):
                yield f"{module.__name__}.{name}", value
            if isinstance(value, type) and not issubclass(value, Exception):
                yield f"{module.__name__}.{name}", value
                methods = inspect.getmembers(
                    value, lambda one: inspect.isfunction(one) or inspect.ismethod(one)
                )
                yield from ((f"{module.__name__}.{name}.{called}", method) for called, method in methods)


SAID = {
    f"{where}.{argument}": (text, parameters[argument].default)
    for where, value in callables()
    if (parameters := inspect.signature(value).parameters)
    for argument, text in described(value).items()
    if argument in parameters and re.search(r"\bdefault\b", text, re.IGNORECASE)
}
NUMBER = re.compile(r"\bDefault:? (\d[\d ]*(?:\.\d+)?)(?=[ .,:;]|$)|\b(?:With )?(\d+), (?:is )?the default\b")


def test_each_default_that_is_a_number_is_that_of_the_code() -> None:
    numbers = {
        where: (float(re.sub(" ", "", next(filter(None, found.groups())))), default)
        for where, (text, default) in SAID.items()
        if isinstance(default, (int, float)) and (found := NUMBER.search(text))
    }
    assert len(numbers) > 30
    assert {where: said for where, said in numbers.items() if said[0] != said[1]} == {}


@pytest.mark.parametrize("word", [None, True, False])
def test_each_default_that_is_a_word_is_that_of_the_code(word: bool | None) -> None:
    said = {
        where: default
        for where, (text, default) in SAID.items()
        if re.search(rf"\bDefault:? {word}\b|\b{word}, the default\b", text)
    }
    assert len(said) > 2
    assert {where: default for where, default in said.items() if default is not word} == {}
