"""D computed in numpy in the order of an `AccumulationOrder`, to compare with simulated and emulated kernels."""

from __future__ import annotations

import numpy as np

from cutegemm.plan.accumulation import AccumulationOrder, Chain, Total


def in_order(order: AccumulationOrder, a: np.ndarray, b: np.ndarray, fused: bool = True) -> np.ndarray:
    """Return a @ b in f32, added in an order that is the same for all elements of D.

    a, b    factors, rounded to the type that is multiplied
    fused   True: an instruction adds its products exactly, and the accumulator is rounded once, as in the emulator.
            False: each product is rounded and added by itself, as in the simulator
    """
    (total,) = order.totals
    return _total(total, order.instruction.k, a, b, fused)


def _total(total: Total, k: int, a: np.ndarray, b: np.ndarray, fused: bool) -> np.ndarray:
    if isinstance(total, Chain):
        return _chain(total, k, a, b, fused)
    assert not total.factor
    out = _total(total.terms[0], k, a, b, fused)
    for term in total.terms[1:]:
        out = out + _total(term, k, a, b, fused)
    return out


def _chain(chain: Chain, k: int, a: np.ndarray, b: np.ndarray, fused: bool) -> np.ndarray:
    acc = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for block in chain.k_blocks(k):
        inside = [each for each in block if 0 <= each < a.shape[1]]
        if fused:
            exact = a[:, inside].astype(np.float64) @ b[inside].astype(np.float64)
            acc = (acc + exact).astype(np.float32)
        else:
            for each in inside:
                acc = acc + np.outer(a[:, each], b[each])
    return acc
