"""`cutegemm show`, `plans`, `check`, `profile` and `figures`: draw, list, analyse and profile layouts and plans."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from cutegemm.choice.catalog import plans as named_plans
from cutegemm.choice.names import is_own, recipe_named, step_of
from cutegemm.cli import parts
from cutegemm.cli.inputs import not_writable
from cutegemm.cli.operand_options import Along, Ends, EpilogueText, GroupCount, OperandTexts, Scales, Sizes
from cutegemm.cli.output import drawing_width, output
from cutegemm.errors import UnsupportedError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.machine.device import Device, device_named
from cutegemm.parse.epilogue import parsed_epilogue
from cutegemm.parse.groups import ends_of, groups_of
from cutegemm.parse.layout import parse_layout
from cutegemm.parse.plan import described
from cutegemm.plan import GemmPlan, Problem
from cutegemm.plan.describe import describe_programs, stated_operands

_LAYOUT = re.compile(r"[(<]|^\s*_?\d")  # a name of a plan has no parentheses, and does not begin with a number
# The headings of `cutegemm plans`: first plans to use, then the steps of the tutorial ladders.
_GROUPS = {
    "simt": "SIMT: multiply-adds of single threads",
    "mma_sync": "mma.sync: tensor cores that multiply registers, from sm_80 on",
    "gemv": "Few columns: mma.sync, A loaded from global memory into fragments",
    "sm90": "Hopper: wgmma and TMA, sm_90a",
    "simt ladder": "Steps of the SIMT ladder, to learn from: docs/measured/ladder_simt.md",
    "mma_sync ladder": "Steps of the mma.sync ladder, to learn from: docs/measured/ladder_mma_sync.md",
    "sm90 ladder": "Steps of the Hopper ladder, to learn from; others are listed above: docs/measured/ladder_hopper.md",
    "own": "Plans that you defined",
}

_AFTER_PLANS = (
    "`cutegemm show NAME` describes a plan, `cutegemm check NAME` analyses it. A SIMT, mma.sync or Hopper NAME may "
    "end with /k4, which splits K in 4. A SIMT NAME may end with /s264: 264 CTAs share the k-tiles evenly. A Hopper "
    "NAME may end with /fixup, which gives idle CTAs the last k-tiles of the last tiles, or with /stream (stream-K). "
    "swap_ab:NAME computes D^T = B^T A^T. simt:block=128x128x8,warp=64x32,thread=8x8 names a plan by its options."
)

Thing = Annotated[
    str,
    typer.Argument(
        help='A layout such as "(4,8):(8,1)" or "make_layout((4,8), stride=(8,1))", a swizzle "S<3,3,3>", or the name '
        "of a plan."
    ),
]
PlanName = Annotated[str, typer.Argument(help="A name listed by `cutegemm plans`, or options: simt:block=...")]
Checked = Annotated[
    str,
    typer.Argument(
        help="A plan: a name listed by `cutegemm plans`, or simt:block=... Or a thread-value layout, a PTX file or a "
        "cubin."
    ),
]
Extents = Annotated[str | None, typer.Option("--problem", help="Extents: MxNxK, or MxNxKxL for a batch.")]
DTypeName = Annotated[
    str | None,
    typer.Option("--dtype", help="Element type of A and B. The default is f32, or bf16 for a plan with wgmma."),
]
Letters = Annotated[str, typer.Option("--layout", help="BLAS letters of A and B stored row by row: nn, nt, tn, tt.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def show(
    thing: Thing,
    dtype: DTypeName = None,
    layout: Letters = "nn",
    problem: Extents = None,
    scales: Scales = None,
    groups: GroupCount = None,
    along: Along = "m",
    ends: Ends = None,
    sizes: Sizes = None,
    epilogue: EpilogueText = None,
    operand: OperandTexts = None,
    svg: Annotated[Path | None, typer.Option(help="Draw it into this SVG file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Draw it into this HTML page.")] = None,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Show a timeline of what each warp role does, instead of the plan.")
    ] = False,
) -> None:
    """Show a layout or a swizzle as a grid, or a kernel plan from the grid to a thread's values, with its programs.

    --svg and --html also draw it into a file. With --groups and --problem, the schedule of the groups is drawn too.
    """
    from cutegemm.draw import draw, plan_timeline, save
    from cutegemm.draw.groups import schedule_picture

    wrong = [*not_writable("svg", svg, ".svg"), *not_writable("html", html, ".html")]
    if wrong:
        raise UnsupportedError("show: " + "\n  ".join(wrong))
    console = output()
    options: dict[str, Any] = {}
    drawn: Any
    is_layout = _LAYOUT.search(thing) is not None
    if (epilogue or operand) and is_layout:
        raise UnsupportedError(f"show: --epilogue and --operand need a plan, but {thing} is a layout.")
    if timeline and is_layout:
        raise UnsupportedError(f"show: --timeline needs a plan with warp roles, but {thing} is a layout.")
    if is_layout:
        drawn = parse_layout(thing, "show")
        console.print(draw(drawn, kind="text", width=drawing_width(console)), markup=False, soft_wrap=True)
    else:
        ending = parsed_epilogue("show", epilogue, operand)
        own = groups_of("show", groups, along)
        drawn, of = described("show", thing, dtype, layout, problem, ending=ending, scales=scales, groups=own)
        known = ends_of("show", own, _divided(drawn, of), ends, sizes)
        if timeline:
            drawn = plan_timeline(drawn)
            console.print(draw(drawn, kind="text", width=drawing_width(console)), markup=False, soft_wrap=True)
        else:
            console.print(recipe_named(thing).as_launched(drawn).describe(of), markup=False, soft_wrap=True)
            console.print(f"\n{describe_programs(drawn)}", markup=False, soft_wrap=True)
            if own is not None and of is not None:
                picture = draw(schedule_picture(drawn, of, known), kind="text", width=drawing_width(console))
                console.print(f"\n{picture}", markup=False, soft_wrap=True)
            console.print(_ladder_note(thing), markup=False, soft_wrap=True, end="")
            options = {} if of is None else {"problem": of}
    for path in (svg, html):
        if path is not None:
            save(drawn, path, **options)
            console.print(f"drawn into {path}", markup=False)


def _divided(plan: GemmPlan, problem: Problem | None) -> int | None:
    """Return the extent of the mode that the groups of a plan divide; None without groups or without a problem."""
    mode = plan.operands.groups
    return getattr(problem, mode) if mode and problem is not None else None


def plans(
    wanted: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Beginnings of names, or patterns with *.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the named kernel plans by family with a summary of each: all, or e.g. `cutegemm plans sm90 'mma_*'`."""
    listed = [
        (name, summary)
        for name, summary in named_plans()
        if not wanted or any(fnmatch(name, text if "*" in text else f"{text}*") for text in wanted)
    ]
    if not listed:
        raise UnsupportedError(
            f"plans: no name begins with {' or '.join(wanted or ())}. Names begin with simt, mma, gemv or sm90. "
            "Names of ladder steps also begin with sgemm or tensorop."
        )
    if as_json:
        rows_as_data = [{"name": name, "summary": summary, "group": _group(name)} for name, summary in listed]
        print(json.dumps(rows_as_data, indent=2))
        return
    console = output()
    width = max(len(name) for name, _ in listed)
    by_group: dict[str, list[tuple[str, str]]] = {}
    for name, summary in listed:
        by_group.setdefault(_group(name), []).append((name, summary))
    for group, rows in by_group.items():
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True, min_width=width)
        table.add_column()
        for name, summary in rows:
            table.add_row(name, escape(summary))
        console.print(_GROUPS[group], style="bold", soft_wrap=True)
        console.print(Padding(table, (0, 0, 1, 2), expand=False))
    console.print(_AFTER_PLANS, markup=False)


