"""The benchmark of the algebra measures what it says; its duration is not tested."""

from __future__ import annotations

import json

import pytest

from docs.evidence import algebra


@pytest.fixture(scope="module")
def result():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(algebra, "REPEATS", 1)
        patch.setattr(algebra, "SECONDS_A_REPEAT", 1e-5)
        return algebra.run()


def test_every_row_is_measured_and_the_result_is_json(result):
    assert json.loads(json.dumps(result)) == result
    assert all(row["us"]["cutegemm.layout"] > 0 for row in result["rows"])
    assert result["offsets"]["elements"] == 32 * 8 * 16 * 16


def test_peers_agree(result):
    assert [row for row in result["rows"] if not all(row["agrees"].values())] == []


def test_the_table_marks_a_wrong_answer_and_a_missing_operation():
    row = {"operation": "complement", "arguments": ["4:1", "24"], "us": {"ours": 1.0, "a": 2.0, "b": None}}
    result = {
        "machine": "M",
        "python": "3",
        "numpy": "2",
        "date": "today",
        "versions": {"ours": "1", "a": "2", "b": "3"},
        "rows": [{**row, "agrees": {"a": False}}],
        "offsets": {"elements": 10, "us": 1.0, "ratio": 99.0},
    }
    text = algebra.table(result)
    line = next(line for line in text.splitlines() if "complement" in line)
    assert [cell.strip() for cell in line.strip("│ ").split("│")] == [
        "complement",
        "4:1 24",
        "1.00",
        "2.00 [!]",
        "-",
    ]
    assert "99 times as fast" in text


def test_a_wrong_peer_is_noticed(monkeypatch):
    import cutegemm.layout as ours

    monkeypatch.setattr(algebra, "SECONDS_A_REPEAT", 1e-5)
    wrong = type("Wrong", (algebra.Library,), {"call": lambda *_: lambda: ours.Layout(3, 7)})
    row = algebra._row([algebra.OURS, wrong("wrong", "wrong")], "coalesce", ("(2,4):(1,2)",))
    assert row["agrees"] == {"wrong": False}
