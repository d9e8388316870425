"""`cutegemm ranks`: explain, draw and simulate the schedule of a GEMM with communication between GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cutegemm.build.building import Complaints, made
from cutegemm.cli.inputs import not_writable
from cutegemm.cli.output import drawing_width, output
from cutegemm.dtypes import DType
from cutegemm.errors import SimulationError
from cutegemm.machine.device import DEFAULT_DEVICE, device_named
from cutegemm.ranks import FORMS, Prediction, explained, forms_of, miniature, predictions, simulate_schedule


def schedule(
    operation: Annotated[str, typer.Argument(help="all-gather, reduce-scatter or all-reduce.")],
    m: Annotated[int, typer.Argument(metavar="M", help="Rows of all ranks together.")],
    n: Annotated[int, typer.Argument(metavar="N", help="Columns of the weights of one rank.")],
    k: Annotated[int, typer.Argument(metavar="K", help="Rows of the weights of one rank.")],
    count: Annotated[int, typer.Option("--ranks", help="Number of ranks, each with a GPU.")] = 2,
    dtype: Annotated[str, typer.Option(help="Element type of the operands and of D.")] = "bf16",
    form: Annotated[
        str | None,
        typer.Option(help="whole (one GEMM), by_shard or by_copy. The default has the lowest predicted time."),
    ] = None,
    graph: Annotated[
        bool, typer.Option("--graph", help="For a CUDA graph, which replays one copy of buffers.")
    ] = False,
    device: Annotated[str, typer.Option(help="Device whose rates the time model uses: h200, h100, ...")] = "h200",
    steps: Annotated[bool, typer.Option("--steps", help="List the steps of rank 0.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the simulated interleavings and operands.")] = 0,
    svg: Annotated[Path | None, typer.Option(help="Draw the timeline of ranks 0 and 1 into this SVG file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Schedule a GEMM with communication between GPUs: predict its time, show its timeline, and simulate it.

    all-gather: each rank has M / RANKS rows of A, and multiplies the rows of all ranks by its own weights.

    reduce-scatter: each rank multiplies M rows by its share of the weights along K, and gets M / RANKS rows of the sum.

    all-reduce: the same, and each rank gets all rows of the sum.

    The simulation plays all ranks in random interleavings, on few rows and columns with the same steps.
    """
    from cutegemm.draw import draw, save

    complaints = Complaints("ranks")
    on = complaints.attempt(lambda: device_named(device)) or DEFAULT_DEVICE
    kind = complaints.attempt(lambda: DType.parse(dtype))
    complaints.violations += not_writable("svg", svg, ".svg")
    name = operation.replace("-", "_")
    forms = forms_of(name) or FORMS
    if form is not None and form not in forms:
        complaints.violations.append(f"--form {form}: use one of {', '.join(forms)}.")
    complaints.check()
    found = predictions(name, count, m, n, k, made(kind), is_captured=graph, device=on)
    found = [one for one in found if form in (None, one.schedule.form)]
    first = found[0]
    report = simulate_schedule(miniature(first.schedule), seed=seed)
    if svg is not None:
        save(first.timeline((0, 1)), svg)
    if as_json:
        faults = [str(fault) for fault in report.faults]
        print(json.dumps({"candidates": [_data(one) for one in found], "faults": faults}, indent=2))
    else:
        console = output()
        for text in (
            explained(found),
            *([first.schedule.described(0)] if steps else []),
            draw(first.timeline(), kind="text", width=drawing_width(console)).rstrip(),
            f"simulated {miniature(first.schedule)}\n{report}",
            *([f"drew {svg}"] if svg else []),
        ):
            console.print(text, markup=False, soft_wrap=True)
    if report.faults:
        raise SimulationError(str(first.schedule), report.faults)


def _data(prediction: Prediction) -> dict[str, Any]:
    """Return a prediction as a dict for JSON."""
    of = prediction.schedule
    return {
        "operation": of.operation,
        "form": of.form,
        "chunks": of.chunks,
        "us": prediction.us,
        "gemm_us": prediction.gemm_us,
        "outside_us": prediction.outside_us,
        "symmetric_bytes": sum(buffer.size_bytes for buffer in of.buffers if buffer.is_symmetric),
    }
