"""Plans of all kinds whose epilogue is gated, and what they compute held against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cutegemm.build import mma_sync_plan, mma_tma_plan, simt_plan, sm90_plan
from cutegemm.dtypes import round_to
from cutegemm.plan import GemmPlan, Operands
from tests.epilogues import CASES, reference

BF16, BF16_NN = Operands.of("bf16", layout="nt"), Operands.of("bf16", layout="nn")
E4M3, E4M3_NN = (Operands.of("e4m3", layout=layout, out="bf16") for layout in ("nt", "nn"))

SIMT = {"block": (32, 128, 8), "warp": (16, 64), "thread": (4, 8)}


def _sm90(operands: Operands = BF16, tile: tuple[int, int, int] = (64, 64, 64), **how: Any) -> GemmPlan:
    return sm90_plan(operands, tile=tile, **({} if how.get("schedule") == "single" else {"ctas": 4}), **how)


# Plan, case, and (M, N, K)
FORMS: dict[str, tuple[GemmPlan, str, tuple[int, int, int]]] = {
    "pingpong": (_sm90(), "geglu_bias", (136, 144, 136)),
    "pingpong, pairs": (_sm90(with_c=True), "pairs", (136, 144, 136)),
    "192": (_sm90(tile=(128, 192, 64)), "swiglu", (136, 400, 72)),
    "multicast": (_sm90(tile=(128, 128, 64), cluster=(2, 1)), "geglu_bias", (300, 336, 72)),
    "multicast of A": (_sm90(cluster=(1, 2)), "swiglu", (136, 336, 72)),
    "n-major": (_sm90(BF16_NN, (64, 128, 64)), "geglu_bias", (136, 336, 72)),
    "n-major, packed pairs": (_sm90(BF16_NN, repack="b"), "pairs", (136, 336, 72)),
    "cooperative": (_sm90(tile=(128, 128, 64), schedule="cooperative"), "geglu_bias", (300, 144, 72)),
    "overlapped": (_sm90(tile=(128, 128, 64), schedule="cooperative", overlapped=True), "geglu_bias", (300, 336, 136)),
    "single": (_sm90(schedule="single"), "swiglu", (136, 144, 72)),
    "split": (_sm90(split_k=2), "geglu_bias", (136, 144, 264)),
    "fixup": (_sm90(fixup=True), "swiglu", (136, 144, 264)),
    "direct": (_sm90(store="direct"), "pairs", (136, 144, 72)),
    "padded": (_sm90(tile=(128, 128, 64), shared_d="padded"), "geglu_bias", (136, 144, 72)),
    "warps store": (_sm90(store="tma_warp"), "swiglu", (136, 144, 72)),
    "m-major D": (_sm90(Operands.of("bf16", layout="nt", out_major="m")), "geglu_bias", (136, 144, 72)),
    "f32 D": (_sm90(Operands.of("bf16", layout="nt", out="f32")), "geglu_bias", (136, 144, 72)),
    "tf32": (_sm90(Operands.of("tf32", layout="nt"), (128, 128, 32)), "swiglu", (136, 144, 72)),
    "tf32, A out of registers": (
        _sm90(Operands.of("tf32", layout="tt"), (128, 128, 32), schedule="cooperative"), "geglu_bias",
        (136, 144, 72),
    ),
    "e4m3": (_sm90(E4M3, (64, 128, 128)), "geglu_bias", (136, 144, 144)),
    "e4m3, two levels": (
        _sm90(E4M3, (128, 128, 128), schedule="cooperative", promoted=True), "swiglu", (136, 144, 272),
    ),
    "e4m3, two levels, halves": (
        _sm90(E4M3, (128, 192, 128), schedule="cooperative", promoted=True), "swiglu", (136, 144, 272),
    ),
    "e4m3, packed": (_sm90(E4M3_NN, (64, 128, 128), repack="b"), "pairs", (136, 144, 144)),
    "batch": (_sm90(Operands.of("bf16", layout="nt", batched=True)), "geglu_bias", (136, 144, 72)),
    "no k-tile": (_sm90(), "geglu_bias", (136, 144, 0)),
    "mma.sync": (mma_sync_plan(BF16, block=(64, 64, 64), warp=(32, 32)), "pairs", (72, 144, 72)),
    "mma.sync, n-major": (mma_sync_plan(BF16_NN, block=(128, 64, 64), warp=(64, 32)), "geglu_bias", (136, 144, 72)),
    "mma.sync, direct": (
        mma_sync_plan(BF16, block=(64, 96, 64), warp=(32, 48), store="direct"), "swiglu", (136, 144, 72),
    ),
    "mma.sync by TMA": (mma_tma_plan(BF16, block=(64, 128, 64), warp=(32, 64), ctas=4), "geglu_bias", (136, 144, 136)),
    "mma.sync by TMA, pairs": (mma_tma_plan(BF16, block=(64, 64, 64), warp=(32, 32), ctas=4), "pairs", (136, 144, 72)),
    "mma.sync by TMA, n-major": (
        mma_tma_plan(BF16_NN, block=(64, 128, 64), warp=(32, 64), ctas=4), "swiglu", (136, 336, 72),
    ),
    "mma.sync by TMA, direct": (
        mma_tma_plan(BF16, block=(64, 64, 64), warp=(32, 32), ctas=4, store="direct"), "swiglu", (136, 144, 72),
    ),
    "mma.sync by TMA, lines": (
        mma_tma_plan(BF16.fitted(136, 101, 72), block=(64, 64, 64), warp=(32, 32), ctas=4), "swiglu", (136, 202, 72),
    ),
    "mma.sync by TMA, tf32": (
        mma_tma_plan(Operands.of("tf32", layout="nt"), block=(64, 64, 32), warp=(32, 32), ctas=4), "swiglu",
        (136, 144, 72),
    ),
    "SIMT": (simt_plan(**SIMT), "geglu_bias", (72, 168, 40)),
    "SIMT, pairs": (simt_plan(Operands.of("f32", layout="nt"), **SIMT), "pairs", (72, 168, 40)),
    "SIMT, unaligned": (simt_plan(Operands.of("f32", align_bytes=4), **SIMT), "pairs", (71, 166, 39)),
    "SIMT, packed": (simt_plan(**SIMT, repack="ab"), "geglu_bias", (72, 168, 40)),
    "SIMT, split": (simt_plan(**SIMT, split_k=2, reduction="last"), "swiglu", (72, 168, 64)),
    "SIMT, without shared memory": (
        simt_plan(block=(32, 64, 1), warp=(32, 32), thread=(4, 8), stages=0), "geglu_bias", (72, 168, 40),
    ),
}  # fmt: skip


def reduces(form: str) -> str:
    """Return the case of sums and maxima for a form; some forms cannot read the tile operand of `gated_sums`."""
    case = FORMS[form][1]
    return "pairs_sums" if case == "pairs" or form in ("overlapped", "warps store") else "gated_sums"


def held_against_float64(carry_out: Callable[..., Any], form: str, case_name: str | None = None) -> None:
    """Hold all results of an epilogue against float64, on random numbers.

    case_name   of `CASES`; None for the form's own
    """
    plan, name, (m, n, k) = FORMS[form]
    name = name if case_name is None else case_name
    case, rng = CASES[name], np.random.default_rng(len(form))
    gated, batch = case.on(plan), 2 if plan.operands.batched else None
    lead = () if batch is None else (batch,)
    a, b = rng.standard_normal((*lead, m, k)), rng.standard_normal((*lead, k, n)) / max(k, 1) ** 0.5
    operands = case.operands(rng, m, n, batch)
    found = carry_out(gated, a, b, **operands)
    seen = {
        of: x if isinstance(x, float) else round_to(gated.operands.matrix(of).dtype, x) for of, x in operands.items()
    }
    a, b = (round_to(gated.operands.a.dtype, x).astype(np.float64) for x in (a, b))
    wanted = reference(gated.epilogue, a @ b, seen)
    assert (found.d.shape, len(found.aux)) == ((*lead, m, n // 2), len(wanted) - 1)
    rounding = 2.0**-7 if gated.operands.d.dtype.bits == 16 else 2.0**-9 if "tf32" in form else 2.0**-16
    for of, values in {"d": found.d, **found.aux}.items():
        wrong = np.abs(values.astype(np.float64) - wanted[of]) > rounding * (0.1 + np.abs(wanted[of]))
        assert not wrong.any(), (of, int(wrong.sum()), np.argwhere(wrong)[:4].tolist())
