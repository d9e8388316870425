"""Share of calls that a library of prebuilt kernels serves, and their loss, on models that it was not selected by.

python -m docs.evidence prebuilt                                  # predicted; without a GPU and without a library
python -m docs.evidence prebuilt --library DIR                    # the same; builds the library if it does not exist
python -m docs.evidence prebuilt --library DIR --measure 100      # measured on a GPU

A call is served if a kernel of the library takes at most `MOST_LOSS` times the least predicted time of all plans. Its
loss is predicted time / least predicted time - 1.
"""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from cutegemm.choice.models import MODELS, MOST_ROWS, Model, decoder, encoder
from cutegemm.compile.exported import key_of
from cutegemm.machine.device import Device, device_named
from cutegemm.plan.plan import GemmPlan
from cutegemm.run.question import MOST_LOSS, Question, fastest_built
from docs.evidence.arguments import parser_of, to_measure
from docs.evidence.files import significant, write_record
from docs.evidence.machine import cpu
from docs.evidence.measure import command
from docs.evidence.pages.markdown import table as markdown

# Models that are not in `MODELS`, from their public configurations.
HELD_OUT: dict[str, Model] = {
    "Llama 2 7B": decoder(4096, 4096, 4096, 11008, 32000),
    "Llama 2 13B": decoder(5120, 5120, 5120, 13824, 32000),
    "Mistral 7B": decoder(4096, 4096, 1024, 14336, 32768),
    "TinyLlama 1.1B": decoder(2048, 2048, 256, 5632, 32000),
    "SmolLM2 135M": decoder(576, 576, 192, 1536, 49152),
    "SmolLM2 360M": decoder(960, 960, 320, 2560, 49152),
    "Qwen 2.5 3B": decoder(2048, 2048, 256, 11008, 151936),
    "Qwen 2.5 14B": decoder(5120, 5120, 1024, 13824, 152064),
    "Qwen 2.5 72B": decoder(8192, 8192, 1024, 29568, 152064),
    "Qwen 3 0.6B": decoder(1024, 2048, 1024, 3072, 151936),
    "Qwen 3 4B": decoder(2560, 4096, 1024, 9728, 151936),
    "Qwen 3 32B": decoder(5120, 8192, 1024, 25600, 151936),
    "Gemma 3 1B": decoder(1152, 1024, 256, 6912, 262144, "geglu_tanh"),
    "Gemma 3 4B": decoder(2560, 2048, 1024, 10240, 262208, "geglu_tanh"),
    "Gemma 3 12B": decoder(3840, 4096, 2048, 15360, 262208, "geglu_tanh"),
    "Yi 34B": decoder(7168, 7168, 1024, 20480, 64000),
    "Falcon 3 7B": decoder(3072, 3072, 1024, 23040, 131072),
    "InternLM 2 20B": decoder(6144, 6144, 1024, 16384, 92544),
    "Granite 3.1 8B": decoder(4096, 4096, 1024, 12800, 49155),
    "GPT-2": encoder(768, 1, 50257, "gelu_tanh"),
    "GPT-2 XL": encoder(1600, 1, 50257, "gelu_tanh"),
    "Pythia 1.4B": encoder(2048, 1, 50304),
    "Pythia 6.9B": encoder(4096, 1, 50432),
    "Whisper large v3": encoder(1280, 1500, 51866),
    "CLIP ViT-L/14": encoder(1024, 257, 768),
    "ViT-g/14": encoder(1408, 257, 1024),
    "XLM-R large": encoder(1024, 512, 250002),
    "PixArt": encoder(1152, 1024, 32, "gelu_tanh"),
    "FLUX.1": encoder(3072, 4096, 64, "gelu_tanh"),
}
_SEED = 7
_SECONDS = 0.15  # time to measure one call in, with both plans


@dataclass(frozen=True)
class Row:
    """A line of the table: calls of one kind.

    dtype     "bf16", "f16" or "fp8"
    kind      kind of call, such as "data gradient"
    calls     number of calls
    served    share of them that the library serves
    loss      mean loss of the served calls
    worst     loss that 5% of the served calls exceed
    """

    dtype: str
    kind: str
    calls: int
    served: float
    loss: float
    worst: float


def library_in(folder: Path) -> Path:
    """Return a folder with the library of `cutegemm export --models`, which is built if the folder does not exist."""
    if not folder.exists():
        subprocess.run([sys.executable, "-m", "cutegemm", "export", "--models", "-o", str(folder)], check=True)
    return folder


