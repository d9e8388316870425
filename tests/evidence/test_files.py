"""Files of measurements are read as they were written, and hold each name once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from docs.evidence.files import read_record, write_record
from docs.evidence.rows import with_rates, without_rates

DATA = Path(__file__).parents[2] / "docs" / "evidence" / "data"


@pytest.mark.parametrize(
    "rows",
    [
        [{"a": 1, "us": {"p": 1.5, "q": 2}}, {"a": 2, "us": {}}, {"us": {"q": 0.1}, "b": [1, 2]}],
        [{"plan": "p", "ok": True}, {"plan": "p", "ok": False}, {"ratio": 1e-9}],
        [{"plan": "p"}, {"plan": "q", "nested": {"x": {"y": None}}}],
        [{"plan": None}, {"plan": "p"}],
        [],
        [1, {"a": 2}],
    ],
)
def test_rows_are_read_as_they_were_written(rows: list[object], tmp_path: Path) -> None:
    record = {"machine": {"gpu": "G"}, "seed": 3, "rows": rows}
    write_record(tmp_path / "a.json", record)
    assert json.dumps(read_record(tmp_path / "a.json"), sort_keys=True) == json.dumps(record, sort_keys=True)


@pytest.mark.parametrize("pattern", ["*_fit*", "choice*_h?00", "hopper*", "proof*", "simt*"])
def test_committed_tables_are_as_the_writer_leaves_them(pattern: str, tmp_path: Path) -> None:
    files = sorted(DATA.glob(f"{pattern}.json"))
    assert files
    for file in files:
        write_record(tmp_path / "a.json", read_record(file))
        assert (tmp_path / "a.json").read_text() == file.read_text(), file.name


def test_committed_rows_have_no_rates_that_are_computed_from_their_times() -> None:
    rows = read_record(DATA / "hopper_ladder.json")["rows"]
    assert [row for row in rows if without_rates(row) != row] == []
    assert all(without_rates(with_rates(row)) == row for row in rows)
    first = with_rates(rows[0])
    assert first["ratio"] == pytest.approx(first["library_us"] / first["us"], abs=1e-4)
    assert first["tflops"] / first["library_tflops"] == pytest.approx(first["ratio"], rel=1e-3)
