"""Block-scaled fp8 GEMMs and torch's scaled_mm, alternating in one process.

python -m docs.evidence scaled --json docs/evidence/data/scaled_h100.json
python -m docs.evidence scaled --shape 4096x4096x7168 --recipe 1x128,1x128 --seconds 2
python -m docs.evidence scaled --shape 4096x4096x7168 --plans "128x128_*" --plans "*/once"

Each shape is multiplied by several plans, by torch's scaled_mm with the same scales, by torch's scaled_mm with a scale
for each tensor (fast accumulation), and by `gemm` with accumulator promotion and no scales. Errors are those of rows
against float64 of the dequantized inputs.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from cutegemm.build import sm90_plan
from cutegemm.errors import CutegemmError, PlanError
from cutegemm.plan import GemmPlan, Operands
from cutegemm.plan.mainloop.block_scaled import BLOCK, BLOCKS, ROWS, with_scales
from docs.evidence.benchmark import record
from docs.evidence.measure import DEVICE, machine, need_gpu

SHAPES = (
    (4096, 2112, 7168), (4096, 24576, 1536), (4096, 7168, 16384), (4096, 4096, 7168), (64, 7168, 16384),
    (128, 4096, 7168),
)  # fmt: skip
RECIPES = ((ROWS, BLOCKS), (ROWS, ROWS), (BLOCKS, ROWS))
_TORCH = {ROWS: "BlockWise1x128", BLOCKS: "BlockWise128x128"}
_LARGEST = 448.0  # of e4m3
_FEW_ROWS = 128
_CHECKED_ROWS = 64  # compared with float64
_COOPERATIVE = {"schedule": "cooperative"}
# Arguments of `sm90_plan` by name. "/once": accumulators are promoted before the next k-tile is multiplied
_TILES: dict[str, dict[str, Any]] = {
    f"128x{columns}_2x1{end}": {"tile": (128, columns, BLOCK), "cluster": (2, 1), "at_once": at_once, **_COOPERATIVE}
    for columns in (128, 192)
    for end, at_once in (("", False), ("/once", True))
}
# Plans for few rows of A. They swap A and B, so that these rows are columns
_OF_FEW_ROWS: dict[str, dict[str, Any]] = {
    f"swap_ab:64x64{end}": {"tile": (64, 64, BLOCK), "consumers": 1, "cluster": cluster, **_COOPERATIVE}
    for end, cluster in (("", (1, 1)), ("/2x1", (2, 1)), ("/4x1", (4, 1)))
}

Row = dict[str, Any]
Call = Callable[[], Any]


def plans_for(m: int, recipe: tuple[str, str], patterns: Sequence[str] = ("*",)) -> dict[str, GemmPlan]:
    """Return the plans that are timed, by name: those whose rules hold.

    m          rows of A
    recipe     granularity of the scales of A and of B
    patterns   patterns of names, as of files: a plan is timed if its name matches one

    >>> sorted(plans_for(64, (ROWS, BLOCKS))), sorted(plans_for(4096, (ROWS, BLOCKS), ["*192*"]))
    (['swap_ab:64x64', 'swap_ab:64x64/2x1', 'swap_ab:64x64/4x1'], ['128x192_2x1', '128x192_2x1/once'])
    """
    operands = with_scales(Operands.of("e4m3", layout="nt", out="bf16"), recipe)
    is_swapped, found = m <= _FEW_ROWS, {}
    for name, options in (_OF_FEW_ROWS if is_swapped else _TILES).items():
        if not any(fnmatchcase(name, pattern) for pattern in patterns):
            continue
        with suppress(PlanError):
            plan = sm90_plan(operands.transposed if is_swapped else operands, name=name, **options)
            found[name] = plan.with_(swap_ab=is_swapped)
    return found


def quantized(x: Any, granularity: str) -> tuple[Any, Any]:
    """Return a matrix in e4m3, and its scales by (rows or blocks of rows, blocks of K), in torch's memory order."""
    import torch

    rows = BLOCK if granularity == BLOCKS else 1
    m, k = x.shape
    padded = torch.nn.functional.pad(x, (0, -k % BLOCK, 0, -m % rows))
    blocks = padded.reshape(-1, rows, padded.shape[1] // BLOCK, BLOCK)
    scales = (blocks.abs().amax((1, 3)) / _LARGEST).clamp(min=1e-12)
    values = (blocks / scales[:, None, :, None]).reshape(padded.shape)[:m, :k].to(torch.float8_e4m3fn)
    return values.contiguous(), scales.contiguous() if granularity == BLOCKS else scales.t().contiguous().t()


def dequantized(values: Any, scales: Any, rows: Any) -> Any:
    """Return some rows of a quantized matrix in float64."""
    import torch

    block = BLOCK if scales.shape[0] < values.shape[0] else 1
    own = scales.double()[torch.div(rows, block, rounding_mode="floor")]
    return values[rows].double() * own.repeat_interleave(BLOCK, 1)[:, : values.shape[1]]


class Contest:
    """The matrices of one problem, and the calls that multiply them.

    recipe   granularity of the scales of A and of B
    """

    def __init__(self, m: int, n: int, k: int, recipe: tuple[str, str]) -> None:
        import torch

        self.shape, self.recipe = (m, n, k), recipe
        self.a, self.scale_a = quantized(torch.randn(m, k, device=DEVICE), recipe[0])
        self.b, self.scale_b = quantized(torch.randn(n, k, device=DEVICE), recipe[1])  # (N, K)
        self.out = torch.empty(m, n, dtype=torch.bfloat16, device=DEVICE)
        self.rows = torch.randperm(m, device=DEVICE)[:_CHECKED_ROWS]
        every = torch.arange(n, device=DEVICE)
        self.want = dequantized(self.a, self.scale_a, self.rows) @ dequantized(self.b, self.scale_b, every).t()

    def by_torch(self) -> Call:
        """Return torch's scaled_mm with the scales of the recipe."""
        import torch

        kinds = [getattr(torch.nn.functional.ScalingType, _TORCH[each]) for each in self.recipe]
        scaled_mm = torch.nn.functional.scaled_mm
        scales = [
            scale.t() if granularity == BLOCKS else scale
            for scale, granularity in zip((self.scale_a, self.scale_b), self.recipe, strict=True)
        ]
        return lambda: scaled_mm(
            self.a, self.b.t(), scales[0], kinds[0], scales[1], kinds[1], output_dtype=torch.bfloat16
        )

    def by_torch_without_blocks(self) -> Call:
        """Return torch's scaled_mm with a scale for each tensor and fast accumulation."""
        import torch

        one = torch.ones((), device=DEVICE)
        how: dict[str, Any] = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16, "use_fast_accum": True}
        return lambda: torch._scaled_mm(self.a, self.b.t(), **how)

    def by_plan(self, plan: GemmPlan) -> Call:
        """Return the kernel of a plan."""
        from cutegemm.compile.plans import compile_plan

        m, n, k = self.shape
        function = compile_plan(plan).for_problem(*((n, m) if plan.swap_ab else (m, n)), k, 1)
        return functools.partial(function, self.a, self.b.t(), self.scale_a, self.scale_b, self.out, 1.0)

    def by_promotion(self) -> Call:
        """Return `gemm` with accumulator promotion, without scales."""
        from cutegemm.run.gemm import gemm

        return lambda: gemm(self.a, self.b.t(), out=self.out, accumulate="promoted")

    def error(self, call: Call, of_result: Callable[[Any], Any]) -> float:
        """Return the largest error of some rows, as a share of the root mean square of all results."""
        self.out.fill_(float("nan"))
        result = of_result(call())[self.rows].double()
        return float((result - self.want).abs().max() / self.want.square().mean().sqrt())


