"""The commands that the core asks of a kind of lock, without knowing their contents."""

from __future__ import annotations

from .._transport.commands.base import NameCommands as Commands

__all__ = ["Commands"]
