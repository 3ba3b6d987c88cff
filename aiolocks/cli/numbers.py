"""Options that are numbers: messages call them what they are."""

from __future__ import annotations

import click


class SecondsRange(click.FloatRange):
    """A number of seconds, within bounds."""

    name = "number of seconds"


class WholeRange(click.IntRange):
    """A whole number, within bounds."""

    name = "whole number"
