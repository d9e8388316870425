"""Pages of measurements have the tables of their records."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from docs.evidence import experts, grouped, ranks
from docs.evidence.files import read_record

DOCS = Path(grouped.__file__).parents[1]


@pytest.mark.parametrize(("module", "name"), [(grouped, "grouped_h100"), (experts, "experts_h100")])
def test_the_page_has_the_table_of_the_record(module: ModuleType, name: str) -> None:
    table = module.table_of(read_record(DOCS / f"evidence/data/{name}.json"))
    assert table in (DOCS / "measured/grouped.md").read_text()


def test_the_page_of_several_gpus_has_both_tables() -> None:
    found, page = read_record(DOCS / "evidence/data/ranks_h100.json"), (DOCS / "measured/several_gpus.md").read_text()
    assert ranks.table_of(found) in page
    assert ranks.exposed_table_of(found) in page


@pytest.mark.parametrize("module", [grouped, experts, ranks])
def test_the_command_prints_a_table(module: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    name = module.__name__.rsplit(".", 1)[1]
    module.main(["--table", str(DOCS / f"evidence/data/{name}_h100.json")])
    assert capsys.readouterr().out.startswith("| ")
