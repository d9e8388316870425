"""MMA atoms: the SIMT FMA, mma.sync, wgmma.

A thread-value layout is written as in CuTe's headers: for `((4,8),(2,2)):((32,1),(16,8))` on a (16, 8) tile,
lane 4 * g + t holds the elements (g + 8 * j, 2 * t + i) as value i + 2 * j: t counts in steps of
32 = 2 columns of 16 rows, g in rows.
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
# (M, N, K) of mma.sync by the type of A and B: the layouts of A and B, and CuTe's line. C is _C_16X8.
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
# type of A and B: types of C, K, architecture, source of each K
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
WGMMA_K_BITS = 256  # K elements take 32 bytes, whatever their type
WGMMA_C_TYPES = {
    f16: (f32, f16), bf16: (f32,), tf32: (f32,), e4m3: (f32, f16), e5m2: (f32, f16), s8: (s32,),
}  # fmt: skip


@table_of_atoms
def fma(dtype: DType = f32, c_dtype: DType | None = None) -> MmaAtom:
    """One fused multiply-add of one thread: d = a * b + c.

    dtype     of a and b; narrower ones are converted to the type of c first
    c_dtype   of c and d; f32 for f16 and bf16 operands, else that of a and b
    raises    UnsupportedError for types that have no such instruction
    source    CuTe, mma_traits.hpp:70, MMA_Traits<UniversalFMA>

    >>> fma(f32).name, fma(bf16).name
    ('fma.f32.f32', 'fma.f32.bf16')
    """
    wide = c_dtype if c_dtype is not None else (f32 if dtype in (f16, bf16) else dtype)
    if (dtype, wide) not in _FMA_TYPES:
        known = ", ".join(f"{a} into {c}" for a, c in _FMA_TYPES)
        raise UnsupportedError(f"fma: no FMA of {dtype} operands into {wide}; the choices are {known}.")
    return MmaAtom(
        f"fma.{wide}.{dtype}", (1, 1, 1), dtype, dtype, wide, Layout(1, 0), _ONE, _ONE, _ONE, "sm_50",
        "CuTe, mma_traits.hpp:70",
    )  # fmt: skip


@table_of_atoms
def mma_sync(dtype: DType, k: int, c_dtype: DType | None = None, b_dtype: DType | None = None) -> MmaAtom:
    """mma.sync.aligned.m16n8k{k}.row.col: a warp multiplies (16, k) by (k, 8) from registers.

    dtype     of A and B: f16, bf16, tf32, e4m3, e5m2, s8
    k         8, 16 for f16 and bf16; 4, 8 for tf32; 32 for e4m3 and e5m2; 16, 32 for s8
    c_dtype   of C and D: f32 (s32 for s8) where it is left out; f16 is there for f16, e4m3 and e5m2
    b_dtype   e4m3 and e5m2 may be mixed
    raises    UnsupportedError for another choice; the message lists the choices
    source    PTX ISA, "Matrix Fragments for mma.m16n8k8" and its neighbours; CuTe, mma_traits_sm80.hpp

    >>> atom = mma_sync(bf16, 16)
    >>> atom.name, str(atom.layout_a_tv)
    ('mma.m16n8k16.f32.bf16', '((4,8),(2,2,2)):((32,1),(16,8,128))')
    """
    other = dtype if b_dtype is None else b_dtype
    if dtype not in _MMA_SYNC_TYPES:
        known = ", ".join(t.name for t in _MMA_SYNC_TYPES)
        raise UnsupportedError(f"mma_sync: no mma.sync of {dtype} operands; the choices are {known}.")
    wide, shapes = _MMA_SYNC_TYPES[dtype]
    into = wide[-1] if c_dtype is None else c_dtype
    rules = []
    if k not in shapes:
        rules.append(f"k = {k}; {_or(shapes)} is expected for {dtype}")
    if into not in wide:
        rules.append(f"C of {into}; C of {_or(wide)} is expected for {dtype}")
    if not _mixes(dtype, other):
        rules.append(f"A of {dtype} with B of {other}; e4m3 and e5m2 alone may be mixed")
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
    """wgmma.mma_async.m64n{n}: a warpgroup multiplies (64, k) by (k, n); k elements take 32 bytes.

    dtype      of A and B: f16, bf16, tf32, e4m3, e5m2, s8
    n          8 to 256 in steps of 8; for s8 up to 32, then in steps of 16
    a_major    k or mn, in shared memory; mn only for f16 and bf16, and only from shared memory
    b_major    k or mn; mn only for f16 and bf16
    a_source   shared or register; B is in shared memory
    c_dtype    of C and D: f32 (s32 for s8) where it is left out; f16 is there for f16, e4m3 and e5m2
    b_dtype    e4m3 and e5m2 may be mixed
    raises     PlanError with every rule that is broken
    source     PTX ISA, "wgmma.mma_async"; CuTe, mma_traits_sm90_gmma.hpp:434-465

    >>> atom = wgmma(bf16, 128, b_major="mn")
    >>> atom.name, str(atom.layout_c_tv)
    ('wgmma.m64n128k16.f32.bf16.k_mn.ss', '((4,8,4),(2,2,16)):((128,1,16),(64,8,512))')
    """
    other = dtype if b_dtype is None else b_dtype
    into = c_dtype if c_dtype is not None else (s32 if dtype is s8 else f32)
    k = WGMMA_K_BITS // dtype.bits
    name = (
        f"wgmma.m64n{n}k{k}.{into}.{_pair(dtype, other)}.{a_major}_{b_major}."
        f"{'rs' if a_source == 'register' else 'ss'}"
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


# Row of the wgmma -> row of the tile, where threads read A from an m-major tile in shared memory. With the swizzle of
# 128 bytes, rows 0-3 and 16-19 at k = 0 .. 3 lie in 32 different banks; rows 0-7, side by side, share 16 of them.
# Modes: lanes along M (4, 2), the second row of a thread, warps (2, 2).
ROWS_IN_BANKS = Layout((4, 2, 2, 2, 2), (1, 16, 4, 8, 32))


def _in_shared(extent: int, k: int) -> Layout:
    """An operand that all 128 threads read whole from shared memory."""
    return Layout((128, (extent, k)), (0, (1, extent)))


def _wgmma_rules(
    dtype: DType, other: DType, into: DType, n: int, a_major: str, b_major: str, a_source: str
) -> list[str]:
    if dtype not in WGMMA_C_TYPES:
        known = ", ".join(t.name for t in WGMMA_C_TYPES)
        return [f"no wgmma of {dtype} operands; the choices are {known}"]
    rules = []
    if not _mixes(dtype, other):
        rules.append(f"A of {dtype} with B of {other}; e4m3 and e5m2 alone may be mixed")
    if into not in WGMMA_C_TYPES[dtype]:
        rules.append(f"C of {into}; C of {_or(WGMMA_C_TYPES[dtype])} is expected for {dtype}")
    if not (8 <= n <= MAX_WGMMA_COLUMNS and n % 8 == 0):
        rules.append(f"n = {n} columns; multiples of 8 from 8 to {MAX_WGMMA_COLUMNS} are expected")
    elif dtype is s8 and n > 32 and n % 16:
        rules.append(f"n = {n} columns; past 32 multiples of 16 are expected for s8")
    if a_source not in ("shared", "register"):
        rules.append(f"A from {a_source!r}; shared or register is expected")
    for operand, major in (("A", a_major), ("B", b_major)):
        if major not in ("k", "mn"):
            rules.append(f"{operand} of majorness {major!r}; k or mn is expected")
        elif major == "mn" and dtype.bits != 16:
            rules.append(
                f"{operand} is {major}-major; {dtype} operands are k-major, only f16 and bf16 may be mn-major"
            )
        elif major == "mn" and operand == "A" and a_source == "register":
            rules.append("A is mn-major in registers; only an A in shared memory may be")
    return rules


def _mixes(dtype: DType, other: DType) -> bool:
    return dtype is other or {dtype, other} == {e4m3, e5m2}


def _pair(dtype: DType, other: DType) -> str:
    return dtype.name if dtype is other else f"{dtype}_{other}"


def _or(values: object) -> str:
    *first, last = [str(v) for v in values]  # type: ignore[attr-defined]
    return f"{', '.join(first)} or {last}" if first else last


def mma_atoms(arch: str | None = None) -> Iterator[MmaAtom]:
    """Every MMA atom, or every one of an architecture.

    >>> [atom.name for atom in mma_atoms("sm_75")][-2:]
    ['mma.m16n8k8.f16.f16', 'mma.m16n8k8.f32.f16']
    """
    for atom in _by_name().values():
        if arch is None or atom.runs_on(arch):
            yield atom


def mma_atom(name: str) -> MmaAtom:
    """The MMA atom of a name.

    raises   UnsupportedError for another name; the message lists similar ones

    >>> mma_atom("mma.m16n8k8.f32.tf32").shape_mnk
    (16, 8, 8)
    """
    atoms = _by_name()
    if not isinstance(name, str) or name not in atoms:
        near = [known for known in atoms if known.split(".")[:2] == str(name).split(".")[:2]]
        near = near or [f"{family}..." for family in sorted({known.split(".")[0] for known in atoms})]
        raise UnsupportedError(
            f"mma_atom: no atom is named {name!r}; similar names are {', '.join(near[:8])}."
        )
    return atoms[name]


@cache
def _by_name() -> dict[str, MmaAtom]:
    return {atom.name: atom for atom in _every_atom()}


def _every_atom() -> Iterator[MmaAtom]:
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
