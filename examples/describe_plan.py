"""Describe a GEMM from its tiles, and see what a plan refuses.

Run it anywhere: python examples/describe_plan.py
"""

from cutegemm import Operands, PlanError, Problem, simt_plan


def main() -> None:
    operands = Operands.of("f32", layout="tn")
    plan = simt_plan(operands, block=(256, 128, 16), warp=(64, 64), thread=(16, 8), stages=3, unroll=4)
    problem = Problem(4096, 4096, 4096, operands=operands)
    print(plan.describe(problem))

    print("\nWhat its threads do:")
    print(plan.body)

    print("\nWhat a problem may break:")
    for violation in plan.violations(problem=Problem(4095, 4096, 4096, operands=operands)):
        print(f"  {violation}")

    print("\nWhat the builder refuses, all at once:")
    try:
        simt_plan(operands, block=(256, 256, 64), warp=(64, 64), thread=(16, 8), stages=4)
    except PlanError as error:
        print(error)


if __name__ == "__main__":
    main()
