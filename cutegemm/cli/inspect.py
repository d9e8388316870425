"""`cutegemm show`, `plans`, `check` and `profile`: what a layout or a plan is, and what it will do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from cutegemm.arch import DEFAULT_ARCH
from cutegemm.dtypes import DType
from cutegemm.errors import LayoutError, UnsupportedError
from cutegemm.layout import Swizzle, parse
from cutegemm.plan import GemmPlan, Operands, Problem
from cutegemm.plan.catalog import plan_named
from cutegemm.plan.catalog import plans as named_plans

_MOST_EXTENT = 2**31 - 1  # kernels count with 32 bits
_SWIZZLE = re.compile(r"\s*S<\s*(-?\d+)\s*,\s*(-?\d+)\s*,\s*(-?\d+)\s*>\s*")
_NOTATION = re.compile(r"^\s*[(S\d_LC]")

Thing = Annotated[
    str, typer.Argument(help='A layout such as "(4,8):(8,1)", a swizzle "S<3,3,3>", or the name of a plan.')
]
PlanName = Annotated[str, typer.Argument(help="A name of `cutegemm plans`, or simt:block=...")]
Extents = Annotated[str | None, typer.Option("--problem", help="MxNxK, or MxNxKxL.")]
DTypeName = Annotated[str, typer.Option("--dtype", help="Element type of A and B.")]
Letters = Annotated[str, typer.Option("--layout", help="BLAS letters: nn, nt, tn, tt.")]


def operands_and_problem(dtype: str, layout: str, problem: str | None) -> tuple[Operands, Problem | None]:
    """Operands of a type and, where extents are given, fitted to them."""
    if problem is None:
        return Operands.of(DType.parse(dtype), layout=layout), None
    extents = re.fullmatch(r"(\d+)x(\d+)x(\d+)(?:x(\d+))?", problem.strip())
    if extents is None:
        raise LayoutError(f"--problem: {problem!r} is not MxNxK or MxNxKxL.")
    m, n, k, batch = (int(e) if e else None for e in extents.groups())
    assert m is not None
    assert n is not None
    assert k is not None
    if max(m, n, k, batch or 0) > _MOST_EXTENT:
        raise LayoutError(
            f"--problem: {problem!r} has an extent above {_MOST_EXTENT}, the most that there may be."
        )
    operands = Operands.of(DType.parse(dtype), layout=layout, batched=batch is not None).fitted(m, n, k)
    return operands, Problem(m, n, k, 1 if batch is None else batch, operands=operands)


def show(
    thing: Thing,
    dtype: DTypeName = "f32",
    layout: Letters = "nn",
    problem: Extents = None,
    svg: Annotated[Path | None, typer.Option(help="Draw it into an SVG file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Draw it into an HTML page.")] = None,
) -> None:
    """A layout or a swizzle as a grid, or a plan as its hierarchy; --svg and --html draw it."""
    from cutegemm.draw import draw, save

    console = Console(highlight=False)
    options: dict[str, Any] = {}
    drawn: Any
    swizzle = _SWIZZLE.fullmatch(thing)
    if swizzle is not None:
        drawn = Swizzle(*map(int, swizzle.groups()))
        console.print(draw(drawn, kind="text", width=console.width), markup=False, soft_wrap=True)
    elif _NOTATION.match(thing) and ":" in thing + ":" and thing not in dict(named_plans()):
        drawn = parse(thing)
        console.print(draw(drawn, kind="text", width=console.width), markup=False, soft_wrap=True)
    else:
        operands, of = operands_and_problem(dtype, layout, problem)
        drawn = plan_named(thing, operands)
        console.print(drawn.describe(of), markup=False, soft_wrap=True)
        options = {} if of is None else {"problem": of}
    for path in (svg, html):
        if path is not None:
            save(drawn, path, **options)
            console.print(f"drawn into {path}", markup=False)


def plans() -> None:
    """Every named plan, with what it does differently."""
    table = Table(box=None, pad_edge=False)
    table.add_column("plan", style="bold", no_wrap=True)
    table.add_column("what is behind it")
    for name, summary in named_plans():
        table.add_row(name, summary)
    Console(highlight=False).print(table)


def _plan(
    name: str, dtype: str, layout: str, problem: str | None, arch: str = DEFAULT_ARCH
) -> tuple[GemmPlan, Problem | None]:
    operands, of = operands_and_problem(dtype, layout, problem)
    return plan_named(name, operands, arch=arch), of


def check(
    plan: PlanName,
    dtype: DTypeName = "f32",
    layout: Letters = "nn",
    problem: Extents = "4096x4096x4096",
    device: Annotated[
        str | None, typer.Option(help="h200, a100-80gb, rtx4090, ...; h200 where left out.")
    ] = None,
    arch: Annotated[str | None, typer.Option(help="An architecture instead of a device.")] = None,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="With the registers of the compiled kernel.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False,
) -> None:
    """What a plan will do on the hardware: conflicts, occupancy, traffic, roofline; what to change."""
    from cutegemm.analysis import check as analyse
    from cutegemm.analysis import device_named, print_report
    from cutegemm.compile import compile_plan

    if arch and device:
        raise UnsupportedError(
            f"check: --arch {arch} and --device {device} are both given; give one of them."
        )
    target = None if arch else device_named(device or "h200")
    of_arch = arch or (target.arch if target else DEFAULT_ARCH)
    made, of = _plan(plan, dtype, layout, problem, of_arch)
    resources = compile_plan(made, of_arch).resources if compiled else None
    found = analyse(made, of, arch, target, resources)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        print_report(found, Console(highlight=False))
    if found.violations:
        raise typer.Exit(1)


def profile(
    plan: PlanName,
    dtype: DTypeName = "f32",
    layout: Letters = "nn",
    problem: Extents = "4096x4096x4096",
    ncu: Annotated[str, typer.Option(help="The command of Nsight Compute.")] = "ncu",
    as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False,
) -> None:
    """The same predictions beside the hardware counters that ncu reads while the plan runs."""
    from cutegemm import profile as profiling

    made, of = _plan(plan, dtype, layout, problem)
    assert of is not None
    measured, evidence = profiling.profile([profiling.Case(made.name, made, of)], ncu=ncu)
    for reason in evidence.failed.values():
        raise UnsupportedError(f"profile: {made.name} was not launched: {reason}")
    print(json.dumps(profiling.to_dict(measured), indent=2) if as_json else profiling.render(measured))


def figures(
    out: Annotated[Path, typer.Argument(help="The folder that they are written to.")] = Path("docs/figures"),
) -> None:
    """The figures of the documents, as SVG."""
    from cutegemm.draw.figures import figures as write

    for path in write(out):
        print(path)
