"""The CuTe DSL's own TiledMma, TiledCopy and shared-memory atoms, as an oracle on the CPU.

A case says in this package's types what to build and what to partition; its answer is a dict of layouts, in
this package's types too. The tracing in forked children is that of `tests.oracle.dsl`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutegemm.dtypes import DType
from cutegemm.layout.layout import Layout
from cutegemm.tile.atoms import CopyAtom, MmaAtom
from tests.oracle import dsl
from tests.oracle.dsl import Refused, from_dsl, to_dsl

_CUTLASS_NAMES = {
    "f16": "Float16", "bf16": "BFloat16", "tf32": "TFloat32", "f32": "Float32", "f64": "Float64",
    "e4m3": "Float8E4M3FN", "e5m2": "Float8E5M2", "s8": "Int8", "s32": "Int32",
}  # fmt: skip


@dataclass(frozen=True)
class MmaCase:
    """A TiledMma, and what threads are to see of tensors with extents (M, N, K)."""

    atom: MmaAtom
    atom_layout: Layout
    permutation: tuple[Any, Any, Any]
    extents: tuple[int, int, int] = (0, 0, 0)
    batch: tuple[int, ...] = ()
    threads: tuple[int, ...] = ()

    def __str__(self) -> str:
        permutation = ", ".join("_" if p is None else str(p) for p in self.permutation)
        seen = f"on {self.extents}{self.batch} by {self.threads}"
        return f"{self.atom} x {self.atom_layout}, ({permutation}), {seen}"


@dataclass(frozen=True)
class CopyCase:
    """A TiledCopy; `maker` is tiled, tv, a, b, c or c_atom, and `args` its arguments after the atom."""

    atom: CopyAtom
    maker: str
    args: tuple[Any, ...]
    extents: tuple[int, ...] = ()
    threads: tuple[int, ...] = ()
    fragment: Layout | None = None

    def __str__(self) -> str:
        given = ", ".join(str(a) for a in self.args)
        return f"{self.atom} {self.maker}({given}) on {self.extents} by {self.threads}, retile {self.fragment}"


@dataclass(frozen=True)
class SmemCase:
    """A canonical shared-memory atom, tiled to a shape; the DSL's swizzle is one of bytes."""

    dtype: DType
    major: str
    kind: str
    shape: tuple[int, ...]
    order: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {self.major}-major {self.kind} to {self.shape} in order {self.order}"


def ask(cases: list[Any]) -> list[Any]:
    """The DSL's answer to each case: a dict of layouts; a part may be Refused."""
    return dsl.ask(cases, evaluate)


def evaluate(case: Any) -> Any:
    answer = {MmaCase: _mma, CopyCase: _copy, SmemCase: _smem}[type(case)]
    try:
        return answer(case)
    except Exception as error:
        return Refused(f"{type(error).__name__}: {error}".splitlines()[0][:200])


def _type(dtype: DType) -> Any:
    import cutlass

    return getattr(cutlass, _CUTLASS_NAMES[dtype.name])


def mma_op(atom: MmaAtom) -> Any:
    """The DSL's operation of an atom."""
    from cutlass.cute import nvgpu
    from cutlass.cute.nvgpu import warp, warpgroup

    family, a, c = atom.name.split(".")[0], _type(atom.a_dtype), _type(atom.c_dtype)
    if family == "fma":
        return nvgpu.MmaUniversalOp(c)
    if family == "mma":
        if atom.a_dtype.name == "tf32":
            return warp.MmaTF32Op(atom.shape_mnk)
        make = warp.MmaFP8Op if atom.a_dtype.bits == 8 else warp.MmaF16BF16Op
        return make(a, c, atom.shape_mnk)
    majors = [{"k": nvgpu.OperandMajorMode.K, "mn": nvgpu.OperandMajorMode.MN}[m] for m in (atom.a_major, atom.b_major)]
    source = warpgroup.OperandSource.RMEM if atom.a_source == "register" else warpgroup.OperandSource.SMEM
    if atom.a_dtype.name == "tf32":  # the DSL's compiler has it, its Python has no operation for it
        from cutegemm.kernels.lower import WgmmaTf32

        return WgmmaTf32(a, c, atom.shape_mnk, source, *majors)
    if atom.a_dtype.bits == 16:
        return warpgroup.MmaF16BF16Op(a, c, atom.shape_mnk, source, *majors)
    make = warpgroup.MmaI8Op if atom.a_dtype.name == "s8" else warpgroup.MmaF8Op
    return make(a, _type(atom.b_dtype), c, atom.shape_mnk, source, *majors)


def _tiled_mma(atom: MmaAtom, atom_layout: Layout, permutation: tuple[Any, ...]) -> Any:
    import cutlass.cute as cute

    whole = None if permutation == (None, None, None) else tuple([to_dsl(p) for p in permutation])
    return cute.make_tiled_mma(mma_op(atom), to_dsl(atom_layout), whole)


