"""Pages of the documents made from docs/benchmarks/*.json: `cutegemm bench report`."""

from __future__ import annotations

import json
from pathlib import Path

from cutegemm.bench.pages import ladder, speed, timed_ladder
from cutegemm.profile.report import BENCHMARKS, DOCUMENT, Runs, regenerated


def pages(docs: Path) -> dict[str, str]:
    """Text by file name below `docs`: the page of speeds, a page for each ladder that was measured, plots."""
    made, benchmarks = {}, docs / "benchmarks"
    for source in sorted(benchmarks.glob("ladder_*.json")):
        found = json.loads(source.read_text())
        if not found["steps"]:
            continue
        made[f"{source.stem}.md"] = ladder.page(found, source.stem)
        made[f"plots/{source.stem}.svg"] = ladder.plot(found)
    made |= timed_ladder.pages(benchmarks)
    titles = {
        name: text.splitlines()[0].removeprefix("# ") for name, text in made.items() if name.endswith(".md")
    }
    return {**speed.pages(benchmarks, titles), **made}


def write(docs: Path) -> list[Path]:
    """Writes all pages and plots, and the tables of docs/analysis.md.

    returns   what was written
    """
    texts = pages(docs)
    analysis = docs / DOCUMENT.name
    if analysis.exists():
        texts[DOCUMENT.name] = regenerated(analysis.read_text(), Runs(docs / BENCHMARKS.name))
    written = []
    for name, text in texts.items():
        path = docs / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        written.append(path)
    return written
