"""Block-scaled fp8 GEMMs and torch's scaled_mm, alternating in one process.

python -m docs.evidence scaled --json docs/evidence/data/scaled_h100.json
python -m docs.evidence scaled --shape 4096x4096x7168 --recipe 1x128,1x128 --seconds 2
python -m docs.evidence scaled --shape 4096x4096x7168 --plans "128x128_*" --plans "*/once"
python -m docs.evidence scaled --seed 1 --count 300 --json scaled_random.json   # random problems, within 4 minutes
python -m docs.evidence scaled --table docs/evidence/data/scaled_h100.json      # the table of a record

Each shape is multiplied by the plan that `gemm` chooses, by several other plans, by torch's scaled_mm with the same
scales, by torch's scaled_mm with a scale for each tensor (fast accumulation), and by `gemm` with accumulator promotion
and no scales. For random problems, see `scaled_random`. Errors are those of rows against float64 of the dequantized
inputs; "cuBLAS" is the error of the float32 product of these inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any

from cutegemm.build import sm90_plan
from cutegemm.choice.recipe import SWAP_AB
from cutegemm.errors import CutegemmError, PlanError
from cutegemm.plan import GemmPlan, Operands
from cutegemm.plan.mainloop.block_scaled import BLOCK, BLOCKS, ROWS, with_scales
from docs.evidence.arguments import parser_of, to_measure
from docs.evidence.benchmark import record
from docs.evidence.files import significant
from docs.evidence.measure import DEVICE, machine, need_gpu
from docs.evidence.pages.markdown import table

SHAPES = (
    (4096, 2112, 7168), (4096, 24576, 1536), (4096, 7168, 16384), (4096, 4096, 7168), (64, 7168, 16384),
    (128, 4096, 7168),
)  # fmt: skip
RECIPES = ((ROWS, BLOCKS), (ROWS, ROWS), (BLOCKS, ROWS))
_TORCH = {ROWS: "BlockWise1x128", BLOCKS: "BlockWise128x128"}
_LARGEST = 448.0  # of e4m3
_FEW_ROWS = 128
_CHECKED_ROWS = 64  # compared with float64
_K_UNIT = 4  # torch's scales of blocks of 128 x 128 are padded to a multiple of this along K
MOST_ERROR = 2.0  # times the error of cuBLAS in float32, rounded to bf16
CHOSEN, PROMOTED = "chosen", "promoted, no scales"
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


def name_of(plan: GemmPlan) -> str:
    """Return the name of a plan, with the prefix of plans that swap A and B."""
    return f"{SWAP_AB if plan.swap_ab else ''}{plan.name}"


class Contest:
    """The matrices of one problem, and the calls that multiply them.

    recipe   granularity of the scales of A and of B
    device   device of the matrices
    """

    def __init__(self, m: int, n: int, k: int, recipe: tuple[str, str], device: str = DEVICE) -> None:
        import torch

        self.shape, self.recipe = (m, n, k), recipe
        self.a, self.scale_a = quantized(torch.randn(m, k, device=device), recipe[0])
        self.b, self.scale_b = quantized(torch.randn(n, k, device=device), recipe[1])  # (N, K)
        self.out = torch.empty(m, n, dtype=torch.bfloat16, device=device)
        self.rows = torch.randperm(m, device=device)[:_CHECKED_ROWS]
        every = torch.arange(n, device=device)
        a, b = dequantized(self.a, self.scale_a, self.rows), dequantized(self.b, self.scale_b, every)
        self.want = a @ b.t()
        self.errors = {"cuBLAS": self.errors_of((a.float() @ b.float().t()).to(torch.bfloat16))}

    def by_torch(self) -> Call:
        """Return torch's scaled_mm with the scales of the recipe."""
        import torch

        kinds = [getattr(torch.nn.functional.ScalingType, _TORCH[each]) for each in self.recipe]
        scaled_mm = torch.nn.functional.scaled_mm
        scales = [
            torch.nn.functional.pad(scale, (0, -scale.shape[1] % _K_UNIT)).t() if granularity == BLOCKS else scale
            for scale, granularity in zip((self.scale_a, self.scale_b), self.recipe, strict=True)
        ]
        return lambda: scaled_mm(
            self.a, self.b.t(), scales[0], kinds[0], scales[1], kinds[1], output_dtype=torch.bfloat16
        )

    def others(self) -> dict[str, Call]:
        """Return the calls that ours are compared with, by name."""
        return {
            "torch": self.by_torch(),
            "torch, tensor scales": self.by_torch_without_blocks(),
            PROMOTED: self.by_promotion(),
        }

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

    def by_gemm(self, plan: str | None = None) -> Call:
        """Return `gemm` with a plan.

        plan   name of a plan; None: the one that `gemm` chooses
        """
        from cutegemm.run.gemm import gemm

        scales = self.scale_a, self.scale_b.t()
        return functools.partial(gemm, self.a, self.b.t(), scales=scales, out=self.out, plan=plan)

    def chosen(self) -> str:
        """Return the name of the plan that `gemm` chooses."""
        from cutegemm.run.gemm import plan_of

        return name_of(plan_of(self.a, self.b.t(), scales=(self.scale_a, self.scale_b.t()), out=self.out))

    def by_promotion(self) -> Call:
        """Return `gemm` with accumulator promotion, without scales."""
        from cutegemm.run.gemm import gemm

        return lambda: gemm(self.a, self.b.t(), out=self.out, accumulate="promoted")

    def errors_of(self, rows: Any) -> tuple[float, float]:
        """Return the largest and the root mean square error, each divided by the root mean square of D.

        rows   the checked rows of a result
        """
        scale = self.want.square().mean().sqrt()
        error = rows.double() - self.want
        return significant(float(error.abs().max() / scale), 3), significant(
            float(error.square().mean().sqrt() / scale), 3
        )

    def admit(self, name: str, call: Call) -> str:
        """Call a product once, and keep its errors. Return "" if it is right, else what is wrong with it.

        name   key of its errors
        call   returns the result, or stores it to `out`
        """
        self.out.fill_(float("nan"))
        try:
            result = call()
        except Exception as error:  # the others go on
            return f"{type(error).__name__}: {error}"[:48]
        result = self.out if result is None else result
        self.errors[name] = errors = self.errors_of(result[self.rows])
        if all(ours <= MOST_ERROR * theirs for ours, theirs in zip(errors, self.errors["cuBLAS"], strict=True)):
            return ""
        return f"the errors are {_shown(errors)}; those of cuBLAS are {_shown(self.errors['cuBLAS'])}"


