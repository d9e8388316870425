"""Writing files of measurements."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: until the new text is complete, the old file stays.

    raises   OSError if it cannot be written
    """
    staged = path.with_name(f".{path.name}.part")
    staged.write_text(text)
    os.replace(staged, path)
