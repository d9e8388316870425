"""The console of the commands: text is wrapped only at the width of a terminal."""

from __future__ import annotations

import os

from rich.console import Console

_UNLIMITED = 100_000  # characters per line of a pipe or file, so that `grep` finds each name whole
_DRAWING = 120  # characters per line of a drawing that does not go to a terminal


def output(*, stderr: bool = False) -> Console:
    """Return the rich console that a command prints to.

    Lines are as wide as the terminal or $COLUMNS; they are not limited if the output is a pipe or a file.

    stderr   True to write to stderr instead of stdout
    """
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _UNLIMITED
    return console


def drawing_width(console: Console) -> int:
    """Return how many characters wide a drawing may be: the terminal's width, or 120 for a pipe or file."""
    return _DRAWING if console.width == _UNLIMITED else console.width