def timed(
    shape: tuple[int, int, int], recipe: tuple[str, str], seconds: float, patterns: Sequence[str] = ("*",)
) -> Row:
    """Return the row of one problem: the times in microseconds of all calls, and ratios of them.

    recipe     granularity of the scales of A and of B
    seconds    least time of measuring
    patterns   patterns of the names of plans that are timed, see `plans_for`
    """
    from cutegemm.compile.plans import compile_missing

    contest, plans = Contest(*shape, recipe), plans_for(shape[0], recipe, patterns)
    compile_missing(plans.values())
    own = {CHOSEN: contest.by_gemm(), **{name: contest.by_plan(plan) for name, plan in plans.items()}}
    return {**raced(contest, own, contest.others(), seconds), "chosen": contest.chosen()}


def raced(contest: Contest, own: Mapping[str, Call], others: Mapping[str, Call], seconds: float) -> Row:
    """Return the row of a problem: errors, times and ratios of our calls and of others.

    own       our calls by name; those with larger errors than `MOST_ERROR` allows are not timed
    others    other calls by name, whatever their errors are
    seconds   least time of measuring
    """
    from cutegemm.run.on_gpu import alternating

    wrong = {name: contest.admit(name, call) for name, call in {**others, **own}.items()}
    failed = {name: why for name, why in wrong.items() if why and (name in own or name not in contest.errors)}
    calls = {name: call for name, call in {**others, **own}.items() if name not in failed}
    us = {
        name: significant(each * 1e6) for name, each in zip(calls, alternating([*calls.values()], seconds), strict=True)
    }
    m, n, k = contest.shape
    found: Row = {
        "m": m, "n": n, "k": k, "recipe": list(contest.recipe), "us": us, "errors": contest.errors,
        "failed": failed,
    }  # fmt: skip
    return {**found, **ratios(us, [*own])}


