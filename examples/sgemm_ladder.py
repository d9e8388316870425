"""The SIMT ladder on whatever is here: timed beside cuBLAS on a GPU, else simulated thread by thread and
analysed.

python examples/sgemm_ladder.py              every step: right or wrong, how fast, or what bounds it
python examples/sgemm_ladder.py --size 2048  of another size, on a GPU
python examples/sgemm_ladder.py --sass       what the compiler made of each step (needs the extra `kernels`)
"""

from __future__ import annotations

import argparse
import importlib.util

import numpy as np

from cutegemm.analysis import check
from cutegemm.choice.ladders.simt import SIMT_LADDER
from cutegemm.plan import Operands, Problem

SIMULATED = (130, 260, 68)  # ragged along each mode


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--sass", action="store_true")
    given = parser.parse_args()
    if given.sass:
        machine_code()
    elif has_gpu():
        from docs.evidence.ladder import run, table

        print(table(run("simt", [given.size], counted=None)))
    else:
        simulated(given.size)


def has_gpu() -> bool:
    """Whether a plan could run here."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("tvm_ffi") is None:
        return False
    import torch

    return torch.cuda.is_available()


def simulated(size: int) -> None:
    """Each step on the CPU, on a small ragged problem; and what bounds it on an H200, on a large one."""
    from cutegemm.simulator import simulate

    m, n, k = SIMULATED
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    wanted = 2 * (a @ b) + 0.5 * c
    print(f"no GPU here: simulated at {m}x{n}x{k}, analysed for an H200 at {size} cubed")
    print(f"{'step':24} {'D':6} {'threads':>7} {'conflicts':>11} {'least time set by':>18} {'TFLOP/s at most':>15}")
    wrong = []
    for step in SIMT_LADDER.steps:
        plan = step.build(Operands.of("f32"))
        d = simulate(plan, a, b, c, alpha=2, beta=0.5).d
        found = check(plan, Problem(size, size, size), device="h200", search=False)
        assert found.roofline is not None
        conflicts = sum(part.cost.wavefronts - part.cost.ideal for part in found.shared)
        if not np.array_equal(d, wanted):
            wrong.append(step.name)
        print(
            f"{step.name:24} {'WRONG' if step.name in wrong else 'right':6} {plan.threads:7} {conflicts:11} "
            f"{found.roofline.bound.name:>18} {found.roofline.tflops:15.1f}"
        )
        print(f"    {step.change}")
    if wrong:
        raise SystemExit(f"wrong: {', '.join(wrong)}")


def machine_code() -> None:
    """Registers and instructions of each step, for sm_90a; S2R reads a thread's and a CTA's number."""
    from cutegemm.compile.plans import compile_plan

    names = ("FFMA", "LDS", "STS", "LDG", "LDGSTS", "S2R", "BAR", "LDL")
    print(f"{'step':24} {'registers':>9} " + " ".join(f"{name:>6}" for name in names))
    for step in SIMT_LADDER.steps:
        report = compile_plan(step.build()).resources
        print(f"{step.name:24} {report.registers:9} " + " ".join(f"{report.count(name):6}" for name in names))


if __name__ == "__main__":
    main()
