"""`counters`, `replay`, `proof` and `sanitize`: predictions next to counters, and findings of compute-sanitizer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from cutegemm.errors import UnsupportedError
from cutegemm.profile import Case, Comparison, render
from cutegemm.profile.case import Launchable
from docs.evidence.counters import proof as proofs
from docs.evidence.counters.cases import GROUPS
from docs.evidence.counters.probes import ProbeCase
from docs.evidence.counters.random_plans import FAMILIES, draw
from docs.evidence.counters.recorded import Evidence, measure, replay
from docs.evidence.machine import this_machine
from docs.evidence.sanitizer.grouped import grouped_cases
from docs.evidence.sanitizer.output import TOOLS
from docs.evidence.sanitizer.runs import Found, record, sanitize, sanitize_cases, table

Only = Annotated[str, typer.Option(help="Cases whose name holds this text.")]
Out = Annotated[Path | None, typer.Option(help="The folder of the file that it makes.")]
Listed = Annotated[bool, typer.Option("--list", help="Only name the cases.")]


def counters(
    groups: Annotated[
        list[str] | None,
        typer.Argument(metavar="[GROUP]...", help=f"{', '.join(GROUPS)}; all if left out."),
    ] = None,
    only: Only = "",
    device: Annotated[str | None, typer.Option(help="Of the predictions, e.g. h200.")] = None,
    ncu: Annotated[str, typer.Option(help="The command of Nsight Compute.")] = "ncu",
    out: Out = None,
    listed: Listed = False,
) -> None:
    """Compare predictions with the counters of ncu; `--out` keeps the counters as analysis_GROUP.json.

    The status is 1 if a counter is beyond its tolerance or a case was not launched.
    """
    unknown = [group for group in groups or () if group not in GROUPS]
    if unknown:
        raise UnsupportedError(f"counters: no group is called {unknown[0]!r}; there are {', '.join(GROUPS)}.")
    is_bad = False
    for group in groups or GROUPS:
        cases = [case for case in GROUPS[group]() if only in case.name]
        if listed:
            print("\n".join(case.name for case in cases))
        elif cases:
            is_bad |= _count(group, cases, device, ncu, out)
    if is_bad:
        raise typer.Exit(1)


def _count(group: str, cases: list[Case | ProbeCase], device: str | None, ncu: str, out: Path | None) -> bool:
    """Count one group; return whether a counter is beyond its tolerance or a case was not launched."""
    said = f"python -m docs.evidence counters {group}" + (f" --device {device}" if device else "")
    found, evidence = measure(cases, device=device, ncu=ncu, said=said)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        evidence.save(out / f"analysis_{group}.json")
    print(render(found))
    for name, reason in evidence.failed.items():
        print(f"not launched: {name}: {reason}", file=sys.stderr)
    return any(c.misses for c in found) or bool(evidence.failed)


def replayed(files: Annotated[list[Path], typer.Argument(help="What `counters --out` kept.")], only: Only = "") -> None:
    """Compare today's predictions with recorded counters; no GPU is needed."""
    cases = [case for make in GROUPS.values() for case in make() if only in case.name]
    every: list[Comparison] = []
    for file in files:
        found, stale = replay(Evidence.load(file), cases)
        every += found
        if stale and not only:
            print(f"{file}: these cases are others by now: {', '.join(stale)}", file=sys.stderr)
    print(render(every))
    if any(c.misses for c in every):
        raise typer.Exit(1)


def proof(
    family: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(FAMILIES)}; repeat it, all if left out.")
    ] = None,
    plans: Annotated[int, typer.Option(min=1, help="Of each family.")] = 60,
    seed: Annotated[int, typer.Option(help="Seed of the random plans and problems.")] = 1,
    launches: Annotated[int, typer.Option(min=1, help="Of each plan, where counters differ.")] = 1,
    device: Annotated[str | None, typer.Option(help="Of the predictions, e.g. h200.")] = None,
    ncu: Annotated[str, typer.Option(help="The command of Nsight Compute.")] = "ncu",
    out: Out = None,
    replay: Annotated[
        list[Path] | None, typer.Option(help="Files that it made: today's predictions, without a GPU.")
    ] = None,
    listed: Listed = False,
) -> None:
    """Compare predictions of random plans and ragged problems with ncu; `--out` keeps them as proof_FAMILY_DEVICE.json.

    The status is 1 if a counter is beyond its tolerance or a plan was not launched.
    """
    unknown = [name for name in family or () if name not in FAMILIES]
    if unknown:
        raise UnsupportedError(f"proof: no family is called {unknown[0]!r}; there are {', '.join(FAMILIES)}.")
    is_bad = False
    for file in replay or ():
        is_bad |= _told(*proofs.again(file))
    for name in () if replay else family or FAMILIES:
        if listed:
            for each in draw(name, plans, seed):
                print(f"{each.name}: {each.plan} {each.dtype} {each.layout} {each.extents}")
            continue
        said = f"python -m docs.evidence proof --family {name} --plans {plans} --seed {seed}"
        found = proofs.measure(name, plans, seed, launches=launches, device=device, ncu=ncu, said=said)
        comparisons = proofs.compared(found)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            proofs.save(found, comparisons, out / f"proof_{name}_{found.device}.json")
        is_bad |= _told(found, comparisons)
    if is_bad:
        raise typer.Exit(1)


def _told(found: proofs.Proof, comparisons: list[Comparison]) -> bool:
    """Print the missed promises and a summary of all; return whether there is a miss."""
    losers = sorted([c for c in comparisons if c.misses], key=lambda c: -proofs.worst(c))
    for one in losers:
        said = ", ".join(f"{row.name} {row.error:+.1%}" for row in one.misses)
        print(f"{one.case} {one.what}: {said}")
    for name, (kept, total, most) in proofs.summary(comparisons).items():
        print(f"{found.family} {name}: {kept} of {total}, worst {most:+.1%}")
    for name, reason in found.failed.items():
        print(f"not launched: {name}: {reason}", file=sys.stderr)
    return bool(losers or found.failed)


def sanitized(
    only: Only = "",
    tool: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(TOOLS)}; repeat it.")] = None,
    sanitizer: Annotated[str, typer.Option(help="The command.")] = "compute-sanitizer",
    out: Out = None,
    listed: Listed = False,
) -> None:
    """Run small plans of every family under compute-sanitizer; `--out` keeps the table as sanitize.json."""
    unknown = [name for name in tool or () if name not in TOOLS]
    if unknown:
        raise UnsupportedError(f"sanitize: no tool is called {unknown[0]!r}; there are {', '.join(TOOLS)}.")
    every: list[Launchable] = [*sanitize_cases(), *grouped_cases()]
    cases = [case for case in every if only in case.name]
    if listed:
        print("\n".join(case.name for case in cases))
        return
    machine = this_machine("python -m docs.evidence sanitize")

    def kept(found: Found) -> None:
        if out is not None:
            record(found, machine, out / "sanitize.json")

    found = sanitize(cases, tool or TOOLS, sanitizer=sanitizer, so_far=kept)
    print(table(found))
    if not all(outcome.is_clean for outcomes in found.values() for outcome in outcomes.values()):
        raise typer.Exit(1)
