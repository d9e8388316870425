"""Files of measurements."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Writes a file all at once: what is there already stays whole until then.

    raises   OSError where it cannot be written
    """
    staged = path.with_name(f".{path.name}.part")
    staged.write_text(text)
    os.replace(staged, path)
