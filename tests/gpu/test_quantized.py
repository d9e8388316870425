"""Plans that quantize D, on the device: random problems between NaN, bit by bit, and repeats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cutegemm.plan import GemmPlan
from tests.gpu.test_block_scaled import CTAS, placed
from tests.kernels.sm90_forms import fitting
from tests.quantized import FORMS, form

PROBLEMS, REPEATS = 6, 1000


def arguments(plan: GemmPlan, m: int, n: int, k: int, seed: int, device: str = "cuda") -> tuple[list[Any], Any]:
    """Return the tensors of a call before D, and the float32 matrix of m x n that is quantized.

    A gated plan multiplies by 2n columns of B. The elements are small integers, so that every order of addition gives
    the same D. A row of A is 0.
    """
    import torch

    from cutegemm.run.torch_ops import memory_of

    rng, kind = np.random.default_rng(seed), memory_of(plan.operands.a.dtype)
    n *= 2 if plan.operands.gated else 1
    a, b, bias = [rng.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (k, n), (n,))]
    a[m // 2], bias[: n // 2] = 0, 0
    wide = a @ b + bias
    if plan.operands.gated:
        wide = np.maximum(wide[:, : n // 2], 0) * wide[:, n // 2 :]
    extents, scales = {"m": m, "n": n, "k": k}, []
    for name in plan.operands.of_mainloop:
        shape = [-(-extents[mode[0]] // int(mode[2:] or 1)) for mode in plan.operands.modes(name)]
        is_by_columns = plan.operands.matrix(name).major != "k"
        scales.append(placed(np.ones(shape, np.float32), torch.float32, -2 if is_by_columns else -1, device))
    factors = [placed(a, kind, -1, device), placed(b, kind, -2, device)]
    return [*factors, *scales, placed(bias[None], torch.float32, -1, device)[0]], torch.from_numpy(wide)


def outputs(rows: int, columns: int, device: str = "cuda") -> list[Any]:
    """Return poisoned values and scales, with NaN around them."""
    import torch

    values = placed(np.full((rows, columns), np.nan, np.float32), torch.float8_e4m3fn, -1, device)
    scales = placed(np.full((rows, -(-columns // 128)), np.nan, np.float32), torch.float32, -2, device)
    return [values, scales]


def finite(tensor: Any) -> int:
    """Return how many elements of a tensor's memory are finite."""
    import torch

    whole = torch.empty(0, device=tensor.device, dtype=tensor.dtype).set_(tensor.untyped_storage())
    return int(whole.float().isfinite().sum())


@pytest.mark.gpu
@pytest.mark.parametrize("ctas", CTAS)
@pytest.mark.parametrize("name", FORMS)
def test_random_problems(name: str, ctas: int, arch: str) -> None:
    import torch

    from cutegemm.compile.plans import compile_plan
    from cutegemm.torch.quantization import by_torch

    rng, plan = np.random.default_rng(len(name)), form(name, ctas)
    kernel = compile_plan(plan, arch)
    for number in range(PROBLEMS):
        m, n, k = fitting(plan, *[int(rng.integers(1, most)) for most in (700, 1200, 1500)])
        given, wide = arguments(plan, m, n, k, number)
        found = outputs(*wide.shape)
        kernel(*given, *found)
        want = by_torch(wide, 1, torch.float8_e4m3fn, name == "lines")
        for ours, theirs in zip(found, want, strict=True):
            assert torch.equal(ours.float().cpu(), theirs.float())
            assert finite(ours) <= ours.numel()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["block_scaled", "split"])
def test_a_thousand_runs_are_one(name: str, arch: str) -> None:
    import torch

    from cutegemm.compile.plans import compile_plan

    plan = form(name, CTAS[1])
    kernel, (given, _) = compile_plan(plan, arch), arguments(plan, 1000, 1024, 1536, 0)
    first, again = outputs(1000, 1024), outputs(1000, 1024)
    kernel(*given, *first)
    for _ in range(REPEATS):
        for each in again:
            each.fill_(float("nan"))
        kernel(*given, *again)
        assert all(torch.equal(x.float(), y.float()) for x, y in zip(first, again, strict=True))