def rows_of(count: int, seed: int = _SEED) -> Callable[[Model, Any], list[int]]:
    """Return a function that draws `count` numbers of rows for a kind of call, uniform in the logarithm.

    They are multiples of the tokens of a model.
    """
    chance = random.Random(seed)

    def drawn(model: Model, kind: Any) -> list[int]:
        least = max(kind.least, model.tokens)
        logs = [chance.uniform(math.log2(least), math.log2(MOST_ROWS)) for _ in range(count)]
        return sorted({model.tokens * max(1, round(2**log / model.tokens)) for log in logs})

    return drawn


class Built:
    """The kernels that a library has, or would have.

    names   names of their recipes
    keys    their keys
    """

    def __init__(self, kernels: Iterable[tuple[str, str]], arch: str) -> None:
        pairs = list(kernels)
        self.names, self.keys, self._arch = frozenset(n for n, _ in pairs), frozenset(k for _, k in pairs), arch
        self._known: dict[GemmPlan, bool] = {}

    @staticmethod
    def of_library(path: Path, arch: str) -> Built:
        """Return the kernels of a library that `cutegemm export` wrote."""
        from cutegemm.compile.exported import load

        return Built([(kernel.recipe, kernel.key) for kernel in load(path).kernels], arch)

    @staticmethod
    def predicted(dtypes: Sequence[str], device: Device) -> Built:
        """Return the kernels that `cutegemm export --models` would build."""
        from cutegemm.torch.prebuilt import library_plans

        plans = [plan for selection in library_plans(MODELS.values(), dtypes, device) for plan in selection.plans]
        named = [(f"swap_ab:{plan.name}" if plan.swap_ab else plan.name, plan) for plan in plans]
        return Built([(name, key_of(plan, device.arch)) for name, plan in named], device.arch)

    def has(self, plan: GemmPlan) -> bool:
        """Return whether the library has a kernel of a plan."""
        if plan not in self._known:
            self._known[plan] = key_of(plan, self._arch) in self.keys
        return self._known[plan]

    def loss_of(self, question: Question) -> float | None:
        """Return the predicted loss of a call that the library serves; None for another call."""
        found = fastest_built(question, self.names, self.has, MOST_LOSS)
        return None if found is None else found[1] - 1


def predicted(built: Built, dtypes: Sequence[str], device: Device, count: int) -> list[Row]:
    """Return the table of predicted losses, with a line for each type and kind of call, and one for all.

    built    the kernels of the library
    count    numbers of rows that are drawn for each layer and kind
    """
    from cutegemm.torch.prebuilt import samples_of

    losses: dict[tuple[str, str], list[float | None]] = {}
    for dtype in dtypes:
        for sample in samples_of(HELD_OUT.values(), dtype, device, rows_of(count)):
            losses.setdefault((dtype, sample.kind), []).append(built.loss_of(sample.question))
    every = [loss for found in losses.values() for loss in found]
    return [_row(*name, found) for name, found in losses.items()] + [_row("all", "", every)]


def _rounded(value: Any) -> Any:
    """Return a value with 4 significant digits if it is a float."""
    return significant(value) if isinstance(value, float) else value


def _row(dtype: str, kind: str, losses: Sequence[float | None]) -> Row:
    """Return the line of the table for some calls, whose losses are None if the library does not serve them."""
    served = sorted(loss for loss in losses if loss is not None)
    worst = served[min(len(served) - 1, int(0.95 * len(served)))] if served else 0.0
    return Row(dtype, kind, len(losses), len(served) / len(losses), fmean(served) if served else 0.0, worst)


def table(rows: Sequence[Row], kernels: int) -> str:
    """Return the table as text.

    >>> print(table([Row("bf16", "forward", 100, 0.97, 0.011, 0.05)], 400))
    400 kernels                          calls  served  mean loss  95% below
    bf16 forward                           100   97.0%      1.10%      5.00%
    """
    lines = [f"{f'{kernels} kernels':36} {'calls':>5} {'served':>7} {'mean loss':>10} {'95% below':>10}"]
    lines += [
        f"{f'{row.dtype} {row.kind}':36} {row.calls:5} {row.served:7.1%} {row.loss:10.2%} {row.worst:10.2%}"
        for row in rows
    ]
    return "\n".join(lines)


