"""Grouped GEMMs: ours, torch's grouped_mm, and a loop over the groups, alternating in one process.

python -m docs.evidence grouped --json docs/evidence/data/grouped_h100.json
python -m docs.evidence grouped --problem 64,16384,2048,2048 --plans 12 --seconds 2
python -m docs.evidence grouped --form k --form fp8 --seed 7
python -m docs.evidence grouped --form m --random 30 --seed 7 --plans 0 --seconds 0.3

The rows of a problem are divided among its groups at random. Each problem is computed by the plan that is chosen, by
the plans with the lowest predicted times, by torch, and by a loop that knows the sizes on the host. A dense GEMM of as
many rows and a copy are timed too. Errors are those of some rows against float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any

from cutegemm.errors import CutegemmError
from docs.evidence.arguments import parser_of, to_measure
from docs.evidence.benchmark import record
from docs.evidence.measure import DEVICE, machine, need_gpu
from docs.evidence.pages.markdown import table

# groups, rows in all, N, K
PROBLEMS = (
    (8, 32768, 4096, 4096), (64, 16384, 2048, 2048), (128, 8192, 1536, 4096), (8, 16, 14336, 4096),
)  # fmt: skip
BLOCK_SCALED = ((4, 32768, 4096, 7168), (4, 32768, 7168, 2048))  # as published for DeepGEMM
FORMS = ("m", "k", "fp8")  # groups divide the rows of A; or K, as in the gradient by the weights; or rows of float8
_CHECKED_ROWS = 256  # compared with float64
_COPIED_BYTES = 1 << 30
_MOST_ELEMENTS = 6 << 30  # limit for the weights, and for A with D, in a random problem

Problem = tuple[int, int, int, int]
Row = dict[str, Any]
Call = Callable[[], Any]


def random_ends(groups: int, rows: int, seed: int) -> list[int]:
    """Return the end of each group, if all divisions of the rows into groups are equally likely.

    >>> random_ends(4, 10, 1)
    [1, 1, 7, 10]
    """
    import random

    generator = random.Random(seed)
    bars = sorted(generator.sample(range(rows + groups - 1), groups - 1))  # stars and bars
    sizes = [after - before - 1 for before, after in pairwise([-1, *bars, rows + groups - 1])]
    return [sum(sizes[: i + 1]) for i in range(groups)]


def random_problems(count: int, seed: int) -> list[Problem]:
    """Return random problems whose matrices fit in memory, with multiples of 64 as N and K.

    >>> random_problems(2, 1)
    [(8, 14640, 7040, 6720), (4, 2296, 4544, 6720)]
    """
    import random

    generator, found = random.Random(seed), list[Problem]()
    while len(found) < count:
        groups, rows = generator.choice((4, 8, 16, 32, 64, 128, 256)), round(2 ** generator.uniform(9, 17.5)) // 8 * 8
        n, k = (64 * generator.randint(8, 112) for _ in range(2))
        if groups * n * k <= _MOST_ELEMENTS and rows * (n + k) <= _MOST_ELEMENTS:
            found.append((groups, rows, n, k))
    return found


class Contest:
    """The matrices of one problem, and the calls that multiply them.

    problem   groups, rows in all, N and K
    form      one of `FORMS`. With "k", A is K x rows and B is rows x N, as in the gradient of the weights. With "fp8",
              A and B have scales of blocks, 1 x 128 and 128 x 128
    """

    def __init__(self, problem: Problem, form: str, seed: int) -> None:
        import torch

        groups, rows, n, k = problem
        self.problem, self.form, self.ends = problem, form, random_ends(groups, rows, seed)
        made: dict[str, Any] = {"device": DEVICE, "dtype": torch.bfloat16}
        self.offs = torch.tensor(self.ends, dtype=torch.int32, device=DEVICE)
        self.x = torch.randn(rows, k, **made)
        self.scales: Any = None
        if form == "m":
            self.a, self.b = self.x, torch.randn(groups, n, k, **made).mT
        elif form == "fp8":
            from cutegemm.torch import quantize

            self.a, of_a = quantize(self.x, (1, 128))
            weights = [quantize(torch.randn(n, k, **made), (128, 128)) for _ in range(groups)]
            self.b = torch.stack([values for values, _ in weights]).mT
            self.scales = of_a, torch.stack([scale.mT for _, scale in weights])
        else:
            self.a, self.b = self.x.t(), torch.randn(rows, n, **made)
        self.parts = list(pairwise([0, *self.ends]))

    def by_torch(self) -> Call:
        """Return torch's grouped_mm."""
        import torch

        grouped = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
        return lambda: grouped(self.a, self.b, offs=self.offs)

    def by_loop(self) -> Call:
        """Return a loop of torch.mm over the groups that have rows. It knows their sizes on the host."""
        import torch

        groups, rows, n, k = self.problem
        shape = (rows, n) if self.form == "m" else (groups, k, n)
        out = torch.empty(shape, device=DEVICE, dtype=self.a.dtype)

        def loop() -> Any:
            """Multiply one group after the other."""
            for group, (begin, end) in enumerate(self.parts):
                if self.form == "m" and end > begin:
                    torch.mm(self.a[begin:end], self.b[group], out=out[begin:end])
                elif self.form == "k":
                    torch.mm(self.a[:, begin:end], self.b[begin:end], out=out[group])
            return out

        return loop

    def by_plan(self, plan: str | None) -> Call:
        """Return `grouped_mm` with a plan; None: the one that is chosen."""
        from cutegemm.run.calls import How
        from cutegemm.torch.epilogue import PLAIN
        from cutegemm.torch.grouped.functional import grouped_mm
        from cutegemm.torch.grouped.library import scaled_product

        if self.scales is not None:
            how = How(plan=plan)
            return lambda: scaled_product(self.a, self.b, self.offs, self.scales, PLAIN, how=how)[0]
        return lambda: grouped_mm(self.a, self.b, offs=self.offs, plan=plan)

    def dense(self) -> Call:
        """Return our dense GEMM of all rows by one matrix of weights."""
        import torch

        from cutegemm.run.gemm import gemm
        from cutegemm.run.scales import blocks_of

        if self.scales is not None:
            of_weights = self.scales[1][0, :, : blocks_of(self.problem[3])]  # torch pads scales along K
            scales = self.scales[0], of_weights.mT
            return lambda: gemm(self.a, self.b[0], scales=scales)
        weights = self.b[0] if self.form == "m" else torch.randn_like(self.b)
        return lambda: gemm(self.a, weights)

    def candidates(self, count: int) -> list[str]:
        """Return the names of the plans with the lowest predicted times."""
        from cutegemm.choice.grouped import ranked_grouped
        from cutegemm.plan import Operands
        from cutegemm.plan import Problem as Extents
        from cutegemm.plan.mainloop.block_scaled import BLOCKS, ROWS, with_scales
        from docs.evidence.measure import this_device

        groups, rows, n, k = self.problem
        layout, extents = ("tn", (k, n, rows)) if self.form == "k" else ("nt", (rows, n, k))
        mode = "k" if self.form == "k" else "m"
        kind = "bf16" if self.scales is None else "e4m3"
        operands = Operands.of(kind, layout=layout, out="bf16", batched=True, groups=mode)
        if self.scales is not None:
            operands = with_scales(operands, (ROWS, BLOCKS))
        problem = Extents(*extents, groups, operands)
        return [str(one.recipe) for one in islice(ranked_grouped(problem, device=this_device()), count)]

    def error(self, result: Any) -> float:
        """Return the largest error of some rows of each group, as a share of the root mean square of the right ones."""
        import torch

        most = 0.0
        for group, (begin, end) in enumerate(self.parts):
            if self.form != "k":
                rows = torch.arange(begin, min(end, begin + _CHECKED_ROWS), device=DEVICE)
                a, b = self.a[rows].double(), self.b[group].double()
                if self.scales is not None:
                    from cutegemm.torch.reference import dequantized

                    a = dequantized(self.a[rows], self.scales[0][rows]).double()
                    b = dequantized(self.b[group].mT, self.scales[1][group]).double().mT
                want, found = a @ b, result[rows].double()
            else:
                want = self.a[:_CHECKED_ROWS, begin:end].double() @ self.b[begin:end].double()
                found = result[group, :_CHECKED_ROWS].double()
            if want.numel():
                scale = want.square().mean().sqrt().clamp(min=1e-30)
                most = max(most, float((found - want).abs().max() / scale))
        return most

    @property
    def moved_bytes(self) -> int:
        """Return the least bytes that a call moves: A, D, and the weights or the gradients of all groups with rows."""
        groups, rows, n, k = self.problem
        used = groups if self.form == "k" else sum(end > begin for begin, end in self.parts)
        size = 2 if self.scales is None else 1
        return (
            size * (rows * k + used * n * k) + 2 * rows * n if self.form != "k" else 2 * (rows * (k + n) + used * n * k)
        )


