"""Convert objects of this package to objects of the CuTe DSL, while a kernel is traced.

| this package                 | CuTe DSL                                                                  |
|------------------------------|---------------------------------------------------------------------------|
| DType                        | `cutlass.Float32`, ...                                                    |
| Layout, coordinate strides   | `cute.Layout`, with `cute.E`                                              |
| Swizzle, ComposedLayout      | the same function on offsets in elements                                  |
| shared-memory layout         | a tensor whose pointer swizzles byte addresses: see `smem_tensor`         |
| MmaAtom, TiledMma            | `cute.make_tiled_mma`                                                     |
| CopyAtom, TiledCopy          | `cute.make_copy_atom`, `cute.make_tiled_copy`                             |
| TmaBox                       | `cpasync.make_tiled_tma_atom`: a tensor map on the host, and a copy atom  |

The plan has made all decisions. Tests compare the results of these functions with the plan's layouts.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warp, warpgroup

from cutegemm.dtypes import DType
from cutegemm.errors import UnsupportedError
from cutegemm.layout import ComposedLayout, Layout, ScaledBasis, Swizzle, composition, select
from cutegemm.layout.inttuple import product
from cutegemm.layout.layout import concatenate
from cutegemm.plan.shared import SharedLayout, smem_align_bytes
from cutegemm.tile.atoms import CopyAtom, MmaAtom
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tiled_mma import TiledMma
from cutegemm.tile.tma import TmaBox

_DTYPES = {
    "f16": cutlass.Float16,
    "bf16": cutlass.BFloat16,
    "tf32": cutlass.TFloat32,
    "f32": cutlass.Float32,
    "f64": cutlass.Float64,
    "e4m3": cutlass.Float8E4M3FN,
    "e5m2": cutlass.Float8E5M2,
    "s8": cutlass.Int8,
    "s32": cutlass.Int32,
}
_UNSIGNED = {8: cutlass.Uint8, 16: cutlass.Uint16, 32: cutlass.Uint32, 64: cutlass.Uint64}
_MAJOR_MODES = {"k": OperandMajorMode.K, "mn": OperandMajorMode.MN}
# PTX ISA, "createpolicy.fractional": encoded policies that apply to all of an access.
_L2_POLICIES = {"evict_first": 0x12F0000000000000, "evict_last": 0x14F0000000000000}
_LOAD_CACHES: dict[str, dict[str, Any]] = {
    "kept": {},
    "streaming": {
        "l1c_evict_priority": cute.nvgpu.CacheEvictionPriority.EVICT_FIRST,
        "l2_prefetch_size": cute.nvgpu.L2PrefetchSize.SIZE_128B,
    },
}
_CACHE_MODES = {"ca": cpasync.LoadCacheMode.ALWAYS, "cg": cpasync.LoadCacheMode.GLOBAL}


def dtype(kind: DType) -> type[cutlass.Numeric]:
    """Convert an element type of this package to the DSL's element type."""
    return _DTYPES[kind.name]


