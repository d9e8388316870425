"""`cutegemm gemm`: the main job. Runs a plan on the GPU of this machine, or simulates and compiles it."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table
from typer.core import TyperCommand

from cutegemm.build.building import Complaints, made
from cutegemm.choose.names import recipe_named
from cutegemm.cli.corner import corner_of
from cutegemm.cli.epilogue_options import EpilogueText, OperandTexts
from cutegemm.cli.inputs import Extents, extents_of, not_writable, plan_for, turned
from cutegemm.cli.job import Job, Say
from cutegemm.cli.why import further, why
from cutegemm.dtypes import DType, f32
from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.machine.arch import DEFAULT_ARCH, arch_named
from cutegemm.machine.device import default_device
from cutegemm.parse.epilogue import parsed_epilogue
from cutegemm.parse.plan import dtype_of, operands_for
from cutegemm.plan import Operands, Problem

# Multiplications that are simulated whole unless asked for more: about half a minute.
_MOST_SIMULATED = 1 << 30
_MOST_EMULATED = 1 << 27  # the same of the compiled kernel, instruction by instruction
_SILENT_S = 5.0  # between two lines of what is being done, where there is no terminal


class Command(TyperCommand):
    """Takes a negative number for an extent, which it may not be, and not for an option that it does not know."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        alone = [x for before, x in pairwise(["", *args]) if not before.startswith("--")]
        negative = [x for x in alone if re.fullmatch(r"-\d+", x)]
        if negative and "--" not in args:
            raise PlanError("gemm", [f"the extent {x} is negative; 0 or more is expected." for x in negative])
        return super().parse_args(ctx, args)