def timed(problem: Problem, form: str, seconds: float, plans: int, seed: int) -> Row:
    """Return the row of one problem: times in microseconds, errors, and ratios to the best of the others.

    plans   number of plans that are timed in addition to the chosen one
    """
    import torch

    from cutegemm.run.on_gpu import alternating

    contest, failed = Contest(problem, form, seed), {}
    calls: dict[str, Call] = {"chosen": contest.by_plan(None)}
    if contest.scales is None:  # torch has no block scales for groups
        calls |= {"torch": contest.by_torch(), "loop": contest.by_loop()}
    calls |= {name: contest.by_plan(name) for name in contest.candidates(plans)}
    errors = {}
    for name, call in [*calls.items()]:
        try:
            errors[name] = contest.error(call())
        except Exception as error:  # the others go on
            failed[name] = f"{type(error).__name__}: {error}"[:200]
            del calls[name]
    source = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    calls |= {"dense": contest.dense(), "copy": lambda: target.copy_(source)}
    us = {name: each * 1e6 for name, each in zip(calls, alternating([*calls.values()], seconds), strict=True)}
    groups, rows, n, k = problem
    others = [us[name] for name in ("torch", "loop") if name in us]
    own = {name: time for name, time in us.items() if name not in ("torch", "loop", "dense", "copy")}
    copy_bandwidth = 2 * _COPIED_BYTES / us["copy"]
    return {
        "groups": groups, "rows": rows, "n": n, "k": k, "form": form, "seed": seed, "us": us, "errors": errors,
        "failed": failed,
        "best": min(own, key=own.__getitem__, default=None),
        "others_to_chosen": min(others, default=0) / us["chosen"] if others and "chosen" in us else None,
        "dense_to_chosen": us["dense"] / us["chosen"] if "chosen" in us else None,
        "bandwidth_to_copy": contest.moved_bytes / us["chosen"] / copy_bandwidth if "chosen" in us else None,
    }  # fmt: skip


