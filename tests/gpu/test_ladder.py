"""The SIMT ladder, packing and split K on a GPU: ragged shapes, beta, few k-tiles, other types, repeated runs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cutegemm.build import simt_plan  # noqa: E402
from cutegemm.choice.ladders.simt import SIMT_LADDER  # noqa: E402
from cutegemm.plan import Operands  # noqa: E402
from cutegemm.run.gemm import gemm  # noqa: E402
from tests.gpu.cases import LAYOUTS, named, operands  # noqa: E402
from tests.gpu.test_simt import check  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("compiled")]

SMALL = {"block": (64, 64, 8), "warp": (32, 32), "thread": (8, 4)}
SPLITS = [(parts, order, how) for parts in (2, 3, 7) for order in ("strided", "blocked") for how in ("kernel", "last")]
STREAMS = [(1, 5, "nn", 4), (1, 132, "nt", 4), (2, 3, "tt", 4), (1, 264, "tn", 16), (3, 7, "nt", 16)]
NARROW = [(dtype, align, major) for dtype, align in (("f32", 4), ("f32", 8), ("f16", 4), ("f64", 8)) for major in "nm"]
SUFFIXES = (
    "simt_128x128/k4", "simt_256x128+repack", "simt_16x256/k8last", "simt_64x64+repack/k2", "simt_128x256/s132",
    "simt_128x256x16+repack/s132", "simt_64x256/s264", "simt_256x64+repack",
)  # fmt: skip
DTYPES = {"f64": "float64", "f16": "float16", "bf16": "bfloat16"}


def split_plan(parts, order, how, layout="nn", align=4, **more):
    given = operands(layout, align, **more)
    name = f"split {parts} {order} {how} {layout} {align}"
    return simt_plan(given, name=name, stages=3, split_k=parts, split_order=order, reduction=how, **SMALL)


def stream_plan(waves, persistent, layout="nn", align=4, **more):
    given = operands(layout, align)
    name = f"stream {waves} {persistent} {layout} {align}"
    return simt_plan(given, name=name, stages=3, waves=waves, persistent=persistent, **SMALL, **more)


def narrow_plan(dtype, align, out_major):
    given = operands("tn", align, dtype=dtype, out_major=out_major)
    quad = (2, 2) if dtype == "f64" else (4, 4)
    return simt_plan(given, name=f"narrow {dtype} {align} {out_major}", quad=quad, **SMALL)


def packed_plan(repack, layout, align=16, dtype="f32", **more):
    given = operands(layout, align, dtype=dtype, **{k: v for k, v in more.items() if k in ("batched", "out_major")})
    options = {k: v for k, v in more.items() if k not in ("batched", "out_major")}
    quad = (2, 2) if dtype == "f64" else (4, 4)
    name = f"pack {repack} {layout} {align} {dtype}"
    return simt_plan(given, name=name, stages=3, repack=repack, quad=quad, **SMALL, **options)


def of_other_types(dtype):
    """Steps of the ladder that differ in how tiles move."""
    for step in SIMT_LADDER.steps[:2] + SIMT_LADDER.steps[6:7] + SIMT_LADDER.steps[12:18:2]:
        if dtype == "f64" and step.recipe.options["block"] == (128, 128, 8):
            continue  # 8x8 sums of f64 take twice the registers
        yield step.build(Operands.of(dtype))


def all_plans():
    """Return the plans of this file."""
    found = [step.build(Operands.of("f32", align_bytes=align)) for step in SIMT_LADDER.steps for align in (16, 4)]
    found += [step.build(Operands.of("f32", layout="nt")) for step in SIMT_LADDER.steps]
    found += [split_plan(*split) for split in SPLITS]
    found += [stream_plan(*stream) for stream in STREAMS] + [narrow_plan(*narrow) for narrow in NARROW]
    found += [packed_plan("ab", layout, align) for layout in LAYOUTS for align in (16, 4)]
    found += [packed_plan("ab", layout, 16, dtype) for layout in ("nt", "tn") for dtype in DTYPES]
    found += [plan for dtype in DTYPES for plan in of_other_types(dtype)]
    found += [named(name, layout, align) for name in SUFFIXES for layout in LAYOUTS for align in (16, 4)]
    return [*found, batched_split_plan()]


def batched_split_plan():
    return packed_plan("ab", "nt", 16, batched=True, split_k=3, reduction="last")


@pytest.mark.parametrize("step", SIMT_LADDER.steps, ids=lambda step: step.name)
def test_steps(step):
    for align, shapes in (
        (16, [(260, 132, 68), (4, 300, 132)]),
        (4, [(131, 257, 67), (1, 33, 5), (65, 31, 0)]),
    ):
        plan = step.build(Operands.of("f32", align_bytes=align))
        for m, n, k in shapes:
            check(plan, m, n, k, alpha=1.5, beta=0.5, align=align)
            check(plan, m, n, k, align=align, fill="integer")
    plan = step.build(Operands.of("f32", layout="nt"))
    check(plan, 260, 132, 68, "nt", alpha=-1.0)


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_split(split):
    plan = split_plan(*split)
    for m, n, k in [(65, 131, 0), (65, 131, 3), (64, 64, 8), (130, 70, 41), (129, 63, 1001)]:
        for alpha, beta in ((1.0, 0.0), (1.5, 0.5), (-0.5, 1.0)):
            check(plan, m, n, k, alpha=alpha, beta=beta, align=4)
        check(plan, m, n, k, align=4, fill="integer", beta=1.0)


@pytest.mark.parametrize("stream", STREAMS, ids=str)
def test_k_tiles_that_are_shared_evenly(stream):
    plan, align = stream_plan(*stream), stream[3]
    shapes = [(65, 131, 0), (65, 131, 3), (64, 64, 8), (130, 70, 41), (129, 63, 4001), (700, 900, 333)]
    for m, n, k in shapes if align == 4 else [(64, 64, 64), (132, 68, 4000), (1300, 1100, 400)]:
        check(plan, m, n, k, stream[2], alpha=1.5, beta=0.5, align=align)
        check(plan, m, n, k, stream[2], align=align, fill="integer", beta=1.0)


@pytest.mark.parametrize("narrow", NARROW, ids=str)
def test_narrow_d_through_shared_memory(narrow):
    dtype, align, major = narrow
    plan = narrow_plan(*narrow)
    assert plan.store.layout is not None
    kind = DTYPES.get(dtype, "float32")
    shapes = [(66, 130, 36), (2, 2, 4), (200, 258, 100)]
    for m, n, k in shapes + ([(67, 131, 35)] if align * 8 == plan.operands.d.dtype.bits else []):
        check(plan, m, n, k, "tn", alpha=1.5, beta=0.5, align=align, out_major=major, dtype=kind)


@pytest.mark.parametrize("how", ["kernel", "last", "stream"])
def test_split_is_deterministic(how):
    plan = stream_plan(1, 132) if how == "stream" else split_plan(7, "strided", how)
    a, b = torch.randn(300, 5000, device="cuda"), torch.randn(5000, 200, device="cuda")
    first = gemm(a, b, plan=plan)
    for _ in range(50):
        assert torch.equal(gemm(a, b, plan=plan), first)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("align", [16, 4])
def test_packed(layout, align):
    plan = packed_plan("ab", layout, align)
    shapes = [(260, 132, 68), (4, 4, 4)] if align == 16 else [(131, 257, 67), (1, 1, 1), (65, 130, 129), (3, 5, 0)]
    for i, (m, n, k) in enumerate(shapes):
        check(plan, m, n, k, layout, alpha=1.5, beta=0.5, align=align, gap=4 * i if align == 16 else i)
        check(plan, m, n, k, layout, align=align, fill="integer")


@pytest.mark.parametrize("layout", ["nt", "tn"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_types(dtype, layout):
    plan = packed_plan("ab", layout, 16, dtype)
    check(plan, 136, 72, 200, layout, alpha=1.5, beta=0.5, dtype=DTYPES[dtype])


def test_packed_batched_split():
    check(batched_split_plan(), 132, 68, 200, "nt", alpha=1.5, beta=0.5, batch=3)


@pytest.mark.parametrize("name", SUFFIXES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_suffixes(name, layout):
    check(name, 516, 260, 1028, layout, alpha=1.5, beta=0.5)
    check(name, 333, 259, 517, layout, align=4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_steps_of_other_types(dtype):
    for plan in of_other_types(dtype):
        check(plan, 136, 264, 72, alpha=1.5, beta=0.5, dtype=DTYPES[dtype])
