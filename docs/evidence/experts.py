"""Mixtures of experts of the sizes of public models: ours, and eager torch with its `grouped_mm`.

python -m docs.evidence experts --json docs/evidence/data/experts_h100.json
python -m docs.evidence experts --model qwen3 --tokens 1 --tokens 4096 --seconds 1

A layer multiplies the rows of each expert by its `up` weights, applies SwiGLU, multiplies by `down`, and adds the
weighted rows of each token. The router's choice is random. Both are timed alternating in one process: forward, and
forward with backward by the tokens, the routing weights and both matrices. Forward, the layer whose second product adds
the rows of each token (deterministic=False) is timed too. Errors are those of some tokens against float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from docs.evidence.arguments import parser_of, to_measure
from docs.evidence.benchmark import record
from docs.evidence.measure import DEVICE, machine, need_gpu
from docs.evidence.pages.markdown import table

# width, hidden, experts, experts of each token
MODELS = {
    "mixtral": (4096, 14336, 8, 2),
    "qwen3": (2048, 768, 128, 8),
    "deepseek_v3": (7168, 2048, 256, 8),
}
TOKENS = (1, 16, 128, 1024, 4096, 16384)
_CHECKED_TOKENS = 8
_OURS, _ADDED, _TORCH = "cutegemm", "added", "torch"

Row = dict[str, Any]
Experts = Callable[..., Any]


def by_torch(x: Any, index: Any, weights: Any, up: Any, down: Any) -> Any:
    """Return the sum of the weighted experts of each token by torch's operations, as models call them.

    x                (T, K)
    index, weights   (T, k): the experts of each token, and their weights
    up, down         (L, 2H, K) and (L, K, H)
    """
    import torch
    from torch.nn import functional

    grouped = getattr(functional, "grouped_mm", None) or torch._grouped_mm
    tokens, k = index.shape
    chosen, order = index.flatten().sort()
    numbers = torch.arange(len(up), device=x.device, dtype=chosen.dtype)
    offs = torch.searchsorted(chosen, numbers, right=True).int()
    gate, value = grouped(x[order // k], up.mT, offs=offs).chunk(2, -1)
    y = grouped(functional.silu(gate) * value, down.mT, offs=offs) * weights.flatten()[order, None].to(x.dtype)
    return y[order.argsort()].view(tokens, k, -1).sum(1)


class Contest:
    """The tensors of one layer, and the calls that are compared.

    model      one of `MODELS`
    backward   whether the gradients are computed as well
    """

    def __init__(self, model: str, tokens: int, backward: bool) -> None:
        import torch

        self.size, self.tokens, self.backward = MODELS[model], tokens, backward
        width, hidden, count, chosen = self.size
        made: dict[str, Any] = {"device": DEVICE, "dtype": torch.bfloat16}
        self.x = torch.randn(tokens, width, **made, requires_grad=backward)
        self.up, self.down = [
            torch.randn(count, rows, k, **made).div_(k**0.5).requires_grad_(backward)
            for rows, k in ((2 * hidden, width), (width, hidden))
        ]
        scores, self.index = torch.rand(tokens, count, device=DEVICE).topk(chosen, -1)
        self.weights = scores.softmax(-1).to(torch.bfloat16).requires_grad_(backward)
        self.dy = torch.randn_like(self.x.detach())

    def call(self, experts: Experts) -> Callable[[], list[Any]]:
        """Return a function that computes the output, and the gradients by x, weights, up and down if wanted."""
        import torch

        tensors = self.x, self.weights, self.up, self.down

        def run() -> list[Any]:
            y = experts(self.x, self.index, self.weights, self.up, self.down)
            return [y, *(torch.autograd.grad(y, tensors, self.dy) if self.backward else ())]

        return run

    def error(self, y: Any) -> float:
        """Return the largest error of the output of some tokens, divided by the root mean square of the right one."""
        import torch

        want = []
        for token in range(min(self.tokens, _CHECKED_TOKENS)):
            row, total = self.x[token].double(), 0
            for expert, weight in zip(self.index[token], self.weights[token], strict=True):
                gate, value = (self.up[expert].double() @ row).chunk(2)
                total = total + weight.double() * (
                    self.down[expert].double() @ (torch.nn.functional.silu(gate) * value)
                )
            want.append(total)
        right = torch.stack(want).detach()
        return float((y[: len(right)].detach() - right).abs().max() / right.square().mean().sqrt())


def timed(model: str, tokens: int, backward: bool, seconds: float) -> Row:
    """Return the row of one layer: times in microseconds, errors, and the ratio of torch's time to ours."""
    from functools import partial

    import torch

    from cutegemm.run.on_gpu import alternating
    from cutegemm.torch import experts

    contest = Contest(model, tokens, backward)
    calls = {_OURS: contest.call(experts), _TORCH: contest.call(by_torch)}
    if not backward:
        calls[_ADDED] = contest.call(partial(experts, deterministic=False))
    errors = {name: contest.error(call()[0]) for name, call in calls.items()}
    us = {name: each * 1e6 for name, each in zip(calls, alternating([*calls.values()], seconds), strict=True)}
    torch.cuda.empty_cache()
    ratio = us[_TORCH] / us[_OURS]
    return {"model": model, "tokens": tokens, "backward": backward, "us": us, "errors": errors, "ratio": ratio}


