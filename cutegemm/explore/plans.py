"""The views of a plan: its rules and its hierarchy, and what it is expected to do."""

from __future__ import annotations

from functools import lru_cache

from cutegemm.analysis import Analysis, check
from cutegemm.analysis.tables import Section, head, sections
from cutegemm.errors import CutegemmError
from cutegemm.explore.chosen import Chosen, verdict
from cutegemm.explore.forms import card
from cutegemm.explore.html import Html, el, error, joined, said, scrolling, table
from cutegemm.explore.measured import measured
from cutegemm.explore.roofline import bars
from cutegemm.explore.state import State
from cutegemm.machine.device import Device
from cutegemm.plan import GemmPlan, Problem
from cutegemm.plan.describe import describe_programs


def rules(state: State, found: Chosen) -> Html:
    """Whether every rule is kept, the hierarchy from the grid to a value, and the programs."""
    parts = [card("Rules", verdict(found))]
    if found.plan is not None:
        hierarchy = scrolling(said(found.plan.describe(found.problem)), "the plan from the grid to a value")
        parts.append(card("From the grid to a value", hierarchy))
        parts.append(card("What is done, in order", scrolling(said(describe_programs(found.plan)), "programs")))
    return joined(parts)


def report(state: State, found: Chosen) -> Html:
    """What `cutegemm check` says: the roofline first, then each table."""
    assert found.plan is not None
    try:
        analysis = _analysed(found.plan, found.problem, found.device)
    except CutegemmError as what:
        return card("", error(str(what)))
    parts, first = [_section(section) for section in sections(analysis)], []
    if analysis.roofline is not None:
        first.append(card("Roofline", el("p", f"{found.plan.name} {head(analysis)}"), bars(analysis.roofline)))
        first.append(parts.pop())  # what to change
    return joined(first, measured(state, found), parts)


@lru_cache(maxsize=32)
def _analysed(plan: GemmPlan, problem: Problem | None, device: Device | None) -> Analysis:
    return check(plan, problem, device=device)


def _section(section: Section) -> Html:
    lines = [el("p", line, class_="advice" if line.startswith(" ") else None) for line in section.lines]
    after = [el("p", line, class_="hint") for line in section.after]
    rows = table(section.columns, section.rows, label=section.title) if section.rows else None
    return card(section.title, lines, rows, after)
