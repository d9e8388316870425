"""`cutegemm gemm`: the main job. Runs a plan on the GPU of this machine, or simulates and compiles it."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from cutegemm.choice.names import recipe_named
from cutegemm.cli.corner import corner_of
from cutegemm.cli.epilogue_options import EpilogueText, OperandTexts
from cutegemm.cli.inputs import Extents, Matrices, extents_of, not_writable, plan_for, transposed_array
from cutegemm.cli.job import Job, Say
from cutegemm.cli.why import next_commands, why
from cutegemm.dtypes import DType, f32
from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.machine.arch import DEFAULT_ARCH, arch_named
from cutegemm.machine.device import Device, default_device
from cutegemm.parse.epilogue import MOST_SCALAR, ParsedEpilogue, parsed_epilogue
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
            raise PlanError(
                ctx.info_name or "", [f"the extent {x} is negative; 0 or more is expected." for x in negative]
            )
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
    plan: Annotated[str | None, typer.Option(help="A name of `cutegemm plans`; chosen where left out.")] = None,
    layout: Annotated[str, typer.Option(help="BLAS letters of A and B stored row by row: nn, nt, tn, tt.")] = "nn",
    a: Annotated[Path | None, typer.Option(help="A from a .npy file.")] = None,
    b: Annotated[Path | None, typer.Option(help="B from a .npy file.")] = None,
    c: Annotated[Path | None, typer.Option(help="C from a .npy file.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write D to a .npy file.")] = None,
    alpha: Annotated[float, typer.Option(help="Factor of A @ B.")] = 1.0,
    beta: Annotated[float, typer.Option(help="Factor of C.")] = 0.0,
    epilogue: EpilogueText = None,
    operand: OperandTexts = None,
    arch: Annotated[str, typer.Option(help="Compile for this architecture where there is no GPU.")] = DEFAULT_ARCH,
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
    ending = _epilogue_rows(epilogue, operand, c, alpha, beta, dtype)
    of, operands = _extents_and_operands(
        (m, n, k, batch), dtype, out_dtype, plan, layout, {"a": a, "b": b, "c": c}, out, arch, seed
    )
    asked = _Asked(of, operands, plan, alpha, beta, ending, seed)
    machine = _machine(arch, ending is not None, emulated)
    all_of_it = machine.gpu is not None or whole or out is not None or bool(of.files)
    most = None if all_of_it else _MOST_EMULATED if emulated else _MOST_SIMULATED
    job, given = asked.job(machine, most)
    with _progress() as say:
        report, d = job.simulate(arch, emulated, say) if machine.gpu is None else job.run(machine.gpu, say)
    report["chosen"] = why(job.recipe, job.plan, plan, job.problem, machine.arch, machine.device, ending)
    ended = [] if epilogue is None else ["--epilogue", epilogue]
    ended += [part for text in operand or () for part in ("--operand", text)]
    report["next"] = next_commands(plan or str(job.recipe), asked.problem, layout, plan is None, ended)
    if machine.no_gpu:
        report["no_gpu"] = machine.no_gpu
    rounded = of.rounded(given)
    if rounded:
        report["rounded"] = rounded
    if out is not None:
        np.save(out, transposed_array(d) if job.recipe.swap_ab else d)
        report["out"] = str(out)
    if as_json:
        print(json.dumps({**report, "chosen": report["chosen"].to_dict()}, indent=2))
    else:
        _print(report, Console(highlight=False))
    if not report["correct"] or "failed" in report["compiled"]:
        raise typer.Exit(1)


def _epilogue_rows(
    epilogue: str | None,
    operand: list[str] | None,
    c: Path | None,
    alpha: float,
    beta: float,
    dtype: str | None,
) -> ParsedEpilogue | None:
    """What becomes of the sums, where it is not alpha * acc + beta * c.

    raises   PlanError for an epilogue beside these, and for factors that leave nothing to compare
    """
    ending = parsed_epilogue("gemm", epilogue, operand)
    if ending is not None and (c is not None or alpha != 1 or beta != 0):
        raise PlanError("gemm", ["--epilogue says what becomes of the sums: leave out --c, --alpha and --beta."])
    wild = [
        f"--{name} {value}: the product is held against float64, and nothing would be left to compare. A number that "
        "float32 holds is expected."
        for name, value in (("alpha", alpha), ("beta", beta))
        if not abs(value) <= (sys.float_info.max if dtype == "f64" else MOST_SCALAR)
    ]
    if wild:
        raise PlanError("gemm", wild)
    return ending


@dataclass(frozen=True)
class _Machine:
    """What a plan is chosen for.

    gpu      that runs it; None where it is carried out on the CPU
    no_gpu   why there is none, where something is to be said about that
    """

    arch: str
    device: Device
    gpu: dict[str, Any] | None = None
    no_gpu: str = ""


def _machine(arch: str, has_epilogue: bool, emulated: bool) -> _Machine:
    """The GPU that there is; else an architecture and its usual device."""
    found = "" if emulated else _gpu()
    if has_epilogue and not isinstance(found, str):
        found = "an epilogue is run on the GPU by cutegemm.gemm(a, b, epilogue=...)"
    if isinstance(found, str):
        return _Machine(arch, default_device(arch), no_gpu=found)
    return _Machine(found["arch"], found["device"], found)


@dataclass(frozen=True)
class _Asked:
    """What is asked for, checked as far as that can be done without a plan.

    of       extents, and what files hold
    plan     a name; None where it is chosen
    ending   what becomes of the sums, where it is not alpha * acc + beta * c
    """

    of: Extents
    operands: Operands
    plan: str | None
    alpha: float
    beta: float
    ending: ParsedEpilogue | None
    seed: int

    @property
    def problem(self) -> Problem:
        of = self.of
        return Problem(of.m, of.n, of.k, 1 if of.batch is None else of.batch, self.operands)

    def job(self, machine: _Machine, most: int | None) -> tuple[Job, Matrices]:
        """What is to be done, and the matrices of the problem before it is transposed.

        most   multiplications, where a corner of the problem that has no more is enough; None for all of it
        """
        beta, ending, of, corner = self.beta, self.ending, self.of, None
        recipe, plan, solved = plan_for(self.plan, self.problem, machine.arch, machine.device, beta != 0, ending)
        if most is not None:
            corner = corner_of(plan, solved, of.transposed if recipe.swap_ab else of, most)
        if corner is not None:
            of = corner.extents.transposed if recipe.swap_ab else corner.extents
        given = of.matrices(self.operands.a.dtype, self.operands.d.dtype, beta, self.seed)
        values: dict[str, Any] = {}
        if ending is not None:
            values = ending.values(plan.operands, of.m, of.n, of.batch, self.seed)
        of_plan = given
        if recipe.swap_ab:
            of_plan = given.transposed
            values = {name: transposed_array(x) if isinstance(x, np.ndarray) else x for name, x in values.items()}
        return Job(recipe, plan, solved, of_plan, self.alpha, beta, corner, values), given


def _extents_and_operands(
    extents: tuple[int | None, int | None, int | None, int | None],
    dtype: str | None,
    out_dtype: str | None,
    plan: str | None,
    layout: str,
    files: dict[str, Path | None],
    out: Path | None,
    arch: str,
    seed: int,
) -> tuple[Extents, Operands]:
    """Extents and operands, once all that can be said without a plan has been checked.

    raises   PlanError with everything that is wrong
    """
    complaints = Complaints("gemm")
    complaints.violations += not_writable("out", out, ".npy")
    kind = complaints.attempt(lambda: dtype_of(dtype, plan)) or f32
    result = None if out_dtype is None else complaints.attempt(lambda: DType.parse(out_dtype))
    operands = complaints.attempt(lambda: operands_for(kind, layout, result))
    complaints.attempt(lambda: arch_named(arch))
    of = complaints.attempt(lambda: extents_of(extents, files))
    if seed < 0:
        complaints.violations.append(f"the seed is {seed}; 0 or more is expected.")
    if plan is not None and complaints.violations:
        complaints.attempt(lambda: recipe_named(plan))
    complaints.check()
    of = made(of)
    return of, replace(made(operands), batched=of.batch is not None).fitted(of.m, of.n, of.k)


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
    error = f"relative error {report['relative_error']:.2e} (tolerance {report['tolerance']:.0e})"
    table.add_row("against float64", f"{verdict}: {report.get('not_finite', error)}")
    compiled = report["compiled"]
    if "skipped" in compiled:
        table.add_row(f"compiled for {compiled['arch']}", f"[yellow]no[/yellow]: {escape(compiled['skipped'])}")
    else:
        table.add_row(
            f"compiled for {compiled['arch']}",
            f"{compiled['registers']} registers, {compiled['spills']} spills, {compiled['smem_bytes']} bytes "
            f"of shared memory, {compiled['code_bytes']} bytes of code",
        )
        found = ", ".join(f"{count} {name}" for name, count in compiled["instructions"].items())
        table.add_row("SASS", found)
        violations = compiled["violations"]
        table.add_row(
            "rules", "[green]all kept[/green]" if not violations else "[red]" + "\n".join(violations) + "[/red]"
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
