"""What was measured of a plan: how fast it was, and what hardware counters read beside what is predicted of them."""

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
    """The measurements that come with the package; `python -m docs.evidence report` makes the file of them."""
    text = files("cutegemm.explore.assets").joinpath("measured.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def measured(state: State, found: Chosen) -> list[Html]:
    """The speeds of a named plan, the counters of the plan for this problem, and which plans have some."""
    assert found.plan is not None
    return [part for part in (_speeds(state, found), _counted(state, found), _all_counted(state)) if part]


def _speeds(state: State, found: Chosen) -> Html | None:
    plan, problem = found.plan, found.problem
    assert plan is not None
    own = (plan.name, plan.operands.a.dtype.name, plan.operands.layout)
    rows: list[tuple[Html | str, ...]] = []
    marked, sources = None, set()
    for name, dtype, layout, gpu, date, shapes in recorded()["speeds"]:
        if (name, dtype, layout) != own:
            continue
        sources.add(f"{gpu}, {date}")
        for m, n, k, us, ratio in shapes:
            if problem is not None and (m, n, k) == (problem.m, problem.n, problem.k):
                marked = len(rows)
            size = link(state.with_(problem=f"{m}x{n}x{k}"), f"{m} x {n} x {k}")
            of_library = "" if ratio is None else f"{ratio:.3f}"
            rows.append((size, f"{us / 1e3:.4f}", f"{2 * m * n * k / us / 1e6:.1f}", of_library))
    if not rows:
        return None
    columns = (("M x N x K", "left"), ("ms", "right"), ("TFLOP/s", "right"), ("ratio to cuBLAS", "right"))
    about = el("p", f"Of {plan.name} on {'; '.join(sorted(sources))}; above 1 is faster than cuBLAS.", class_="hint")
    return card("How fast it was", about, table(columns, rows, label="measured speeds", marked=marked))


def _counted(state: State, found: Chosen) -> Html | None:
    plan = found.plan
    assert plan is not None
    for entry in recorded()["counted"]:
        if entry["problem"] == state["problem"].strip() and _is_plan(plan, entry):
            break
    else:
        return None
    rows = [_row(row) for row in _compared(found, entry).rows if row.predicted or row.measured]
    columns = (
        ("counter", "left"), ("predicted", "right"), ("counted", "right"), ("error", "right"), ("promise", "left"),
    )  # fmt: skip
    about = f"The counters of a launch on {entry['device']}, {entry['date']}, beside today's predictions."
    return card("Predicted and counted", el("p", about, class_="hint"), table(columns, rows, label="counters"))


def _is_plan(plan: GemmPlan, entry: Mapping[str, Any]) -> bool:
    of_plan = (plan.operands.a.dtype.name, plan.operands.layout)
    return of_plan == (entry["dtype"], entry["layout"]) and _key(*[entry[n] for n in _NAMED]) == plan.key()


@lru_cache(maxsize=256)
def _key(name: str, dtype: str, layout: str, problem: str) -> str:
    """The key of the plan of an entry; "" where it is no longer one."""
    try:
        return described("explore", name, dtype, layout, problem)[0].key()
    except CutegemmError:
        return ""


def _compared(found: Chosen, entry: Mapping[str, Any]) -> Comparison:
    plan, problem = found.plan, found.problem
    assert plan is not None
    assert problem is not None
    names = recorded()["metrics"]
    counters = {n: value for n, value in zip(names, entry["counters"], strict=True) if value is not None}
    compiled = ResourceReport("recorded", entry["registers"], 0, 0, 0, {})
    analysis = check(plan, problem, device=entry["device"], report=compiled, search=False)
    return compare(Case(entry["case"], plan, problem), analysis, counters)


def _row(row: Row) -> tuple[str, str, str, str, Html | str]:
    told: Html | str = el("small", f"none: {_WHY[row.name]}" if _WHY[row.name] else "", class_="why")
    if row.holds is not None:
        told = f"{row.tolerance:.0%}, kept" if row.holds else el("b", f"{row.tolerance:.0%}, broken", class_="red")
    error = "" if row.error is None else f"{row.error:+.1%}"
    return row.name, _number(row.predicted), _number(row.measured), error, told


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def _all_counted(state: State) -> Html:
    """Links to the plans whose counters were read."""
    rows = []
    for entry in recorded()["counted"]:
        to = state.with_(device=entry["device"], **{name: entry[name] for name in _NAMED})
        rows.append((link(to, entry["case"].replace("_", " ")), entry["plan"], entry["dtype"], entry["problem"]))
    columns = (("case", "left"), ("plan", "left"), ("type", "left"), ("problem", "left"))
    return el(
        "details",
        el("summary", f"{len(rows)} plans whose counters were read"),
        table(columns, rows, label="plans whose counters were read"),
        class_="card",
        id="counted",
    )
