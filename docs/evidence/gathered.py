"""The first product of a mixture of experts: tokens that are gathered while they are loaded, or copied first.

python -m docs.evidence gathered --json docs/evidence/data/gathered_h100.json
python -m docs.evidence gathered --model qwen3 --tokens 4096

The sizes are those of `experts`. Both ways sort the index of the router and multiply by the same plan with a SwiGLU and
the routing weights. They alternate as CUDA graphs, after a write that flushes the L2 cache, and a time is the median.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from docs.evidence.arguments import parser_of, to_measure
from docs.evidence.benchmark import record
from docs.evidence.experts import MODELS
from docs.evidence.files import significant
from docs.evidence.graphs import graph_of
from docs.evidence.measure import DEVICE, machine, need_gpu
from docs.evidence.pages.markdown import table

TOKENS = (1, 16, 128, 1024, 4096)
_GATHERED, _COPIED = "gathered", "copied"

Row = dict[str, Any]


def timed(model: str, tokens: int, seconds: float) -> Row:
    """Return the row of one product: times in microseconds, and whether both ways give the same bits.

    seconds   measuring time
    """
    import torch

    from cutegemm.run.calls import How
    from cutegemm.run.on_gpu import alternating
    from cutegemm.torch.grouped import launch, rows
    from cutegemm.torch.grouped.mixture import hidden_text

    width, hidden, count, chosen = MODELS[model]
    x = torch.randn(tokens, width, device=DEVICE).bfloat16()
    up = torch.randn(count, 2 * hidden, width, device=DEVICE, dtype=torch.bfloat16)
    weights, index = torch.rand(tokens, count, device=DEVICE).topk(chosen, -1)
    text = hidden_text("swiglu", False, False)

    def product(a: Any, ends: Any, weight: Any, tokens_of_rows: Any = None) -> Any:
        options = text, [weight], (), None, How(), False
        return launch.compute_grouped(a, up.mT, ends, *options, index=tokens_of_rows)[0]

    def gathered(_: int = 0) -> Any:
        _, ends, tokens_of_rows, weight = rows.placed_tokens(index, count, weights)
        return product(x, ends, weight, tokens_of_rows)

    def copied(_: int = 0) -> Any:
        place, ends = rows.placed(index, count)
        copies, weight = rows.spread(x, place, chosen, weights)
        return product(copies, ends, weight)

    calls = {_GATHERED: gathered, _COPIED: copied}
    results = [call() for call in calls.values()]
    replays = [graph_of(call, 1).replay for call in calls.values()]
    us = {name: significant(each * 1e6) for name, each in zip(calls, alternating(replays, seconds), strict=True)}
    row: Row = {"model": model, "tokens": tokens, "rows": tokens * chosen // count, "us": us}
    return {**row, "identical": bool(torch.equal(*results)), "ratio": round(us[_GATHERED] / us[_COPIED], 3)}


def table_of(found: Mapping[str, Any]) -> str:
    """Return the table of a record in Markdown: a line for each product.

    >>> row = {"model": "qwen3", "tokens": 16, "rows": 1, "us": {"gathered": 90.0, "copied": 100.0}, "ratio": 0.9}
    >>> print(table_of({"rows": [row]}).splitlines()[-1])
    | qwen3 | 16 | 1 | 90.0 | 100.0 | 0.900 |
    """
    lines = [
        [row["model"], str(row["tokens"]), str(row["rows"]), *[f"{row['us'][way]:.1f}" for way in (_GATHERED, _COPIED)],
         f"{row['ratio']:.3f}"] for row in found["rows"]
    ]  # fmt: skip
    heads = ["model", "tokens", "rows of an expert", "gathered, µs", "copied, µs", "gathered / copied"]
    return table(heads, lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line of this module."""
    parser = parser_of("gathered", __doc__)
    parser.add_argument("--model", choices=MODELS, action="append", default=[], help="repeat it; default: all")
    parser.add_argument("--tokens", type=int, action="append", default=[], help=f"repeat it; default: {TOKENS}")
    parser.add_argument("--seconds", type=float, default=0.3, help="of measuring for each product, at least")
    given = to_measure(parser, arguments, table_of)
    if given is None:
        return
    need_gpu()

    def found() -> Iterator[list[Row]]:
        for tokens in given.tokens or TOKENS:
            for model in given.model or MODELS:
                row = timed(model, tokens, given.seconds)
                print(row, flush=True)
                yield [row]

    record({"machine": machine(), "rows": []}, found(), given.json)
