"""Atoms: descriptions of single instructions by layouts.

An MMA atom multiplies a small tile. Its layouts map (thread, value) to the element that the thread holds as
that value. A copy atom moves a vector. Its layouts map (thread, value) to the element that the thread reads or
writes. The tables of atoms are in `mma_atoms` and `copy_atoms`, with the source of each table.
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
    """Return True if an instruction that needs the architecture `min_arch` exists on `arch`.

    An instruction of a plain architecture also exists on its successors. An instruction of an architecture that
    ends in `a` exists only there.

    min_arch, arch   names such as sm_80 or sm_90a
    raises           UnsupportedError for a text that is not the name of an architecture

    >>> runs_on("sm_80", "sm_90a"), runs_on("sm_90a", "sm_90"), runs_on("sm_90a", "sm_100a")
    (True, False, False)
    """
    need, have = [_ARCH.fullmatch(a) if isinstance(a, str) else None for a in (min_arch, arch)]
    if need is None or have is None:
        raise UnsupportedError(
            f"runs_on: {arch if need else min_arch!r} is not an architecture. Give a name such as sm_90a."
        )
    if need[2]:
        return min_arch == arch
    return int(have[1]) >= int(need[1])


@dataclass(frozen=True)
class MmaAtom(hooks.Shown):
    """Describes an MMA instruction: its shape, its types, and which thread holds which elements of A, B, C and D.

    name          instruction, shape, type of C and D, type of A and B
    shape_mnk     extents (M, N, K) of the tile
    a_dtype       element type of A
    b_dtype       element type of B
    c_dtype       element type of C and D
    thr_id        layout from a thread of the instruction to a thread of the warp or warpgroup; its size is the number
                  of threads
    layout_a_tv   (thread, value) -> colexicographic index in the (M, K) tile of A
    layout_b_tv   (thread, value) -> colexicographic index in the (N, K) tile of B
    layout_c_tv   (thread, value) -> colexicographic index in the (M, N) tile of C and D; a stride of 0 means that
                  several threads hold the element
    min_arch      first architecture with the instruction; the only one if it ends in `a`
    source        source of the layouts: header and line, or chapter of the PTX ISA
    a_source      memory that the instruction reads A from: register or shared. All threads read a shared operand whole
    b_source      memory that the instruction reads B from: register or shared
    a_major       majorness of A if it is in shared memory: k or mn
    b_major       majorness of B if it is in shared memory: k or mn

    >>> from cutegemm.tile.mma_atoms import mma_atom
    >>> atom = mma_atom("mma.m16n8k8.f32.tf32")
    >>> atom.shape_mnk, atom.threads, str(atom.layout_c_tv)
    ((16, 8, 8), 32, '((4,8),(2,2)):((32,1),(16,8))')
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
        """Number of threads that execute the instruction of this MMA atom together: 1, 32 or 128."""
        return self.thr_id.size()

    @property
    def is_of_warpgroup(self) -> bool:
        """True if this MMA atom is a wgmma, i.e. runs asynchronously and is issued by four warps together."""
        return self.b_source == "shared"

    def layout_tv(self, operand: str) -> Layout:
        """Return the layout that gives the elements of one operand that each thread of this MMA atom holds.

        The layout maps (thread, value) to the colexicographic index of an element in the operand's tile.

        operand   "a", "b" or "c"; "c" stands for C and D. The tile is (M, K), (N, K) or (M, N)
        raises    UnsupportedError for another operand
        """
        layouts = {"a": self.layout_a_tv, "b": self.layout_b_tv, "c": self.layout_c_tv}
        if not isinstance(operand, str) or operand not in layouts:
            raise UnsupportedError(f"{self}: operand {operand!r} is not one of a, b and c.")
        return layouts[operand]

    def runs_on(self, arch: str) -> bool:
        """Return True if the architecture `arch` has the instruction of this MMA atom.

        arch   name such as sm_90a
        """
        return runs_on(self.min_arch, arch)

    def __str__(self) -> str:
        return self.name


_MATRIX_ROWS = 8  # rows of a matrix of ldmatrix and stmatrix; every row has its own address


