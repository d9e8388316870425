"""Accesses to shared memory as data, which components of a plan report and the analysis counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class SmemAccess:
    """One kind of access of a CTA to shared memory.

    label      what it does, in two words
    buffer     the operand stream, or "d"
    op         "load" or "store"
    elements   (warps, lanes, values): elements of the buffer's tile that each lane accesses, values in order
    bits       width of an access of a lane
    per        "k-tile" or "tile": how often a CTA does it
    """

    label: str
    buffer: str
    op: str
    elements: np.ndarray
    bits: int
    per: str = "k-tile"
