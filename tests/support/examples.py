"""Hypothesis as the suite wants it; imported for its effect before the first `given`."""

from __future__ import annotations

from hypothesis import settings

# The same examples in every run, and no complaint of a machine that was busy.
settings.register_profile("aiolocks", derandomize=True, deadline=None)
settings.load_profile("aiolocks")