def command(
    m: Annotated[int | None, typer.Argument(metavar="M", help="Rows of A and D.")] = None,
    n: Annotated[int | None, typer.Argument(metavar="N", help="Columns of B and D.")] = None,
    k: Annotated[int | None, typer.Argument(metavar="K", help="Columns of A, rows of B.")] = None,
    batch: Annotated[int | None, typer.Option(help="How many of them.")] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Element type of A and B: f32, f16, bf16, tf32, f64, e4m3, e5m2, s8. f32 where left out, or "
            "bf16 with a plan for wgmma."
        ),
    ] = None,
    out_dtype: Annotated[
        str | None,
        typer.Option(
            help="Element type of C and D; where left out that of A and B, bf16 for 8-bit floats, s32 for s8."
        ),
    ] = None,
    plan: Annotated[
        str | None, typer.Option(help="A name of `cutegemm plans`; chosen where left out.")
    ] = None,
    layout: Annotated[
        str, typer.Option(help="BLAS letters of A and B stored row by row: nn, nt, tn, tt.")
    ] = "nn",
    a: Annotated[Path | None, typer.Option(help="A from a .npy file.")] = None,
    b: Annotated[Path | None, typer.Option(help="B from a .npy file.")] = None,
    c: Annotated[Path | None, typer.Option(help="C from a .npy file.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write D to a .npy file.")] = None,
    alpha: Annotated[float, typer.Option(help="Factor of A @ B.")] = 1.0,
    beta: Annotated[float, typer.Option(help="Factor of C.")] = 0.0,
    epilogue: EpilogueText = None,
    operand: OperandTexts = None,
    arch: Annotated[
        str, typer.Option(help="Compile for this architecture where there is no GPU.")
    ] = DEFAULT_ARCH,
    seed: Annotated[int, typer.Option(help="Of the matrices that are made up.")] = 0,
    whole: Annotated[bool, typer.Option("--whole", help="Simulate all of a large problem.")] = False,
    emulated: Annotated[
        bool, typer.Option("--emulate", help="Execute the compiled PTX on the CPU, and not the plan.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False,
) -> None:
    """D = alpha * A @ B + beta * C.

    With a GPU: runs the kernel, checks D against float64 and times it beside cuBLAS.

    Without: simulates the plan thread by thread, checks D, and compiles the kernel for --arch.

    With --emulate: compiles it for --arch and executes its PTX on the CPU.

    With --epilogue, D is what it makes of the sums, in the place of alpha and beta; it is carried out on the CPU.

    The output says which of them was done.
    """
    ending = parsed_epilogue("gemm", epilogue, operand)
    if ending is not None and (c is not None or alpha != 1 or beta != 0):
        raise PlanError(
            "gemm", ["--epilogue says what becomes of the sums: leave out --c, --alpha and --beta."]
        )
    wild = [
        f"--{name} {value}: the product is held against float64, and nothing would be left to compare."
        for name, value in (("alpha", alpha), ("beta", beta))
        if not math.isfinite(value)
    ]
    if wild:
        raise PlanError("gemm", wild)
    operands, of = _asked(
        (m, n, k, batch), dtype, out_dtype, plan, layout, {"a": a, "b": b, "c": c}, out, arch, seed
    )
    problem = Problem(of.m, of.n, of.k, 1 if of.batch is None else of.batch, operands)
    console = Console(highlight=False)
    found = "" if emulated else _gpu()
    gpu = None if isinstance(found, str) else found
    if ending is not None and gpu is not None:
        gpu, found = None, "an epilogue is run on the GPU by cutegemm.gemm(a, b, epilogue=...)"
    of_arch, device = (arch, default_device(arch)) if gpu is None else (gpu["arch"], gpu["device"])
    recipe, taken, solved = plan_for(plan, problem, of_arch, device, beta != 0, ending)
    is_turned, corner = recipe.transposed, None
    if gpu is None and not whole and out is None and not of.files:
        seen = of.transposed if is_turned else of
        corner = corner_of(taken, solved, seen, _MOST_EMULATED if emulated else _MOST_SIMULATED)
    carried = of if corner is None else corner.extents.transposed if is_turned else corner.extents
    given = carried.matrices(operands.a.dtype, operands.d.dtype, beta, seed)
    values = (
        {} if ending is None else ending.values(taken.operands, carried.m, carried.n, carried.batch, seed)
    )
    of_plan = given
    if is_turned:
        of_plan = given.transposed
        values = {name: turned(x) if isinstance(x, np.ndarray) else x for name, x in values.items()}
    job = Job(recipe, taken, solved, of_plan, alpha, beta, corner, values)
    with _progress() as say:
        report, d = job.simulate(arch, emulated, say) if gpu is None else job.run(gpu, say)
    report["chosen"] = why(recipe, taken, plan, solved, of_arch, device, ending)
    ended = [] if epilogue is None else ["--epilogue", epilogue]
    ended += [part for text in operand or () for part in ("--operand", text)]
    report["next"] = further(plan or str(recipe), problem, layout, plan is None, ended)
    if gpu is None and found:
        report["no_gpu"] = found
    rounded = of.rounded(given)
    if rounded:
        report["rounded"] = rounded
    if out is not None:
        np.save(out, turned(d) if is_turned else d)
        report["out"] = str(out)
    if as_json:
        print(json.dumps({**report, "chosen": report["chosen"].to_dict()}, indent=2))
    else:
        _print(report, console)
    if not report["correct"]:
        raise typer.Exit(1)


def _asked(
    extents: tuple[int | None, int | None, int | None, int | None],
    dtype: str | None,
    out_dtype: str | None,
    plan: str | None,
    layout: str,
    files: dict[str, Path | None],
    out: Path | None,
    arch: str,
    seed: int,
) -> tuple[Operands, Extents]:
    """The operands and their extents, once all that can be said without a plan has been checked.

    raises   PlanError with everything that is wrong
    """
    complaints = Complaints("gemm")
    complaints.broken += not_writable("out", out, ".npy")
    kind = complaints.attempt(lambda: dtype_of(dtype, plan)) or f32
    result = None if out_dtype is None else complaints.attempt(lambda: DType.parse(out_dtype))
    operands = complaints.attempt(lambda: operands_for(kind, layout, result))
    complaints.attempt(lambda: arch_named(arch))
    of = complaints.attempt(lambda: extents_of(extents, files))
    if seed < 0:
        complaints.broken.append(f"the seed is {seed}; 0 or more is expected.")
    if plan is not None and complaints.broken:
        complaints.attempt(lambda: recipe_named(plan))
    complaints.check()
    of = made(of)
    return replace(made(operands), batched=of.batch is not None).fitted(of.m, of.n, of.k), of


@contextmanager
def _progress() -> Iterator[Say]:
    """Shows what is being done, on the error stream: as it goes on a terminal, else a line every few seconds."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _Lines(console)
        return
    shown = Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console, transient=True)
    with shown:
        task = shown.add_task("", total=None)
        yield lambda text: shown.update(task, description=text)


class _Lines:
    """Says what is being done by lines, the first of them after `_SILENT_S` seconds."""

    def __init__(self, console: Console) -> None:
        self.console, self.said = console, time.monotonic()

    def __call__(self, text: str) -> None:
        if time.monotonic() - self.said >= _SILENT_S:
            self.said = time.monotonic()
            self.console.print(text, markup=False, soft_wrap=True)


def _gpu() -> dict[str, Any] | str:
    """The GPU of this machine; or why it cannot run a plan, which is "" where there seems to be none."""
    seems_there = shutil.which("nvidia-smi") is not None
    missing = [
        extra
        for module, extra in (("tvm_ffi", "kernels"), ("torch", "torch"))
        if importlib.util.find_spec(module) is None
    ]
    if missing:
        return f"to run on the GPU: pip install 'cutegemm[{','.join(missing)}]'" if seems_there else ""
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device" if seems_there else ""
    from cutegemm.run.torch_ops import device_arch, device_of

    try:
        arch, device = device_arch(0), device_of(0)
        return {"name": torch.cuda.get_device_name(0), "arch": arch, "device": device}
    except UnsupportedError as error:
        return str(error)


def _print(report: dict[str, Any], console: Console) -> None:
    console.print(report["hierarchy"], markup=False, soft_wrap=True)
    console.print()
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("problem", report["problem"])
    if "rounded" in report:
        names = ", ".join(report["rounded"])
        table.add_row("rounded", f"[yellow]{names} of the files, to values of the element type[/yellow]")
    table.add_row("plan", f"{escape(report['plan'])}: {escape(report['chosen'].reason)}")
    table.add_row(report["chosen"].label, escape(str(report["chosen"])))
    table.add_row("did", report["did"])
    if "no_gpu" in report:
        table.add_row("", f"[yellow]{escape(report['no_gpu'])}[/yellow]")
    for verb in ("simulated", "emulated"):
        if verb in report:
            table.add_row(verb, report[verb])
            table.add_row("exercised", escape(", ".join(report["exercised"])))
            missing = ", ".join(report["not_exercised"])
            table.add_row("not exercised", f"[yellow]{escape(missing)}[/yellow]" if missing else "nothing")
    if "seconds" in report:
        table.add_row("", f"{report['ctas']} CTAs in {report['seconds']:.2f} s, no fault in any access")
    if "orders" in report:
        table.add_row("roles", f"played in {report['orders']} other orders, no fault at any barrier")
    verdict = "[green]correct[/green]" if report["correct"] else "[red]WRONG[/red]"
    table.add_row(
        "against float64",
        f"{verdict}: relative error {report['relative_error']:.2e} (tolerance {report['tolerance']:.0e})",
    )
    compiled = report["compiled"]
    if "skipped" in compiled:
        table.add_row(
            f"compiled for {compiled['arch']}", f"[yellow]no[/yellow]: {escape(compiled['skipped'])}"
        )
    else:
        table.add_row(
            f"compiled for {compiled['arch']}",
            f"{compiled['registers']} registers, {compiled['spills']} spills, {compiled['smem_bytes']} bytes "
            f"of shared memory, {compiled['code_bytes']} bytes of code",
        )
        found = ", ".join(f"{count} {name}" for name, count in compiled["instructions"].items())
        table.add_row("SASS", found)
        broken = compiled["violations"]
        table.add_row(
            "rules", "[green]all kept[/green]" if not broken else "[red]" + "\n".join(broken) + "[/red]"
        )
    if "speed" in report:
        speed = report["speed"]
        beside = "torch has nothing for these types and shapes"
        if "ratio" in speed:
            beside = f"cuBLAS {speed['cublas_tflops']:.1f}, ratio [bold]{speed['ratio']:.3f}[/bold]"
        table.add_row("speed", f"{speed['tflops']:.1f} TFLOP/s, {beside}")
    if "out" in report:
        table.add_row("D written to", report["out"])
    console.print(table)
    console.print("\nMore of this plan:", style="bold")
    for command in report["next"]:
        console.print(f"  {command}", markup=False, soft_wrap=True)
