"""`cutegemm gemm`: the main job. Runs a plan on the GPU of this machine, or simulates and compiles it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
from collections.abc import Callable
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

from cutegemm.arch import DEFAULT_ARCH, arch_named
from cutegemm.cli.inputs import Extents, Matrices, as_multiplied, check_name, dtype_of, extents_of, plan_for
from cutegemm.dtypes import DType, f32, round_to, tf32
from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.plan import GemmPlan, Operands, Problem
from cutegemm.plan.building import Complaints

# Multiplications that are simulated whole unless asked for more: about half a minute.
_MOST_SIMULATED = 1 << 30
_MOST_EMULATED = 1 << 27  # the same of the compiled kernel, instruction by instruction
# |D - reference| / |reference| in the Frobenius norm, by the type of D: a few roundings of its values.
_TOLERANCE = {"f64": 1e-13, "f32": 1e-5, "f16": 2e-3, "bf16": 1.6e-2, "e4m3": 5e-2, "e5m2": 1e-1}
_TOLERANCE_OF_FLOAT8 = 1e-2  # at least: wgmma keeps about 14 bits of a sum of their products
_TOLERANCE_OF_TF32 = 2e-3  # where A and B lose bits: each 10 bits of mantissa, cut off
_KEY_INSTRUCTIONS = (
    "FFMA", "DFMA", "HMMA", "HGMMA", "LDS", "LDSM", "STS", "STSM", "LDG", "LDGSTS", "STG",
    "UTMALDG", "UTMASTG", "BAR",
)  # fmt: skip


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
    out_dtype: Annotated[str | None, typer.Option(help="Element type of C and D; that of A and B.")] = None,
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

    The output says which of them was done.
    """
    complaints = Complaints()
    complaints.attempt(lambda: _check_writable(out))
    kind = complaints.attempt(lambda: dtype_of(dtype, plan)) or f32
    result = complaints.attempt(lambda: DType.parse(out_dtype or Operands.of(kind).d.dtype)) or kind
    operands = complaints.attempt(lambda: Operands.of(kind, layout=layout, out=result))
    complaints.attempt(lambda: arch_named(arch))
    of = complaints.attempt(lambda: extents_of((m, n, k, batch), {"a": a, "b": b, "c": c}))
    if seed < 0:
        complaints.broken.append(f"the seed is {seed}; 0 or more is expected.")
    if complaints.broken or operands is None or of is None:
        if plan is not None:
            complaints.attempt(lambda: check_name(plan))
        raise PlanError("gemm", complaints.broken)
    operands = replace(operands, batched=of.batch is not None).fitted(of.m, of.n, of.k)
    problem = Problem(of.m, of.n, of.k, 1 if of.batch is None else of.batch, operands)
    console = Console(stderr=as_json, highlight=False)
    found = "" if emulated else _gpu()
    gpu = None if isinstance(found, str) else found
    chosen = plan_for(plan, problem, arch if gpu is None else gpu["arch"], beta != 0)
    problem = as_multiplied(problem, chosen)
    broken = chosen.violations(problem=problem)
    if broken:
        raise PlanError(f"plan {chosen.name!r} on {problem}", broken)
    part = None
    if gpu is None and not whole and out is None and not of.files:
        part = _corner(chosen, of, _MOST_EMULATED if emulated else _MOST_SIMULATED)
    given = (part or of).matrices(kind, result, beta, seed)
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("", total=None)

        def say(text: str) -> None:
            progress.update(task, description=text)

        if gpu is not None:
            report, d = _run(chosen, problem, given, alpha, beta, gpu, say)
        else:
            report, d = _simulate(chosen, problem, given, alpha, beta, arch, part, emulated, say)
            if found:
                report["no_gpu"] = found
    if out is not None:
        np.save(out, d)
        report["out"] = str(out)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _print(report, console)
    if not report["correct"]:
        raise typer.Exit(1)


def _check_writable(out: Path | None) -> None:
    """raises PlanError, before anything is computed, where D could not be written"""
    if out is None:
        return
    broken = []
    if out.suffix != ".npy":
        broken.append(f"--out {out} does not end in .npy.")
    if not out.parent.is_dir():
        broken.append(f"--out {out}: there is no folder {out.parent}.")
    elif out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        broken.append(f"--out {out} cannot be written.")
    if broken:
        raise PlanError("gemm", broken)


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
    from cutegemm.torch_ops import device_arch

    try:
        return {"name": torch.cuda.get_device_name(0), "arch": device_arch(0)}
    except UnsupportedError as error:
        return str(error)


def _head(plan: GemmPlan, problem: Problem, did: str) -> dict[str, Any]:
    return {
        "did": did,
        "problem": str(problem),
        "operands": str(plan.operands),
        "plan": plan.name,
        "summary": plan.summary,
        "hierarchy": plan.describe(problem),
    }


