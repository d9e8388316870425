"""Measurements of a plan in the view "time": its speed, and hardware counters next to their predictions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

from cutegemm.analysis import check
from cutegemm.compile.cubin import ResourceReport
from cutegemm.errors import CutegemmError
from cutegemm.explore.chosen import Chosen
from cutegemm.explore.forms import card, link
from cutegemm.explore.html import Html, el, table
from cutegemm.explore.state import State
from cutegemm.parse.plan import described
from cutegemm.plan import GemmPlan
from cutegemm.profile.case import Case
from cutegemm.profile.compare import QUANTITIES, Comparison, Row, compare

_NAMED = ("plan", "dtype", "layout", "problem")
_WHY = {quantity.name: quantity.why for quantity in QUANTITIES}


@lru_cache(maxsize=1)
def recorded() -> Mapping[str, Any]:
    """Return measurements of plans on GPUs that are recorded in the package.

    `python -m docs.evidence report` writes their file.

    returns   "speeds": measured times of each plan, by problem. "counted": hardware counters of plans, each for one
              problem. "metrics": names of these counters, in their order
    """
    text = files("cutegemm.explore.assets").joinpath("measured.json").read_text("utf-8")
    measurements: dict[str, Any] = json.loads(text)
    return measurements


def measured(state: State, selected: Chosen) -> list[Html]:
    """Return HTML sections with the recorded measurements of the selected plan: speeds and hardware counters.

    The last section lists the plans whose counters were measured. Sections without measurements are left out.

    state      the user's choices on the web page
    selected   the plan, which must not be None, and the problem
    """
    assert selected.plan is not None
    return [part for part in (_speeds(state, selected), _counted(state, selected), _all_counted(state)) if part]


def _speeds(state: State, selected: Chosen) -> Html | None:
    """Return an HTML table of the recorded times of the selected plan, one row per problem; None without any.

    state      the user's choices on the web page, which links of the table keep
    selected   the plan, which must not be None, and the problem
    """
    plan, problem = selected.plan, selected.problem
    assert plan is not None
    key = (plan.name, plan.operands.a.dtype.name, plan.operands.layout)
    rows: list[tuple[Html | str, ...]] = []
    marked, sources = None, set()
    for name, dtype, layout, gpu, date, timed in recorded()["speeds"]:
        if (name, dtype, layout) != key:
            continue
        sources.add(f"{gpu}, {date}")
        for shape, us, ratio in timed:
            m, n, k = recorded()["shapes"][shape]  # entries have problems by index
            if problem is not None and (m, n, k) == (problem.m, problem.n, problem.k):
                marked = len(rows)
            size = link(state.with_(problem=f"{m}x{n}x{k}"), f"{m} x {n} x {k}")
            of_library = "" if ratio is None else f"{ratio:.3f}"
            rows.append((size, f"{us / 1e3:.4f}", f"{2 * m * n * k / us / 1e6:.1f}", of_library))
    if not rows:
        return None
    columns = (("M x N x K", "left"), ("ms", "right"), ("TFLOP/s", "right"), ("ratio to cuBLAS", "right"))
    about = el(
        "p", f"{plan.name} on {'; '.join(sorted(sources))}. A ratio above 1 is faster than cuBLAS.", class_="hint"
    )
    return card("Measured speed", about, table(columns, rows, label="measured speeds", marked=marked))


def _counted(state: State, selected: Chosen) -> Html | None:
    """Return an HTML table of predicted and measured hardware counters for the selected plan and problem.

    None if they were not measured.

    state      the user's choices on the web page
    selected   the plan, which must not be None, and the problem
    """
    plan = selected.plan
    assert plan is not None
    for entry in recorded()["counted"]:
        if entry["problem"] == state["problem"].strip() and _is_plan(plan, entry):
            break
    else:
        return None
    rows = [_row(row) for row in _compared(selected, entry).rows if row.predicted or row.measured]
    columns = (
        ("counter", "left"), ("predicted", "right"), ("measured", "right"), ("error", "right"), ("tolerance", "left"),
    )  # fmt: skip
    about = f"The counters of a launch on {entry['device']}, {entry['date']}, and the present predictions."
    return card(
        "Predicted and measured counters", el("p", about, class_="hint"), table(columns, rows, label="counters")
    )


def _is_plan(plan: GemmPlan, entry: Mapping[str, Any]) -> bool:
    """Return True if a recorded measurement is of this plan, even if the plan had another name then.

    entry   the measurement; its "plan", "dtype", "layout" and "problem" describe the plan that was measured
    """
    operands = (plan.operands.a.dtype.name, plan.operands.layout)
    return operands == (entry["dtype"], entry["layout"]) and _key(*[entry[n] for n in _NAMED]) == plan.key()


@lru_cache(maxsize=256)
def _key(name: str, dtype: str, layout: str, problem: str) -> str:
    """Return a text that identifies the plan of a recorded measurement, or "" if this version cannot build the plan.

    name      name of the plan that was measured, such as "sm90_pingpong"
    dtype     element type of A and B, such as "bf16"
    layout    BLAS letters of A and B, such as "nt"
    problem   extents, such as "4096x4096x512"
    """
    try:
        return described("explore", name, dtype, layout, problem)[0].key()
    except CutegemmError:
        return ""


def _compared(selected: Chosen, entry: Mapping[str, Any]) -> Comparison:
    """Compare recorded hardware counters with the present predictions for the selected plan and problem.

    entry   the recorded measurement, a dict with the device, the kernel's registers and the value of each ncu metric
    """
    plan, problem = selected.plan, selected.problem
    assert plan is not None
    assert problem is not None
    names = recorded()["metrics"]
    counters = {n: value for n, value in zip(names, entry["counters"], strict=True) if value is not None}
    compiled = ResourceReport("recorded", entry["registers"], 0, 0, 0, {})
    analysis = check(plan, problem, device=entry["device"], report=compiled, search=False)
    return compare(Case(entry["case"], plan, problem), analysis, counters)


def _row(row: Row) -> tuple[str, str, str, str, Html | str]:
    """Return the table cells for one hardware counter: name, predicted value, measured value, error, tolerance.

    The last cell also says if the error is within the tolerance. Without a tolerance, it gives the reason.
    """
    verdict: Html | str = el("small", f"none: {_WHY[row.name]}" if _WHY[row.name] else "", class_="why")
    if row.holds is not None:
        verdict = f"{row.tolerance:.0%}, met" if row.holds else el("b", f"{row.tolerance:.0%}, exceeded", class_="red")
    error = "" if row.error is None else f"{row.error:+.1%}"
    return row.name, _number(row.predicted), _number(row.measured), error, verdict


def _number(value: float | None) -> str:
    """Return a number as a table cell, with thousands separators and at most two decimals; "" for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def _all_counted(state: State) -> Html:
    """Return an HTML table of links to all plans whose hardware counters were measured.

    state   the user's choices on the web page, which the links change
    """
    rows = []
    for entry in recorded()["counted"]:
        to = state.with_(device=entry["device"], **{name: entry[name] for name in _NAMED})
        rows.append((link(to, entry["case"].replace("_", " ")), entry["plan"], entry["dtype"], entry["problem"]))
    columns = (("case", "left"), ("plan", "left"), ("type", "left"), ("problem", "left"))
    return el(
        "details",
        el("summary", f"{len(rows)} plans with measured counters"),
        table(columns, rows, label="plans with measured counters"),
        class_="card",
        id="counted",
    )
