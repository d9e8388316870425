"""Plans that quantize D by blocks of 1 x 128: each way from the accumulators to the store."""

from __future__ import annotations

from functools import cache
from typing import Any

from cutegemm import GemmPlan, Operands, sm90_plan

_COOPERATIVE = {"tile": (128, 128, 64), "schedule": "cooperative"}

# name: (element type of A and B, epilogue, arguments of sm90_plan)
FORMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "128x128": ("bf16", "quantize(acc + bias)", _COOPERATIVE),
    "64x256": ("bf16", "quantize(acc + bias)", {"tile": (64, 256, 64)}),
    "cluster_2x1": ("bf16", "quantize(acc + bias)", {"tile": (128, 128, 64), "cluster": (2, 1)}),
    "cluster_k": ("bf16", "quantize(acc + bias)", {"tile": (64, 256, 64), "cluster_k": 2}),
    "split": ("bf16", "quantize(acc + bias)", {"tile": (64, 128, 64), "split_k": 2}),
    "single": ("bf16", "quantize(acc + bias)", {"tile": (128, 128, 64), "schedule": "single"}),
    "lines": ("bf16", "quantize(acc + bias, 'e4m3', 1)", {"tile": (64, 128, 64), "shared_d": "padded"}),
    "gated": ("bf16", "quantize(relu(halves(acc + bias)[0]) * halves(acc + bias)[1])", {"tile": (64, 256, 64)}),
    "block_scaled": (
        "e4m3", "quantize(acc + bias)", {**_COOPERATIVE, "tile": (128, 128, 128), "scales": ("1x128", "128x128")}
    ),
}  # fmt: skip


@cache
def form(name: str, ctas: int = 4) -> GemmPlan:
    """Return the plan of a form, for a persistent grid of `ctas` CTAs. D of "lines" is aligned to 4 bytes."""
    kind, epilogue, options = FORMS[name]
    operands = Operands.of(kind, layout="nt", out="e4m3")
    if name == "lines":
        operands = operands.fitted(64, 300, 64)
    return sm90_plan(operands, name=name, ctas=ctas, epilogue=epilogue, operands={"bias": "row:f32"}, **options)