def ratios(us: Mapping[str, float], own: Sequence[str]) -> Row:
    """Return the best of our calls, and the ratios of times of a row: above 1, the first one takes longer.

    us    microseconds of all calls by name
    own   names of our calls; those that are not in `us` have failed

    >>> ratios({"torch": 60.0, "chosen": 50.0, "p": 48.0}, ["chosen", "p"])  # doctest: +NORMALIZE_WHITESPACE
    {'best': 'p', 'torch_to_best': 1.25, 'torch_to_chosen': 1.2, 'best_to_chosen': 0.96, 'promoted_to_best': None}
    """
    times = {name: us[name] for name in own if name in us}
    best = min(times, key=times.__getitem__, default=None)

    def ratio(first: str | None, second: str | None) -> float | None:
        """Return the ratio of two times; None if one of them was not measured."""
        both = us.get(first or ""), us.get(second or "")
        return None if both[0] is None or both[1] is None else both[0] / both[1]

    return {
        "best": best,
        "torch_to_best": ratio("torch", best), "torch_to_chosen": ratio("torch", CHOSEN),
        "best_to_chosen": ratio(best, CHOSEN), "promoted_to_best": ratio(PROMOTED, best),
    }  # fmt: skip


def stored(row: Row) -> Row:
    """Return what a record keeps of a row: all but what `ratios` computes from the times."""
    computed = ratios({}, ())
    return {name: value for name, value in row.items() if name not in computed}


def told(row: Row) -> str:
    """Return a row as text: the chosen plan, the ratios, all times, errors, and what failed.

    >>> us = {"torch": 60.0, "chosen": 50.0, "p": 48.0}
    >>> row = {"m": 64, "n": 256, "k": 512, "recipe": ["1x128", "128x128"], "us": us, "failed": {"q": "x"}}
    >>> row |= {"chosen": "sm90_promoted", "errors": {"cuBLAS": (0.012, 0.001), "chosen": (0.013, 0.001)}}
    >>> print(told({**row, **ratios(us, ["chosen", "p"])}))
    64x256x512 1x128,128x128 sm90_promoted: torch / chosen 1.200, best (p) / chosen 0.960, torch / best 1.250
      us: torch 60.0, chosen 50.0, p 48.0
      largest and mean error: cuBLAS 0.012 0.001, chosen 0.013 0.001
      failed: q: x
    """
    names = {
        "torch_to_chosen": "torch / chosen", "best_to_chosen": f"best ({row['best']}) / chosen",
        "torch_to_best": "torch / best",
    }  # fmt: skip
    listed = [f"{name} {row[key]:.3f}" for key, name in names.items() if row[key] is not None]
    return "\n".join([
        f"{row['m']}x{row['n']}x{row['k']} {','.join(row['recipe'])} {row['chosen']}: {', '.join(listed)}",
        "  us: " + ", ".join(f"{name} {time:.1f}" for name, time in row["us"].items()),
        "  largest and mean error: " + ", ".join(f"{name} {_shown(each)}" for name, each in row["errors"].items()),
        *[f"  failed: {name}: {why}" for name, why in row["failed"].items()],
    ])  # fmt: skip


def _shown(errors: Sequence[float]) -> str:
    """Return the largest and the mean error as text."""
    return " ".join(f"{each:.3g}" for each in errors)


