"""What is counted of gated plans: D, and what is stored of it, has half of the columns."""

from __future__ import annotations

import pytest

from cutegemm import epilogue as e
from cutegemm.analysis import check
from cutegemm.build import with_epilogue
from cutegemm.plan import Problem
from cutegemm.plan.epilogue import Accumulator, Epilogue
from tests.gated import FORMS


@pytest.mark.parametrize("form", ["pingpong", "padded", "direct", "mma.sync", "SIMT"])
def test_half_of_the_stores(form):
    plan = FORMS[form][0]
    gated = with_epilogue(Epilogue(e.swiglu(Accumulator())), plan)
    assert "silu(acc.gate) * acc.up" in gated.describe()
    bm, bn, bk = plan.cta_tile
    m, n, k = 2 * bm, 2 * bn, bk
    of_half, of_whole = (check(each, Problem(m, n, k, operands=each.operands), search=False) for each in (gated, plan))
    assert not of_half.violations
    assert 2 * of_half.traffic.dram_write_bytes == of_whole.traffic.dram_write_bytes
    for name in ("store D", "read D"):
        halved, whole = ([a.cost.wavefronts for a in found.shared if a.name == name] for found in (of_half, of_whole))
        assert [2 * count for count in halved] == whole, name
