"""The views "rules" and "time" of a plan: its rules, hierarchy and programs, and its analysis."""

from __future__ import annotations

from functools import lru_cache

from cutegemm.analysis import Analysis, GroupCost, check
from cutegemm.analysis.tables import Section, head, sections
from cutegemm.draw.groups import schedule_picture
from cutegemm.draw.svg import svg
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


def rules(state: State, selected: Chosen) -> Html:
    """Return HTML for the explorer's view "rules": rules that the selected plan breaks, its levels and programs.

    The levels are grid, cluster, CTA and so on, down to a value. A program lists what a warp role does.

    state      the user's choices on the web page
    selected   the plan and problem; without a plan only the broken rules are shown
    """
    kept = card("Rules", verdict(selected))
    return kept if selected.plan is None else joined(kept, hierarchy(state, selected))


def hierarchy(state: State, selected: Chosen) -> Html:
    """Return HTML with the levels of the selected plan (grid, CTA, ... value), and the programs of its warp roles.

    state      the user's choices on the web page, not used here
    selected   the plan, which must not be None, and the problem
    """
    plan = selected.plan
    assert plan is not None
    levels = scrolling(said(plan.describe(selected.problem)), "the plan from the grid to a value")
    programs = scrolling(said(describe_programs(plan)), "programs")
    return joined(card("From the grid to a value", levels), card("Programs, step by step", programs))


def report(state: State, selected: Chosen) -> Html:
    """Return HTML for the explorer's view "time": the analysis of `cutegemm check`, with roofline and advice first.

    state      the user's choices on the web page
    selected   the plan, which must not be None, the problem and the device
    """
    assert selected.plan is not None
    try:
        analysis = _analysed(selected.plan, selected.problem, selected.device, selected.ends)
    except CutegemmError as what:
        return card("", error(str(what)))
    parts, first = [_section(section) for section in sections(analysis)], []
    if analysis.roofline is not None:
        first.append(card("Roofline", el("p", f"{selected.plan.name} {head(analysis)}"), bars(analysis.roofline)))
        first.append(parts.pop())  # the last section is the advice what to change
    if analysis.groups is not None:
        first.append(_schedule(selected, analysis.groups))
    return joined(first, measured(state, selected), parts)


@lru_cache(maxsize=32)
def _analysed(plan: GemmPlan, problem: Problem | None, device: Device | None, ends: tuple[int, ...] | None) -> Analysis:
    """Return the analysis of a plan, as `cutegemm check` prints it. Recent results are cached.

    problem   None to analyse only what does not depend on the problem
    device    None to use the plan's default device
    ends      end of each group of a grouped GEMM; None for groups of equal size
    """
    return check(plan, problem, device=device, ends=ends)


def _schedule(selected: Chosen, cost: GroupCost) -> Html:
    """Return HTML with a picture of the schedule of a grouped GEMM: the work tile of each cluster in each round.

    selected   the plan and the problem, which must not be None
    cost       what the sizes of its groups cost
    """
    assert selected.plan is not None
    assert selected.problem is not None
    picture = schedule_picture(selected.plan, selected.problem, selected.ends, per_wave=cost.per_wave)
    drawn = scrolling(Html(svg(picture)), "picture of the schedule", "picture")
    return card("Schedule of the groups", el("p", picture.subtitle, class_="hint"), drawn)


def _section(section: Section) -> Html:
    """Return one section of an analysis as HTML: its lines, its table and its notes."""
    lines = [el("p", line, class_="advice" if line.startswith(" ") else None) for line in section.lines]
    after = [el("p", line, class_="hint") for line in section.after]
    rows = table(section.columns, section.rows, label=section.title) if section.rows else None
    return card(section.title, lines, rows, after)