def table_of(found: Mapping[str, Any]) -> str:
    """Return the table of a record in Markdown. A record from before 2026-11-28 has no chosen plans.

    >>> us = {"torch": 60.0, "torch, tensor scales": 40.0, "chosen": 50.0, "128x128_2x1": 48.0}
    >>> row = {"m": 999, "n": 256, "k": 512, "recipe": ["1x128", "128x128"], "us": us, "chosen": "sm90_promoted"}
    >>> print(table_of({"rows": [row]}).splitlines()[-1])
    | 999 x 256 x 512 | 1x128, 128x128 | 60.0 | 48.0 | `128x128_2x1` | 1.250 | 50.0 | 1.200 | 40.0 |
    """
    rows = found["rows"]
    lines, has_chosen = [], all(CHOSEN in row["us"] for row in rows)
    for row in rows:
        us, recipe = row["us"], tuple(row["recipe"])
        own = {name: us[name] for name in (CHOSEN, *plans_for(row["m"], recipe)) if name in us}
        best = min(own, key=own.__getitem__)
        name = row["chosen"] if best == CHOSEN else best
        chosen = [f"{us[CHOSEN]:.1f}", f"{us['torch'] / us[CHOSEN]:.3f}"] if has_chosen else []
        lines.append([
            f"{row['m']} x {row['n']} x {row['k']}", ", ".join(recipe), f"{us['torch']:.1f}", f"{own[best]:.1f}",
            f"`{name}`", f"{us['torch'] / own[best]:.3f}", *chosen, f"{us['torch, tensor scales']:.1f}",
        ])  # fmt: skip
    of_choice = ["chosen, µs", "torch / chosen"] if has_chosen else []
    heads = ["M x N x K", "scales", "torch, µs", "best, µs", "its plan", "torch / best", *of_choice]
    return table([*heads, "torch, tensor scales, µs"], lines)


def _shape(text: str) -> tuple[int, int, int]:
    extents = text.split("x")
    if len(extents) != 3 or not all(each.isdigit() and int(each) for each in extents):
        raise CutegemmError(f"scaled: --shape {text!r} is not M x N x K, such as 4096x4096x7168.")
    m, n, k = map(int, extents)
    return m, n, k


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of this module."""
    parser = parser_of("scaled", __doc__)
    recipes = [",".join(recipe) for recipe in RECIPES]
    parser.add_argument("--shape", action="append", default=[], help="M x N x K, such as 4096x4096x7168; repeat it")
    parser.add_argument("--recipe", choices=recipes, default=recipes[0], help="granularity of the scales of A and B")
    parser.add_argument(
        "--plans",
        action="append",
        default=[],
        help="pattern of the names of plans to time, such as '128x192_*'; repeat it",
    )
    parser.add_argument("--seconds", type=float, help="of measuring for each shape, at least; 1, or 0.1 with --seed")
    parser.add_argument("--seed", type=int, help="random problems by this seed")
    parser.add_argument("--count", type=int, default=300, help="of random problems")
    parser.add_argument("--budget", type=float, default=240, help="seconds for all random problems, with compilation")
    given = to_measure(parser, arguments, table_of)
    if given is None:
        return
    if given.seed is not None:
        from docs.evidence.scaled_random import run

        run(given.seed, given.count, given.seconds or 0.1, given.budget, given.json)
        return
    shapes = [_shape(text) for text in given.shape] or SHAPES
    recipe, patterns = RECIPES[recipes.index(given.recipe)], given.plans or ["*"]
    for m, n, k in shapes:
        if not plans_for(m, recipe, patterns):
            known = ", ".join([*plans_for(m, recipe)][:5])
            raise CutegemmError(f"scaled: --plans {' '.join(patterns)} names no plan of {m}x{n}x{k}, such as {known}.")
    need_gpu()

    def found() -> Iterator[list[Row]]:
        for shape in shapes:
            row = timed(shape, recipe, given.seconds or 1.0, patterns)
            print(told(row), flush=True)
            yield [stored(row)]

    record({"machine": machine(), "rows": []}, found(), given.json)
