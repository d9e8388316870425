"""`cutegemm gemm`: run a GEMM plan on the GPU of this machine, or simulate and compile it."""

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
from cutegemm.cli.inputs import (
    HOW_TO_GIVE_EXTENTS,
    Extents,
    Matrices,
    extents_of,
    not_writable,
    plan_for,
    transposed_array,
)
from cutegemm.cli.job import Job, Say
from cutegemm.cli.operand_options import Along, EpilogueText, GroupCount, OperandTexts, Scales
from cutegemm.cli.output import output
from cutegemm.cli.why import next_commands, why
from cutegemm.dtypes import DType, f32
from cutegemm.errors import PlanError, UnsupportedError, how_to_install
from cutegemm.machine.arch import DEFAULT_ARCH, arch_named
from cutegemm.machine.device import Device, default_device
from cutegemm.parse.epilogue import MOST_SCALAR, ParsedEpilogue, parsed_epilogue
from cutegemm.parse.groups import Groups, groups_of
from cutegemm.parse.plan import dtype_of, operands_for, problem_of
from cutegemm.plan import Operands, Problem

# A problem with more multiply-adds is replaced by a corner of it, unless --whole is given. The limit is half a minute.
_MOST_SIMULATED = 1 << 30
_MOST_EMULATED = 1 << 27  # limit for --emulate, which executes single instructions
_SILENT_S = 5.0  # between two lines of progress if stderr is not a terminal


