"""`cutegemm show`, `plans`, `check` and `profile`: what a layout or a plan is, and what it will do."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from cutegemm.choice.catalog import plans as named_plans
from cutegemm.choice.names import is_own, recipe_named, step_of
from cutegemm.cli import parts
from cutegemm.cli.epilogue_options import EpilogueText, OperandTexts
from cutegemm.cli.inputs import not_writable
from cutegemm.errors import UnsupportedError
from cutegemm.layout import Swizzle, parse
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.machine.device import Device, device_named
from cutegemm.parse.epilogue import parsed_epilogue
from cutegemm.parse.plan import described
from cutegemm.plan import GemmPlan, Problem
from cutegemm.plan.describe import describe_programs

_SWIZZLE = re.compile(r"\s*S(?:<|wizzle\()\s*(-?\d+)\s*,\s*(-?\d+)\s*,\s*(-?\d+)\s*[>)]\s*")
_NOTATION = re.compile(r"^\s*([(\d_LC]|S\s*<)")
# What the groups of names are: plans to use, then steps to learn from.
_GROUPS = {
    "simt": "SIMT: multiply-adds of single threads",
    "mma_sync": "mma.sync: tensor cores that multiply registers, from sm_80 on",
    "gemv": "Few columns: mma.sync, A from memory straight to fragments",
    "sm90": "Hopper: wgmma and TMA, sm_90a",
    "simt ladder": "Steps of the SIMT ladder, to learn from: docs/ladder_simt.md",
    "mma_sync ladder": "Steps of the mma.sync ladder, to learn from: docs/ladder_mma_sync.md",
    "sm90 ladder": "Steps of the Hopper ladder, to learn from; others of it are listed above: docs/ladder_hopper.md",
    "own": "Plans of one's own",
}

_AFTER_PLANS = (
    "`cutegemm show NAME` describes one, `cutegemm check NAME` analyses it. A SIMT, mma.sync or Hopper NAME may end "
    "with /k4, which splits K in 4; a SIMT NAME with /s264, whose 264 CTAs share the k-tiles; a Hopper NAME with "
    "/fixup, which gives idle CTAs the ends of the last tiles, or /stream. swap_ab:NAME is the plan for D^T, and "
    "simt:block=128x128x8,warp=64x32,thread=8x8 and its like spell a plan out."
)

Thing = Annotated[
    str, typer.Argument(help='A layout such as "(4,8):(8,1)", a swizzle "S<3,3,3>", or the name of a plan.')
]
PlanName = Annotated[str, typer.Argument(help="A name of `cutegemm plans`, or simt:block=...")]
Checked = Annotated[
    str,
    typer.Argument(
        help="A name of `cutegemm plans`, or simt:block=...; a thread-value layout; a file of PTX or a cubin."
    ),
]
Extents = Annotated[str | None, typer.Option("--problem", help="MxNxK, or MxNxKxL.")]
DTypeName = Annotated[
    str | None,
    typer.Option("--dtype", help="Element type of A and B; f32 where left out, or bf16 of a plan for wgmma."),
]
Letters = Annotated[str, typer.Option("--layout", help="BLAS letters: nn, nt, tn, tt.")]
Json = Annotated[bool, typer.Option("--json", help="For a program.")]


def show(
    thing: Thing,
    dtype: DTypeName = None,
    layout: Letters = "nn",
    problem: Extents = None,
    epilogue: EpilogueText = None,
    operand: OperandTexts = None,
    svg: Annotated[Path | None, typer.Option(help="Draw it into an SVG file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Draw it into an HTML page.")] = None,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="What each role of a plan does when, instead of the plan.")
    ] = False,
) -> None:
    """A layout or a swizzle as a grid, or a plan as its hierarchy and programs; --svg and --html draw it."""
    from cutegemm.draw import draw, plan_timeline, save

    wrong = [*not_writable("svg", svg, ".svg"), *not_writable("html", html, ".html")]
    if wrong:
        raise UnsupportedError("show: " + "\n  ".join(wrong))
    console = Console(highlight=False)
    options: dict[str, Any] = {}
    drawn: Any
    swizzle = _SWIZZLE.fullmatch(thing)
    if (epilogue or operand) and (swizzle is not None or _NOTATION.match(thing)):
        raise UnsupportedError(f"show: --epilogue is of a plan, and {thing} is a layout.")
    if timeline and (swizzle is not None or _NOTATION.match(thing)):
        raise UnsupportedError(f"show: --timeline is of a plan with roles, and {thing} is a layout.")
    if swizzle is not None:
        drawn = Swizzle(*map(int, swizzle.groups()))
        console.print(draw(drawn, kind="text", width=console.width), markup=False, soft_wrap=True)
    elif _NOTATION.match(thing):
        drawn = parse(thing)
        console.print(draw(drawn, kind="text", width=console.width), markup=False, soft_wrap=True)
    else:
        ending = parsed_epilogue("show", epilogue, operand)
        drawn, of = described("show", thing, dtype, layout, problem, ending=ending)
        if timeline:
            drawn = plan_timeline(drawn)
            console.print(draw(drawn, kind="text", width=console.width), markup=False, soft_wrap=True)
        else:
            console.print(drawn.describe(of), markup=False, soft_wrap=True)
            console.print(f"\n{describe_programs(drawn)}", markup=False, soft_wrap=True)
            console.print(_place(thing), markup=False, soft_wrap=True, end="")
            options = {} if of is None else {"problem": of}
    for path in (svg, html):
        if path is not None:
            save(drawn, path, **options)
            console.print(f"drawn into {path}", markup=False)


def plans(
    wanted: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="What names begin with, or names with *.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The named plans by family, with what each does differently: all of them, or `cutegemm plans sm90 'mma_*'`."""
    found = [
        (name, summary)
        for name, summary in named_plans()
        if not wanted or any(fnmatch(name, text if "*" in text else f"{text}*") for text in wanted)
    ]
    if not found:
        raise UnsupportedError(
            f"plans: no name begins with {' or '.join(wanted or ())}; they begin with simt, mma, skinny, sm90 "
            "and, of ladders, sgemm and tensorop."
        )
    if as_json:
        listed = [{"name": name, "summary": summary, "group": _group(name)} for name, summary in found]
        print(json.dumps(listed, indent=2))
        return
    console = Console(highlight=False)
    width = max(len(name) for name, _ in found)
    by_group: dict[str, list[tuple[str, str]]] = {}
    for name, summary in found:
        by_group.setdefault(_group(name), []).append((name, summary))
    for group, rows in by_group.items():
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True, min_width=width)
        table.add_column()
        for name, summary in rows:
            table.add_row(name, escape(summary))
        console.print(_GROUPS[group], style="bold", soft_wrap=True)
        console.print(Padding(table, (0, 0, 1, 2)))
    console.print(_AFTER_PLANS, markup=False)


