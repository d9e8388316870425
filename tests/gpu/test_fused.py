"""gemm with an epilogue on a GPU: every kind of operand and of plan, against float64."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cutegemm import gemm  # noqa: E402
from cutegemm.errors import PlanError  # noqa: E402
from cutegemm.plan.epilogue import Scalar  # noqa: E402
from tests.epilogues import CASES, reference, returned, unreduced  # noqa: E402

pytestmark = pytest.mark.usefixtures("arch")

# Plan, types and layout; None: what is chosen.
PLANS = {
    "bf16, chosen": (None, "bfloat16", "nt"),
    "bf16, pingpong": ("sm90_epi_stages", "bfloat16", "nt"),
    "bf16, deferred": ("sm90_overlapped_2x1", "bfloat16", "nt"),
    "bf16, direct": ("sm90_pingpong", "bfloat16", "tn"),
    "bf16, split": ("sm90_epi_stages/k3", "bfloat16", "nt"),
    "bf16, fill": ("sm90_wide_2x1/fixup", "bfloat16", "nt"),
    "bf16, stream": ("sm90_epi_stages/stream", "bfloat16", "nn"),
    "bf16, mma.sync": ("mma_128x128", "bfloat16", "nn"),
    "bf16, mma.sync by TMA": ("mma_tma_256x128", "bfloat16", "nt"),
    "bf16, transposed": ("swap_ab:sm90_epi_stages", "bfloat16", "nt"),
    "f16, chosen": (None, "float16", "tt"),
    "f32, chosen": (None, "float32", "nn"),
    "f32, split": ("simt_64x64/k2", "float32", "nt"),
    "f32, by tensor cores": ("sm90_epi_stages", "float32", "nt"),
    "f64, chosen": (None, "float64", "nn"),
    "e4m3, chosen": (None, "float8_e4m3fn", "nt"),
    "e4m3, packed": (None, "float8_e4m3fn", "nn"),
    "bf16, K shared": ("sm90_64x64_2x1x4", "bfloat16", "nt"),
    "bf16, one tile a CTA": ("sm90_128x112_coop_2x1", "bfloat16", "nt"),
}
SHAPES = [(256, 256, 128), (200, 136, 264), (1, 64, 512), (777, 1032, 96)]
PROBLEMS = [(shape, batch) for shape in SHAPES for batch in (None, 2)]
RESULTS = {"float8_e4m3fn": torch.bfloat16}
# Allowed error of an accumulator, relative to the sum of |a| * |b|
ERRORS = {
    "float8_e4m3fn": 2.0**-10,
    "bfloat16": 2.0**-19,
    "float16": 2.0**-19,
    "float32": 2.0**-19,
    "float64": 2.0**-45,
    "f32, by tensor cores": 2.0**-9,
}
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-19, torch.float64: 1e-12}

OF_TANH = 2.0**-16  # absolute error of the TANH instruction's gelu of bf16, with a margin


def operand(values, dtype, transposed):
    found = torch.from_numpy(np.ascontiguousarray(values)).cuda().to(dtype)
    return found.mT.contiguous().mT if transposed else found


def signs(gated, n):
    """Return errors of the accumulators: all in one direction, and pairs of columns in opposite directions."""
    columns = np.arange(n)
    is_up = columns % 2 == 1 if gated == "pairs" else columns >= n // 2
    alike = [np.full(n, 1.0)] if not gated else [np.full(n, 1.0), np.where(is_up, -1.0, 1.0)]
    return [side * each for each in alike for side in (-1, 1)]


def some(kind, case):
    """Return the problems that every plan of a kind runs on, so that each problem meets each case and each kind.

    A plan with a name is one kernel for all shapes, nearly; what is chosen is another one for each.
    """
    turn = list(PLANS).index(kind) + list(CASES).index(case)
    if PLANS[kind][0] is not None:
        return PROBLEMS[turn % 2 :: 2]
    return [PROBLEMS[turn % 8], PROBLEMS[(turn + 3) % 8]]


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", PLANS)
def test_against_float64(kind, case):
    hold(kind, case, some(kind, case))


@pytest.mark.gpu_long
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", PLANS)
def test_of_other_extents(kind, case):
    hold(kind, case, [problem for problem in PROBLEMS if problem not in some(kind, case)])


def hold(kind, case, problems):
    """Launches the plans of a kind with the epilogue of a case, and asserts that their results are those of float64."""
    plan, name, layout = PLANS[kind]
    dtype, each = getattr(torch, name), CASES[case]
    rng = np.random.default_rng(zlib.crc32(f"{kind}/{case}".encode()))
    result = RESULTS.get(name, dtype)
    for (m, n, k), batch in problems:
        lead = () if batch is None else (batch,)
        a = operand(rng.standard_normal((*lead, m, k)), dtype, layout[0] == "t")
        b = operand(rng.standard_normal((*lead, k, n)), dtype, layout[1] == "t")
        given = {}
        for of, values in each.operands(rng, m, n, batch).items():
            kind_of = result if each.kinds[of].__name__ == "Tile" else torch.float32
            given[of] = values if each.kinds[of] is Scalar else torch.from_numpy(values).cuda().to(kind_of)
        try:
            got = gemm(a, b, plan=plan, epilogue=each.function, **given)
        except PlanError:
            assert plan is not None  # what is chosen serves all of them
            continue
        got = got if isinstance(got, tuple) else (got,)
        acc = (a.double() @ b.double()).cpu().numpy()
        values = {of: v if isinstance(v, float) else v.double().cpu().numpy() for of, v in given.items()}
        expected = reference(each.epilogue, acc, values)
        # As far as the sums may be off, the values may be, by what the functions make of it
        of_sums = (a.double().abs() @ b.double().abs()).cpu().numpy() * ERRORS.get(kind, ERRORS[name])
        elements = unreduced(each.epilogue)
        exact, *around = [reference(elements, acc + s * of_sums, values) for s in (0.0, *signs(each.epilogue.gated, n))]
        reductions = dict(each.epilogue.reductions)
        for found, of in zip(got, returned(each.epilogue), strict=True):
            want = expected[of]
            spread = np.max([np.abs(other[of] - exact[of]) for other in around], axis=0)
            allowed = 2 * spread + np.abs(exact[of]) * ROUNDING[found.dtype]
            allowed += OF_TANH if case == "bias_gelu_tanh" and found.dtype == torch.bfloat16 else 2e-6
            if of in reductions:  # rounding of each value that is added, and of the additions
                axes = tuple([{"m": -2, "n": -1}[mode] for mode in reductions[of].along])
                is_sum = reductions[of].operation == "sum"
                allowed = (np.sum if is_sum else np.max)(allowed, axis=axes)
                allowed += 2e-6 * np.sum(np.abs(exact[of]), axis=axes) * is_sum
            wrong = np.abs(found.double().cpu().numpy() - want) > allowed
            if case == "all_kinds":  # a comparison with the sums, which may be either way near it
                wrong &= np.sign(acc + of_sums - values["row"]) == np.sign(acc - of_sums - values["row"])
            assert not wrong.any(), (m, n, k, batch, of, int(wrong.sum()), np.argwhere(wrong)[:3].tolist())


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float8_e4m3fn"])
@pytest.mark.parametrize("mnk", [(1024, 768, 512), (145, 272, 144), (64, 48, 4096)])
def test_a_result_of_one_byte_and_its_absolute_maximum(mnk, kind):
    """With a scale, in one kernel: rounded once, and what is too large becomes the largest number."""
    from cutegemm.epilogue import total_max

    m, n, k = mnk
    generator = torch.Generator("cuda").manual_seed(3)
    a = torch.randn(m, k, device="cuda", generator=generator).to(getattr(torch, kind))
    b = torch.randn(n, k, device="cuda", generator=generator).to(getattr(torch, kind)).t()
    exact = a.double() @ b.double()
    scale = (600 / exact.abs().max()).float()
    how = {"out_dtype": torch.float8_e4m3fn, "accumulate": "promoted"}
    d, amax = gemm(a, b, epilogue=lambda acc, s: (acc * s, total_max(abs(acc))), s=scale, **how)
    wanted = (exact * scale.double()).clamp(-448, 448)
    assert torch.isclose(amax.double().reshape(()), exact.abs().max(), rtol=1e-3)
    assert d.float().abs().max() == 448
    assert ((d.double() - wanted).abs() <= wanted.abs() / 16 + 2.0**-9).all()
