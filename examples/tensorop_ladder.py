"""Simulate every step of the tutorial ladder for Tensor Cores, and print its shared-memory wavefronts.

Run it anywhere: python examples/tensorop_ladder.py
To time the steps on a GPU: python -m docs.evidence gemm --dtype tf32 --layout nt --plan 'tensorop_*'
"""

import numpy as np

from cutegemm import Operands, Problem, plan_named
from cutegemm.analysis import shared_accesses
from cutegemm.analysis.accesses import buffer_layout
from cutegemm.choice.ladders.mma_sync import STEPS
from cutegemm.simulator import simulate


def main() -> None:
    """Print a table with a row for each step, check each result, and describe the last plan."""
    operands = Operands.of("f32", layout="nt")  # the Tensor Cores multiply them as TF32
    problem = Problem(136, 72, 52, operands=operands)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((136, 52), (52, 72)))

    print("shared-memory wavefronts per 1000 multiply-adds: actual / least possible\n")
    print(f"{'step':24} {'CTA tile':>13} {'stages':>6}  {'fill':>13} {'read':>13}")
    for name in STEPS:
        plan = plan_named(name, operands)
        bm, bn, bk = plan.cta_tile
        cells = []
        for what in ("fill", "read"):
            costs = [
                access.cost(buffer_layout(plan, access.buffer))
                for access in shared_accesses(plan)
                if access.name in (f"{what} A", f"{what} B")
            ]
            scale = 1000 / (bm * bn * bk)
            actual, ideal = (sum(getattr(c, kind) for c in costs) * scale for kind in ("wavefronts", "ideal"))
            cells.append(f"{actual:6.2f}/{ideal:6.2f}")
        tile = f"{bm}x{bn}x{bk}"
        print(f"{name:24} {tile:>13} {plan.stages:6}  {cells[0]:>13} {cells[1]:>13}  {plan.summary}")
        assert np.array_equal(simulate(plan, a, b).d, a @ b), name

    print(f"\nAll steps were simulated on {problem}, thread by thread. Each D is A @ B, bit for bit.")
    print("\nThe plan of the last step:\n")
    print(plan.describe(Problem(4096, 4096, 4096, operands=plan.operands)))


if __name__ == "__main__":
    main()
