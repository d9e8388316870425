"""Tensor maps: the 128 bytes that say how TMA finds a box in global memory, and where its units lie.

The host code of the DSL writes them itself, in the format of the hardware. That is not documented; the fields
below are those that vary as the arguments do, and their codes are those of PTX's `tensormap.replace`. Bits of a
32-bit word:

| word   | holds                                                                                           |
|--------|-------------------------------------------------------------------------------------------------|
| 0, 1   | global address                                                                                  |
| 2      | 4-6: rank - 1; 7-10: element type; 11-12: interleave; 13-14: swizzle; 15: what is out of bounds |
|        | 16: whether a load rounds f32 to tf32                                                           |
| 3-6    | strides of modes 1 to 4 in units of 16 bytes, their low 32 bits; word 7: 4 more bits of each    |
| 8-12   | extents - 1 of modes 0 to 4                                                                     |
| 13     | 0-14: element strides - 1, 3 bits each; 24-31: box extent - 1 of mode 0                         |
| 14     | box extents - 1 of modes 1 to 4, 8 bits each                                                    |

The other bits of word 2 are hints for the L2 cache and marks of the driver; words 16 to 31 are not used.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import prod

import numpy as np

from cutegemm.emulator.hopper.faults import RuleViolation
from cutegemm.layout import Swizzle
from cutegemm.tile.tma import (
    TMA_INNER_ALIGNED_BYTES,
    TMA_MAX_BOX_EXTENT,
    TMA_MAX_RANK,
    TMA_SMEM_ALIGNED_BYTES,
    TMA_SWIZZLES,
)

TENSOR_MAP_BYTES = 128
UNIT_BYTES = TMA_INNER_ALIGNED_BYTES
# PTX ISA, `tensormap.replace`: .elemtype in the order of its codes, and the bytes of each
ELEMENT_BYTES = {
    "u8": 1, "u16": 2, "u32": 4, "s32": 4, "u64": 8, "s64": 8, "f16": 2, "f32": 4, "f32.ftz": 4, "f64": 8,
    "bf16": 2, "tf32": 4, "tf32.ftz": 4,
}  # fmt: skip
_ELEMENTS = tuple(ELEMENT_BYTES)
_SWIZZLE_NAMES = tuple(TMA_SWIZZLES)


@dataclass(frozen=True)
class TensorMap:
    """The arguments of cuTensorMapEncodeTiled, the contiguous mode first.

    element           one of ELEMENT_BYTES
    address           of global memory
    extents           in elements; outside of them is out of bounds
    strides           in bytes, of modes 1 and on
    box               extents of what one copy moves
    element_strides   of global memory, where not every element is taken
    interleave        0 for none
    swizzle           none, 32B, 64B or 128B
    nan_fill          whether NaN stands for what is out of bounds; zero else
    """

    element: str
    address: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: int = 0
    swizzle: str = "none"
    nan_fill: bool = False

    @staticmethod
    def of(raw: bytes) -> TensorMap:
        """From the 128 bytes.

        raises   RuleViolation where they hold no such thing, or break the rules of cuTensorMapEncodeTiled
        """
        return _read(raw)

    @property
    def element_bytes(self) -> int:
        """Of one element."""
        return ELEMENT_BYTES[self.element]

    @property
    def box_bytes(self) -> int:
        """Of shared memory that a box takes: what its copy brings to a barrier, out of bounds or not."""
        return prod(self.box) * self.element_bytes

    def violations(self) -> list[str]:
        """Rules of cuTensorMapEncodeTiled that are broken, and what is not carried out here."""
        inner_bytes = self.box[0] * self.element_bytes
        span = TMA_SWIZZLES[self.swizzle][1]
        rules = []
        if self.address % UNIT_BYTES:
            rules.append(f"the global address {self.address:#x} is no multiple of {UNIT_BYTES}")
        for mode, stride in enumerate(self.strides, 1):
            if stride == 0 and self.extents[mode] > 1:
                rules.append(f"the {self.extents[mode]} elements of mode {mode} have a stride of 0")
        for mode, extent in enumerate(self.box):
            if not 1 <= extent <= TMA_MAX_BOX_EXTENT:
                rules.append(f"box extent {extent} of mode {mode}; 1 to {TMA_MAX_BOX_EXTENT} are expected")
        if inner_bytes % UNIT_BYTES:
            rules.append(f"the {inner_bytes} inner bytes of the box are no multiple of {UNIT_BYTES}")
        if span is not None and inner_bytes != span:
            rules.append(f"the {inner_bytes} inner bytes of the box do not fill the {self.swizzle} swizzle")
        if any(stride != 1 for stride in self.element_strides):
            rules.append(f"element strides {self.element_strides}; only 1 is carried out here")
        if self.interleave or self.nan_fill:
            rules.append("interleaved layouts and NaN fill are not carried out here")
        return rules

    def units(self, corner: tuple[int, ...]) -> BoxUnits:
        """The 16-byte units of the box that begins at a corner, in the order of shared memory.

        corner   coordinates, the contiguous mode first; they may be negative
        """
        size, per_unit = self.element_bytes, UNIT_BYTES // self.element_bytes
        counts = (self.box[0] // per_unit, *self.box[1:])
        index = np.unravel_index(np.arange(prod(counts)), counts, order="F")
        first = corner[0] + index[0].astype(np.int64) * per_unit  # the first element of each unit
        row_inside = np.ones(len(first), bool)
        address = self.address + first * size
        for mode in range(1, len(self.box)):
            at = corner[mode] + index[mode].astype(np.int64)
            row_inside &= (at >= 0) & (at < self.extents[mode])
            address += at * self.strides[mode - 1]
        element = first[:, None] + np.arange(UNIT_BYTES)[None, :] // size
        inside = row_inside[:, None] & (element >= 0) & (element < self.extents[0])
        whole = row_inside[:, None] & (element // per_unit * per_unit < self.extents[0]) & (element >= 0)
        return BoxUnits(address, inside, whole)

    def shared_units(self, start: int) -> np.ndarray:
        """Shared addresses of the units of a box at `start`, in their order; the swizzle permutes address bits.

        raises   RuleViolation where `start` is not aligned as TMA needs it
        """
        if start % TMA_SMEM_ALIGNED_BYTES:
            raise RuleViolation(
                f"TMA at shared address {start:#x}, which is no multiple of {TMA_SMEM_ALIGNED_BYTES} bytes."
            )
        address = start + np.arange(self.box_bytes // UNIT_BYTES) * UNIT_BYTES
        out: np.ndarray = Swizzle(TMA_SWIZZLES[self.swizzle][0], 4, 3)(address)
        return out


@dataclass(frozen=True)
class BoxUnits:
    """Units of 16 bytes of a box in global memory.

    address   (units,) of the first byte
    inside    (units, 16) the bytes that a load brings; zeros stand for the others
    whole     (units, 16) the bytes that a store writes: a unit that begins inside a row is written as a whole
              (seen on one H200, driver 580, 2026-11-20)
    """

    address: np.ndarray
    inside: np.ndarray
    whole: np.ndarray


@functools.lru_cache(maxsize=256)
def _read(raw: bytes) -> TensorMap:
    words = [int(word) for word in np.frombuffer(raw, np.uint32)]
    rank, code = (words[2] >> 4 & 7) + 1, words[2] >> 7 & 15
    if rank > TMA_MAX_RANK or code >= len(_ELEMENTS) or len(words) * 4 != TENSOR_MAP_BYTES:
        raise RuleViolation(f"no tensor map: its words are {' '.join(f'{word:x}' for word in words[:16])}.")
    strides = [words[3 + i] | (words[7] >> 4 * i & 15) << 32 for i in range(rank - 1)]
    boxes = [words[13] >> 24, *(words[14] >> 8 * i & 255 for i in range(rank - 1))]
    found = TensorMap(
        "tf32" if _ELEMENTS[code] == "f32" and words[2] >> 16 & 1 else _ELEMENTS[code],
        words[0] | words[1] << 32,
        tuple([extent + 1 for extent in words[8 : 8 + rank]]),
        tuple([stride * UNIT_BYTES for stride in strides]),
        tuple([extent + 1 for extent in boxes]),
        tuple([(words[13] >> 3 * i & 7) + 1 for i in range(rank)]),
        words[2] >> 11 & 3,
        _SWIZZLE_NAMES[words[2] >> 13 & 3],
        bool(words[2] >> 15 & 1),
    )
    violations = found.violations()
    if violations:
        raise RuleViolation(f"a tensor map breaks rules: {'; '.join(violations)}.")
    return found
