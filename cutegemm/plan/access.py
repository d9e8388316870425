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
    """A copy in a plan, with the element type and the memories that it must suit, for the checks of the plan.

    name     name of the field, such as "a.load"
    copy     the copy: an atom, a tiled copy or a TMA box; None if the plan does without it
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
    """One kind of shared-memory access of a CTA, as data for the analysis that counts bank conflicts.

    label      what the access does, in two words, such as "store A"
    buffer     name of the operand whose tile is accessed, such as "a" or "scale_a"; "d" for D
    op         "load" or "store"
    elements   integer array (warps, lanes, values): index in the buffer's tile of each element that a lane accesses
    bits       width of one lane's access in bits
    per        "k-tile" or "tile": whether a CTA does it once for each k-tile or once for each tile of D
    """

    label: str
    buffer: str
    op: str
    elements: np.ndarray
    bits: int
    per: str = "k-tile"


@dataclass(frozen=True)
class GlobalRead:
    """Scattered reads of an operand in global memory, for the analysis: each lane reads an element of another k-tile.

    label      what the read does, in two words, such as "read SCALE_A"
    operand    name of the operand, such as "scale_a"; it is contiguous along K
    requests   number of load instructions that all warps of a CTA issue for `k_tiles` k-tiles
    k_tiles    number of k-tiles whose elements one instruction reads
    """

    label: str
    operand: str
    requests: int
    k_tiles: int
