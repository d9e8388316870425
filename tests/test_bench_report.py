"""The pages of the documents are those that the command makes of the recorded measurements."""

from pathlib import Path

from cutegemm.bench import speed

DOCS = Path(__file__).parent.parent / "docs"


def test_the_page_of_speeds_is_up_to_date() -> None:
    assert (DOCS / "speed.md").read_text() == speed.page(DOCS / "benchmarks")


def test_a_row_by_hand(tmp_path: Path) -> None:
    """Two plans at one shape: the chosen one's ratio 1.5 stands in the table, the best, 2.0, beside it."""
    row = '"m": 4, "n": 5, "k": 6, "layout": "nn", "library_tflops": 2.0'
    machine = '{"gpu": "G", "driver": "1", "torch": "2", "nvidia-cutlass-dsl": "3", "date": "today"}'
    (tmp_path / "simt.json").write_text(
        f'{{"machine": {machine}, "rows": [{{{row}, "plan": "p (chosen)", "tflops": 3.0, "ratio": 1.5}}, '
        f'{{{row}, "plan": "q", "tflops": 4.0, "ratio": 2.0}}]}}'
    )
    page = speed.page(tmp_path)
    assert "| 4×5×6 | nn | 2.0 | 3.0 | 1.500 | `p` | 2.000 |" in page
    assert "Geometric mean of the ratios: 1.500." in page
