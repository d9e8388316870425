"""Cases to count: plans with known conflicts, paddings, swizzles and rasters, and single instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cutegemm.build import Shared, simt_plan
from cutegemm.build.mma_sync import mma_sync_plan
from cutegemm.build.mma_sync_tma import mma_tma_plan
from cutegemm.build.sm90 import sm90_plan
from cutegemm.choice.options import written
from cutegemm.layout import Swizzle
from cutegemm.plan import Operands, Problem
from cutegemm.profile import Case
from docs.evidence.counters.probes import ProbeCase, proof_probes

_TRAFFIC_LAUNCHES = 3
_BANDS = {"raster": "grouped_m:8"}


def proof_cases() -> list[Case]:
    """Return f32 plans with deliberate conflicts, paddings, swizzles, all majornesses, rasters and a ragged K."""
    return [*_conflicted(), *_shapes(), *_rasters()]


_SMALL: dict[str, Any] = {"block": (128, 128, 8), "warp": (64, 32), "thread": (8, 8)}


def _spelled(family: str, options: dict[str, Any]) -> str:
    """Return the text that spells a plan's options out, or the tile of the family's default plan without options."""
    told = options or {"tile": (128, 128, 64)}
    return f"{family}:{','.join([f'{name}={written(value)}' for name, value in told.items()])}"


def _simt(
    name: str,
    what: str,
    ops: Operands | None = None,
    extents: tuple[int, int, int] = (2048, 2048, 1024),
    launches: int = 1,
    **options: Any,
) -> Case:
    """Return a case of a SIMT plan; its tile sizes are `_SMALL` unless a block is given."""
    ops = ops or Operands.of("f32")
    given = options if "block" in options else {**_SMALL, **options}
    plan = simt_plan(ops, name=what, summary=_spelled("simt", given), **given)
    return Case(name, plan, Problem(*extents, operands=ops), launches)


def _conflicted() -> Iterator[Case]:
    # Lane m of a warp reads the vectors of `quad` neighbours: quad / 4 vectors from the next lane's
    for quad, block, warp, thread in (
        (8, (128, 128, 8), (64, 32), (8, 8)),
        (16, (128, 128, 8), (128, 16), (16, 4)),
        (32, (256, 64, 8), (256, 16), (32, 4)),
    ):
        ways, tn = quad // 4, Operands.of("f32", layout="tn")
        part: dict[str, Any] = {"block": block, "warp": warp, "thread": thread, "quad": (quad, 4)}
        yield _simt(f"read_a_vectors_{ways}way", f"vectors of A {ways}-way", tn, **part)
        free = Shared("mn", 0, Swizzle(ways.bit_length() - 1, 2, 3))
        what = f"the same, swizzled {free.swizzle}"
        yield _simt(f"read_a_vectors_{ways}way_swizzled", what, tn, shared_a=free, **part)
    # A along k: lane m reads row 4 m, 4 * (8 + pad) words further
    for pad, ways in ((0, 8), (4, 4), (2, 2), (1, 1)):
        what = f"A along k {ways}-way, pad {pad}"
        yield _simt(f"read_a_along_k_{ways}way", what, shared_a=Shared("k", pad))
    yield _simt("read_a_along_k_swizzled", "A along k, swizzled", shared_a=Shared("k", 0, Swizzle(3, 2, 3)))
    # A turned round: lanes 0 and 1 write elements 4 apart along k, 4 * (128 + pad) words
    for pad in (0, 4, 8):
        what = f"A turned round by registers, pad {pad}"
        yield _simt(f"turned_pad{pad}", what, shared_a=Shared("mn", pad))
    yield _simt("turned_swizzled", "A turned round, swizzled", shared_a=Shared("mn", 0, Swizzle(1, 4, 5)))
    for pad in (0, 4):
        what = f"A turned round by cp.async, pad {pad}"
        yield _simt(f"async_turned_pad{pad}", what, load_a="cp.async", shared_a=Shared("mn", pad))


def _shapes() -> Iterator[Case]:
    yield _simt("quads_of_2", "quads of 2 x 2: 64-bit reads", quad=(2, 2))
    yield _simt("quads_of_1", "single elements: 32-bit reads", quad=(1, 1))
    yield _simt("lanes_along_n", "lanes along N", lanes_along="n")
    yield _simt("one_stage", "one stage", stages=1)
    yield _simt("four_stages", "four stages", block=(128, 128, 8), stages=4, load_a="cp.async")
    yield _simt("wide", "128 x 256", block=(128, 256, 8), warp=(64, 64), thread=(8, 16), unroll=2)
    yield _simt("small", "64 x 64", block=(64, 64, 16), warp=(32, 32), thread=(8, 4))
    for layout in ("nt", "tn", "tt"):
        yield _simt(f"layout_{layout}", f"layout {layout}", Operands.of("f32", layout=layout))
    odd = Operands.of("f32", align_bytes=4)
    yield _simt("odd", "4-byte alignment", odd, (2047, 2045, 1021), store="direct")


def _rasters() -> Iterator[Case]:
    for raster in ("along_m", "along_n", "grouped_m:4", "grouped_m:8", "grouped_m:16"):
        yield _simt(
            f"raster_{raster.replace(':', '_')}", f"raster {raster}", Operands.of("f32", layout="tn"),
            (8192, 8192, 2048), _TRAFFIC_LAUNCHES, block=(128, 128, 8), raster=raster,
        )  # fmt: skip


def hopper_cases() -> list[Case]:
    """Return bf16 plans with TMA and wgmma: D through swizzled, plain and padded shared memory; clusters; rasters."""
    options: dict[str, dict[str, Any]] = {
        "sm90_swizzled_d": {},
        "sm90_plain_d": {"shared_d": "plain"},
        "sm90_padded_d": {"shared_d": "padded"},
        "sm90_cooperative": {"schedule": "cooperative", "tile": (128, 256, 64)},
        "sm90_cluster_m": {"cluster": (2, 1)},
        "sm90_along_m": {"raster": "along_m"},
    }
    return [_sm90(name, name, (8192, 8192, 2048), given) for name, given in options.items()]


def _sm90(name: str, plan_name: str, extents: tuple[int, int, int], given: dict[str, Any]) -> Case:
    """Return a case of a Hopper plan for bf16, with the raster of the recorded run unless another is given."""
    ops, given = Operands.of("bf16", layout="nt"), _BANDS | given
    plan = sm90_plan(ops, name=plan_name, summary=_spelled("sm90", given), **given)
    return Case(name, plan, Problem(*extents, operands=ops), _TRAFFIC_LAUNCHES)


def traffic_cases() -> list[Case]:
    """Return other sizes and rasters. No constant of the model of L2 was fitted to the SIMT plans among them."""
    out = []
    f32, block = Operands.of("f32", layout="tn"), {"block": (128, 128, 8)}
    wide = {"block": (128, 256, 8), "warp": (64, 64), "thread": (8, 16), "unroll": 2}
    simt: tuple[tuple[str, tuple[int, int, int], str, dict[str, Any]], ...] = (
        ("wide_grouped_n_8", (4096, 16384, 1024), "grouped_n:8", block),
        ("deep_grouped_m_8", (8192, 8192, 4096), "grouped_m:8", block),
        ("ragged_grouped_m_12", (6000, 7000, 3000), "grouped_m:12", block),
        ("small_k_grouped_m_8", (16384, 8192, 512), "grouped_m:8", block),
        ("big_tiles_along_m", (8192, 8192, 2048), "along_m", wide),
    )
    for name, extents, raster, given in simt:
        out.append(_simt(f"simt_{name}", name, f32, extents, _TRAFFIC_LAUNCHES, raster=raster, **given))
    hopper: tuple[tuple[str, tuple[int, int, int], dict[str, Any]], ...] = (
        ("tall", (16384, 4096, 4096), {}),
        ("along_n", (8192, 8192, 4096), {"raster": "along_n"}),
        ("grouped_n_16", (8192, 8192, 4096), {"raster": "grouped_n:16"}),
        ("cluster_n_grouped_n_4", (8192, 8192, 4096), {"cluster": (1, 2), "raster": "grouped_n:4"}),
        ("cooperative_cluster_m", (8192, 8192, 8192),
         {"schedule": "cooperative", "tile": (128, 256, 64), "cluster": (2, 1)}),
    )  # fmt: skip
    return [*out, *[_sm90(f"sm90_{name}", name, extents, given) for name, extents, given in hopper]]


def mma_cases() -> list[Case]:
    """Return mma.sync plans: ldmatrix, plain and transposed, LDS; swizzled, padded, conflicting; tf32; TMA loads."""
    out = []
    options: dict[str, tuple[str, str, dict[str, Any]]] = {
        "ldmatrix_swizzled": ("bf16", "nt", {}),
        "ldmatrix_plain": ("bf16", "nt", {"shared": "plain"}),
        "ldmatrix_padded": ("bf16", "nt", {"shared": Shared("k", 8)}),
        "ldmatrix_padded_2way": ("bf16", "nt", {"shared": Shared("k", 16)}),
        "ldmatrix_padded_4way": ("bf16", "nt", {"shared": Shared("k", 32)}),
        "ldmatrix_transposed_swizzled": ("bf16", "tn", {}),
        "ldmatrix_transposed_plain": ("bf16", "tn", {"shared": "plain"}),
        "ldmatrix_transposed_padded": ("bf16", "tn", {"shared": Shared("mn", 8)}),
        "ldmatrix_mixed_f16": ("f16", "nn", {}),
        "lds_swizzled": ("bf16", "nt", {"read": "plain"}),
        "lds_plain": ("bf16", "nt", {"read": "plain", "shared": "plain"}),
        "direct_store": ("bf16", "nt", {"store": "direct"}),
        "one_stage": ("bf16", "nt", {"stages": 1, "block": (128, 128, 64)}),
        "tf32_ldmatrix": ("tf32", "nt", {"block": (128, 128, 32)}),
        "tf32_padded": ("tf32", "tn", {"block": (128, 128, 32), "shared": "padded"}),
        "tf32_swizzled": ("tf32", "tn", {"block": (128, 128, 32)}),
    }
    for name, (dtype, layout, given) in options.items():
        ops = Operands.of(dtype, layout=layout)
        given = {"block": (128, 128, 64), "warp": (64, 32), **given}
        plan = mma_sync_plan(ops, name=name, summary=_spelled("mma_sync", {**given, "arch": "sm_80"}), **given)
        out.append(Case(f"mma_{name}", plan, Problem(2048, 2048, 1024, operands=ops)))
    for name, dtype, layout in (("tma_bf16", "bf16", "nt"), ("tma_tf32", "tf32", "tn")):
        ops = Operands.of(dtype, layout=layout)
        plan = mma_tma_plan(ops, name=name)
        plan = plan.with_(summary=_spelled("mma_tma", {"block": plan.cta_tile}))
        out.append(Case(f"mma_{name}", plan, Problem(2048, 2048, 1024, operands=ops)))
    return out


GROUPS: dict[str, Callable[[], Sequence[Case | ProbeCase]]] = {
    "probes": proof_probes,
    "plans": proof_cases,
    "mma": mma_cases,
    "hopper": hopper_cases,
    "traffic": traffic_cases,
}
