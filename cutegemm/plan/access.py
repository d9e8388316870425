"""Accesses to memory as data, which components of a plan report and the analysis counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class SmemAccess:
    """One kind of access that a CTA makes to shared memory, as the analysis of bank conflicts counts it.

    label      what it does, in two words
    buffer     name of the operand whose tile is accessed, such as "a"; or "d"
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


@dataclass(frozen=True)
class GlobalRead:
    """Reads of single elements in global memory by whole warps: each lane reads the element of another k-tile.

    label      what it does, in two words
    operand    name of the operand that is read, which is contiguous along K
    requests   instructions of all warps of a CTA for `k_tiles` k-tiles
    k_tiles    k-tiles whose elements an instruction reads
    """

    label: str
    operand: str
    requests: int
    k_tiles: int
