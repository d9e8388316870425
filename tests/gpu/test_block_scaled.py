"""Block-scaled plans on the device: random problems between NaN against float64, repeats, and the error of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cutegemm.plan import GemmPlan
from cutegemm.plan.mainloop.block_scaled import BLOCK
from tests.kernels.sm90_forms import fitting
from tests.scaled import BLOCKS, FORMS, ROWS, arguments, check_result, dequantized, form

RANDOM_PROBLEMS, REPEATS = 30, 1000
GUARD = 64  # elements of NaN before and after a matrix, and after each contiguous row or column
TENSOR_CORES = 2.0**-11  # error of a sum of products by wgmma, as a share of the sum of their magnitudes
CTAS = (4, 132)


def placed(values: np.ndarray, kind: Any, contiguous: int, device: str = "cuda") -> Any:
    """Return values as a tensor whose memory has NaN around each contiguous row or column.

    contiguous   -1 or -2: the mode of stride 1
    """
    import torch

    source = torch.from_numpy(np.ascontiguousarray(np.swapaxes(values, -1, -2) if contiguous == -2 else values))
    *front, across, along = source.shape
    leading = -(-along // GUARD) * GUARD + GUARD
    count = int(np.prod(front)) * across
    buffer = torch.full((2 * GUARD + count * leading,), float("nan"), device=device).to(kind)
    strides = [across * leading] * len(front) + [leading, 1]
    view = buffer.as_strided(source.shape, strides, GUARD)
    view.copy_(source.to(kind))
    return view.mT if contiguous == -2 else view


def tensors(plan: GemmPlan, given: dict[str, np.ndarray], device: str = "cuda") -> list[Any]:
    """Return the tensors of a call before D, in the order of the signature."""
    import torch

    operands, found = plan.operands.transposed if plan.swap_ab else plan.operands, []
    for name in ("a", "b", *operands.of_mainloop):
        kind = torch.float8_e4m3fn if name in "ab" else torch.float32
        is_by_columns = name == "b" or operands.matrix(name).major != "k"
        found.append(placed(given[name], kind, -2 if is_by_columns else -1, device))
    return found


def multiplied(plan: GemmPlan, arch: str, given: dict[str, np.ndarray]) -> np.ndarray:
    """Return D by the compiled kernel, as f32; the memory around D is unchanged."""
    import torch

    from cutegemm.compile.plans import compile_plan
    from cutegemm.run.torch_ops import memory_of

    shape = (*given["a"].shape[:-1], given["b"].shape[-1])
    d = placed(np.full(shape, np.nan, np.float32), memory_of(plan.operands.d.dtype), -1)
    whole = torch.empty(0, device="cuda").set_(d.untyped_storage())
    compile_plan(plan, arch)(*tensors(plan, given), d, 1.0)
    torch.cuda.synchronize()
    assert int(whole.isfinite().sum()) <= d.numel()
    return d.float().cpu().numpy()


@pytest.mark.gpu
@pytest.mark.parametrize("swap_ab", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_random_problems(name: str, swap_ab: bool, arch: str) -> None:
    if swap_ab and name in ("rows_blocks_halves_2x1", "at_once_192"):
        pytest.skip("the scales of its columns leave no registers")
    rng = np.random.default_rng(len(name))
    for number in range(RANDOM_PROBLEMS // 2):
        plan = form(name, CTAS[number % 2], swap_ab=swap_ab)
        m, n, k = (int(rng.integers(1, most)) for most in (700, 800, 2000))
        if swap_ab:
            n, m, k = fitting(plan, n, m, k)
        else:
            m, n, k = fitting(plan, m, n, k)
        given = arguments(plan, m, n, k if number % 3 else k // 128 * 128)
        check_result(plan, given, multiplied(plan, arch, given), TENSOR_CORES)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name",
    [
        "rows_blocks", "rows_blocks_halves_2x1", "blocks_rows_pingpong", "at_once_2x1", "at_once_192",
        "at_once_blocks_split",
    ],
)  # fmt: skip
@pytest.mark.parametrize("k_tiles", [31, 32, 33, 64, 65, 128, 131])
def test_more_k_tiles_than_lanes(name: str, k_tiles: int, arch: str) -> None:
    plan = form(name, CTAS[1])
    given = arguments(plan, *fitting(plan, 300, 400, k_tiles * BLOCK - 16))
    check_result(plan, given, multiplied(plan, arch, given), TENSOR_CORES)


@pytest.mark.gpu
def test_a_scale_that_is_not_finite_stays_in_its_rows(arch: str) -> None:
    plan = form("rows_blocks", ctas=4)
    given = arguments(plan, 600, 512, 1024)
    given["scale_a"][7, 1] = np.nan
    d, others = multiplied(plan, arch, given), np.arange(600) != 7
    assert np.isnan(d[7]).all()
    rest = {**given, "a": given["a"][others], "scale_a": given["scale_a"][others]}
    check_result(plan, rest, d[others], TENSOR_CORES)


@pytest.mark.gpu
@pytest.mark.parametrize("ctas", CTAS)
@pytest.mark.parametrize("name", ["fixup", "blocks_blocks_split", "any_columns", "rows_of_128"])
def test_results_of_bf16(name: str, ctas: int, arch: str) -> None:
    """The plans of the guard, which store bf16: the results of f32, rounded."""
    import torch

    rng = np.random.default_rng(ctas)
    narrow, wide = form(name, ctas, out="bf16"), form(name, ctas)
    for _ in range(RANDOM_PROBLEMS // 5):
        m, n, k = fitting(narrow, *[int(rng.integers(1, most)) for most in (1500, 1500, 2500)])
        given = arguments(narrow, m, n, k)
        found, want = [torch.from_numpy(multiplied(plan, arch, given)) for plan in (narrow, wide)]
        assert torch.equal(found, want.bfloat16().float())


_REPEATED = {"rows_blocks_halves_2x1": "gpu", "blocks_blocks_split": "gpu"} | dict.fromkeys(
    ["rows_blocks", "rows_rows", "at_once_192", "at_once_fixup"], "gpu_long"
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=getattr(pytest.mark, mark)) for name, mark in _REPEATED.items()]
)
def test_a_thousand_runs_are_one(name: str, arch: str) -> None:
    import torch

    from cutegemm.compile.plans import compile_plan

    plan = form(name, 132)
    given = arguments(plan, 1000, 1024, 1536)
    kernel, operands = compile_plan(plan, arch), tensors(plan, given)
    results = [torch.full((1000, 1024), float("nan"), device="cuda") for _ in range(2)]
    kernel(*operands, results[0], 1.0)
    for _ in range(REPEATS):
        results[1].fill_(float("nan"))
        kernel(*operands, results[1], 1.0)
        assert torch.equal(*results)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["rows_blocks", "rows_blocks_halves_2x1", "rows_rows", "at_once_192"])
def test_the_error_is_at_most_twice_that_of_torch(name: str, arch: str) -> None:
    import torch

    kinds = getattr(torch.nn.functional, "ScalingType", None)
    if kinds is None:
        pytest.skip("torch has no scaled_mm with recipes")
    of_a, of_b = ({ROWS: kinds.BlockWise1x128, BLOCKS: kinds.BlockWise128x128}[each] for each in FORMS[name][:2])
    plan = form(name, 132)
    given = arguments(plan, 1024, 1024, 4096)
    a, b, scale_a, scale_b = (torch.from_numpy(given[each]).cuda() for each in ("a", "b", "scale_a", "scale_b"))
    a, b = a.to(torch.float8_e4m3fn), b.t().contiguous().to(torch.float8_e4m3fn).t()
    scale_a = scale_a.t().contiguous().t()
    scale_b = scale_b.t() if FORMS[name][1] == BLOCKS else scale_b.t().contiguous().t()
    theirs = torch.nn.functional.scaled_mm(a, b, scale_a, of_a, scale_b, of_b, output_dtype=torch.float32)
    want = np.matmul(*dequantized(plan, given))
    errors = [np.abs(each - want).max() for each in (multiplied(plan, arch, given), theirs.cpu().numpy())]
    assert errors[0] <= 2 * errors[1]