def _group(name: str) -> str:
    """Return the group of plans in which `cutegemm plans` lists a plan, e.g. "sm90 ladder".

    name   name of the plan
    """
    if is_own(name):
        return "own"
    family = recipe_named(name).family.replace("mma_tma", "mma_sync")
    return family if step_of(name) is None else f"{family} ladder"


def _ladder_note(name: str) -> str:
    """Return a note for the user that a plan is a step of a tutorial ladder (a series of plans to learn from).

    name   name of the plan; the result is "" if it is not such a step
    """
    position = step_of(name)
    if position is None:
        return ""
    ladder, step = position
    last = max(other.number for other in ladder.steps)
    return (
        f"\nstep {step.number} of {last} of the ladder {ladder.title!r}, a tutorial.\nFor a fast plan, use "
        "cutegemm gemm M N K: it chooses among the plans that cutegemm plans lists.\n"
    )


def check(
    plan: Checked,
    dtype: DTypeName = None,
    layout: Letters = "nn",
    problem: Extents = "4096x4096x4096",
    scales: Scales = None,
    groups: GroupCount = None,
    along: Along = "m",
    ends: Ends = None,
    sizes: Sizes = None,
    epilogue: EpilogueText = None,
    operand: OperandTexts = None,
    device: Annotated[str | None, typer.Option(help="Device: h200 (the default), a100-80gb, rtx4090, ...")] = None,
    arch: Annotated[str | None, typer.Option(help="Architecture, such as sm_86, instead of a device.")] = None,
    compiled: Annotated[
        bool,
        typer.Option(
            "--compiled",
            help="Also compile the kernel: report its registers, its spills and its accesses to shared memory.",
        ),
    ] = False,
    shared: Annotated[
        str | None, typer.Option(help="For a thread-value layout: the layout of the tile in shared memory.")
    ] = None,
    op: Annotated[str, typer.Option(help="For a thread-value layout: load, store, ldmatrix or stmatrix.")] = "load",
    access_bits: Annotated[
        int | None,
        typer.Option(
            help="For a thread-value layout: bits that a lane accesses with one instruction. By default as many as "
            "possible: up to 128, and ldmatrix.x4."
        ),
    ] = None,
    in_bytes: Annotated[
        bool,
        typer.Option(
            "--swizzle-of-bytes",
            help="The swizzle of --shared permutes bytes, as the CuTe DSL prints it, not elements.",
        ),
    ] = False,
    kernel: Annotated[str, typer.Option(help="For PTX: beginning of the kernel's name.")] = "",
    arguments: Annotated[
        str, typer.Option("--args", help='For PTX: the kernel parameters, such as "f32[4096] f32[4096] 64".')
    ] = "",
    grid: Annotated[str, typer.Option(help="For PTX: extents of the grid, XxYxZ.")] = "1",
    block: Annotated[str, typer.Option(help="For PTX or a cubin: threads of a CTA, XxYxZ.")] = "128",
    shared_bytes: Annotated[int, typer.Option(help="For PTX: bytes of dynamic shared memory.")] = 0,
    as_json: Json = False,
) -> None:
    """Analyse what a kernel plan does on the hardware: bank conflicts, occupancy, traffic, roofline; suggest changes.

    For a thread-value layout, or a tiled copy as the CuTe DSL prints it: count the wavefronts of accesses to --shared.
    For a PTX file: execute the kernel on the CPU and count its wavefronts. For a cubin: list its registers, spills and
    memory instructions.
    """
    if plan.endswith((".ptx", ".cubin")):
        path, threads = _file(plan), _dims("block", block)
        if path.suffix == ".ptx":
            values = arguments.replace(",", " ").split()
            parts.check_ptx(path, values, kernel, _dims("grid", grid), threads, shared_bytes, as_json)
        else:
            parts.check_cubin(path, threads, arch or DEFAULT_ARCH, as_json)
    elif _LAYOUT.search(plan):
        parts.check_layout(plan, shared, dtype, op, access_bits, in_bytes, as_json)
    elif arch and device:
        raise UnsupportedError(f"check: --arch {arch} and --device {device} exclude each other. Give one of them.")
    else:
        target = None if arch else device_named(device or "h200")
        of_arch = arch or (target.arch if target else DEFAULT_ARCH)
        ending = parsed_epilogue("check", epilogue, operand)
        own = groups_of("check", groups, along)
        made, of = described("check", plan, dtype, layout, problem, of_arch, ending, scales, own)
        known = ends_of("check", own, _divided(made, of), ends, sizes)
        operands = stated_operands(recipe_named(plan).as_launched(made))
        _check_plan(made, of, operands, of_arch, target, compiled, as_json, known)


