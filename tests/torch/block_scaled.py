"""Block-scaled factors with the scales of torch's recipes, and their product in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

RECIPES = {"1x128": "BlockWise1x128", "128x128": "BlockWise128x128"}
ERROR = 2.0**-16  # largest error of D in float32, as a share of the sum of the magnitudes of all products


@dataclass(frozen=True)
class Case:
    """Factors and scales as `scaled_mm` takes them.

    a, b               M x K and K x N of float8
    scale_a, scale_b   scales by torch's shapes
    recipe             granularity of both
    """

    a: torch.Tensor
    b: torch.Tensor
    scale_a: torch.Tensor
    scale_b: torch.Tensor
    recipe: tuple[str, str]

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Return the first six arguments of `scaled_mm`."""
        of_a, of_b = (RECIPES[each] for each in self.recipe)
        return self.a, self.b, self.scale_a, of_a, self.scale_b, of_b


def factors(m: int, n: int, k: int, of_a: str, of_b: str, seed: int = 0, device: str = "cpu") -> Case:
    """Return random factors and scales between 1/4 and 4, in torch's shapes and strides."""
    torch.manual_seed(seed)
    a, b = torch.randn(m, k).to(torch.float8_e4m3fn), torch.randn(n, k).to(torch.float8_e4m3fn).t()
    deep, scales = -(-k // 128), []
    for extent, granularity in ((m, of_a), (n, of_b)):
        if granularity == "1x128":
            scales.append(torch.rand(deep, extent).t() * 3.75 + 0.25)
        else:
            scales.append(torch.rand(-(-extent // 128), -(-deep // 4) * 4).t() * 3.75 + 0.25)
    return Case(*[x.to(device) for x in (a, b, *scales)], (of_a, of_b))


def of_gemm(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scales in the orientation of a and b, as `gemm` takes them."""
    deep = -(-case.a.shape[1] // 128)
    of_a = case.scale_a if case.recipe[0] == "1x128" else case.scale_a[:deep].t()
    of_b = case.scale_b.t() if case.recipe[1] == "1x128" else case.scale_b[:deep]
    return of_a, of_b


def dequantized(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a and b in float64, each element multiplied by its scale: index by index, as the recipes define it."""
    out = []
    for x, scale, granularity in ((case.a, case.scale_a, case.recipe[0]), (case.b.t(), case.scale_b, case.recipe[1])):
        rows = torch.arange(x.shape[0], device=x.device)[:, None]
        columns = torch.arange(x.shape[1], device=x.device)[None, :] // 128
        own = scale[rows, columns] if granularity == "1x128" else scale[columns, rows // 128]
        out.append(x.double() * own.double())
    return out[0], out[1].t()


def check(case: Case, found: torch.Tensor, ending: Any = lambda exact: exact) -> None:
    """Check a float32 result against float64.

    ending   epilogue, as a function of the exact product
    """
    a, b = dequantized(case)
    assert found.dtype == torch.float32
    assert ((found.double() - ending(a @ b)).abs() <= ERROR * (a.abs() @ b.abs()) + 1e-5).all()