def _group(name: str) -> str:
    """Which of `_GROUPS` a name is listed in."""
    if is_own(name):
        return "own"
    family = recipe_named(name).family.replace("mma_tma", "mma_sync")
    return family if step_of(name) is None else f"{family} ladder"


def _place(name: str) -> str:
    """Of a step of a ladder, which one it is; nothing of a plan to use."""
    found = step_of(name)
    if found is None:
        return ""
    ladder, step = found
    last = max(each.number for each in ladder.steps)
    return (
        f"\nstep {step.number} of {last} of the ladder {ladder.title!r}: to learn from.\nThe plan to use follows from "
        "the problem: cutegemm gemm M N K chooses it, and cutegemm plans lists those that it chooses from.\n"
    )


def check(
    plan: Checked,
    dtype: DTypeName = None,
    layout: Letters = "nn",
    problem: Extents = "4096x4096x4096",
    epilogue: EpilogueText = None,
    operand: OperandTexts = None,
    device: Annotated[str | None, typer.Option(help="h200, a100-80gb, rtx4090, ...; h200 where left out.")] = None,
    arch: Annotated[str | None, typer.Option(help="An architecture instead of a device.")] = None,
    compiled: Annotated[
        bool,
        typer.Option(
            "--compiled",
            help="With the registers and spills of the compiled kernel, and what its code does to shared memory.",
        ),
    ] = False,
    shared: Annotated[
        str | None, typer.Option(help="Of a thread-value layout: the layout of the tile in shared memory.")
    ] = None,
    op: Annotated[str, typer.Option(help="Of a thread-value layout: load, store, ldmatrix, stmatrix.")] = "load",
    access_bits: Annotated[
        int | None, typer.Option(help="Of a thread-value layout: of a lane; the widest where left out.")
    ] = None,
    in_bytes: Annotated[
        bool, typer.Option("--swizzle-of-bytes", help="Of --shared, as the CuTe DSL writes swizzles.")
    ] = False,
    kernel: Annotated[str, typer.Option(help="Of PTX: how the kernel's name begins.")] = "",
    arguments: Annotated[
        str, typer.Option("--args", help='Of PTX: its parameters, such as "f32[4096] f32[4096] 64".')
    ] = "",
    grid: Annotated[str, typer.Option(help="Of PTX: CTAs, XxYxZ.")] = "1",
    block: Annotated[str, typer.Option(help="Of PTX or a cubin: threads of a CTA, XxYxZ.")] = "128",
    shared_bytes: Annotated[int, typer.Option(help="Of PTX: dynamic shared memory.")] = 0,
    as_json: Json = False,
) -> None:
    """What a plan will do on the hardware: conflicts, occupancy, traffic, roofline; what to change.

    Of a thread-value layout, or a tiled copy as the CuTe DSL prints it: its wavefronts over --shared. Of a file of PTX:
    those of its kernel, executed on the CPU. Of a cubin: its registers, spills and accesses.
    """
    if _NOTATION.match(plan) or "TV Layout tiled" in plan:
        parts.check_layout(plan, shared, dtype, op, access_bits, in_bytes, as_json)
    elif plan.endswith((".ptx", ".cubin")):
        path, threads = _file(plan), _dims("block", block)
        if path.suffix == ".ptx":
            given = arguments.replace(",", " ").split()
            parts.check_ptx(path, given, kernel, _dims("grid", grid), threads, shared_bytes, as_json)
        else:
            parts.check_cubin(path, threads, arch or DEFAULT_ARCH, as_json)
    elif arch and device:
        raise UnsupportedError(f"check: --arch {arch} and --device {device} are both given; give one of them.")
    else:
        target = None if arch else device_named(device or "h200")
        of_arch = arch or (target.arch if target else DEFAULT_ARCH)
        ending = parsed_epilogue("check", epilogue, operand)
        made, of = described("check", plan, dtype, layout, problem, of_arch, ending)
        _check_plan(made, of, of_arch, target, compiled, as_json)


