"""Run every step of the SIMT tutorial ladder: timed against cuBLAS on a GPU, else simulated and analysed.

python examples/sgemm_ladder.py              a table with a row for each step: is D right, and how fast is it
python examples/sgemm_ladder.py --size 2048  the same for another size of the problem
python examples/sgemm_ladder.py --sass       registers and instructions of each step (needs the extra `kernels`)
"""

from __future__ import annotations

import argparse
import importlib.util

import numpy as np

from cutegemm.analysis import check
from cutegemm.choice.ladders.simt import SIMT_LADDER
from cutegemm.plan import Operands, Problem

SIMULATED = (130, 260, 68)  # M, N and K that tiles do not divide


def main() -> None:
    """Print the table that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4096, help="M, N and K of the problem")
    parser.add_argument("--sass", action="store_true", help="print registers and instructions of each step")
    arguments = parser.parse_args()
    if arguments.sass:
        machine_code()
    elif has_gpu():
        from docs.evidence.ladder import run, table

        print(table(run("simt", [arguments.size], counted=None)))
    else:
        simulated(arguments.size)


def has_gpu() -> bool:
    """Return whether this machine has a GPU and the packages to run a plan on it."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("tvm_ffi") is None:
        return False
    import torch

    return torch.cuda.is_available()


def simulated(size: int) -> None:
    """Simulate each step on a small ragged problem, and print its roofline bound on an H200 for a large problem.

    size   M, N and K of the large problem
    """
    from cutegemm.simulator import simulate

    m, n, k = SIMULATED
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    exact = 2 * (a @ b) + 0.5 * c
    print(f"No GPU was found: simulated for {m}x{n}x{k}, analysed for an H200 and {size}x{size}x{size}.")
    print(f"{'step':24} {'D':6} {'threads':>7} {'conflicts':>11} {'bound by':>18} {'TFLOP/s at most':>15}")
    wrong = []
    for step in SIMT_LADDER.steps:
        plan = step.build(Operands.of("f32"))
        d = simulate(plan, a, b, c, alpha=2, beta=0.5).d
        report = check(plan, Problem(size, size, size), device="h200", search=False)
        assert report.roofline is not None
        conflicts = sum(access.cost.wavefronts - access.cost.ideal for access in report.shared)
        if not np.array_equal(d, exact):
            wrong.append(step.name)
        print(
            f"{step.name:24} {'WRONG' if step.name in wrong else 'right':6} {plan.threads:7} {conflicts:11} "
            f"{report.roofline.bound.name:>18} {report.roofline.tflops:15.1f}"
        )
        print(f"    {step.change}")
    if wrong:
        raise SystemExit(f"wrong: {', '.join(wrong)}")


def machine_code() -> None:
    """Print registers and numbers of instructions of each step, compiled for sm_90a.

    S2R reads a special register, such as the index of the thread or the CTA.
    """
    from cutegemm.compile.plans import compile_plan

    names = ("FFMA", "LDS", "STS", "LDG", "LDGSTS", "S2R", "BAR", "LDL")
    print(f"{'step':24} {'registers':>9} " + " ".join(f"{name:>6}" for name in names))
    for step in SIMT_LADDER.steps:
        report = compile_plan(step.build()).resources
        print(f"{step.name:24} {report.registers:9} " + " ".join(f"{report.count(name):6}" for name in names))


if __name__ == "__main__":
    main()
