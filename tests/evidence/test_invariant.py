"""What the measurements of batch invariance compare, and that the assumption of the package is what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutegemm.plan import Problem
from cutegemm.plan.accumulation import DEPENDS_ON, PROPERTIES
from docs.evidence.files import read_record
from docs.evidence.instructions import DTYPES, depends_on, probes
from docs.evidence.invariant import summary

RECORDED = Path("docs/evidence/data/instructions.json")


@pytest.mark.parametrize("dtype", DTYPES)
def test_probes_differ_in_one_property(dtype: str) -> None:
    """Every plan exists, and adds k-blocks in the order of the reference of its kind."""
    orders: dict[str, set[object]] = {"wgmma": set(), "mma": set()}
    columns, references = set(), {}
    for probe in probes(dtype):
        plan = probe.plan()
        atom = plan.tiled_mma.atom
        orders[probe.kind].add(plan.accumulation_order(Problem(192, 512, 4096)).totals)
        references.setdefault(probe.kind, atom)
        assert atom.is_of_warpgroup == (probe.kind == "wgmma")
        assert plan.swap_ab == (probe.property == "swap_ab")
        if probe.property == "n":
            columns.add(atom.shape_mnk[1])
        if probe.property in ("a_source", "a_major", "b_major"):
            assert getattr(atom, probe.property) == probe.value != getattr(references[probe.kind], probe.property)
    assert {len(each) for each in orders.values()} == {1}
    assert columns == {*range(8, 256, 8)}


def test_properties_that_change_bits() -> None:
    rows = [{"property": "n", "differ": 0}, {"property": "place", "differ": 2}, {"property": "n", "error": "no plan"}]
    assert depends_on(rows) == []
    assert depends_on([*rows, {"property": "swap_ab", "differ": 1}]) == ["swap_ab"]


def test_the_assumption_is_what_was_measured() -> None:
    assert {*PROPERTIES} >= DEPENDS_ON
    if not RECORDED.exists():
        pytest.skip("the instructions have not been compared on a GPU yet")
    recorded = read_record(RECORDED)
    assert set(recorded["depends_on"]) == DEPENDS_ON
    assert not [row for row in recorded["rows"] if row["property"] == "place" and row.get("differ")]


def test_summary() -> None:
    rows = [
        {"m": m, "to_free": ratio, "to_library": 2 * ratio, "identical": True}
        for m, ratio in ((1, 0.5), (8, 2.0), (256, 1.0))
    ]
    found = summary(rows)
    assert found["to_free"]["few rows"] == {"mean": 1.0, "least": 0.5, "target": 0.9}
    assert found["to_library"]["many rows"] == {"mean": 2.0, "least": 2.0, "target": 0.95}
    assert not summary([*rows, {**rows[0], "identical": False}])["identical"]
