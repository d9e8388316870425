"""Pages of measurements have the tables of their records."""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean
from types import ModuleType

import pytest

from docs.evidence import experts, gathered, grouped, invariant, models, prebuilt, ranks, start
from docs.evidence.files import read_record

DOCS = Path(grouped.__file__).parents[1]
DATA = DOCS / "evidence/data"


GROUPS = [(grouped, "grouped"), (experts, "experts"), (gathered, "gathered")]


@pytest.mark.parametrize(("module", "name"), GROUPS)
def test_the_page_has_the_table_of_the_record(module: ModuleType, name: str) -> None:
    table = module.table_of(read_record(DATA / f"{name}_h100.json"))
    assert table in (DOCS / "measured/grouped.md").read_text()


def test_the_page_has_the_summary_of_random_problems() -> None:
    page, rows = (DOCS / "measured/grouped.md").read_text(), read_record(DATA / "grouped_random_h100.json")["rows"]
    for form in ("m", "k"):
        own = [row for row in rows if row["form"] == form]
        torch = geometric_mean([row["us"]["torch"] / row["us"]["chosen"] for row in own])
        others = [row["others_to_chosen"] for row in own]
        assert len(own) == 20
        assert f"| {form} | {torch:.3f} | {geometric_mean(others):.3f} | {min(others):.3f} |" in page


def test_the_pages_have_the_summary_of_mixtures() -> None:
    page, rows = (DOCS / "measured/grouped.md").read_text(), read_record(DATA / "experts_h100.json")["rows"]
    means = [geometric_mean([row["ratio"] for row in rows if row["backward"] is each]) for each in (False, True)]
    assert f"{means[0]:.2f} forward and {means[1]:.2f} with backward" in page
    us, errors = [[row[name] for row in rows if not row["backward"]] for name in ("us", "errors")]
    longer, larger = [[one["added"] / one["cutegemm"] for one in each] for each in (us, errors)]
    assert f"{max(longer):.2f} times as long" in page
    assert f"up to {max(larger):.1f} times as large" in page
    assert f"{min(longer):.2f} to {max(longer):.2f} times as long" in (DOCS / "moe.md").read_text()
    assert all(row["errors"]["cutegemm"] <= row["errors"]["torch"] for row in rows)


def test_the_page_of_several_gpus_has_both_tables() -> None:
    found, page = read_record(DATA / "ranks_h100.json"), (DOCS / "measured/several_gpus.md").read_text()
    assert ranks.table_of(found) in page
    assert ranks.exposed_table_of(found) in page


MODELS = [
    (invariant, "invariant"),
    (models, "models_llama"),
    (models, "models_qwen3_moe"),
    (prebuilt, "prebuilt_predicted"),
    (start, "start"),
]


@pytest.mark.parametrize(("module", "name"), MODELS)
def test_the_page_of_models_has_the_table_of_the_record(module: ModuleType, name: str) -> None:
    table = module.table_of(read_record(DATA / f"{name}_h100.json"))
    assert table in (DOCS / "measured/models.md").read_text()


def test_the_page_of_models_has_the_summaries_of_records() -> None:
    page = (DOCS / "measured/models.md").read_text()
    found = invariant.summary(read_record(DATA / "invariant_h100.json")["rows"])
    assert found["identical"]
    for name, rows in (("to_free", "few rows"), ("to_free", "many rows"), ("to_library", "many rows")):
        assert f"| {found[name][rows]['mean']:.3f} |" in page
        assert found[name][rows]["mean"] >= found[name][rows]["target"]
    calls = read_record(DATA / "prebuilt_h100.json")["rows"]
    ratios = sorted(row["ratio"] for row in calls if "ratio" in row)
    assert f"{len(ratios)} of {len(calls)} random calls" in page
    assert f"{geometric_mean(ratios) - 1:.1%} longer" in page
    assert f"{ratios[-1]:.2f} and {ratios[-2]:.2f} times as long; without them the mean is" in page
    assert f"the mean is {geometric_mean(ratios[:-2]) - 1:.1%}." in page


@pytest.mark.parametrize(("module", "name"), [*GROUPS, (ranks, "ranks"), *MODELS])
def test_the_command_prints_a_table(module: ModuleType, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module.main(["--table", str(DATA / f"{name}_h100.json")])
    assert capsys.readouterr().out.startswith("| ")
