"""Run one GEMM on whatever is there: the GPU beside torch, or the simulator, and the compiler for Hopper.

Run it anywhere: python examples/run_gemm.py
"""

from importlib.util import find_spec

import numpy as np

from cutegemm import Operands, plan_named
from cutegemm.simulator import simulate


def on_the_cpu(m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k), dtype=np.float32), rng.standard_normal((k, n), dtype=np.float32)
    plan = plan_named("simt_64x64", Operands.of("f32").fitted(m, n, k))
    result = simulate(plan, a, b)
    exact = a.astype(np.float64) @ b
    print(f"{plan.name}, simulated: {result.stats.ctas} CTAs, {result.stats.k_tiles} k-tiles each")
    print(f"largest error against float64: {np.abs(result.d - exact).max():.2e}")
    if find_spec("tvm_ffi") is None:
        print("The CuTe DSL is not installed. Run pip install -e '.[kernels]' in the clone.")
        return
    from cutegemm import compile_plan

    code = compile_plan(plan, "sm_90a").resources
    print(f"compiled for sm_90a: {code.registers} registers, {code.spills} spills, {code.count('FFMA')} FFMA")


def on_the_gpu(m: int, n: int, k: int) -> None:
    import torch

    from cutegemm import gemm

    a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
    d = gemm(a, b, alpha=2.0)
    exact = 2.0 * (a.double() @ b.double())
    print(f"ran on {torch.cuda.get_device_name()}")
    print(f"largest error against float64: {(d - exact).abs().max().item():.2e}")


def main() -> None:
    on_the_cpu(300, 200, 100)
    if find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            on_the_gpu(3000, 2000, 1000)


if __name__ == "__main__":
    main()
