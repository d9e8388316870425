"""Plans with block-scaled operands, their arguments, and what they compute in float64."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from cutegemm.build import sm90_plan
from cutegemm.dtypes import e4m3, round_to
from cutegemm.plan import GemmPlan, Operands
from cutegemm.plan.mainloop.block_scaled import with_scales

ROWS, BLOCKS = "1x128", "128x128"
_COOPERATIVE = {"schedule": "cooperative", "tile": (128, 128, 128)}
_AT_ONCE = {**_COOPERATIVE, "at_once": True}

# name: (granularity of A, granularity of B, arguments of Operands.of, arguments of sm90_plan)
FORMS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "rows_blocks": (ROWS, BLOCKS, {}, _COOPERATIVE),
    "rows_blocks_halves_2x1": (ROWS, BLOCKS, {}, {**_COOPERATIVE, "tile": (128, 192, 128), "cluster": (2, 1)}),
    "rows_rows": (ROWS, ROWS, {}, _COOPERATIVE),
    "rows_rows_112_1x2": (ROWS, ROWS, {}, {**_COOPERATIVE, "tile": (128, 112, 128), "cluster": (1, 2)}),
    "blocks_rows": (BLOCKS, ROWS, {}, _COOPERATIVE),
    "blocks_rows_pingpong": (BLOCKS, ROWS, {}, {"tile": (64, 96, 128)}),
    "blocks_blocks_split": (BLOCKS, BLOCKS, {}, {**_COOPERATIVE, "tile": (128, 160, 128), "split_k": 2}),
    "any_columns": (ROWS, BLOCKS, {"align_d": 4}, {**_COOPERATIVE, "tile": (128, 160, 128), "shared_d": "padded"}),
    "batched": (ROWS, BLOCKS, {"batched": True}, {"tile": (64, 128, 128)}),
    "rows_of_128": (ROWS, BLOCKS, {}, {**_COOPERATIVE, "tile": (256, 64, 128)}),
    "fixup": (ROWS, BLOCKS, {}, {**_COOPERATIVE, "fixup": True}),
    "at_once_2x1": (ROWS, BLOCKS, {}, {**_AT_ONCE, "cluster": (2, 1)}),
    "at_once_192": (ROWS, BLOCKS, {}, {**_AT_ONCE, "tile": (128, 192, 128)}),
    "at_once_blocks_split": (BLOCKS, BLOCKS, {}, {**_AT_ONCE, "tile": (128, 160, 128), "split_k": 2}),
    "at_once_batched": (ROWS, BLOCKS, {"batched": True}, {**_AT_ONCE, "tile": (64, 128, 128), "schedule": "pingpong"}),
    "at_once_fixup": (ROWS, BLOCKS, {}, {**_AT_ONCE, "fixup": True}),
    "at_once_rows": (ROWS, ROWS, {}, _AT_ONCE),
}  # fmt: skip


@cache
def form(name: str, ctas: int = 4, out: str = "f32", swap_ab: bool = False) -> GemmPlan:
    """Return the plan of a form, for a persistent grid of `ctas` CTAs.

    swap_ab   whether the plan computes D^T = B^T A^T; the granularities are those of A and B before the swap
    """
    a, b, of, options = FORMS[name]
    of = {**of}
    align = of.pop("align_d", 16)
    operands = with_scales(Operands.of("e4m3", layout="nt", out=out, **of), (a, b))
    d = replace(operands.d, align_bytes=align)
    operands = replace(operands, c=d, d=d)
    if swap_ab:
        operands = operands.transposed
    plan = sm90_plan(operands, name=name, ctas=ctas, **options)
    return plan.with_(swap_ab=True) if swap_ab else plan


def arguments(plan: GemmPlan, m: int, n: int, k: int, batch: int = 2) -> dict[str, np.ndarray]:
    """Return random A, B and scales as the caller of the plan has them; values of A and B are numbers of e4m3."""
    rng = np.random.default_rng([m, n, k])
    operands = plan.operands.transposed if plan.swap_ab else plan.operands
    front = (batch,) if operands.batched else ()
    extents = {"m": m, "n": n, "k": k}
    found = {name: round_to(e4m3, rng.normal(size=(*front, *shape))) for name, shape in (("a", (m, k)), ("b", (k, n)))}
    for name in operands.of_mainloop:
        shape = [-(-extents[mode[0]] // int(mode[2:] or 1)) for mode in operands.modes(name)]
        found[name] = rng.uniform(0.25, 4, (*front, *shape)).astype(np.float32)
    return found


def dequantized(plan: GemmPlan, given: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return A and B in float64, each element multiplied by its scale."""
    operands, out = plan.operands.transposed if plan.swap_ab else plan.operands, []
    for name, matrix in (("a", given["a"]), ("b", np.swapaxes(given["b"], -1, -2))):
        scales = given[f"scale_{name}"].astype(np.float64)
        for axis, mode in zip((-2, -1), operands.modes(f"scale_{name}"), strict=True):
            scales = np.repeat(scales, int(mode[2:] or 1), axis)
        out.append(matrix.astype(np.float64) * scales[..., : matrix.shape[-2], : matrix.shape[-1]])
    return out[0], np.swapaxes(out[1], -1, -2)


def check_result(plan: GemmPlan, given: dict[str, np.ndarray], d: np.ndarray, relative: float | None = None) -> None:
    """Check D of f32 against float64.

    relative   largest error as a share of the sum of the magnitudes of all products; None: the bound of a sum of K
               products in f32, each scaled twice
    """
    a, b = dequantized(plan, given)
    bound = (relative or (a.shape[-1] + 3) * 2.0**-24) * (np.abs(a) @ np.abs(b))
    assert d.shape == (a @ b).shape
    np.testing.assert_array_less(np.abs(d - a @ b), bound + 1e-30)