def told(row: Row) -> str:
    """Return a row as a line of text.

    >>> us, errors = {"cutegemm": 50.0, "torch": 75.0}, {"cutegemm": 0.01, "torch": 0.02}
    >>> row = {"model": "qwen3", "tokens": 16, "backward": False, "us": us, "errors": errors, "ratio": 1.5}
    >>> told(row)
    'qwen3, 16 tokens, forward, torch / ours 1.500: cutegemm 50.0 us, error 0.01; torch 75.0 us, error 0.02'
    """
    passes = "forward and backward" if row["backward"] else "forward"
    times = "; ".join(f"{name} {us:.1f} us, error {row['errors'][name]:.3g}" for name, us in row["us"].items())
    return f"{row['model']}, {row['tokens']} tokens, {passes}, torch / ours {row['ratio']:.3f}: {times}"


def table_of(found: Mapping[str, Any]) -> str:
    """Return the table of a record in Markdown: a line for each layer, with both passes.

    >>> us = {"cutegemm": 50.0, "torch": 75.0}
    >>> row = {"model": "qwen3", "tokens": 16, "backward": False, "us": {**us, "added": 48.0}, "ratio": 1.5}
    >>> print(table_of({"rows": [row, {**row, "backward": True, "us": us}]}).splitlines()[-1])
    | qwen3 | 16 | 50.0 | 48.0 | 75.0 | 1.500 | 50.0 | 75.0 | 1.500 |
    """
    lines: dict[tuple[str, int], list[str]] = {}
    for row in found["rows"]:
        times = [f"{row['us'][name]:.1f}" for name in (_OURS, _ADDED, _TORCH) if name in row["us"]]
        key = row["model"], row["tokens"]
        lines.setdefault(key, [key[0], str(key[1])]).extend([*times, f"{row['ratio']:.3f}"])
    forward = "ours, µs", "rows added, µs", "torch, µs", "ratio"
    backward = "with backward: ours, µs", "with backward: torch, µs", "with backward: ratio"
    return table(["model", "tokens", *forward, *backward], [*lines.values()])


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of this module."""
    parser = parser_of("experts", __doc__)
    parser.add_argument("--model", choices=MODELS, action="append", default=[], help="repeat it; default: all")
    parser.add_argument("--tokens", type=int, action="append", default=[], help=f"repeat it; default: {TOKENS}")
    parser.add_argument("--seconds", type=float, default=0.3, help="of measuring for each layer, at least")
    given = to_measure(parser, arguments, table_of)
    if given is None:
        return
    need_gpu()
    ratios: dict[bool, list[float]] = {False: [], True: []}

    def found() -> Iterator[list[Row]]:
        for model in given.model or MODELS:
            for tokens in given.tokens or TOKENS:
                for backward in ratios:
                    row = timed(model, tokens, backward, given.seconds)
                    ratios[backward].append(row["ratio"])
                    print(told(row), flush=True)
                    yield [row]

    record({"machine": machine(), "rows": []}, found(), given.json)
    from statistics import geometric_mean

    for backward, each in ratios.items():
        passes = "forward and backward" if backward else "forward"
        print(f"{passes}: geometric mean of torch / ours {geometric_mean(each):.3f}, least {min(each):.3f}")