def measured(built: Built, device: Device, count: int) -> list[dict[str, Any]]:
    """Return times of the library's plan and of the chosen one, on a GPU, for random calls of held-out layers.

    count    number of calls, of bf16: forward, data gradient and weight gradient
    returns  for each call: kind and extents; if the library serves it also both plans, us of each, and their ratio
    """
    import torch

    from cutegemm.compile.plans import compile_plans
    from cutegemm.run.gemm import gemm
    from cutegemm.run.question import decide
    from cutegemm.run.timing import alternating
    from cutegemm.torch.prebuilt import samples_of

    samples = [s for s in samples_of(HELD_OUT.values(), "bf16", device, rows_of(2)) if s.question.ending is None]
    pairs, results = [], list[dict[str, Any]]()
    for sample in random.Random(_SEED).sample(samples, min(count, len(samples))):
        found = fastest_built(sample.question, built.names, built.has, MOST_LOSS)
        if found is None:
            results.append({"kind": sample.kind, "extents": [*sample.question.extents[:3]]})
        else:
            fastest = next(sample.question.ranked()).recipe
            pairs.append((sample, found[0].plan, decide(sample.question, fastest).plan))
    compile_plans(dict.fromkeys(best for _, _, best in pairs), device.arch)
    for sample, ours, best in pairs:
        m, n, k, _ = sample.question.extents
        operands = sample.question.boxed
        a = torch.randn((m, k) if operands.a.major == "k" else (k, m), device="cuda").bfloat16()
        b = torch.randn((n, k) if operands.b.major == "k" else (k, n), device="cuda").bfloat16()
        a, b = a if operands.a.major == "k" else a.t(), b.t() if operands.b.major == "k" else b
        out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
        calls = [partial(gemm, a, b, out=out, plan=plan) for plan in (ours, best)]
        us = [significant(seconds * 1e6) for seconds in alternating(calls, _SECONDS)]
        plans = {"plan": ours.name, "chosen": best.name, "us": us[0], "chosen_us": us[1]}
        results.append({"kind": sample.kind, "extents": [m, n, k], **plans, "ratio": significant(us[0] / us[1])})
    return results


def table_of(record: Mapping[str, Any]) -> str:
    """Return the predicted calls of a record as a table in Markdown, one line for each type.

    >>> row = {"dtype": "bf16", "calls": 90, "served": 1.0, "loss": 0.01}
    >>> print(table_of({"rows": [row, {**row, "calls": 10, "served": 0.5}]}).splitlines()[-1])
    | bf16 | 100 | 95.0% | 1.00% |
    """
    lines = []
    for dtype in dict.fromkeys(row["dtype"] for row in record["rows"]):
        rows = [row for row in record["rows"] if row["dtype"] == dtype]
        calls, served = sum(row["calls"] for row in rows), sum(row["calls"] * row["served"] for row in rows)
        loss = sum(row["calls"] * row["served"] * row["loss"] for row in rows) / served
        lines.append([dtype, f"{calls}", f"{served / calls:.1%}", f"{loss:.2%}"])
    return markdown(["type", "calls", "served", "mean loss"], lines)


def told(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a summary of measured calls.

    >>> print(told([{"ratio": 1.02}, {"ratio": 1.0}, {"kind": "forward"}]))
    2 of 3 calls served: time of the library's plan / time of the chosen plan, geometric mean 1.0100, worst 1.020
    """
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    return (
        f"{len(ratios)} of {len(rows)} calls served: time of the library's plan / time of the chosen plan, geometric "
        f"mean {geometric_mean(ratios):.4f}, worst {max(ratios):.3f}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line of this module."""
    parser = parser_of("prebuilt", __doc__)
    parser.add_argument(
        "--library", type=Path, help="folder of `cutegemm export --models`; it is built if it does not exist"
    )
    parser.add_argument("--dtype", action="append", choices=("bf16", "f16", "fp8"), help="may be repeated; default all")
    parser.add_argument("--rows", type=int, default=3, help="numbers of rows of each layer and kind of call")
    parser.add_argument("--device", default="h100", help="device of the predicted times")
    parser.add_argument("--measure", type=int, metavar="CALLS", help="time that many calls on the GPU instead")
    given = to_measure(parser, arguments, table_of)
    if given is None:
        return
    dtypes = given.dtype or ["bf16", "f16", "fp8"]
    device = device_named(given.device)
    if given.measure:
        from docs.evidence.measure import need_gpu, this_device

        need_gpu()
        device, dtypes = this_device(), ["bf16"]
    if given.library:
        built = Built.of_library(library_in(given.library), device.arch)
    else:
        built = Built.predicted(dtypes, device)
    if given.measure:
        from docs.evidence.measure import machine

        rows, of = measured(built, device, given.measure), machine()
        print(told(rows))
    else:
        lines, of = predicted(built, dtypes, device, given.rows), {**cpu(), "command": command()}
        rows = [{key: _rounded(value) for key, value in vars(line).items()} for line in lines]
        print(table(lines, len(built.keys)))
    if given.json:
        write_record(given.json, {"machine": of, "device": device.name, "kernels": len(built.keys), "rows": rows})
