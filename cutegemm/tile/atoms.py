"""Atoms: the description of one instruction by layouts.

An MMA atom multiplies a small tile; its layouts give the elements that each thread holds. A copy atom moves a vector;
its layouts give the elements that each thread reads and holds. The tables of atoms are in `mma_atoms` and
`copy_atoms`, with the source of each table.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from inspect import signature
from typing import Any, TypeVar, cast

from cutegemm.dtypes import DType
from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.layout import hooks
from cutegemm.layout.layout import Layout

_ARCH = re.compile(r"sm_([0-9]+)([af]?)")


def runs_on(min_arch: str, arch: str) -> bool:
    """Whether an instruction that needs `min_arch` exists on `arch`.

    An instruction of a plain architecture exists on its successors too; one of an architecture that ends in `a` exists
    there alone.

    raises   UnsupportedError for a text that names no architecture

    >>> runs_on("sm_80", "sm_90a"), runs_on("sm_90a", "sm_90"), runs_on("sm_90a", "sm_100a")
    (True, False, False)
    """
    need, have = [_ARCH.fullmatch(a) if isinstance(a, str) else None for a in (min_arch, arch)]
    if need is None or have is None:
        raise UnsupportedError(f"runs_on: {arch if need else min_arch!r} is no architecture; sm_90a is one.")
    if need[2]:
        return min_arch == arch
    return int(have[1]) >= int(need[1])


@dataclass(frozen=True)
class MmaAtom(hooks.Shown):
    """D = A * B + C on one tile by one instruction.

    name          instruction, shape, type of C and D, type of A and B
    shape_mnk     extents of the tile
    a_dtype ...   of the operands; D has the type of C
    thr_id        thread of the instruction -> thread, its size the number of threads
    layout_a_tv   (thread, value) -> colexicographic index in the (M, K) tile of A
    layout_b_tv   the same in the (N, K) tile of B
    layout_c_tv   the same in the (M, N) tile of C and D. Elements that several threads hold have stride 0
    min_arch      the first architecture with the instruction, or the only one where it ends in `a`
    source        of the tables
    a_source      register or shared: the memory that A is read from; in shared memory all threads hold all of it
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

    @property
    def is_of_warpgroup(self) -> bool:
        """Whether a warpgroup carries it out, and goes on meanwhile: wgmma."""
        return self.b_source == "shared"

    def layout_tv(self, operand: str) -> Layout:
        """The thread-value layout of operand a, b or c."""
        layouts = {"a": self.layout_a_tv, "b": self.layout_b_tv, "c": self.layout_c_tv}
        if not isinstance(operand, str) or operand not in layouts:
            raise UnsupportedError(f"{self}: the operand {operand!r}; a, b or c is expected.")
        return layouts[operand]

    def runs_on(self, arch: str) -> bool:
        """Whether `arch` has the instruction."""
        return runs_on(self.min_arch, arch)

    def __str__(self) -> str:
        return self.name


_MATRIX_ROWS = 8  # of the matrices that ldmatrix and stmatrix move, each at an address of its own


@dataclass(frozen=True)
class CopyAtom(hooks.Shown):
    """A vector moved by one instruction.

    name            instruction and element type
    dtype           the element type in which the layouts below are measured
    bits            moved for each thread, as the destination holds them
    thr_id          thread of the instruction -> thread, its size the number of threads
    layout_src_tv   (thread, value) -> index of the element that the thread reads, among the elements moved
    layout_dst_tv   the same of the element that the thread writes or holds
    layout_ref_tv   the one of the two that is in registers; a TiledCopy counts threads and values by it
    src, dst        memory spaces: global, shared or register; any is a copy between registers and either
                    global or shared memory
    min_arch        the first architecture with the instruction
    source          of the tables
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
        """Whether it copies from global to shared memory asynchronously, as cp.async and TMA do."""
        return self.src == "global" and self.dst == "shared"

    @property
    def values(self) -> int:
        """How many elements each of them holds in registers."""
        return int(self.layout_ref_tv[1].size())

    @property
    def address_lanes(self) -> int:
        """How many of these threads give an address in shared memory: of ldmatrix and stmatrix 8 for each matrix.

        >>> from cutegemm.dtypes import bf16
        >>> from cutegemm.tile.copy_atoms import stmatrix, universal_copy
        >>> [atom.address_lanes for atom in (stmatrix(bf16, 2), stmatrix(bf16, 4), universal_copy(bf16, 32))]
        [16, 32, 1]
        """
        return self.threads if self.threads == 1 else _MATRIX_ROWS * (self.bits // 32)

    def runs_on(self, arch: str) -> bool:
        """Whether `arch` has the instruction."""
        return runs_on(self.min_arch, arch)

    def __str__(self) -> str:
        return self.name


_INTEGERS = ("bits", "size_bytes", "matrices", "k", "n")
Make = TypeVar("Make", bound=Callable[..., Any])


def table_of_atoms(make: Make) -> Make:
    """A function that makes atoms, with its results kept and its arguments checked.

    A type may be given by its name: "bf16" for `bf16`.

    raises   UnsupportedError for a name that is no type, PlanError for an argument of another kind
    """
    kept, parameters = cache(make), signature(make)

    @wraps(make)
    def call(*args: Any, **options: Any) -> Any:
        given = parameters.bind(*args, **options)
        broken = []
        for name, value in given.arguments.items():
            if name.endswith("dtype"):
                given.arguments[name] = None if value is None and name != "dtype" else DType.parse(value)
                continue
            kind = int if name in _INTEGERS else bool if name == "transpose" else str
            if type(value) is not kind:
                expected = {int: "an integer", bool: "True or False", str: "a text"}[kind]
                broken.append(f"{name} = {value!r}; {expected} is expected")
        if broken:
            raise PlanError(make.__name__, broken)
        return kept(*given.args, **given.kwargs)

    return cast(Make, call)


def require(operation: str, value: Any, kind: type, expected: str) -> None:
    """Raises PlanError where a value is of another kind."""
    if not isinstance(value, kind):
        raise PlanError(operation, [f"{value!r} is given; {expected} is expected"])


def fields_of(value: Any) -> tuple[Any, ...]:
    """The fields of a dataclass in order, on which equality, the hash and pickles are based."""
    return tuple([getattr(value, name) for name in value.__dataclass_fields__])