def _mma(case: MmaCase) -> dict[str, Any]:
    import cutlass.cute as cute

    mma = _tiled_mma(case.atom, case.atom_layout, case.permutation)
    m, n, k = case.extents
    out: dict[str, Any] = {
        "shape_mnk": mma.shape_mnk,
        "threads": mma.size,
        "thr_id": from_dsl(mma.thr_id),
        "thr_layout_vmnk": from_dsl(mma.thr_layout_vmnk),
        "tile_mnk": tuple([mma.get_tile_size(mode) for mode in range(3)]),
    }
    for operand, shape in (("A", (m, k)), ("B", (n, k)), ("C", (m, n))):
        low = operand.lower()
        out[f"layout_{low}_tv"] = from_dsl(getattr(mma, f"tv_layout_{operand}"))
        out[f"layout_{low}_tv_tiled"] = from_dsl(getattr(mma, f"tv_layout_{operand}_tiled"))
        if not m:
            continue
        whole = (*shape, *case.batch)
        out[f"thrfrg_{low}"] = from_dsl(getattr(mma, f"_thrfrg_{operand}")(to_dsl(row_major(whole))))
        out[f"partition_shape_{low}"] = _try(lambda o=operand, w=whole: getattr(mma, f"partition_shape_{o}")(w))
        for thr in case.threads:
            part = getattr(mma.get_slice(thr), f"partition_{operand}")(cute.make_identity_tensor(whole))
            out[f"partition_{low}@{thr}"] = (from_dsl(part.iterator), from_dsl(part.layout))
    return out


def row_major(shape: tuple[int, ...]) -> Layout:
    """A padded layout, the last mode contiguous: its strides tell the modes apart."""
    strides, running = [], 1
    for extent in reversed(shape):
        strides.append(running)
        running *= extent + 1
    return Layout(shape, tuple(reversed(strides)))


def _try(function: Any) -> Any:
    try:
        return function()
    except Exception as error:
        return Refused(f"{type(error).__name__}: {error}".splitlines()[0][:200])


def copy_atom(atom: CopyAtom) -> Any:
    """The DSL's copy atom."""
    import cutlass.cute as cute
    from cutlass.cute import nvgpu
    from cutlass.cute.nvgpu import cpasync, warp

    dtype, parts = _type(atom.dtype), atom.name.split(".")
    if parts[0] == "copy":
        return cute.make_copy_atom(nvgpu.CopyUniversalOp(), dtype, num_bits_per_copy=atom.bits)
    if parts[0] == "cp":
        mode = {"ca": cpasync.LoadCacheMode.ALWAYS, "cg": cpasync.LoadCacheMode.GLOBAL}[parts[2]]
        return cute.make_copy_atom(cpasync.CopyG2SOp(cache_mode=mode), dtype, num_bits_per_copy=atom.bits)
    make = warp.LdMatrix8x8x16bOp if parts[0] == "ldmatrix" else warp.StMatrix8x8x16bOp
    return cute.make_copy_atom(make("trans" in parts, int(parts[1][1:])), dtype)


def _copy(case: CopyCase) -> dict[str, Any]:
    import cutlass.cute as cute

    atom = copy_atom(case.atom)
    if case.maker == "tiled":
        layout_tv, tiler = case.args
        copy = cute.make_tiled_copy(atom, to_dsl(layout_tv), to_dsl(tiler))
    elif case.maker == "tv":
        copy = cute.make_tiled_copy_tv(atom, *[to_dsl(a) for a in case.args])
    else:
        make = {"a": "A", "b": "B", "c": "C", "c_atom": "C_atom"}[case.maker]
        copy = getattr(cute, f"make_tiled_copy_{make}")(atom, _tiled_mma(*case.args))
    out: dict[str, Any] = {
        "threads": copy.size,
        "layout_src_tv": from_dsl(copy.layout_src_tv),
        "layout_dst_tv": from_dsl(copy.layout_dst_tv),
        "layout_tv": from_dsl(copy.layout_tv_tiled),
        "layout_src_tv_tiled": from_dsl(copy.layout_src_tv_tiled),
        "layout_dst_tv_tiled": from_dsl(copy.layout_dst_tv_tiled),
    }
    for thr in case.threads:
        whole = cute.make_identity_tensor(case.extents)
        for side in "SD":
            partition = getattr(copy.get_slice(thr), f"partition_{side}")
            out[f"partition_{side.lower()}@{thr}"] = _try(lambda p=partition, w=whole: _seen(p(w)))
    if case.fragment is not None:
        held = cute.make_rmem_tensor(to_dsl(case.fragment), _type(case.atom.dtype))
        out["retile"] = _try(lambda: from_dsl(copy.retile(held).layout))
    return out


def _seen(part: Any) -> tuple[Any, Any]:
    return from_dsl(part.iterator), from_dsl(part.layout)


def _smem(case: SmemCase) -> dict[str, Any]:
    import cutlass.cute as cute
    from cutlass.cute.nvgpu import warpgroup

    kind = {"interleave": "INTER", "32B": "SW32", "64B": "SW64", "128B": "SW128"}[case.kind]
    atom_kind = getattr(warpgroup.SmemLayoutAtomKind, f"{case.major.upper()}_{kind}")
    atom = warpgroup.make_smem_layout_atom(atom_kind, _type(case.dtype))
    return {"atom": from_dsl(atom), "tiled": from_dsl(cute.tile_to_shape(atom, case.shape, case.order))}
