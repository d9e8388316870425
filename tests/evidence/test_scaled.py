"""The benchmark of block-scaled GEMMs: how its matrices are quantized."""

from __future__ import annotations

import pytest

from cutegemm.plan.mainloop.block_scaled import BlockScaled
from docs.evidence.scaled import RECIPES, SHAPES, dequantized, plans_for, quantized
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