class Command(TyperCommand):
    """A typer command that reports a negative extent, as in `cutegemm gemm -5 8 8`, as a wrong extent.

    Otherwise typer would report an unknown option -5.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        alone = [x for before, x in pairwise(["", *args]) if not before.startswith("--")]
        negative = [x for x in alone if re.fullmatch(r"-\d+", x)]
        if negative and "--" not in args:
            raise PlanError(ctx.info_name or "", [f"the extent {x} is negative. Give 0 or more." for x in negative])
        return super().parse_args(ctx, args)


def command(
    m: Annotated[int | None, typer.Argument(metavar="M", help="Rows of A and D.")] = None,
    n: Annotated[int | None, typer.Argument(metavar="N", help="Columns of B and D.")] = None,
    k: Annotated[int | None, typer.Argument(metavar="K", help="Columns of A, rows of B.")] = None,
    batch: Annotated[int | None, typer.Option(help="Number of matrices in the batch.")] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Element type of A and B: f32, f16, bf16, tf32, f64, e4m3, e5m2, s8. The default is f32, or "
            "bf16 with a plan for wgmma or --groups."
        ),
    ] = None,
    out_dtype: Annotated[
        str | None,
        typer.Option(
            help="Element type of C and D. The default is that of A and B, bf16 for 8-bit floats, s32 for s8."
        ),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(help="A name listed by `cutegemm plans`. By default the plan is chosen for the problem."),
    ] = None,
    layout: Annotated[str, typer.Option(help="BLAS letters of A and B stored row by row: nn, nt, tn, tt.")] = "nn",
    scales: Scales = None,
    groups: GroupCount = None,
    along: Along = "m",
    ends: Annotated[
        str | None, typer.Option(help="End of each group, such as 100,300,512. By default random, from --seed.")
    ] = None,
    a: Annotated[Path | None, typer.Option(help="Read A from this .npy file.")] = None,
    b: Annotated[Path | None, typer.Option(help="Read B from this .npy file.")] = None,
    c: Annotated[Path | None, typer.Option(help="Read C from this .npy file.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write D to this .npy file.")] = None,
    alpha: Annotated[float, typer.Option(help="Factor of A @ B.")] = 1.0,
    beta: Annotated[float, typer.Option(help="Factor of C.")] = 0.0,
    epilogue: EpilogueText = None,
    operand: OperandTexts = None,
    arch: Annotated[str, typer.Option(help="Architecture to compile for if no GPU is used.")] = DEFAULT_ARCH,
    seed: Annotated[int, typer.Option(help="Seed of the random matrices.")] = 0,
    whole: Annotated[
        bool, typer.Option("--whole", help="Simulate a large problem completely, not only a corner of it.")
    ] = False,
    emulated: Annotated[
        bool, typer.Option("--emulate", help="Compile the plan and execute its PTX on the CPU.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compute D = alpha * A @ B + beta * C, check D against float64, and report what the kernel does.

    With a GPU: run the kernel and compare its speed with cuBLAS.

    Without a GPU: simulate the plan thread by thread, and compile the kernel for --arch.

    With --emulate: compile the kernel for --arch and execute its PTX on the CPU.

    With --scales: multiply float8 with random block scales, on the CPU.

    With --groups: multiply groups of rows of A (or of N, or of K, see --along) by a matrix of their own, on the CPU.

    With --epilogue: compute D by that expression instead of alpha and beta, on the CPU.

    The output shows which of these was done.
    """
    ending = _epilogue_rows(epilogue, operand, c, alpha, beta, dtype)
    files = {"a": a, "b": b, "c": c}
    grouped = _groups(groups, along, ends, {"batch": batch, "scales": scales, "epilogue": epilogue, **files})
    size, operands = _extents_and_operands(
        (m, n, k, grouped.count if grouped else batch), dtype, out_dtype, plan, layout, files, out, arch, seed, scales,
        grouped,
    )  # fmt: skip
    of_groups = grouped.ends("gemm", getattr(size, along), ends, seed) if grouped else ()
    request = _Request(size, operands, plan, alpha, beta, ending, seed, of_groups)
    machine = _machine(arch, _on_cpu(ending, scales, grouped), emulated)
    is_whole = machine.gpu is not None or whole or out is not None or bool(size.files)
    most = None if is_whole else _MOST_EMULATED if emulated else _MOST_SIMULATED
    job, matrices = request.job(machine, most)
    with _progress() as say:
        report, d = job.simulate(arch, emulated, say) if machine.gpu is None else job.run(machine.gpu, say)
    report["chosen"] = why(job.recipe, job.plan, plan, job.problem, machine.arch, machine.device, ending)
    options = [] if epilogue is None else ["--epilogue", epilogue]
    options += [word for text in operand or () for word in ("--operand", text)]
    report["next"] = next_commands(plan or str(job.recipe), request.problem, layout, plan is None, options)
    if machine.no_gpu:
        report["no_gpu"] = machine.no_gpu
    rounded = size.rounded(matrices)
    if rounded:
        report["rounded"] = rounded
    if out is not None:
        np.save(out, transposed_array(d) if job.recipe.swap_ab else d)
        report["out"] = str(out)
    if as_json:
        print(json.dumps({**report, "chosen": report["chosen"].to_dict()}, indent=2))
    else:
        _print(report, output())
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
    """Parse the epilogue options of `cutegemm gemm`; return None for the default epilogue alpha * acc + beta * c.

    epilogue, operand       options --epilogue and --operand; None if they are absent
    c, alpha, beta, dtype   options --c, --alpha, --beta and --dtype; an epilogue replaces the first three, and dtype
                            decides the range of alpha and beta
    raises                  PlanError if an epilogue is given together with C, alpha or beta, or if alpha or beta is not
                            a finite number of float32 (float64 for f64)
    """
    ending = parsed_epilogue("gemm", epilogue, operand)
    if ending is not None and (c is not None or alpha != 1 or beta != 0):
        raise PlanError("gemm", ["--epilogue replaces alpha * acc + beta * c: leave out --c, --alpha and --beta."])
    wild = [
        f"--{name} {value} is not finite in {'float64' if dtype == 'f64' else 'float32'}, so that D cannot be compared "
        "with a reference. Give a finite number."
        for name, value in (("alpha", alpha), ("beta", beta))
        if not abs(value) <= (sys.float_info.max if dtype == "f64" else MOST_SCALAR)
    ]
    if wild:
        raise PlanError("gemm", wild)
    return ending


@dataclass(frozen=True)
class _Machine:
    """The machine that a plan is chosen for and runs on: a GPU, or an architecture that is simulated.

    arch     architecture to compile for, such as "sm_90a"
    device   device whose rates (memory, MMA) predict the times of plans, to choose the fastest
    gpu      "name", "arch" and "device" of the GPU that runs the plan; None if the plan is simulated on the CPU
    no_gpu   reason why the GPU is not used; "" if there is nothing to report
    """

    arch: str
    device: Device
    gpu: dict[str, Any] | None = None
    no_gpu: str = ""


