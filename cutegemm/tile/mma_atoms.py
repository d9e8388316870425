"""MMA atoms: the SIMT FMA, mma.sync and wgmma.

A thread-value layout is written as in CuTe's headers. With `((4,8),(2,2)):((32,1),(16,8))` on a (16, 8) tile,
lane 4 * g + t holds the elements (g + 8 * j, 2 * t + i) as its values i + 2 * j. An offset is a colexicographic
index of the tile: t has stride 32, two columns of 16 rows, and g has stride 1, one row.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from cutegemm.dtypes import DType, bf16, e4m3, e5m2, f16, f32, f64, s8, s32, tf32
from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.layout.layout import Layout
from cutegemm.tile.atoms import MmaAtom, table_of_atoms

_ONE = Layout((1, 1), (0, 0))
_FMA_TYPES = ((f16, f16), (f16, f32), (bf16, f32), (f32, f32), (f64, f64))

_WARP = Layout(32)
_C_16X8 = Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))
# (shape (M, N, K) of mma.sync, bits of an element of A and B) -> layouts of A and B. The layout of C is _C_16X8.
_MMA_SYNC: dict[tuple[tuple[int, int, int], int], tuple[Layout, Layout]] = {
    ((16, 8, 8), 16): (_C_16X8, Layout(((4, 8), 2), ((16, 1), 8))),
    ((16, 8, 16), 16): (
        Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128))),
        Layout(((4, 8), (2, 2)), ((16, 1), (8, 64))),
    ),
    ((16, 8, 4), 32): (Layout(((4, 8), 2), ((16, 1), 8)), Layout(((4, 8), 1), ((8, 1), 0))),
    ((16, 8, 8), 32): (
        Layout(((4, 8), (2, 2)), ((16, 1), (8, 64))),
        Layout(((4, 8), 2), ((8, 1), 32)),
    ),
    ((16, 8, 16), 8): (
        Layout(((4, 8), (4, 2)), ((64, 1), (16, 8))),
        Layout(((4, 8), 4), ((32, 1), 8)),
    ),
    ((16, 8, 32), 8): (
        Layout(((4, 8), (4, 2, 2)), ((64, 1), (16, 8, 256))),
        Layout(((4, 8), (4, 2)), ((32, 1), (8, 128))),
    ),
}
# type of A and B -> (types of C, K -> (first architecture, source))
_MMA_SYNC_TYPES: dict[DType, tuple[tuple[DType, ...], dict[int, tuple[str, str]]]] = {
    f16: (
        (f16, f32),
        {8: ("sm_75", "CuTe, mma_traits_sm80.hpp:63,99"), 16: ("sm_80", "CuTe, mma_traits_sm80.hpp:78,109")},
    ),
    bf16: (
        (f32,),
        {8: ("sm_80", "CuTe, mma_traits_sm80.hpp:123"), 16: ("sm_80", "CuTe, mma_traits_sm80.hpp:133")},
    ),
    tf32: (
        (f32,),
        {4: ("sm_80", "CuTe, mma_traits_sm80.hpp:147"), 8: ("sm_80", "CuTe, mma_traits_sm80.hpp:163")},
    ),
    s8: (
        (s32,),
        {16: ("sm_80", "CuTe, mma_traits_sm80.hpp:244"), 32: ("sm_80", "CuTe, mma_traits_sm80.hpp:264")},
    ),
    e4m3: ((f16, f32), {32: ("sm_89", "CuTe, mma_traits_sm89.hpp:54")}),
    e5m2: ((f16, f32), {32: ("sm_89", "CuTe, mma_traits_sm89.hpp:54")}),
}

WGMMA_M = 64
MAX_WGMMA_COLUMNS = 256
WGMMA_K_BITS = 256  # bits of K elements, for every type
WGMMA_C_TYPES = {
    f16: (f32, f16), bf16: (f32,), tf32: (f32,), e4m3: (f32, f16), e5m2: (f32, f16), s8: (s32,),
}  # fmt: skip


@table_of_atoms
def fma(dtype: DType = f32, c_dtype: DType | None = None) -> MmaAtom:
    """Return the atom of one fused multiply-add of one thread: d = a * b + c.

    dtype     element type of a and b; narrower operands are first converted to the type of c
    c_dtype   element type of c and d; None for f32 with f16 and bf16 operands, else the type of a and b
    raises    UnsupportedError for types that have no such instruction
    source    CuTe, mma_traits.hpp:70, MMA_Traits<UniversalFMA>

    >>> fma(f32).name, fma(bf16).name
    ('fma.f32.f32', 'fma.f32.bf16')
    """
    wide = c_dtype if c_dtype is not None else (f32 if dtype in (f16, bf16) else dtype)
    if (dtype, wide) not in _FMA_TYPES:
        known = ", ".join(f"{a} with {c}" for a, c in _FMA_TYPES)
        raise UnsupportedError(
            f"fma: {dtype} operands with {wide} accumulators have no FMA instruction. Choose {known}."
        )
    return MmaAtom(
        f"fma.{wide}.{dtype}", (1, 1, 1), dtype, dtype, wide, Layout(1, 0), _ONE, _ONE, _ONE, "sm_50",
        "CuTe, mma_traits.hpp:70",
    )  # fmt: skip


@table_of_atoms
def mma_sync(dtype: DType, k: int, c_dtype: DType | None = None, b_dtype: DType | None = None) -> MmaAtom:
    """Return the atom of mma.sync.aligned.m16n8k{k}.row.col: a warp multiplies (16, k) by (k, 8).

    All operands are in registers.

    dtype     element type of A and B: f16, bf16, tf32, e4m3, e5m2 or s8
    k         8 or 16 for f16 and bf16; 4 or 8 for tf32; 32 for e4m3 and e5m2; 16 or 32 for s8
    c_dtype   element type of C and D: f32, s32 for s8, or f16 for f16, e4m3 and e5m2; None for f32 or s32
    b_dtype   element type of B if A is e4m3 and B e5m2, or the reverse; None for the type of A
    raises    UnsupportedError for another choice; the message lists the choices
    source    PTX ISA, "Matrix Fragments for mma.m16n8k8" and its neighbours; CuTe, mma_traits_sm80.hpp

    >>> atom = mma_sync(bf16, 16)
    >>> atom.name, str(atom.layout_a_tv)
    ('mma.m16n8k16.f32.bf16', '((4,8),(2,2,2)):((32,1),(16,8,128))')
    """
    other = dtype if b_dtype is None else b_dtype
    if dtype not in _MMA_SYNC_TYPES:
        known = ", ".join(t.name for t in _MMA_SYNC_TYPES)
        raise UnsupportedError(f"mma_sync: {dtype} operands have no mma.sync instruction. Choose {known}.")
    wide, shapes = _MMA_SYNC_TYPES[dtype]
    into = wide[-1] if c_dtype is None else c_dtype
    rules = []
    if k not in shapes:
        rules.append(f"k = {k} is not {_or(shapes)}, the extents for {dtype}")
    if into not in wide:
        rules.append(f"C is {into}, but {dtype} operands need C of {_or(wide)}")
    if not _mixes(dtype, other):
        rules.append(f"A is {dtype} and B is {other}, but only e4m3 and e5m2 can be mixed")
    if rules:
        raise UnsupportedError(f"mma_sync: {'; '.join(rules)}.")
    layout_a, layout_b = _MMA_SYNC[(16, 8, k), dtype.bits]
    arch, source = shapes[k]
    name = f"mma.m16n8k{k}.{into}.{_pair(dtype, other)}"
    return MmaAtom(name, (16, 8, k), dtype, other, into, _WARP, layout_a, layout_b, _C_16X8, arch, source)


@table_of_atoms
def wgmma(
    dtype: DType,
    n: int,
    a_major: str = "k",
    b_major: str = "k",
    a_source: str = "shared",
    c_dtype: DType | None = None,
    b_dtype: DType | None = None,
) -> MmaAtom:
    """Return the atom of wgmma.mma_async.m64n{n}: a warpgroup multiplies (64, k) by (k, n).

    k is not an argument: k elements have 32 bytes, e.g. 16 of bf16. B is in shared memory, C and D are in registers.

    dtype      element type of A and B: f16, bf16, tf32, e4m3, e5m2 or s8
    n          8 to 256 in steps of 8; for s8 up to 32, then in steps of 16
    a_major    contiguous mode of A in shared memory: k, or mn for f16 and bf16. Must be k if A is in registers
    b_major    contiguous mode of B in shared memory: k, or mn for f16 and bf16
    a_source   memory that A is read from: shared or register
    c_dtype    element type of C and D: f32, s32 for s8, or f16 for f16, e4m3 and e5m2; None for f32 or s32
    b_dtype    element type of B if A is e4m3 and B e5m2, or the reverse; None for the type of A
    raises     PlanError with every broken rule
    source     PTX ISA, "wgmma.mma_async"; CuTe, mma_traits_sm90_gmma.hpp:434-465

    >>> atom = wgmma(bf16, 128, b_major="mn")
    >>> atom.name, str(atom.layout_c_tv)
    ('wgmma.m64n128k16.f32.bf16.k_mn.ss', '((4,8,4),(2,2,16)):((128,1,16),(64,8,512))')
    """
    other = dtype if b_dtype is None else b_dtype
    into = c_dtype if c_dtype is not None else (s32 if dtype is s8 else f32)
    k = WGMMA_K_BITS // dtype.bits
    name = (
        f"wgmma.m64n{n}k{k}.{into}.{_pair(dtype, other)}.{a_major}_{b_major}.{'rs' if a_source == 'register' else 'ss'}"
    )
    rules = _wgmma_rules(dtype, other, into, n, a_major, b_major, a_source)
    if rules:
        raise PlanError(name, rules)
    columns = (2, 2) if n == 8 else (2, 2, n // 8)
    layout_c = Layout(((4, 8, 4), columns), ((128, 1, 16), (64, 8, 512)[: len(columns)]))
    packed = 32 // dtype.bits  # elements of A in a register
    values = ((packed, 2, 2), (64, 8, 256 * packed)) if packed > 1 else ((2, 2), (8, 256))
    registers = Layout(((4, 8, 4), values[0]), ((64 * packed, 1, 16), values[1]))
    layout_a = registers if a_source == "register" else _in_shared(WGMMA_M, k)
    return MmaAtom(
        name, (WGMMA_M, n, k), dtype, other, into, Layout(128), layout_a, _in_shared(n, k), layout_c,
        "sm_90a", "CuTe, mma_traits_sm90_gmma.hpp:434-465", a_source, "shared", a_major, b_major,
    )  # fmt: skip


# Row of the wgmma -> row of the tile, for threads that read A from an m-major tile in shared memory. With the 128-byte
# swizzle, rows 0-3 and 16-19 at k = 0 .. 3 are in 32 different banks; the neighbouring rows 0-7 share 16 banks.
# Modes: lanes along M (4, 2), the second row of a thread (2), warps (2, 2).
ROWS_IN_BANKS = Layout((4, 2, 2, 2, 2), (1, 16, 4, 8, 32))


def _in_shared(extent: int, k: int) -> Layout:
    """Return the thread-value layout of a wgmma operand in shared memory: each of 128 threads has all elements.

    extent   extent of the operand along M or N
    k        extent of the operand along K
    """
    return Layout((128, (extent, k)), (0, (1, extent)))


def _wgmma_rules(
    dtype: DType, other: DType, into: DType, n: int, a_major: str, b_major: str, a_source: str
) -> list[str]:
    """Return the rules that the arguments of `wgmma` violate, as phrases for an error message; empty if none is.

    `wgmma` returns an instruction that multiplies a (64, k) tile A by a (k, n) tile B.

    dtype              element type of A
    other              element type of B
    into               element type of C and D
    n                  extent N of the instruction
    a_major, b_major   contiguous mode of A and of B in shared memory: "k" or "mn"
    a_source           memory that A is read from: "shared" or "register"
    """
    if dtype not in WGMMA_C_TYPES:
        known = ", ".join(t.name for t in WGMMA_C_TYPES)
        return [f"{dtype} operands have no wgmma instruction; {known} have"]
    rules = []
    if not _mixes(dtype, other):
        rules.append(f"A is {dtype} and B is {other}, but only e4m3 and e5m2 can be mixed")
    if into not in WGMMA_C_TYPES[dtype]:
        rules.append(f"C is {into}, but {dtype} operands need C of {_or(WGMMA_C_TYPES[dtype])}")
    if not (8 <= n <= MAX_WGMMA_COLUMNS and n % 8 == 0):
        rules.append(f"n = {n} is not a multiple of 8 from 8 to {MAX_WGMMA_COLUMNS}")
    elif dtype is s8 and n > 32 and n % 16:
        rules.append(f"n = {n} is above 32 and not a multiple of 16, as s8 needs it")
    if a_source not in ("shared", "register"):
        rules.append(f"a_source = {a_source!r} is not shared or register")
    for operand, major in (("A", a_major), ("B", b_major)):
        if major not in ("k", "mn"):
            rules.append(f"{operand.lower()}_major = {major!r} is not k or mn")
        elif major == "mn" and dtype.bits != 16:
            rules.append(
                f"{operand} is mn-major, but {dtype} operands must be k-major; only f16 and bf16 can be mn-major"
            )
        elif major == "mn" and operand == "A" and a_source == "register":
            rules.append("A is mn-major in registers, but only an A in shared memory can be")
    return rules


def _mixes(dtype: DType, other: DType) -> bool:
    """Return True if an MMA instruction exists that multiplies A of type `dtype` by B of type `other`."""
    return dtype is other or {dtype, other} == {e4m3, e5m2}


def _pair(dtype: DType, other: DType) -> str:
    """Return the element types of A (`dtype`) and B (`other`) as text for messages: one name if they are equal."""
    return dtype.name if dtype is other else f"{dtype}_{other}"


def _or(values: object) -> str:
    """Return a list of values as text for messages: (8, 16) becomes '8 or 16'."""
    *first, last = [str(v) for v in values]  # type: ignore[attr-defined]
    return f"{', '.join(first)} or {last}" if first else last


def mma_atoms(arch: str | None = None) -> Iterator[MmaAtom]:
    """Yield every MMA atom of an architecture.

    arch   name such as sm_90a; None for the atoms of all architectures

    >>> [atom.name for atom in mma_atoms("sm_75")][-2:]
    ['mma.m16n8k8.f16.f16', 'mma.m16n8k8.f32.f16']
    """
    for atom in _by_name().values():
        if arch is None or atom.runs_on(arch):
            yield atom


def mma_atom(name: str) -> MmaAtom:
    """Return the MMA atom with a given name.

    name     instruction, shape and types, such as "mma.m16n8k16.f32.bf16"
    raises   UnsupportedError for an unknown name; the message lists similar ones

    >>> mma_atom("mma.m16n8k8.f32.tf32").shape_mnk
    (16, 8, 8)
    """
    atoms = _by_name()
    if not isinstance(name, str) or name not in atoms:
        near = [known for known in atoms if known.split(".")[:2] == str(name).split(".")[:2]]
        near = near or [f"{family}..." for family in sorted({known.split(".")[0] for known in atoms})]
        raise UnsupportedError(
            f"mma_atom: {name!r} is not the name of an atom. Similar names are {', '.join(near[:8])}."
        )
    return atoms[name]


@cache
def _by_name() -> dict[str, MmaAtom]:
    """Return all MMA atoms by their names: `MmaAtom.name` -> atom."""
    return {atom.name: atom for atom in _every_atom()}


def _every_atom() -> Iterator[MmaAtom]:
    """Yield every MMA atom of every architecture."""
    for narrow, wide in _FMA_TYPES:
        yield fma(narrow, wide)
    for dtype, (into, shapes) in _MMA_SYNC_TYPES.items():
        for other in (e4m3, e5m2) if dtype in (e4m3, e5m2) else (dtype,):
            for k in shapes:
                for c_dtype in into:
                    yield mma_sync(dtype, k, c_dtype, other)
    for dtype, into in WGMMA_C_TYPES.items():
        majors = ("k", "mn") if dtype.bits == 16 else ("k",)
        for other in (e4m3, e5m2) if dtype in (e4m3, e5m2) else (dtype,):
            for c_dtype in into:
                for n in [*range(8, 257, 8)] if dtype is not s8 else [8, 16, 24, *range(32, 257, 16)]:
                    for b_major in majors:
                        for a_major in majors:
                            yield wgmma(dtype, n, a_major, b_major, "shared", c_dtype, other)
                        yield wgmma(dtype, n, "k", b_major, "register", c_dtype, other)