def told(row: Row) -> str:
    """Return a row as text: ratios, times, errors, and what failed."""
    names = ("others_to_chosen", "dense_to_chosen", "bandwidth_to_copy")
    ratios = ", ".join(f"{name.replace('_', ' ')} {row[name]:.3f}" for name in names if row[name] is not None)
    return "\n".join([
        f"{row['groups']} groups, {row['rows']} rows, {row['n']} x {row['k']}, form {row['form']}: {ratios}; "
        f"best {row['best']}",
        "  us: " + ", ".join(f"{name} {time:.1f}" for name, time in row["us"].items()),
        "  errors: " + ", ".join(f"{name} {error:.3g}" for name, error in row["errors"].items()),
        *[f"  failed: {name}: {why}" for name, why in row["failed"].items()],
    ])  # fmt: skip


def table_of(found: Mapping[str, Any]) -> str:
    """Return the table of a record in Markdown.

    >>> row = {"groups": 8, "rows": 16, "n": 14336, "k": 4096, "form": "m", "us": {"chosen": 200.0, "torch": 220.0}}
    >>> ratios = {"others_to_chosen": 1.1, "dense_to_chosen": 0.25, "bandwidth_to_copy": 0.92}
    >>> print(table_of({"rows": [{**row, **ratios}]}).splitlines()[-1])
    | 8, 16, 14336 x 4096 | m | 200.0 | 220.0 | - | 1.100 | 0.250 | 0.920 |
    """
    lines = []
    for row in found["rows"]:
        times = [f"{row['us'][name]:.1f}" if name in row["us"] else "-" for name in ("chosen", "torch", "loop")]
        names = ("others_to_chosen", "dense_to_chosen", "bandwidth_to_copy")
        ratios = ["-" if row[name] is None else f"{row[name]:.3f}" for name in names]
        problem = f"{row['groups']}, {row['rows']}, {row['n']} x {row['k']}"
        lines.append([problem, row["form"], *times, *ratios])
    heads = ["groups, rows, N x K", "form", "ours, µs", "torch, µs", "loop, µs", "best other / ours", "dense / ours"]
    return table([*heads, "bandwidth / copy"], lines)


def _problem(text: str) -> Problem:
    numbers = text.split(",")
    if len(numbers) != len(PROBLEMS[0]) or not all(each.isdigit() and int(each) for each in numbers):
        raise CutegemmError(f"grouped: --problem {text!r} is not groups,rows,N,K, such as 64,16384,2048,2048.")
    groups, rows, n, k = map(int, numbers)
    return groups, rows, n, k


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of this module."""
    parser = parser_of("grouped", __doc__)
    parser.add_argument("--problem", action="append", default=[], help="groups,rows,N,K; repeat it")
    parser.add_argument("--random", type=int, default=0, help="number of random problems, drawn by the seed")
    parser.add_argument("--form", choices=FORMS, action="append", default=[], help="what groups divide; default: all")
    parser.add_argument(
        "--plans", type=int, default=6, help="number of plans that are timed in addition to the chosen one"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the sizes of the groups, and of random problems")
    parser.add_argument("--seconds", type=float, default=1.0, help="of measuring for each problem, at least")
    given = to_measure(parser, arguments, table_of)
    if given is None:
        return
    problems = [_problem(text) for text in given.problem] + random_problems(given.random, given.seed)
    need_gpu()
    ratios: list[float] = []

    def found() -> Iterator[list[Row]]:
        for form in given.form or FORMS:
            for problem in problems or (BLOCK_SCALED if form == "fp8" else PROBLEMS):
                row = timed(problem, form, given.seconds, given.plans, given.seed)
                print(told(row), flush=True)
                if row["others_to_chosen"] is not None:
                    ratios.append(row["others_to_chosen"])
                yield [row]

    record({"machine": machine(), "rows": []}, found(), given.json)
    if ratios:
        from statistics import geometric_mean

        print(f"best other / chosen: geometric mean {geometric_mean(ratios):.3f}, least {min(ratios):.3f}")
