"""Accesses to memory and copies as data, which the components of a plan report to the analysis and the rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cutegemm.dtypes import DType
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tma import TmaBox


class Move(NamedTuple):
    """A copy that a field of a plan describes, and what it has to copy.

    name     name of the field, such as "a.load"
    copy     the copy; None if the plan does without it
    dtype    type of the elements
    source   memory that is read: "global", "shared" or "register"
    target   memory that is written
    """

    name: str
    copy: TiledCopy | TmaBox | CopyAtom | None
    dtype: DType
    source: str
    target: str = "register"


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
