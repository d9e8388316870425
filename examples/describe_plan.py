"""Describe a GEMM kernel by its tiles, print the plan, and see which rules a plan checks.

Run it anywhere: python examples/describe_plan.py
"""

from cutegemm import Operands, PlanError, Problem, simt_plan


def main() -> None:
    """Print a plan, its thread schedule, and the rules that a wrong problem and a wrong plan break."""
    operands = Operands.of("f32", layout="tn")
    plan = simt_plan(operands, block=(256, 128, 16), warp=(64, 64), thread=(16, 8), stages=3, unroll=4)
    problem = Problem(4096, 4096, 4096, operands=operands)
    print(plan.describe(problem))

    print("\nThe steps of its threads:")
    print(plan.body)

    print("\nRules that a problem with an odd M breaks:")
    for violation in plan.violations(problem=Problem(4095, 4096, 4096, operands=operands)):
        print(f"  {violation}")

    print("\nRules that a plan with too large tiles breaks, all at once:")
    try:
        simt_plan(operands, block=(256, 256, 64), warp=(64, 64), thread=(16, 8), stages=4)
    except PlanError as error:
        print(error)


if __name__ == "__main__":
    main()
