"""The proof: what is drawn, what is kept of it, and that its predictions are those of today."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutegemm.analysis import check, global_accesses
from cutegemm.errors import CutegemmError
from cutegemm.profile import compare
from docs.evidence.counters.proof import Counted, Proof, digest, load, read, save, summary, worst
from docs.evidence.counters.random_plans import DEVICES, FAMILIES, Drawn, draw
from docs.evidence.pages.proof import losers, page

DATA = Path(__file__).parents[2] / "docs" / "evidence" / "data"
FILES = sorted(DATA.glob("proof_*.json"))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_drawn_keeps_the_rules(family):
    drawn = draw(family, 4, seed=3)
    assert drawn[:2] == draw(family, 2, seed=3)
    assert drawn != draw(family, 4, seed=4)
    for each in drawn:
        case = each.case()
        assert not case.plan.violations("sm_90a", case.problem)
        extents = (case.problem.m, case.problem.n, case.problem.k)
        assert any(e % t for e, t in zip(extents, case.plan.cta_tile, strict=True))


def recorded(factor: float) -> tuple[Proof, list]:
    """Two random plans: the counters of one are as predicted; the other has `factor` times the stores."""
    cases, found = [], []
    for number, each in enumerate(draw("simt", 2, seed=3)):
        case = each.case()
        analysis = check(case.plan, case.problem, "sm_90a", "h200", search=False)
        stores = analysis.sector_count("st")[1] * (factor if number else 1.0)
        counters = {"l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": float(round(stores))}
        cases.append(Counted(each, digest(case.plan), 128, 0, (counters,)))
        found.append(compare(case, analysis, counters))
    machine = {"gpu": "a GPU", "driver": "1", "ncu": "2", "nvidia-cutlass-dsl": "3", "date": "2026-11-22"}
    return Proof(machine, "sm_90a", "h200", "simt", 3, tuple(cases), {}), found


def test_the_losers_come_first(tmp_path):
    proof, found = recorded(1.5)
    save(proof, found, tmp_path / "proof.json")
    held = read(tmp_path / "proof.json")
    first, second = [{**row, "device": "h200"} for row in held["cases"]]
    assert (first["name"], first["missed"]) == ("simt_01", ["global store sectors"])
    assert second["missed"] == []
    assert worst(found[1]) == pytest.approx(1 / 3, abs=1e-3)
    assert summary(found)["global store sectors"][:2] == (1, 2)
    assert load(tmp_path / "proof.json") == proof
    told = page({("h200", "simt"): held, ("h100", "simt"): held})
    assert "2 random plans and ragged problems of each family" in told
    assert "2 of 4 miss a promise" in told
    assert losers([("simt", first)]).count("\n") == 2
    assert "-33.3%" in losers([("simt", first)])


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "other.json"
    path.write_text("{}")
    with pytest.raises(CutegemmError, match="holds no counters"):
        load(path)


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_predictions_are_those_of_today(file):
    """Sectors of some recorded plans, which take no compiler."""
    held = read(file)
    kinds = {"global load sectors, cp.async too": ("ld", "ldgsts"), "global store sectors": ("st",)}
    rows, others = held["cases"][::3], []
    for row in rows:
        fields = ("name", "plan", "dtype", "layout", "align_bytes")
        drawn = Drawn(**{name: row[name] for name in fields}, extents=tuple(row["extents"]))
        case = drawn.case()
        parts = global_accesses(case.plan, case.problem)
        told = {name: sum(p.in_grid.sectors for p in parts if p.op in ops) for name, ops in kinds.items()}
        if any(row["promised"][name][0] != told[name] for name in kinds if name in row["promised"]):
            others.append(row["plan"])
    assert len(others) <= len(rows) / 6, others  # a builder has made them otherwise since


def test_there_are_sixty_of_each_family():
    counted = {(family, device) for family in FAMILIES for device in DEVICES}
    assert [file.stem for file in FILES] == sorted(f"proof_{family}_{device}" for family, device in counted)
    for file in FILES:
        rows = read(file)["cases"]
        assert len(rows) == len({row["name"] for row in rows}) == 60
        errors = [max([abs(row["promised"][name][2] or 1) for name in row["missed"]], default=0) for row in rows]
        assert errors == sorted(errors, reverse=True)
        dram = [("DRAM bytes read" in row["missed"]) for row in rows if "DRAM bytes read" in row["promised"]]
        assert sum(dram) <= len(dram) / 10  # nine in ten lie in their range
