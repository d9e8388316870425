"""`python -m tests.guard record` and `python -m tests.guard check`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from cutegemm.compile.cache import dsl_version
from cutegemm.compile.workers import map_in_processes, processors
from tests.guard.differences import differences
from tests.guard.recorded import choices, interleavings, machine_code, programs
from tests.guard.stored import CHOICES, OF_PLANS, read, text_of

RECORD = Path(__file__).with_name("record.json")
SECTIONS = (*OF_PLANS, CHOICES)
_PROBLEMS, _SEED = 1000, 4800

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
Only = Annotated[list[str] | None, typer.Option(help=f"Sections, of: {', '.join(SECTIONS)}. All if left out.")]


@app.command()
def record(only: Only = None) -> None:
    """Compile all plans and write the record."""
    before = read(RECORD.read_text())[1] if RECORD.exists() else {name: {} for name in SECTIONS}
    RECORD.write_text(text_of(dsl_version(), {**before, **measured(only or SECTIONS)}))
    print(f"wrote {', '.join(only or SECTIONS)} to {RECORD}")


@app.command()
def check(only: Only = None) -> None:
    """Compile all plans and compare them with the record; the status is 1 if anything differs."""
    dsl, before = read(RECORD.read_text())
    if dsl != dsl_version():
        print(f"The record was made with version {dsl} of the DSL; {dsl_version()} is installed.")
        raise typer.Exit(2)
    now = measured(only or SECTIONS)
    lines = [line for section in now for line in differences(section, before[section], now[section])]
    print("\n".join(lines) or f"identical: {', '.join(now)}")
    raise typer.Exit(bool(lines))


def measured(sections: Any) -> dict[str, Any]:
    """Return what the record holds of some sections, of the plans as they are now."""
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")  # read by the DSL when it is imported
    from docs.evidence.random_problems import drawn
    from tests.guard.plans import guarded_plans

    plans, found = guarded_plans(), {}
    with Progress() as progress:
        for section in sections:
            if section == CHOICES:
                problems = drawn(_SEED, _PROBLEMS)
                named = [str(problem) for problem in problems]
                found[section] = dict(zip(named, choices(problems), strict=True))
                continue
            task = progress.add_task(section, total=len(plans))
            of_plan = {"machine_code": machine_code, "programs": programs, "interleavings": interleavings}[section]
            each = [(plan, arch) if section == "machine_code" else (plan,) for plan, arch in plans.values()]
            values = map_in_processes(of_plan, each, processors(), lambda task=task: progress.advance(task))
            found[section] = {label: value for label, value in zip(plans, values, strict=True) if value is not None}
    return found


if __name__ == "__main__":
    app(prog_name="python -m tests.guard")