def divisors(numbers: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return fast divisors for numbers known on the host: a kernel then divides by a multiplication and a shift.

    Dividends must not be negative. A number below 1 is replaced by 1.
    """
    return tuple([cute.fast_divmod_create_divisor_v2(cutlass.max(number, 1)) for number in numbers])


def layout(given: Layout | ComposedLayout) -> Any:
    """Convert a layout of this package to a layout of the CuTe DSL: the same function from coordinates to offsets."""
    if isinstance(given, ComposedLayout):
        inner = swizzle(given.inner) if isinstance(given.inner, Swizzle) else layout(given.inner)
        return cute.make_composed_layout(inner, given.offset, layout(given.outer))
    return cute.make_layout(given.shape, stride=_stride(given.stride))


def _stride(given: Any) -> Any:
    """Convert a stride of this package, mode by mode, to a stride of the CuTe DSL.

    A coordinate stride becomes a multiple of `cute.E`.
    """
    if isinstance(given, tuple):
        return tuple([_stride(d) for d in given])
    return given.value * cute.E(list(given.mode)) if isinstance(given, ScaledBasis) else given


def swizzle(given: Swizzle) -> cute.Swizzle:
    """Convert a swizzle of this package to one of the CuTe DSL: the same permutation of offsets, in the same unit."""
    return cute.make_swizzle(given.bits, given.base, given.shift)


def smem_tensor(allocator: cutlass.memory.SmemAllocator, kind: DType, given: SharedLayout) -> cute.Tensor:
    """Allocate shared memory for a layout, and return it as a tensor.

    A plan's swizzle permutes offsets in elements. A pointer's swizzle permutes byte addresses, as the hardware and the
    canonical layouts of wgmma do. Only this file converts one to the other; both agree at the alignment that
    `smem_align_bytes` returns.

    allocator   allocator of the shared memory of a CTA
    kind        element type
    given       layout of the shared memory, in elements
    raises      UnsupportedError if a composed layout is not a swizzle of a plain layout with offset 0
    """
    align_bytes = smem_align_bytes(kind, given)
    if not isinstance(given, ComposedLayout):
        return allocator.allocate_tensor(dtype(kind), layout(given), align_bytes)
    if not isinstance(given.inner, Swizzle) or given.offset != 0:
        raise UnsupportedError(f"smem_tensor: {given} is not a swizzle of a plain layout without an offset.")
    in_bytes = swizzle(given.inner.recast(kind.bits, 8))
    return allocator.allocate_tensor(dtype(kind), layout(given.outer), align_bytes, in_bytes)


def smem_view(base: cute.Pointer, kind: DType, given: SharedLayout) -> cute.Tensor:
    """View shared memory from `base` on as a tensor with a plan's layout, including its swizzle.

    base     pointer with the alignment of `smem_align_bytes`
    kind     element type
    given    layout of the shared memory, in elements
    raises   UnsupportedError if a composed layout is not a swizzle of a plain layout with offset 0
    """
    if not isinstance(given, ComposedLayout):
        return cute.make_tensor(cute.recast_ptr(base, dtype=dtype(kind)), layout(given))
    if not isinstance(given.inner, Swizzle) or given.offset != 0:
        raise UnsupportedError(f"smem_view: {given} is not a swizzle of a plain layout without an offset.")
    in_bytes = swizzle(given.inner.recast(kind.bits, 8))
    return cute.make_tensor(cute.recast_ptr(base, in_bytes, dtype=dtype(kind)), layout(given.outer))


def as_bits(tensor: cute.Tensor) -> cute.Tensor:
    """View a tensor as unsigned integers of the same width, so that copies work for any element type."""
    kind = _UNSIGNED[tensor.element_type.width]
    return cute.make_tensor(cute.recast_ptr(tensor.iterator, dtype=kind), tensor.layout)


def copy_atom(atom: CopyAtom, moved: type[cutlass.Numeric] | None = None) -> cute.CopyAtom:
    """Convert a copy atom of this package to the CuTe DSL's.

    It is a plain copy, a load with a cache hint, cp.async, ldmatrix or stmatrix.

    moved    element type that a plain copy moves, of the same width; None: that of the atom
    raises   UnsupportedError if no kernel uses such an atom
    """
    family, *rest = atom.name.split(".")
    if family == "copy":
        kind = moved or dtype(atom.dtype)
        return cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), kind, num_bits_per_copy=atom.bits)
    if family == "load":  # load.128b.streaming.f32
        op = cute.nvgpu.CopyG2ROp()
        return cute.make_copy_atom(op, moved or dtype(atom.dtype), num_bits_per_copy=atom.bits, **_LOAD_CACHES[rest[1]])
    if family == "cp":  # cp.async.cg.16B.f32
        op = cpasync.CopyG2SOp(cache_mode=_CACHE_MODES[rest[1]])
        return cute.make_copy_atom(op, dtype(atom.dtype), num_bits_per_copy=atom.bits)
    if family in ("ldmatrix", "stmatrix"):
        make = warp.LdMatrix8x8x16bOp if family == "ldmatrix" else warp.StMatrix8x8x16bOp
        return cute.make_copy_atom(make("trans" in rest, int(rest[0].removeprefix("x"))), dtype(atom.dtype))
    raise UnsupportedError(f"copy_atom: {atom} is lowered by no kernel yet.")


def tiled_copy(copy: TiledCopy, moved: type[cutlass.Numeric] | None = None) -> cute.TiledCopy:
    """Convert a tiled copy of this package to the CuTe DSL's: the same atom, thread-value layout and tile.

    moved   element type that the atom moves, of the same width; None: that of the atom
    """
    tiler = tuple([layout(t) if isinstance(t, Layout) else t for t in copy.tiler_mn])
    return cute.make_tiled_copy(copy_atom(copy.atom, moved), layout(copy.layout_tv), tiler)


def tma_atom(
    box: TmaBox, tensor: cute.Tensor, given: SharedLayout, tile: tuple[int, ...]
) -> tuple[cute.CopyAtom, cute.Tensor]:
    """Make the TMA copy of a tensor's tiles, on the host: return (copy atom, coordinate tensor that it takes).

    box      what one TMA instruction copies
    tensor   the tensor in global memory
    given    layout of shared memory; its first two modes hold a tile
    tile     shape of a tile, which all CTAs of a multicast copy together, in one box or several. With three modes, the
             first two are modes of the tensor that share the first mode of shared memory
    """
    if box.direction == "store":
        op, sharers = cpasync.CopyBulkTensorTileS2GOp(), 1
    elif box.direction == "reduce_add":
        op, sharers = cpasync.CopyReduceBulkTensorTileS2GOp(), 1
    else:
        several = box.multicast > 1
        op = cpasync.CopyBulkTensorTileG2SMulticastOp() if several else cpasync.CopyBulkTensorTileG2SOp()
        sharers = box.multicast
    return cpasync.make_tiled_tma_atom(op, tensor, _slot(given, tile, box.dtype), tile, num_multicast=sharers)


def _slot(given: SharedLayout, tile: tuple[int, ...], kind: DType) -> Any:
    """Return the CuTe DSL's layout of one tile within a stage of shared memory, as a TMA copy needs it.

    The swizzle permutes byte addresses.

    given   layout of all stages, in elements
    tile    shape of the tile
    kind    element type
    """
    outer = given.outer if isinstance(given, ComposedLayout) else given
    *rows, columns = tile
    held = composition(select(outer, [0, 1]), (product(tuple(rows)), columns))
    if len(rows) > 1:
        split = composition(held[0], Layout(tuple(rows)))
        held = concatenate([*[split[mode] for mode in range(len(rows))], held[1]])
    one = layout(held)
    bytewise = given.inner.recast(kind.bits, 8) if isinstance(given, ComposedLayout) else Swizzle(0, 4, 3)
    return cute.make_composed_layout(swizzle(bytewise), 0, one)


def l2_policy(box: TmaBox) -> dict[str, Any]:
    """Return the keyword argument of `cute.copy` for the L2 policy of a TMA box; {} if it has none."""
    value = _L2_POLICIES.get(box.l2_policy)
    return {} if value is None else {"cache_policy": cutlass.Int64(value)}


def mma_op(atom: MmaAtom) -> Any:
    """Convert an MMA atom of this package to the CuTe DSL's MMA operation.

    The DSL's FMA has one type for all operands, so it only partitions. A kernel whose inputs are narrower than its
    accumulators converts them and multiplies by itself.

    raises   UnsupportedError if no kernel uses such an atom
    """
    family = atom.name.split(".")[0]
    if family == "fma":
        return cute.nvgpu.MmaUniversalOp(dtype(atom.c_dtype))
    if family == "mma" and atom.a_dtype.name == "tf32":
        return warp.MmaTF32Op(atom.shape_mnk)
    if family == "mma" and atom.a_dtype.bits == 16:
        return warp.MmaF16BF16Op(dtype(atom.a_dtype), dtype(atom.c_dtype), atom.shape_mnk)
    if family == "mma" and atom.a_dtype.is_float and atom.a_dtype == atom.b_dtype:
        return warp.MmaFP8Op(dtype(atom.a_dtype), dtype(atom.c_dtype), atom.shape_mnk)
    if family == "wgmma":
        return _wgmma_op(atom)
    raise UnsupportedError(f"mma_op: {atom} is lowered by no kernel yet.")


class WgmmaTf32(warpgroup.MmaF16BF16Op):
    """wgmma with tf32 operands as an operation of the CuTe DSL, which has none although its compiler supports it."""

    descriptive_name = "warpgroup TF32 MMA Operation"

    def _verify(self) -> None:
        """Override the DSL's check of element types by nothing, since this package has checked the types already."""


def _wgmma_op(atom: MmaAtom) -> Any:
    """Return the CuTe DSL's wgmma operation for an MMA atom of this package."""
    a_type, b_type, acc_type = dtype(atom.a_dtype), dtype(atom.b_dtype), dtype(atom.c_dtype)
    source = warpgroup.OperandSource.RMEM if atom.a_source == "register" else warpgroup.OperandSource.SMEM
    a_major, b_major = (_MAJOR_MODES[major] for major in (atom.a_major, atom.b_major))
    if atom.a_dtype.bits >= 16:
        op = WgmmaTf32 if atom.a_dtype.name == "tf32" else warpgroup.MmaF16BF16Op
        return op(a_type, acc_type, atom.shape_mnk, source, a_major, b_major)
    op = warpgroup.MmaI8Op if atom.a_dtype.name == "s8" else warpgroup.MmaF8Op
    return op(a_type, b_type, acc_type, atom.shape_mnk, source, a_major, b_major)


def tiled_mma(mma: TiledMma) -> cute.TiledMma:
    """Convert a tiled MMA of this package to the CuTe DSL's: the same atom, layout of atoms and permutation."""
    permutation = tuple([layout(p) if isinstance(p, Layout) else p for p in mma.permutation_mnk])
    whole = None if permutation == (None, None, None) else permutation
    return cute.make_tiled_mma(mma_op(mma.atom), layout(mma.atom_layout_mnk), whole)