def timed(
    shape: tuple[int, int, int], recipe: tuple[str, str], seconds: float, patterns: Sequence[str] = ("*",)
) -> Row:
    """Return the times in microseconds of all calls for one problem, and the ratio of each plan to torch.

    recipe     granularity of the scales of A and of B
    seconds    least time of measuring
    patterns   patterns of the names of plans that are timed, see `plans_for`
    """
    from cutegemm.compile.plans import compile_missing
    from cutegemm.run.on_gpu import alternating

    contest, plans = Contest(*shape, recipe), plans_for(shape[0], recipe, patterns)
    compile_missing(plans.values())
    failed, errors = {}, {}
    calls: dict[str, Call] = {"torch": contest.by_torch(), "torch, tensor scales": contest.by_torch_without_blocks()}
    calls["promoted, no scales"] = contest.by_promotion()
    errors["torch"] = contest.error(calls["torch"], lambda result: result)
    for name, plan in plans.items():
        try:
            call = contest.by_plan(plan)
            errors[name] = contest.error(call, lambda _: contest.out)
        except Exception as error:  # the others go on
            failed[name] = f"{type(error).__name__}: {error}"[:300]
            continue
        if errors[name] <= 2 * errors["torch"]:
            calls[name] = call
        else:
            failed[name] = f"the error is {errors[name]:.3g}; torch's is {errors['torch']:.3g}"
    us = {name: each * 1e6 for name, each in zip(calls, alternating([*calls.values()], seconds), strict=True)}
    m, n, k = shape
    own = {name: us["torch"] / us[name] for name in plans if name in us}
    best = max(own, key=own.__getitem__, default=None)
    return {
        "m": m, "n": n, "k": k, "recipe": list(recipe), "us": us, "errors": errors, "failed": failed, "best": best,
        "tflops": {name: 2e-6 * m * n * k / each for name, each in us.items()}, "ratios": own,
        "ratio": None if best is None else own[best],
        "ratio_to_promoted": None if best is None else us["promoted, no scales"] / us[best],
    }  # fmt: skip


