"""Describe, check and simulate a pingpong GEMM for Hopper, and run it on a Hopper GPU if there is one.

Run it anywhere: python examples/hopper_pingpong.py
"""

from importlib.util import find_spec

import numpy as np

from cutegemm import GemmPlan, Operands, PlanError, Problem, sm90_plan
from cutegemm.dtypes import round_to
from cutegemm.plan.program.steps import PassOrder
from cutegemm.simulator import play_interleavings, protocol_of, simulate

OPERANDS = Operands.of("bf16", layout="nt")


def describe() -> GemmPlan:
    """Build a plan from its tiles, and print its layouts, TMA boxes, barriers and the program of a consumer."""
    plan = sm90_plan(OPERANDS, name="pingpong", tile=(128, 128, 64), epi_stages=4, raster="along_n")
    print(plan.describe(Problem(8448, 9216, 512, operands=OPERANDS)))
    print(f"\nThe program of a consumer:\n{plan.program('consumer 0')}")
    print("\nRules that a tile of 128 x 256 with a cluster of 4 x 4 breaks, all at once:")
    try:
        sm90_plan(OPERANDS, tile=(128, 256, 64), cluster=(4, 4), epi_stages=3)
    except PlanError as error:
        print(error)
    return plan


def check(plan: GemmPlan) -> None:
    """Check the barriers in many interleavings, also with two planted faults, and simulate the plan on the CPU."""
    for k_tiles in (0, 1, plan.stages, 2 * plan.stages + 1):
        report = play_interleavings(protocol_of(plan, k_tiles=k_tiles, tiles=3))
        print(f"{k_tiles:3} k-tiles: {report.interleavings} interleavings, {len(report.faults)} faults")
    wrong = protocol_of(plan, k_tiles=8, tiles=2).with_barrier("empty", arrivals=3)
    print(f"with one arrival too few: {play_interleavings(wrong).faults[0].text}")
    programs = {
        role: program.edited(lambda step: None if isinstance(step, PassOrder) else step)
        for role, program in plan.programs.items()
    }
    silent = protocol_of(plan, k_tiles=8, tiles=2, programs=programs)
    print(f"without the order barrier: {play_interleavings(silent).faults[0].text}")
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((300, 200), (200, 264)))
    result = simulate(plan, a, b)
    exact = np.array_equal(result.d, round_to(OPERANDS.d.dtype, a @ b))
    print(f"simulated: {result.stats.ctas} tiles, rounded once from the exact result: {exact}")
    if not exact:
        raise SystemExit("D is wrong")


def compile_it(plan: GemmPlan) -> None:
    """Compile the plan for Hopper, on any Linux machine, and print its registers and its wgmma and TMA instructions."""
    from cutegemm import compile_plan

    code = compile_plan(plan, "sm_90a").resources
    counts = {name: count for name, count in code.instructions.items() if "GMMA" in name or "UTMA" in name}
    print(f"compiled: {code.registers} registers at launch, {code.spills} spills, {counts}")


def run(plan: GemmPlan) -> None:
    """Run the plan on the GPU, and print the largest error against float64."""
    import torch

    from cutegemm import gemm

    a = torch.randn(1000, 512, device="cuda").bfloat16()
    b = torch.randn(2000, 512, device="cuda").bfloat16().t()
    d = gemm(a, b, plan=plan)
    error = (d.double() - a.double() @ b.double()).abs().max().item()
    print(f"ran on {torch.cuda.get_device_name()}: largest error {error:.3f}")


def main() -> None:
    """Run all steps that this machine can run."""
    plan = describe()
    print()
    check(plan)
    if find_spec("tvm_ffi") is not None:
        compile_it(plan)
    if find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0):
            run(plan)


if __name__ == "__main__":
    main()
