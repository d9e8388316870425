"""What the CTAs of a cluster share is divided into boxes of any number of rows, and every element is where wgmma reads
it; shares that TMA cannot place are refused, and no others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutegemm.build import sm90_plan
from cutegemm.build.sm90 import columns_loaded
from cutegemm.dtypes import round_to
from cutegemm.errors import PlanError
from cutegemm.plan import Operands
from cutegemm.simulator import simulate

CLUSTERS = [(2, 1), (3, 1), (4, 1), (5, 1), (8, 1), (1, 2), (1, 4), (2, 2), (4, 2), (2, 4)]
KINDS = [("bf16", "nn"), ("bf16", "nt"), ("f16", "tt"), ("bf16", "tn"), ("e4m3", "nt"), ("tf32", "nt")]


def may_share(operand, rows: int, depth: int, sharers: int) -> bool:
    """By hand: rows of the widest swizzle that fits, in whole rows and whole 128 bytes for each of the sharers."""
    inner, outer = (depth, rows) if operand.major == "k" else (rows, depth)
    row_bytes = next(n for n in (128, 64, 32, 16) if inner * operand.dtype.bits // 8 % n == 0)
    return outer % sharers == 0 and outer // sharers * row_bytes % 128 == 0


@settings(max_examples=40, deadline=None)
@given(
    columns=st.integers(1, 13).map(lambda groups: 8 * groups),
    cluster=st.sampled_from(CLUSTERS),
    kind=st.sampled_from(KINDS),
    k_tile_bytes=st.sampled_from([64, 128, 256]),
    seed=st.integers(0, 99),
)
def test_shares_of_any_number_of_rows(columns, cluster, kind, k_tile_bytes, seed):
    operands = Operands.of(kind[0], layout=kind[1], out="f32")
    depth, (cm, cn) = k_tile_bytes * 8 // operands.a.dtype.bits, cluster
    options = {"tile": (64, columns, depth), "cluster": cluster, "store": "direct", "ctas": cm * cn}
    b_columns = columns_loaded(operands.b, (64, columns))
    if not (may_share(operands.a, 64, depth, cn) and may_share(operands.b, b_columns, depth, cm)):
        with pytest.raises(PlanError, match="shares that begin at multiples of 128 bytes"):
            sm90_plan(operands, **options)
        return
    plan = sm90_plan(operands, **options)
    rng = np.random.default_rng(seed)
    m, n, k = 64 * cm + 16, columns * cn + 16, depth + 16
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    assert np.array_equal(simulate(plan, a, b).d, round_to(operands.d.dtype, a @ b))
