"""The ladder of Tensor Core plans: what each step changes, what it costs in shared memory; and it is right.

Run it anywhere: python examples/tensorop_ladder.py
On a GPU the same names are timed: python -m docs.evidence gemm --dtype tf32 --layout nt --plan 'tensorop_*'
"""

import numpy as np

from cutegemm import Operands, Problem, plan_named
from cutegemm.analysis import shared_accesses
from cutegemm.analysis.accesses import buffer_layout
from cutegemm.choice.ladders.mma_sync import STEPS
from cutegemm.simulator import simulate


def main() -> None:
    operands = Operands.of("f32", layout="nt")  # multiplied as tf32
    problem = Problem(136, 72, 52, operands=operands)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((136, 52), (52, 72)))

    print("wavefronts of shared memory for 1000 multiply-adds: actual / least possible\n")
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
            per = 1000 / (bm * bn * bk)
            found, ideal = (sum(getattr(c, kind) for c in costs) * per for kind in ("wavefronts", "ideal"))
            cells.append(f"{found:6.2f}/{ideal:6.2f}")
        tile = f"{bm}x{bn}x{bk}"
        print(f"{name:24} {tile:>13} {plan.stages:6}  {cells[0]:>13} {cells[1]:>13}  {plan.summary}")
        assert np.array_equal(simulate(plan, a, b).d, a @ b), name

    print(f"\nAll of them were carried out on {problem}, thread by thread, and gave A @ B to the last bit.")
    print("\nThe last one:\n")
    print(plan.describe(Problem(4096, 4096, 4096, operands=plan.operands)))


if __name__ == "__main__":
    main()
