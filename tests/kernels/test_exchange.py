"""Machine code of the exchange kernel: wide accesses, and flags that order them on all GPUs."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")

from cutegemm.compile.plans import compile_exchange
from cutegemm.dtypes import bf16, e4m3, f32, f64
from cutegemm.errors import PlanError
from cutegemm.plan.memory.exchange import Exchange

_UNROLLED = 2  # vectors of a thread in the body of its loop
KERNELS = [
    Exchange("spread", 2, bf16),
    Exchange("spread", 8, e4m3),
    Exchange("met sum", 2, bf16),
    Exchange("met sum", 8, f32),
    Exchange("sum", 3, bf16),
]


@pytest.mark.parametrize("exchange", KERNELS, ids=str)
def test_the_code(exchange):
    """A spread loads a vector and stores it to each rank. A sum loads one of each rank and stores one.

    The flag is set by a release and read by an acquire, of the scope that spans GPUs. The first read and both loops
    that wait, with and without a time limit, have one each.
    """
    ptx = (compile_exchange(exchange, "sm_90a")[0] / "kernel.ptx").read_text()
    loads, stores = [len(re.findall(rf"{kind}\.global\.v4\.b32", ptx)) for kind in ("ld", "st")]
    many, one = exchange.ranks * _UNROLLED, _UNROLLED
    assert (loads, stores) == ((many, one) if exchange.adds else (one, many))
    assert ptx.count("st.release.sys.global.b32") == int(exchange.meets)
    assert ptx.count("ld.acquire.sys.global.b32") == 3 * int(exchange.meets)
    assert ptx.index("griddepcontrol.wait") < ptx.index("ld.global")
    assert ".nc." not in ptx  # what other ranks have just stored may be in no cache for constants


def test_what_no_kernel_computes():
    assert list(Exchange("sum", 2, f64).violations("sm_90a")) == ["dtype = f64; the kernel adds bf16, f16, f32."]
    with pytest.raises(PlanError) as error:
        compile_exchange(Exchange("spread", 9, bf16), "sm_80")
    assert [text.split()[0] for text in error.value.violations] == ["sm_80", "ranks"]
