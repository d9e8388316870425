"""`python -m tests.guard record` and `python -m tests.guard check`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from cutegemm.compile.cache import dsl_version
from cutegemm.compile.workers import map_in_processes, processors
from tests.guard.differences import differences
from tests.guard.recorded import choices, interleavings, machine_code, programs

RECORD = Path(__file__).with_name("record.json")
SECTIONS = ("machine_code", "programs", "interleavings", "choices")
_PROBLEMS, _SEED = 1000, 4800

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
Only = Annotated[list[str] | None, typer.Option(help=f"Sections, of: {', '.join(SECTIONS)}. All if left out.")]


@app.command()
def record(only: Only = None) -> None:
    """Compile all plans and write the record."""
    before = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    found = {**before, **measured(only or SECTIONS), "dsl": dsl_version()}
    RECORD.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")
    print(f"wrote {', '.join(only or SECTIONS)} to {RECORD}")


@app.command()
def check(only: Only = None) -> None:
    """Compile all plans and compare them with the record; the status is 1 if anything differs."""
    before = json.loads(RECORD.read_text())
    if before["dsl"] != dsl_version():
        print(f"The record was made with version {before['dsl']} of the DSL; {dsl_version()} is installed.")
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
            if section == "choices":
                problems = drawn(_SEED, _PROBLEMS)
                named = [str(problem) for problem in problems]
                found[section] = dict(zip(named, choices(problems), strict=True))
                continue
            task = progress.add_task(section, total=len(plans))
            of_plan = {"machine_code": machine_code, "programs": programs, "interleavings": interleavings}[section]
            each = [(plan, arch) if section == "machine_code" else (plan,) for plan, arch in plans.values()]
            values = map_in_processes(of_plan, each, processors(), lambda task=task: progress.advance(task))
            found[section] = dict(zip(plans, values, strict=True))
    return found


if __name__ == "__main__":
    app(prog_name="python -m tests.guard")