def _agreement(
    d: np.ndarray, given: Matrices, alpha: float, beta: float, operands: Operands
) -> dict[str, Any]:
    """How far D is from float64."""
    with np.errstate(invalid="ignore"):  # infinities and NaN are held against D one by one
        reference = alpha * (given.a.astype(np.float64) @ given.b.astype(np.float64))
        if beta != 0 and given.c is not None:
            reference = reference + beta * given.c
    if reference.size == 0:
        return {"relative_error": 0.0, "tolerance": 0.0, "correct": True}
    finite = np.isfinite(reference)
    same = np.array_equal(d[~finite].astype(np.float64), reference[~finite], equal_nan=True)
    scale = float(np.linalg.norm(reference[finite])) or 1.0
    error = float(np.linalg.norm(d[finite].astype(np.float64) - reference[finite])) / scale
    rounded = (operands.d.dtype, operands.acc) if operands.acc.is_float else (operands.d.dtype,)
    tolerance = max(_TOLERANCE.get(kind.name, 0.1) for kind in rounded)
    if operands.a.dtype.is_float and operands.a.dtype.bits == 8:
        tolerance = max(tolerance, _TOLERANCE_OF_FLOAT8)
    if operands.a.dtype is tf32 and any((round_to(tf32, x) != x).any() for x in (given.a, given.b)):
        tolerance = max(tolerance, _TOLERANCE_OF_TF32)
    return {"relative_error": error, "tolerance": tolerance, "correct": bool(error <= tolerance) and same}


def _simulate(
    plan: GemmPlan,
    problem: Problem,
    given: Matrices,
    alpha: float,
    beta: float,
    arch: str,
    part: Extents | None,
    emulated: bool,
    say: Any,
) -> tuple[dict[str, Any], np.ndarray]:
    """Carries out the plan or, emulated, the PTX that it is compiled to.

    part   the extents of what is given, where that is a part of the problem
    """
    verb = "emulat" if emulated else "simulat"
    report = _head(plan, problem, "emulated its PTX on the CPU" if emulated else "simulated on the CPU")
    if part is not None:
        text = f"{part.m}x{part.n}x{part.k}, with the same ragged edges (--whole {verb}es all of it)"
        report[f"{verb}ed"] = text
    say(f"{verb}ing")
    d, report["ctas"], report["seconds"] = _carried_out(
        plan, given, alpha, beta, arch if emulated else None, lambda done: say(f"{verb}ing: {done:.0%}")
    )
    report.update(_agreement(d, given, alpha, beta, plan.operands))
    say(f"compiling for {arch}")
    report["compiled"] = _compiled(plan, arch)
    return report, d


def _carried_out(
    plan: GemmPlan,
    given: Matrices,
    alpha: float,
    beta: float,
    emulated: str | None,
    progress: Callable[[float], None],
) -> tuple[np.ndarray, int, float]:
    """(D, CTAs that ran, seconds). emulated: the architecture that the PTX is compiled for; None: the plan"""
    a, b, c = given.a, given.b, given.c
    if emulated is None:
        from cutegemm.simulate import simulate

        simulated = simulate(plan, a, b, c, alpha=alpha, beta=beta, progress=progress)
        return simulated.d, simulated.stats.ctas, simulated.stats.seconds
    from cutegemm.emulate import emulate

    result = emulate(plan, a, b, c, alpha=alpha, beta=beta, arch=emulated, progress=progress)
    return result.d, result.ctas, result.seconds


def _corner(plan: GemmPlan, of: Extents, most: int) -> Extents | None:
    """A problem with the same ragged edges: two whole tiles and what is left over along each mode.

    most   multiply-adds that are carried out whole: then there is None
    """
    if of.m * of.n * of.k * (1 if of.batch is None else of.batch) <= most:
        return None
    m, n, k = (min(e, 2 * t + e % t) for e, t in zip((of.m, of.n, of.k), plan.cta_tile, strict=True))
    return Extents(m, n, k, None if of.batch is None else min(2, of.batch))


def _compiled(plan: GemmPlan, arch: str) -> dict[str, Any]:
    if importlib.util.find_spec("tvm_ffi") is None:
        return {"arch": arch, "skipped": "the CuTe DSL is not installed: pip install 'cutegemm[kernels]'"}
    from cutegemm.compile import compile_plan

    kernel = compile_plan(plan, arch)
    resources = kernel.resources
    return {
        "arch": arch,
        "registers": resources.registers,
        "spills": resources.spills,
        "smem_bytes": sum(plan.smem_bytes().values()),
        "code_bytes": resources.code_bytes,
        "instructions": {name: resources.count(name) for name in _KEY_INSTRUCTIONS if resources.count(name)},
        "violations": [*plan.violations(arch), *kernel.violations()],
    }


def _run(
    plan: GemmPlan,
    problem: Problem,
    given: Matrices,
    alpha: float,
    beta: float,
    gpu: dict[str, Any],
    say: Any,
) -> tuple[dict[str, Any], np.ndarray]:
    from cutegemm.bench.gemm import time_plan
    from cutegemm.torch_ops import from_numpy, run_plan

    report = _head(plan, problem, f"ran on {gpu['name']}")
    say(f"compiling for {gpu['arch']}")
    report["compiled"] = _compiled(plan, gpu["arch"])
    say("running")
    tensors = from_numpy(given.a, given.b, given.c, plan.operands)
    d = run_plan(plan, tensors, alpha, beta)
    report.update(_agreement(d, given, alpha, beta, plan.operands))
    say("timing beside cuBLAS")
    report["speed"] = time_plan(plan, tensors, problem)
    return report, d


def _print(report: dict[str, Any], console: Console) -> None:
    console.print(report["hierarchy"], markup=False, soft_wrap=True)
    console.print()
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("problem", report["problem"])
    table.add_row("did", report["did"])
    if "no_gpu" in report:
        table.add_row("", f"[yellow]{escape(report['no_gpu'])}[/yellow]")
    for verb in ("simulated", "emulated"):
        if verb in report:
            table.add_row(verb, report[verb])
    if "seconds" in report:
        table.add_row("", f"{report['ctas']} CTAs in {report['seconds']:.2f} s, no fault in any access")
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
