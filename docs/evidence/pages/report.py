"""Pages of the documents made from docs/evidence/data/*.json: `python -m docs.evidence report`."""

from __future__ import annotations

from pathlib import Path

from docs.evidence.pages import analysis, choice, explored, ladder, proof, speed

_ANALYSIS = "analysis.md"  # written by hand, but for its tables


def pages(docs: Path) -> dict[str, str]:
    """Text by file name below `docs`: the pages of speeds, of the choice and of each ladder; and plots."""
    benchmarks = docs / "evidence" / "data"
    made = ladder.pages(benchmarks)
    titles = {name: text.splitlines()[0].removeprefix("# ") for name, text in made.items() if name.endswith(".md")}
    aux = {**choice.pages(benchmarks), **proof.pages(benchmarks)}
    return {**speed.pages(benchmarks, titles), **made, **aux}


def write(docs: Path) -> list[Path]:
    """Writes all pages and plots, the tables of docs/analysis.md, and what the explorer shows of the measurements.

    returns   what was written
    """
    texts = pages(docs)
    if (docs / _ANALYSIS).exists():
        runs = analysis.Runs(docs / "evidence" / "data")
        texts[_ANALYSIS] = analysis.regenerated((docs / _ANALYSIS).read_text(), runs)
    root = docs.resolve().parent
    if (root / explored.FILE).parent.is_dir():
        texts[f"../{explored.FILE}"] = explored.measured(docs / "evidence" / "data")
    written = []
    for name, text in texts.items():
        path = docs / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        written.append(path)
    return written