def _check_plan(
    plan: GemmPlan,
    problem: Problem | None,
    operands: str,
    arch: str,
    device: Device | None,
    compiled: bool,
    as_json: bool,
    ends: tuple[int, ...] | None = None,
) -> None:
    """Print the analysis of a plan for `cutegemm check`, and exit with status 1 if the plan breaks a rule.

    problem    extents and operands of the GEMM; None to analyse only what does not depend on the problem
    operands   the operands as text, as the user states them
    arch       architecture, such as sm_90a; used if `device` is None
    device     GPU whose rates give the roofline; None for no rates
    compiled   True to compile the kernel and add its registers, spills and executed accesses
    as_json    True to print JSON
    ends       end of each group; None for groups of equal size, and for other GEMMs
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
            output(stderr=True).print(f"not executed: {error}", markup=False, style="yellow")
    analysis = analyse(plan, problem, None if device else arch, device, resources, executed=executed, ends=ends)
    if as_json:
        print(json.dumps(analysis.to_dict(), indent=2))
    else:
        console = output()
        print_report(analysis, console)
        console.print(f"\nof {operands}", markup=False, style="dim")
    if analysis.violations:
        raise typer.Exit(1)


def _file(name: str) -> Path:
    """Return the path of an input file; raise UnsupportedError if the file does not exist.

    name   the path as the user wrote it
    """
    path = Path(name)
    if not path.is_file():
        raise UnsupportedError(f"check: the file {name} does not exist.")
    return path


def _dims(name: str, text: str) -> tuple[int, ...]:
    """Parse one to three extents of a grid or block, such as "4x2", as integers.

    name     name of the command-line option, for the message
    raises   UnsupportedError if an extent is not a positive integer
    """
    extents = text.split("x")
    if len(extents) > 3 or not all(extent.isdigit() and int(extent) for extent in extents):
        raise UnsupportedError(
            f"check: --{name} {text!r} is not XxYxZ. Give one to three positive extents such as 4x2."
        )
    return tuple([int(extent) for extent in extents])


def profile(
    plan: PlanName,
    dtype: DTypeName = None,
    layout: Letters = "nn",
    problem: Extents = "4096x4096x4096",
    ncu: Annotated[str, typer.Option(help="Command that starts Nsight Compute.")] = "ncu",
    as_json: Json = False,
) -> None:
    """Run a kernel plan under Nsight Compute and compare its hardware counters with the predictions of `check`."""
    from cutegemm import profile as profiling

    made, of = described("profile", plan, dtype, layout, problem)
    assert of is not None
    measured, failed = profiling.profile([profiling.Case(made.name, made, of)], ncu=ncu)
    for reason in failed.values():
        raise UnsupportedError(f"profile: {made.name} was not launched: {reason}")
    if as_json:
        print(json.dumps(profiling.to_dict(measured), indent=2))
    else:
        print(profiling.render(measured, width=output().width))


def figures(
    out: Annotated[Path, typer.Argument(help="Folder to write to.")] = Path("docs/figures"),
) -> None:
    """Write the figures of the documentation as SVG files."""
    from cutegemm.draw.figures import figures as write

    for path in write(out):
        print(path)
