"""Texts of others in messages: of other processes, of servers, of clients of a service.

A host name, the name of a task, the words of a server may hold anything: line ends that begin a false line of
a log, sequences that a terminal obeys, marks that turn the direction of writing. They are escaped where they
enter a message. Fields that a program reads (`holders`, `--json`) have them as they are.
"""

from __future__ import annotations


def visible(text: str, encoding: str = "utf-8") -> str:
    """A text that others have written, as it may stand in a message or on a terminal.

    All that would not just be seen is escaped, and what the encoding does not have; also the backslash, so
    that no two texts look alike.
    """
    return in_line(text.replace("\\", "\\\\")).encode(encoding, "backslashreplace").decode(encoding)


def in_line(message: object) -> str:
    """A message that has texts of others in it, on one line: what is escaped in it already stays as it is."""
    text = str(message)
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode()