def _groups(count: int | None, along: str, ends: str | None, others: dict[str, Any]) -> Groups | None:
    """Return the groups of the options --groups and --along; None without --groups.

    ends     option --ends; None if it is absent
    others   options that cannot be combined with --groups, by name; None for one that is absent
    raises   PlanError for an option that belongs to groups without --groups, or that groups cannot have
    """
    if count is None:
        if ends is not None:
            raise PlanError("gemm", [f"--ends {ends} needs --groups."])
        return None
    wrong = [f"--{name} and --groups exclude each other." for name, value in others.items() if value is not None]
    if wrong:
        raise PlanError("gemm", wrong)
    return groups_of("gemm", count, along)


def _on_cpu(ending: ParsedEpilogue | None, scales: str | None, groups: Groups | None) -> str:
    """Return what the command computes only on the CPU, and how to compute it on the GPU; "" for nothing."""
    if groups is not None:
        return "groups on the GPU: call cutegemm.torch.grouped.functional.grouped_mm"
    if ending is None and scales is None:
        return ""
    what, option = ("an epilogue", "epilogue") if ending is not None else ("block scales", "scales")
    return f"{what} on the GPU: call cutegemm.gemm(a, b, {option}=...)"


def _machine(arch: str, on_cpu: str, emulated: bool) -> _Machine:
    """Return the machine that a plan is chosen for: this machine's GPU if it can run the command, else `arch`.

    arch       architecture of the command line, such as "sm_90a"; its default device is used
    on_cpu     why the command computes only on the CPU; "" if it can run on a GPU
    emulated   True if the compiled PTX is executed on the CPU, so that no GPU is used
    """
    gpu = "" if emulated else _gpu()
    if on_cpu and not isinstance(gpu, str):
        gpu = on_cpu
    if isinstance(gpu, str):
        return _Machine(arch, default_device(arch), no_gpu=gpu)
    return _Machine(gpu["arch"], gpu["device"], gpu)


