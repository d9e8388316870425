"""`scaled_grouped_mm` with block scales: values, the plans of its kernels, graphs and errors."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cutegemm import emulate  # noqa: E402
from cutegemm.errors import UnsupportedError  # noqa: E402
from cutegemm.machine.device import device_named  # noqa: E402
from cutegemm.run.calls import How  # noqa: E402
from cutegemm.simulator import simulate  # noqa: E402
from cutegemm.torch import scaled_grouped_mm  # noqa: E402
from cutegemm.torch.epilogue import formula  # noqa: E402
from cutegemm.torch.grouped import launch, prepared  # noqa: E402
from cutegemm.torch.grouped.forms import Form  # noqa: E402

M, N, K, GROUPS = 150, 256, 320, 3  # the last block of K has 64 elements
ENDS = [41, 41, 139]  # no group but the first starts at a multiple of 16 bytes of the scales
DEEP = 3  # blocks of K


@pytest.fixture
def case():
    """Factors of small integers, scales that are powers of two, and the exact result of the rows of groups."""
    generator = torch.Generator().manual_seed(1)
    a, b = [torch.randint(-3, 4, s, generator=generator).float() for s in ((M, K), (GROUPS, N, K))]
    of_a, of_b = [2.0 ** torch.randint(-2, 3, s, generator=generator) for s in ((M, DEEP), (GROUPS, DEEP, N // 128))]
    wide_a = a * of_a.repeat_interleave(128, 1)[:, :K]
    wide_b = b * of_b.mT.repeat_interleave(128, 1).repeat_interleave(128, 2)[..., :K]
    want = torch.cat([wide_a[:41] @ wide_b[0].T, wide_a[41:139] @ wide_b[2].T])
    kind = torch.float8_e4m3fn
    return a.to(kind), b.to(kind).mT, of_a, of_b, torch.tensor(ENDS, dtype=torch.int32), want


def test_values(case):
    """Blocks of 128 x 128 of the weights, the same padded to a multiple of 4 blocks of K, and a scale of each row."""
    a, b, of_a, of_b, offs, want = case
    padded = torch.nn.functional.pad(of_b, (0, 0, 0, 1), value=float("nan"))
    rows = of_b.mT.repeat_interleave(128, 1)
    for scale, recipe in ((of_b, "BlockWise128x128"), (padded, "BlockWise128x128"), (rows, "BlockWise1x128")):
        d = scaled_grouped_mm(a, b, of_a, "BlockWise1x128", scale, recipe, offs=offs, output_dtype=torch.float32)
        torch.testing.assert_close(d[:139], want, rtol=0, atol=0)
    bias = torch.arange(GROUPS * N).reshape(GROUPS, N).float()
    d = scaled_grouped_mm(
        a, b, of_a, "BlockWise1x128", of_b, "BlockWise128x128", bias=bias, offs=offs, output_dtype=torch.float32
    )
    torch.testing.assert_close(d[41:139], want[41:] + bias[2], rtol=0, atol=0)


@pytest.mark.parametrize("execute", [simulate, emulate])
@pytest.mark.parametrize("by_rows", [False, True])
def test_the_chosen_plan_computes_the_same(case, by_rows, execute):
    if execute is emulate:
        pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
    a, b, of_a, of_b, offs, want = case
    scales = of_a, of_b.mT.repeat_interleave(128, 1) if by_rows else of_b.mT
    form, read = Form.of(a, b, offs), formula("lambda acc: acc")
    granularity = prepared.granularity_of(form, scales)
    assert granularity == ("1x128", "1x128" if by_rows else "128x128")
    problem, spec = launch.question(form, a, b, (), read, [torch.empty(M, N)], granularity)
    plan = launch.plan_for(problem, spec, How(), "sm_90a", device_named("h100"))
    of_rows = prepared.loadable_scales(of_a, granularity[0])
    assert (of_rows.stride(), of_rows.shape) == ((1, 152), (M, DEEP))  # columns of a multiple of 16 bytes
    found = execute(
        plan, a.float().numpy(), b.float().numpy(), ends=offs.numpy(), scale_a=scales[0].numpy(),
        scale_b=scales[1].numpy(),
    )  # fmt: skip
    np.testing.assert_array_equal(found.d[:139], want.numpy())


def test_graphs_hold_the_operator(case):
    a, b, of_a, of_b, offs, want = case

    def multiply(*given):
        return scaled_grouped_mm(
            *given[:3], "BlockWise1x128", given[3], "BlockWise128x128", offs=given[4], output_dtype=torch.float32
        )

    compiled = torch.compile(multiply, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(a, b, of_a, of_b, offs)[:139], want, rtol=0, atol=0)
    assert multiply(*[x.to("meta") for x in (a, b, of_a, of_b, offs)]).shape == (M, N)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"recipe_a": "BlockWise128x128"}, "but groups divide its blocks. Pass 'BlockWise1x128'"),
        ({"recipe_a": "RowWise"}, "both recipes must be block-wise, or neither"),
        ({"scale_b": torch.ones(GROUPS, N // 128, DEEP)}, r"Pass shape \(3, 3, 2\) or \(3, 4, 2\)"),
        ({"scale_a": torch.ones(M, DEEP, dtype=torch.float64)}, "scale_a is of torch.float64. Pass float32"),
        ({"scale_a": torch.ones(M, DEEP, requires_grad=True)}, "block-scaled float8 has no derivatives"),
    ],
)
def test_errors(case, changed, said):
    a, b, of_a, of_b, offs, _ = case
    given = {"scale_a": of_a, "recipe_a": "BlockWise1x128", "scale_b": of_b, **changed}
    with pytest.raises(UnsupportedError, match=said):
        scaled_grouped_mm(a, b, given["scale_a"], given["recipe_a"], given["scale_b"], "BlockWise128x128", offs=offs)