def _check_plan(
    plan: GemmPlan, problem: Problem | None, arch: str, device: Device | None, compiled: bool, as_json: bool
) -> None:
    """What `analysis.check` finds of a plan.

    device     None where an architecture is asked about
    compiled   whether the kernel's registers, spills and accesses are told as well
    """
    from cutegemm.analysis import check as analyse
    from cutegemm.analysis import print_report
    from cutegemm.compile.plans import compile_plan
    from cutegemm.run.executed import executed_accesses

    resources = compile_plan(plan, arch).resources if compiled else None
    executed = None
    if compiled and problem is not None:
        try:
            executed = executed_accesses(plan, problem, arch)
        except UnsupportedError as error:
            Console(stderr=True).print(f"not executed: {error}", markup=False, style="yellow")
    found = analyse(plan, problem, None if device else arch, device, resources, executed=executed)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        console = Console(highlight=False)
        print_report(found, console)
        console.print(f"\nof {plan.operands}", markup=False, style="dim")
    if found.violations:
        raise typer.Exit(1)


def _file(name: str) -> Path:
    path = Path(name)
    if not path.is_file():
        raise UnsupportedError(f"check: there is no file {name}.")
    return path


def _dims(name: str, text: str) -> tuple[int, ...]:
    """Up to three extents of 1 or more."""
    found = text.split("x")
    if len(found) > 3 or not all(part.isdigit() and int(part) for part in found):
        raise UnsupportedError(f"check: --{name} {text!r}; one to three extents such as 4x2 are expected.")
    return tuple([int(part) for part in found])


def profile(
    plan: PlanName,
    dtype: DTypeName = None,
    layout: Letters = "nn",
    problem: Extents = "4096x4096x4096",
    ncu: Annotated[str, typer.Option(help="The command of Nsight Compute.")] = "ncu",
    as_json: Json = False,
) -> None:
    """The same predictions beside the hardware counters that ncu reads while the plan runs."""
    from cutegemm import profile as profiling

    made, of = described("profile", plan, dtype, layout, problem)
    assert of is not None
    measured, failed = profiling.profile([profiling.Case(made.name, made, of)], ncu=ncu)
    for reason in failed.values():
        raise UnsupportedError(f"profile: {made.name} was not launched: {reason}")
    print(json.dumps(profiling.to_dict(measured), indent=2) if as_json else profiling.render(measured))


def figures(
    out: Annotated[Path, typer.Argument(help="The folder that they are written to.")] = Path("docs/figures"),
) -> None:
    """The figures of the documents, as SVG."""
    from cutegemm.draw.figures import figures as write

    for path in write(out):
        print(path)
