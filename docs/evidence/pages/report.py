"""Pages made from docs/evidence/data/*.json, and notebooks with outputs: `python -m docs.evidence report`."""

from __future__ import annotations

from pathlib import Path

from docs.evidence.pages import analysis, choice, explored, ladder, notebooks, proof, speed

_COUNTERS = "measured/counters.md"  # written by hand, but for its tables


def pages(docs: Path) -> dict[str, str]:
    """Return the text of each generated page and plot, by its path below `docs`."""
    benchmarks = docs / "evidence" / "data"
    made = ladder.pages(benchmarks)
    titles = {Path(name).name: text.splitlines()[0][2:] for name, text in made.items() if name.endswith(".md")}
    aux = {**choice.pages(benchmarks), **proof.pages(benchmarks)}
    return {**speed.pages(benchmarks, titles), **made, **aux}


def write(docs: Path) -> list[Path]:
    """Write all pages and plots, the tables of docs/measured/counters.md, the explorer's measurements, and notebooks.

    returns   the paths of the written files
    """
    texts = {**pages(docs), **notebooks.notebooks(docs)}
    if (docs / _COUNTERS).exists():
        runs = analysis.Runs(docs / "evidence" / "data")
        texts[_COUNTERS] = analysis.regenerated((docs / _COUNTERS).read_text(), runs)
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
