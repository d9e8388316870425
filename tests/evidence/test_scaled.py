"""The benchmark of block-scaled GEMMs: its matrices, the check of results, ratios, random problems and the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutegemm.machine.device import device_named
from cutegemm.plan.mainloop.block_scaled import BlockScaled
from docs.evidence import scaled, scaled_random
from docs.evidence.files import read_record
from docs.evidence.scaled import CHOSEN, RECIPES, SHAPES, Contest, dequantized, plans_for, quantized, raced
from tests.scaled import BLOCKS, ROWS


@pytest.mark.parametrize("granularity", [ROWS, BLOCKS])
@pytest.mark.parametrize("shape", [(256, 512), (200, 300)])
def test_quantized(granularity: str, shape: tuple[int, int]) -> None:
    """e4m3 has 3 bits of the significand; the largest element of a block is exact."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values, scales = quantized(x, granularity)
    rows = -(-shape[0] // 128) if granularity == BLOCKS else shape[0]
    assert scales.shape == (rows, -(-shape[1] // 128))
    assert scales.stride()[granularity == BLOCKS] == 1
    found = dequantized(values, scales, torch.arange(shape[0]))
    assert ((found - x).abs() <= x.abs() * 2.0**-4 + scales.max() * 2.0**-10).all()
    largest = x.abs().argmax()
    assert found.flatten()[largest].item() == pytest.approx(x.flatten()[largest].item(), rel=1e-6)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_shape_has_plans(recipe: tuple[str, str]) -> None:
    """The scales of 192 single columns leave no registers for accumulators."""
    for m, _, _ in SHAPES:
        plans = plans_for(m, recipe)
        assert len(plans) == (3 if m <= 128 else 4 if recipe[1] == BLOCKS else 2)
        assert {plan.swap_ab for plan in plans.values()} == {m <= 128}


def test_patterns_of_names() -> None:
    plans = plans_for(4096, (ROWS, BLOCKS), ["128x192_*", "128x128_2x1/*"])
    assert sorted(plans) == ["128x128_2x1/once", "128x192_2x1", "128x192_2x1/once"]
    mainloops = {name: plan.body.mainloop for name, plan in plans.items()}
    assert mainloops["128x192_2x1"] == BlockScaled()
    assert mainloops["128x192_2x1/once"] == BlockScaled(at_once=True)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_wrong_result_is_not_timed(recipe: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A ragged problem on the CPU: a result without the last element of K fails, and a call that raises."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.manual_seed(0)
    monkeypatch.setattr(
        "cutegemm.run.on_gpu.alternating", lambda calls, seconds: [(i + 1) * 1e-6 for i, _ in enumerate(calls)]
    )
    m, n, k = 70, 130, 333
    contest = Contest(m, n, k, recipe, "cpu")
    a = dequantized(contest.a, contest.scale_a, torch.arange(m)).float()
    b = dequantized(contest.b, contest.scale_b, torch.arange(n)).float()

    def short() -> None:
        contest.out.copy_(a[:, :-1] @ b[:, :-1].t())

    def raising() -> None:
        raise RuntimeError("no")

    right = lambda: (a @ b.t()).to(torch.bfloat16)  # noqa: E731
    row = raced(contest, {CHOSEN: right, "short": short, "raising": raising}, {"torch": short, "others": raising}, 0.1)
    assert row["us"] == {"torch": 1.0, CHOSEN: 2.0}
    assert row["failed"].keys() == {"short", "raising", "others"}
    assert row["failed"]["short"].startswith("the errors are ")
    assert row["failed"]["raising"] == "RuntimeError: no"
    assert row["errors"][CHOSEN] == row["errors"]["cuBLAS"]
    assert (row["best"], row["torch_to_chosen"], row["best_to_chosen"]) == (CHOSEN, 0.5, 1.0)


def test_random_problems_and_their_plans() -> None:
    """Every problem has its chosen plan and one more; K, M and N are ragged in half of them."""
    pytest.importorskip("torch", reason="torch is not installed")
    cases = scaled_random.drawn(1, 24)
    assert {case.recipe for case in cases} == {*RECIPES}
    assert sum(case.k % 16 > 0 for case in cases) > 6
    assert all(case.n % 16 == case.k % 16 == 0 for case in cases[::2])
    for case in cases:
        plans = scaled_random.plans_of(case, device_named("h100"))
        assert len(plans) == 2
        assert all(isinstance(plan.body.mainloop, BlockScaled) for plan in plans.values())


def test_a_run_ends_with_its_budget(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    clock = iter(range(1000))
    row = {"failed": {}, "torch_to_chosen": 1.0, "best_to_chosen": 1.0, "m": 1, "n": 1, "k": 1}
    for name, value in {
        "need_gpu": lambda: None, "this_device": lambda: device_named("h100"), "machine": dict, "told": str,
        "plans_of": lambda case, device: {}, "measured": lambda case, plans, seconds: row,
    }.items():  # fmt: skip
        monkeypatch.setattr(scaled_random, name, value)
    monkeypatch.setattr(scaled_random.time, "monotonic", lambda: float(next(clock)))
    scaled_random.run(1, 300, 0.1, 6.0, tmp_path / "found.json")
    assert len(read_record(tmp_path / "found.json")["rows"]) == 5
    assert "5 of 300 problems in 8 s, 1 of them for compilation" in capsys.readouterr().out


def test_the_page_has_the_table_of_the_record() -> None:
    docs = Path(scaled.__file__).parents[1]
    record = read_record(docs / "evidence/data/scaled_h100.json")
    assert scaled.table_of(record) in (docs / "measured/block_scaled.md").read_text()
