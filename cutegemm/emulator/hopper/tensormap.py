"""TMA tensor maps: decodes their 128 bytes, and locates the 16-byte units of a box in global and shared memory.

The host code of the DSL writes tensor maps in the format of the hardware, which is not documented. The fields below are
those that change with the arguments of the encoder. Their codes are those of PTX's `tensormap.replace`. Bits of each
32-bit word:

| word   | field                                                                                           |
|--------|-------------------------------------------------------------------------------------------------|
| 0, 1   | global address                                                                                  |
| 2      | 4-6: rank - 1; 7-10: element type; 11-12: interleave; 13-14: swizzle; 15: fill of out-of-bounds |
|        | elements (0: zero, 1: NaN); 16: whether a load rounds f32 to tf32                               |
| 3-6    | low 32 bits of the strides of modes 1 to 4, in units of 16 bytes; word 7: 4 more bits of each   |
| 8-12   | extents - 1 of modes 0 to 4                                                                     |
| 13     | 0-14: element strides - 1, 3 bits each; 24-31: box extent - 1 of mode 0                         |
| 14     | box extents - 1 of modes 1 to 4, 8 bits each                                                    |

The other bits of word 2 are hints for the L2 cache and marks of the driver. Words 16 to 31 are not used.
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
# PTX ISA, `tensormap.replace`: bytes of each .elemtype, in the order of the codes
ELEMENT_BYTES = {
    "u8": 1, "u16": 2, "u32": 4, "s32": 4, "u64": 8, "s64": 8, "f16": 2, "f32": 4, "f32.ftz": 4, "f64": 8,
    "bf16": 2, "tf32": 4, "tf32.ftz": 4,
}  # fmt: skip
_ELEMENTS = tuple(ELEMENT_BYTES)
_SWIZZLE_NAMES = tuple(TMA_SWIZZLES)


@dataclass(frozen=True)
class TensorMap:
    """A decoded tensor map: the arguments of cuTensorMapEncodeTiled, the contiguous mode first.

    element           element type, a key of ELEMENT_BYTES
    address           address of the tensor in global memory
    extents           extents of the tensor, in elements
    strides           strides of modes 1 and on, in bytes
    box               extents of a box, in elements
    element_strides   for each mode, the stride of the elements of a box, in elements; 1 takes every element
    interleave        0 for none
    swizzle           "none", "32B", "64B" or "128B"
    nan_fill          whether elements out of bounds are loaded as NaN, not as zero
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
    def decode(raw: bytes) -> TensorMap:
        """Decode the 128 bytes of a tensor map that cuTensorMapEncodeTiled has made.

        raises   RuleViolation if they are not one, or if it violates a rule of cuTensorMapEncodeTiled
        """
        return _read(raw)

    @property
    def element_bytes(self) -> int:
        """Return the number of bytes of an element of this tensor map's tensor."""
        return ELEMENT_BYTES[self.element]

    @property
    def box_bytes(self) -> int:
        """Return the number of bytes that TMA writes to shared memory and counts at the mbarrier for one box.

        Elements out of bounds are included.
        """
        return prod(self.box) * self.element_bytes

    def violations(self) -> list[str]:
        """Return what is wrong with this tensor map, as texts: violated rules of cuTensorMapEncodeTiled.

        Features that the emulator does not implement are included.
        """
        inner_bytes = self.box[0] * self.element_bytes
        span = TMA_SWIZZLES[self.swizzle][1]
        rules = []
        if self.address % UNIT_BYTES:
            rules.append(f"the global address {self.address:#x} is not a multiple of {UNIT_BYTES}")
        for mode, stride in enumerate(self.strides, 1):
            if stride == 0 and self.extents[mode] > 1:
                rules.append(f"the {self.extents[mode]} elements of mode {mode} have a stride of 0")
        for mode, extent in enumerate(self.box):
            if not 1 <= extent <= TMA_MAX_BOX_EXTENT:
                rules.append(f"box extent {extent} of mode {mode} is not in 1 to {TMA_MAX_BOX_EXTENT}")
        if inner_bytes % UNIT_BYTES:
            rules.append(f"the {inner_bytes} inner bytes of the box are not a multiple of {UNIT_BYTES}")
        if span is not None and inner_bytes != span:
            rules.append(f"the {inner_bytes} inner bytes of the box do not fill the {self.swizzle} swizzle")
        if any(stride != 1 for stride in self.element_strides):
            rules.append(f"element strides {self.element_strides}: the emulator implements only 1")
        if self.interleave or self.nan_fill:
            rules.append("the emulator does not implement interleaved layouts and NaN fill")
        return rules

    def units(self, corner: tuple[int, ...]) -> BoxUnits:
        """Return where the 16-byte units of a box are in global memory, in the order of the box in shared memory.

        corner   coordinates of the first element, the contiguous mode first; they may be negative
        raises   RuleViolation if the first element does not start a unit: on Hopper an illegal instruction
        """
        size, per_unit = self.element_bytes, UNIT_BYTES // self.element_bytes
        if corner[0] % per_unit:
            raise RuleViolation(
                f"TMA at coordinate {corner[0]} of the contiguous mode, which is not a multiple of {per_unit}, the "
                f"elements of {UNIT_BYTES} bytes."
            )
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
        """Return the shared-memory address of each 16-byte unit of a box of this tensor map, with the swizzle applied.

        Unit i of the result is the i-th 16 bytes of the box, counted along the contiguous mode first; the swizzle
        decides at which address it lies.

        start     shared-memory address of the start of the box
        returns   int array (units,)
        raises    RuleViolation if `start` is not aligned to 128 bytes
        """
        if start % TMA_SMEM_ALIGNED_BYTES:
            raise RuleViolation(
                f"TMA at shared address {start:#x}, which is not a multiple of {TMA_SMEM_ALIGNED_BYTES} bytes."
            )
        address = start + np.arange(self.box_bytes // UNIT_BYTES) * UNIT_BYTES
        out: np.ndarray = Swizzle(TMA_SWIZZLES[self.swizzle][0], 4, 3)(address)
        return out


@dataclass(frozen=True)
class BoxUnits:
    """The 16-byte units of a TMA box in global memory, and which bytes of each unit are loaded or stored.

    address   (units,) global address of the first byte of each unit
    inside    bool (units, 16): bytes that a load reads; it fills the others with zeros
    whole     bool (units, 16): bytes that a store writes. If a row of the matrix ends within a unit, the store writes
              all 16 bytes (observed on one H200, driver 580, 2026-11-20)
    """

    address: np.ndarray
    inside: np.ndarray
    whole: np.ndarray


@functools.lru_cache(maxsize=256)
def _read(raw: bytes) -> TensorMap:
    """Decode the 128 bytes of a tensor map. The result is cached."""
    words = [int(word) for word in np.frombuffer(raw, np.uint32)]
    rank, code = (words[2] >> 4 & 7) + 1, words[2] >> 7 & 15
    if rank > TMA_MAX_RANK or code >= len(_ELEMENTS) or len(words) * 4 != TENSOR_MAP_BYTES:
        raise RuleViolation(f"not a tensor map: its words are {' '.join(f'{word:x}' for word in words[:16])}.")
    strides = [words[3 + i] | (words[7] >> 4 * i & 15) << 32 for i in range(rank - 1)]
    boxes = [words[13] >> 24, *(words[14] >> 8 * i & 255 for i in range(rank - 1))]
    tensor_map = TensorMap(
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
    violations = tensor_map.violations()
    if violations:
        raise RuleViolation(f"a tensor map violates rules: {'; '.join(violations)}.")
    return tensor_map
