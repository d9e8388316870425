"""What an atom is: one instruction, told as data.

An MMA atom multiplies a small tile and says which thread holds which of its elements; a copy atom moves a
vector and says which thread reads and which holds which of its elements. The tables of atoms are in
`mma_atoms` and `copy_atoms`, each with the source that it was taken from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from cutegemm.dtypes import DType
from cutegemm.errors import UnsupportedError
from cutegemm.layout.layout import Layout

_ARCH = re.compile(r"sm_([0-9]+)([af]?)")


def runs_on(min_arch: str, arch: str) -> bool:
    """Whether an instruction that needs `min_arch` exists on `arch`.

    A plain architecture serves its successors too; one that ends in `a` serves itself alone.

    raises   UnsupportedError for a text that names no architecture

    >>> runs_on("sm_80", "sm_90a"), runs_on("sm_90a", "sm_90"), runs_on("sm_90a", "sm_100a")
    (True, False, False)
    """
    need, have = _ARCH.fullmatch(min_arch), _ARCH.fullmatch(arch)
    if need is None or have is None:
        raise UnsupportedError(f"runs_on: {arch if need else min_arch!r} is no architecture; sm_90a is one.")
    if need[2]:
        return min_arch == arch
    return int(have[1]) >= int(need[1])


@dataclass(frozen=True)
class MmaAtom:
    """D = A * B + C on one tile by one instruction.

    name          instruction, shape, type of C and D, type of A and B
    shape_mnk     extents of the tile
    a_dtype ...   of the operands; D has the type of C
    thr_id        thread of the instruction -> thread, its size the number of threads
    layout_a_tv   (thread, value) -> colexicographic index in the (M, K) tile of A
    layout_b_tv   the same in the (N, K) tile of B
    layout_c_tv   the same in the (M, N) tile of C and D. Elements that several threads hold have stride 0
    min_arch      the first architecture with the instruction, or the only one where it ends in `a`
    source        where the tables were taken from
    a_source      where A is read from: register or shared; in shared memory all threads hold all of it
    b_source      the same of B
    a_major       the majorness of a shared operand: k or mn
    b_major       the same of B
    """

    name: str
    shape_mnk: tuple[int, int, int]
    a_dtype: DType
    b_dtype: DType
    c_dtype: DType
    thr_id: Layout
    layout_a_tv: Layout
    layout_b_tv: Layout
    layout_c_tv: Layout
    min_arch: str
    source: str
    a_source: str = "register"
    b_source: str = "register"
    a_major: str = "k"
    b_major: str = "k"

    @property
    def threads(self) -> int:
        """How many threads carry out the instruction together."""
        return self.thr_id.size()

    def layout_tv(self, operand: str) -> Layout:
        """The thread-value layout of operand a, b or c."""
        return {"a": self.layout_a_tv, "b": self.layout_b_tv, "c": self.layout_c_tv}[operand]

    def runs_on(self, arch: str) -> bool:
        """Whether `arch` has the instruction."""
        return runs_on(self.min_arch, arch)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class CopyAtom:
    """A vector moved by one instruction.

    name            instruction and element type
    dtype           the element type in which the layouts below are measured
    bits            moved for each thread, as the destination holds them
    thr_id          thread of the instruction -> thread, its size the number of threads
    layout_src_tv   (thread, value) -> index among the elements moved, of whom a thread reads them
    layout_dst_tv   the same of whom a thread writes or holds them
    layout_ref_tv   the one of the two that lives in registers, by which a TiledCopy counts threads and
                    values
    src, dst        memory spaces: global, shared or register; any serves between global and registers and
                    between shared memory and registers alike
    min_arch        the first architecture with the instruction
    source          where the tables were taken from
    aligned_bytes   to which the addresses must be aligned
    """

    name: str
    dtype: DType
    bits: int
    thr_id: Layout
    layout_src_tv: Layout
    layout_dst_tv: Layout
    layout_ref_tv: Layout
    src: str
    dst: str
    min_arch: str
    source: str
    aligned_bytes: int

    @property
    def threads(self) -> int:
        """How many threads carry out the instruction together."""
        return self.thr_id.size()

    @property
    def is_async(self) -> bool:
        """Whether it goes from global to shared memory by itself, to be waited for: cp.async or TMA."""
        return self.src == "global" and self.dst == "shared"

    @property
    def values(self) -> int:
        """How many elements each of them holds in registers."""
        return int(self.layout_ref_tv[1].size())

    def runs_on(self, arch: str) -> bool:
        """Whether `arch` has the instruction."""
        return runs_on(self.min_arch, arch)

    def __str__(self) -> str:
        return self.name


def fields_of(value: Any) -> tuple[Any, ...]:
    """The fields of a dataclass in order: what equality, the hash and a pickle go by."""
    return tuple([getattr(value, name) for name in value.__dataclass_fields__])