def told(row: Row) -> str:
    """Return a row as text: the best plan first, and what failed.

    >>> us = {"torch": 60.0, "torch, tensor scales": 50.0, "promoted, no scales": 52.0, "p": 48.0}
    >>> row = {"m": 64, "n": 256, "k": 512, "recipe": ["1x128", "128x128"], "us": us, "best": "p", "failed": {"q": "x"}}
    >>> print(told({**row, "ratio": 1.25, "ratio_to_promoted": 1.083}))
    64x256x512 1x128,128x128: torch 60.0 us, p 48.0 us (1.250; to promotion without scales 1.083)
      torch 60.0, torch, tensor scales 50.0, promoted, no scales 52.0, p 48.0
      failed: q: x
    """
    us, best = row["us"], row["best"]
    head = f"{row['m']}x{row['n']}x{row['k']} {','.join(row['recipe'])}: torch {us['torch']:.1f} us"
    if best is not None:
        head += f", {best} {us[best]:.1f} us ({row['ratio']:.3f}; to promotion without scales "
        head += f"{row['ratio_to_promoted']:.3f})"
    lines = [head, "  " + ", ".join(f"{name} {time:.1f}" for name, time in us.items())]
    return "\n".join([*lines, *[f"  failed: {name}: {why}" for name, why in row["failed"].items()]])


def _shape(text: str) -> tuple[int, int, int]:
    extents = text.split("x")
    if len(extents) != 3 or not all(each.isdigit() and int(each) for each in extents):
        raise CutegemmError(f"scaled: --shape {text!r} is not M x N x K, such as 4096x4096x7168.")
    m, n, k = map(int, extents)
    return m, n, k


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.evidence scaled",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    recipes = [",".join(recipe) for recipe in RECIPES]
    parser.add_argument("--shape", action="append", default=[], help="M x N x K, such as 4096x4096x7168; repeat it")
    parser.add_argument("--recipe", choices=recipes, default=recipes[0], help="granularity of the scales of A and B")
    parser.add_argument(
        "--plans",
        action="append",
        default=[],
        help="pattern of the names of plans to time, such as '128x192_*'; repeat it",
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="of measuring for each shape, at least")
    parser.add_argument("--json", type=Path, help="write all numbers there")
    given = parser.parse_args(arguments)
    shapes = [_shape(text) for text in given.shape] or SHAPES
    recipe, patterns = RECIPES[recipes.index(given.recipe)], given.plans or ["*"]
    for m, n, k in shapes:
        if not plans_for(m, recipe, patterns):
            known = ", ".join([*plans_for(m, recipe)][:5])
            raise CutegemmError(f"scaled: --plans {' '.join(patterns)} names no plan of {m}x{n}x{k}, such as {known}.")
    need_gpu()

    def found() -> Iterator[list[Row]]:
        for shape in shapes:
            row = timed(shape, recipe, given.seconds, patterns)
            print(told(row), flush=True)
            yield [row]

    record({"machine": machine(), "rows": []}, found(), given.json)
