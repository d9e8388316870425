"""What the explorer shows of the measurements is what was measured, of the plans that it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cutegemm.explore import answer
from cutegemm.explore.measured import recorded
from cutegemm.parse.plan import described
from docs.evidence.counters.cases import GROUPS
from docs.evidence.counters.recorded import Evidence, replay
from docs.evidence.files import read_record
from docs.evidence.pages import explored
from tests.explore.pages import query

ROOT = Path(__file__).parents[2]
DATA = ROOT / "docs" / "evidence" / "data"


def test_the_file_is_up_to_date() -> None:
    assert (ROOT / explored.FILE).read_text() == explored.measured(DATA)


def test_the_names_are_those_of_the_plans_that_were_counted() -> None:
    cases = {case.name: case for group in GROUPS for case in GROUPS[group]()}
    entries = recorded()["counted"]
    assert len(entries) > 60
    for entry in entries:
        plan, problem = described("test", *[entry[name] for name in ("plan", "dtype", "layout", "problem")])
        case = cases[entry["case"]]
        assert plan.key() == case.plan.key(), entry["case"]
        assert (problem.m, problem.n, problem.k) == (case.problem.m, case.problem.n, case.problem.k)


@pytest.mark.parametrize("name", ["mma_ldmatrix_padded_2way", "sm90_padded_d"])
def test_a_page_has_the_predictions_of_a_replay(name: str) -> None:
    (entry,) = [entry for entry in recorded()["counted"] if entry["case"] == name]
    group = next(group for group in GROUPS if name in {case.name for case in GROUPS[group]()})
    compared, _ = replay(Evidence.load(DATA / f"analysis_{group}.json"), [c for c in GROUPS[group]() if c.name == name])
    named = {field: entry[field] for field in ("plan", "dtype", "layout", "problem")}
    html = answer(query(view="report", **named)).html
    for row in compared[0].rows:
        if row.holds is None or not (row.predicted or row.measured):
            continue
        found = re.search(f"<th [^>]*>{re.escape(row.name)}</th>(.*?)</tr>", html)
        assert found, row.name
        cells = re.findall("<td[^>]*>(.*?)</td>", found[1])
        assert float(cells[0].replace(",", "")) == pytest.approx(row.predicted, abs=0.01)
        assert float(cells[1].replace(",", "")) == pytest.approx(row.measured, abs=0.01)
        assert ("met" in cells[3]) == row.holds


def test_a_named_plan_says_how_fast_it_was() -> None:
    rows = read_record(DATA / "hopper_ladder.json")["rows"]
    row = next(row for row in rows if (row["plan"], row["layout"]) == ("sm90_pingpong", "nt"))
    html = answer("view=report&plan=sm90_pingpong").html
    assert f">{row['m']} x {row['n']} x {row['k']}</a>" in html
    assert f'<td class="right">{row["us"] / 1e3:.4f}</td>' in html
    assert "Measured speed" not in answer("view=report&plan=sm90:tile=64x64x64").html