@dataclass(frozen=True)
class CopyAtom(hooks.Shown):
    """Describes a copy instruction, such as ld, cp.async or ldmatrix: which thread reads and writes which element.

    The elements that one execution moves are numbered from 0. A layout maps (thread, value) to such a number.

    name            instruction and element type
    dtype           element type that the layouts count
    bits            bits that each thread holds in registers; for cp.async, which uses no registers, bits that it moves
    thr_id          layout from a thread of the instruction to a thread of the warp; its size is the number of threads
    layout_src_tv   number of each element that the thread reads
    layout_dst_tv   number of each element that the thread writes
    layout_ref_tv   the layout of these two that describes registers; a TiledCopy counts threads and values by it
    src, dst        memories: "global", "shared" or "register"; "any" for an instruction that moves data between
                    registers and global or shared memory
    min_arch        first architecture with the instruction
    source          source of the layouts: header and line
    aligned_bytes   alignment that the addresses need, in bytes

    >>> from cutegemm.dtypes import bf16
    >>> from cutegemm.tile.copy_atoms import ldmatrix
    >>> atom = ldmatrix(bf16, 4)
    >>> atom.threads, atom.values, atom.aligned_bytes
    (32, 8, 16)
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
        """Number of threads that execute the instruction of this copy atom together: 1 or 32."""
        return self.thr_id.size()

    @property
    def is_async(self) -> bool:
        """True if this copy atom copies asynchronously from global to shared memory, as cp.async does."""
        return self.src == "global" and self.dst == "shared"

    @property
    def values(self) -> int:
        """Number of elements that a thread holds in registers for one instruction of this copy atom."""
        return int(self.layout_ref_tv[1].size())

    @property
    def address_lanes(self) -> int:
        """Number of threads that supply a shared-memory address to this copy atom: 8 per matrix for ldmatrix, stmatrix.

        >>> from cutegemm.dtypes import bf16
        >>> from cutegemm.tile.copy_atoms import stmatrix, universal_copy
        >>> [atom.address_lanes for atom in (stmatrix(bf16, 2), stmatrix(bf16, 4), universal_copy(bf16, 32))]
        [16, 32, 1]
        """
        return self.threads if self.threads == 1 else _MATRIX_ROWS * (self.bits // 32)

    def runs_on(self, arch: str) -> bool:
        """Return True if the architecture `arch` has the instruction of this copy atom.

        arch   name such as sm_90a
        """
        return runs_on(self.min_arch, arch)

    def __str__(self) -> str:
        return self.name


_INTEGERS = ("bits", "size_bytes", "matrices", "k", "n")
Make = TypeVar("Make", bound=Callable[..., Any])


def table_of_atoms(make: Make) -> Make:
    """Decorate a function that returns an atom, so that it checks its arguments and caches its results.

    The decorated function accepts the name of an element type in place of the type: "bf16" for `bf16`.

    make      function that returns an MmaAtom or CopyAtom. Its parameters named `dtype` or `*_dtype` take element
              types; all others take an int, a bool or a str
    returns   a function of the same signature; it raises UnsupportedError for a name that is not an element type, and
              PlanError for an argument of another kind
    """
    cached, parameters = cache(make), signature(make)

    @wraps(make)
    def call(*args: Any, **options: Any) -> Any:
        bound = parameters.bind(*args, **options)
        violations = []
        for name, value in bound.arguments.items():
            if name.endswith("dtype"):
                bound.arguments[name] = None if value is None and name != "dtype" else DType.parse(value)
                continue
            kind = int if name in _INTEGERS else bool if name == "transpose" else str
            if type(value) is not kind:
                expected = {int: "an integer", bool: "True or False", str: "a text"}[kind]
                violations.append(f"{name} = {value!r} is not {expected}")
        if violations:
            raise PlanError(make.__name__, violations)
        return cached(*bound.args, **bound.kwargs)

    return cast(Make, call)


def require(operation: str, value: Any, kind: type, expected: str) -> None:
    """Raise a PlanError if `value` is not an instance of the class `kind`.

    operation   name of the calling function, which the message starts with, such as "make_tiled_mma"
    value       the argument to check
    kind        class that `value` must be an instance of
    expected    the right kind of value, as a phrase for the message, e.g. "an MMA atom"
    raises      PlanError for a value of another class
    """
    if not isinstance(value, kind):
        raise PlanError(operation, [f"{value!r} is not {expected}"])


def fields_of(value: Any) -> tuple[Any, ...]:
    """Return the values of all fields of the dataclass instance `value` as a tuple, in the order of declaration."""
    return tuple([getattr(value, name) for name in value.__dataclass_fields__])
