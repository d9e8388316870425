"""The console of the commands: text is wrapped only at the width of a terminal."""

from __future__ import annotations

import os

from rich.console import Console

_UNLIMITED = 100_000  # characters per line of a pipe or file, so that `grep` finds each name whole
_DRAWING = 120  # characters per line of a drawing that does not go to a terminal


def output(*, stderr: bool = False) -> Console:
    """Return a console for the output of a command. Its width is that of the terminal, or $COLUMNS.

    Lines are not limited if the output is a pipe or a file.

    stderr   True to write to stderr instead of stdout
    """
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _UNLIMITED
    return console


def drawing_width(console: Console) -> int:
    """Return the number of characters per line that a drawing on the console may have."""
    return _DRAWING if console.width == _UNLIMITED else console.width
