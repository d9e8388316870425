"""The plans of the GPU tests, and matrices to run them on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from cutegemm.build import Shared, simt_plan
from cutegemm.choice.catalog import plan_named, plans
from cutegemm.layout import Swizzle
from cutegemm.plan import GemmPlan, Operands

LAYOUTS = ("nn", "nt", "tn", "tt")
SIMT = [name for name, _ in plans() if name.startswith("simt")]
GUARD = 64  # elements before and after a matrix
SENTINEL = -4096.0  # exact in every type

_SMALL = {"block": (64, 64, 8), "warp": (32, 32), "thread": (8, 4)}
_BK16 = {**_SMALL, "block": (64, 64, 16)}


def operands(layout: str, align: int, out_major: str = "n", dtype: str = "f32", **more: Any) -> Operands:
    return Operands.of(dtype, layout=layout, align_bytes=align, out_major=out_major, **more)


def named(name: str, *args: Any, **more: Any) -> GemmPlan:
    return plan_named(name, operands(*args, **more))


def forms() -> dict[str, GemmPlan]:
    """Every way of moving tiles that a SIMT plan can ask for, at least once."""

    def make(name: str, ops: Operands, **options: Any) -> tuple[str, GemmPlan]:
        return name, simt_plan(ops, name=name, **{**_SMALL, **options})

    wide, odd = [{layout: operands(layout, align) for layout in LAYOUTS} for align in (16, 4)]
    both = {"load_a": "cp.async", "load_b": "cp.async"}
    through = {"load_a": "register", "load_b": "register"}
    by_k = Shared("k", 4)
    turned = Shared(swizzle=Swizzle(3, 2, 4))
    other_c = replace(wide["nn"], c=operands("nn", 16, "m").c)
    return dict(
        [
            *[make(f"single_{layout}", wide[layout], stages=1) for layout in LAYOUTS],
            make("single_async", wide["tn"], stages=1, **both),
            *[make(f"stages{n}", wide["tn"], stages=n) for n in (2, 3, 4, 5)],
            make("registers2", wide["tn"], stages=2, **through),
            make("registers3", wide["nt"], stages=3, **through),
            make("mixed", wide["nn"], stages=3, load_a="register", load_b="cp.async"),
            make("mixed_4", wide["tt"], stages=4, load_a="cp.async", load_b="register"),
            make("turned_by_cp_async", wide["nt"], stages=3, **both),
            make("turned_odd", odd["nt"], stages=3, **both),
            make("swizzled", wide["nt"], stages=3, shared_a=turned, shared_b=turned, **both),
            make("swizzled_registers", wide["nt"], stages=2, shared_a=turned, shared_b=turned),
            make("k_major_tiles", wide["nt"], stages=3, shared_a=by_k, shared_b=by_k, **both),
            make("unroll2", wide["nn"], stages=2, unroll=2),
            make("unroll4", wide["nt"], **{**_BK16, "unroll": 4, "stages": 2}),
            make("unroll2_s4", wide["tn"], **{**_BK16, "unroll": 2, "stages": 4, "mma_order": "n"}),
            make("unroll8_odd", odd["tt"], **{**_BK16, "unroll": 8, "stages": 3}),
            make("lanes_n", wide["nn"], lanes_along="n", quad=(2, 4)),
            make("scalar_quads", wide["tn"], quad=(1, 1)),
            *[make(r, wide["tn"], raster=r) for r in ("along_m", "along_n", "grouped_m:3", "grouped_n:2")],
            make("c_of_other_major", other_c),
            make("c_unaligned", replace(wide["nn"], c=odd["nn"].c)),
        ]
    )  # fmt: skip


def all_plans() -> list[GemmPlan]:
    """Return the cases of tests/gpu/test_simt.py."""
    found = [
        *(named("simt_64x64", layout, align, major) for layout in LAYOUTS for align in (16, 4) for major in "nm"),
        *(named(name, layout, 16) for name in SIMT for layout in LAYOUTS),
        *(named(name, layout, 4) for name in SIMT for layout in ("nn", "tt")),
        *(named("simt_64x64", layout, 16, batched=True) for layout in LAYOUTS),
        *(named("simt_64x64", "nt", 4, batched=True) for _ in range(1)),
        *(named("simt_64x64", "nn", bits // 8, dtype=t) for t, bits in (("f64", 64), ("f16", 16), ("bf16", 16))),
        *(named("simt_64x64", "nn", 16, dtype=t) for t in ("f64", "f16", "bf16")),
        *(named("simt_64x64", "nn", 16, dtype=t, out="f32") for t in ("f16", "bf16")),
        *forms().values(),
    ]
    return list({plan.key(): plan for plan in found}.values())


@dataclass
class Matrix:
    """A matrix, or a batch, inside a larger buffer whose other elements must stay as they are.

    view     (rows, columns) or (L, rows, columns)
    buffer   all of it, flat
    inside   which elements of the buffer belong to the view
    """

    view: Any
    buffer: Any
    inside: Any = field(repr=False)

    def outside_is_untouched(self) -> bool:
        return bool((self.buffer[~self.inside] == SENTINEL).all())


def matrix(
    rows: int,
    columns: int,
    *,
    transposed: bool = False,
    gap: int = 0,
    batch: int | None = None,
    dtype: str = "float32",
    fill: str = "normal",
    align_elems: int = 4,
    shift: int = 0,
) -> Matrix:
    """A matrix between guard bands.

    transposed   contiguous along the rows' index instead of the columns'
    gap          elements left free between one contiguous run and the next; and after the last one
    fill         normal, integer (of 3 bits), nan
    align_elems  the leading stride is rounded up to it
    shift        elements between the last aligned address and the first element
    """
    import torch

    kind = getattr(torch, dtype)
    across, along = (columns, rows) if transposed else (rows, columns)
    leading = -(-max(1, along) // align_elems) * align_elems + gap
    count = 1 if batch is None else batch
    size = count * max(1, across) * leading
    buffer = torch.full((GUARD + shift + size + GUARD,), SENTINEL, dtype=kind, device="cuda")
    shape, strides = (across, along), (leading, 1)
    if batch is not None:
        shape, strides = (batch, *shape), (across * leading, *strides)
    view = buffer.as_strided(shape, strides, GUARD + shift)
    inside = torch.zeros(buffer.shape, dtype=torch.bool, device="cuda")
    inside.as_strided(shape, strides, GUARD + shift).fill_(True)
    if fill == "nan":
        view.fill_(float("nan"))
    elif fill == "integer":
        view.copy_(torch.randint(-4, 4, shape, device="cuda"))
    else:
        view.copy_(torch.randn(shape, device="cuda"))
    return Matrix(view.transpose(-1, -2) if transposed else view, buffer, inside)