@dataclass(frozen=True)
class _Request:
    """Holds the GEMM that a user asked for on the command line, after the checks that need no kernel plan.

    extents       M, N, K and the batch, and the matrices that were read from files
    operands      element types and majorness of A, B, C and D
    plan          a plan name; None to choose the plan
    alpha, beta   factors of A @ B and of C
    ending        the epilogue; None for alpha * acc + beta * c
    seed          seed of the random matrices
    ends          end of each group of a grouped GEMM; () for other GEMMs
    """

    extents: Extents
    operands: Operands
    plan: str | None
    alpha: float
    beta: float
    ending: ParsedEpilogue | None
    seed: int
    ends: tuple[int, ...] = ()

    @property
    def problem(self) -> Problem:
        """The requested GEMM as the user stated it: with A and B in their order, even if the plan swaps them."""
        size = self.extents
        return problem_of(size.m, size.n, size.k, 1 if size.batch is None else size.batch, self.operands)

    def job(self, machine: _Machine, most: int | None) -> tuple[Job, Matrices]:
        """Choose the plan for this request; return the job that computes it with the plan, and the matrices A, B and C.

        If the plan swaps A and B, the job has the transposed problem. The returned matrices are in the order of the
        user.

        machine   the machine that the plan is chosen for
        most      limit in multiply-adds for a simulation. A larger problem is replaced by a smaller one that exercises
                  the same cases, such as ragged tiles and several K splits. None: no limit
        raises    PlanError if the plan cannot compute the problem
        """
        beta, ending, size, corner = self.beta, self.ending, self.extents, None
        recipe, plan, solved = plan_for(self.plan, self.problem, machine.arch, machine.device, beta != 0, ending)
        if most is not None and self.ends and solved.flops > 2 * most:
            raise PlanError("gemm", [f"{solved} has more than {most} multiply-adds. Give smaller extents, or --whole."])
        if most is not None and not self.ends:
            corner = corner_of(plan, solved, size.transposed if recipe.swap_ab else size, most)
        if corner is not None:
            size = corner.extents.transposed if recipe.swap_ab else corner.extents
        matrices = size.matrices(self.operands, beta, self.seed)
        scales = size.scales(self.operands, self.seed)
        values: dict[str, Any] = {}
        if ending is not None:
            values = ending.values(plan.operands, size.m, size.n, size.batch, self.seed)
        multiplied = matrices
        if recipe.swap_ab:
            multiplied = matrices.transposed
            values = {name: transposed_array(x) if isinstance(x, np.ndarray) else x for name, x in values.items()}
        return Job(recipe, plan, solved, multiplied, self.alpha, beta, corner, values, scales, self.ends), matrices


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
    scales: str | None,
    groups: Groups | None,
) -> tuple[Extents, Operands]:
    """Return the extents and operands of `cutegemm gemm`, after all checks that need no plan.

    extents                                      (M, N, K, L); None for one that a file gives
    dtype, out_dtype, plan, layout, arch, seed   options of the same names, as text or None
    files                                        paths of A, B and C by "a", "b" and "c"; None for a random matrix
    out                                          file to write D to; None for none
    scales                                       option --scales; None if it is absent
    groups                                       groups of a grouped GEMM, whose number is L; None for other GEMMs
    raises                                       PlanError with everything that is wrong
    """
    if all(given is None for given in (*extents[:3], *files.values())):
        raise UnsupportedError(f"gemm: M, N and K are not given. {HOW_TO_GIVE_EXTENTS}")
    complaints = Complaints("gemm")
    complaints.violations += not_writable("out", out, ".npy")
    kind = complaints.attempt(lambda: dtype_of(dtype if groups is None else dtype or "bf16", plan)) or f32
    result = None if out_dtype is None else complaints.attempt(lambda: DType.parse(out_dtype))
    operands = complaints.attempt(lambda: operands_for(kind, layout, result, scales))
    complaints.attempt(lambda: arch_named(arch))
    size = complaints.attempt(lambda: extents_of(extents, files))
    if seed < 0:
        complaints.violations.append(f"--seed {seed} is negative. Give 0 or more.")
    if plan is not None and complaints.violations:
        complaints.attempt(lambda: recipe_named(plan))
    complaints.check()
    size, stated = made(size), made(operands)
    whole = replace(stated, batched=size.batch is not None) if groups is None else groups.of(stated)
    return size, whole.fitted(size.m, size.n, size.k)


@contextmanager
def _progress() -> Iterator[Say]:
    """Yield a function that shows a text as progress on stderr, within a `with` block.

    It is a spinner on a terminal, otherwise a line every few seconds.
    """
    console = output(stderr=True)
    if not console.is_terminal:
        yield _Lines(console)
        return
    shown = Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console, transient=True)
    with shown:
        task = shown.add_task("", total=None)
        yield lambda text: shown.update(task, description=text)


class _Lines:
    """Prints progress messages as lines, if stderr is not a terminal; an instance is called with each message.

    At most one line is printed every 5 seconds, and none in the first 5 seconds.
    """

    def __init__(self, console: Console) -> None:
        self.console, self.last_s = console, time.monotonic()

    def __call__(self, text: str) -> None:
        if time.monotonic() - self.last_s >= _SILENT_S:
            self.last_s = time.monotonic()
            self.console.print(text, markup=False, soft_wrap=True)


def _gpu() -> dict[str, Any] | str:
    """Return "name", "arch" and "device" of this machine's GPU as a dict, or the reason why it cannot run a plan.

    The reason is "" if the machine seems to have no GPU.
    """
    seems_there = shutil.which("nvidia-smi") is not None
    missing = [
        extra
        for module, extra in (("tvm_ffi", "kernels"), ("torch", "torch"))
        if importlib.util.find_spec(module) is None
    ]
    if missing:
        return f"the GPU needs more packages. {how_to_install(*missing)}" if seems_there else ""
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
    """Print the results of `cutegemm gemm` as a table: plan, accuracy, registers, speed.

    report   fields by name, such as "plan", "correct", "compiled" and "speed"; values are texts, numbers or dicts
    """
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
        table.add_row("SASS", ", ".join(f"{count} {name}" for name, count in compiled["instructions"].items()))
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
