"""Pages of the documents made from docs/benchmarks/*.json: `cutegemm bench report`."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from cutegemm.bench import speed

_WIDTH, _ROW, _LEFT, _BAR = 980, 26, 250, 560
_COLOURS = ("#4c78a8", "#9ecae9")


def write(docs: Path) -> list[Path]:
    """Writes the page of speeds, and a page and a picture for each ladder whose numbers are there.

    returns   what was written
    """
    speed_page = docs / "speed.md"
    speed_page.write_text(speed.page(docs / "benchmarks"))
    written = [speed_page]
    for source in sorted((docs / "benchmarks").glob("ladder_*.json")):
        found = json.loads(source.read_text())
        page, picture = docs / f"{source.stem}.md", docs / f"{source.stem}.svg"
        picture.write_text(plot(found))
        page.write_text(markdown(found, picture.name))
        written += [page, picture]
    return written


def markdown(found: dict[str, Any], picture: str) -> str:
    """The page of a ladder."""
    sizes = list(found.get("library_tflops", {}))
    lines = [f"# {found['title']}", ""]
    if sizes:
        at = found["machine"]
        library = ", ".join(f"{rate} TFLOP/s at {n}³" for n, rate in found["library_tflops"].items())
        lines += [
            f"Measured on one {at['gpu']}, {at['date']}, torch {at['torch']}, f32 without TF32, row-major "
            f"matrices, normal "
            f"data, all in turns in one process; {found['library']}: {library}. Made by `cutegemm bench "
            f"ladder "
            f"{found['ladder']} --json` and `cutegemm bench report`.",
            "",
            f"![TFLOP/s of each step]({picture})",
            "",
        ]
    heads = ["step", "change"]
    for n in sizes:
        heads += [f"TFLOP/s {n}³", "of cuBLAS", "of peak"]
    heads += ["registers", "CTAs x threads", "occupancy", "least time set by"]
    rows = []
    for step in found["steps"]:
        row = [f"`{step['name']}`", step["change"]]
        for n in sizes:
            rate = step["tflops"][n]
            row += [f"{rate:.2f}", f"{step['ratio'][n]:.3f}", f"{rate / step['peak_tflops']:.1%}"]
        spilled = f" ({step['spills']} spills)" if step["spills"] else ""
        rows.append(
            [*row, f"{step['registers']}{spilled}", f"{step['ctas_per_sm']} x {step['threads']}",
             f"{step['occupancy']:.0%}", f"{step['bound']}, {step['bound_tflops']:.1f} TFLOP/s"]
        )  # fmt: skip
    lines += _table(heads, rows)
    lines += ["", "## Memory", "", _MEMORY.format(size=found["counted_size"]), ""]
    heads = ["step", "shared loads", "shared stores", "cp.async", "load sectors", "store sectors",
             "FLOP/byte: registers", "shared", "L2", "DRAM"]  # fmt: skip
    rows = []
    for step in found["steps"]:
        cells = [
            *[_pair(step, (f"{kind}_wavefronts",)) for kind in ("load", "store", "async")],
            _pair(step, ("load_sectors", "async_sectors")), _pair(step, ("store_sectors",)),
        ]  # fmt: skip
        intensity = step["intensity"]
        rows.append(
            [
                f"`{step['name']}`",
                *cells,
                *(f"{intensity[x]:.1f}" for x in ("register", "shared", "L2", "DRAM")),
            ]
        )
    lines += _table(heads, rows)
    lines += ["", "## Why", ""]
    before: dict[str, Any] | None = None
    for step in found["steps"]:
        verdict = _verdict(step, before, sizes)
        lines += [f"**{step['number']}. `{step['name']}`: {step['change']}.** {step['why']}{verdict}", ""]
        before = step
    return "\n".join(lines).rstrip() + "\n"


_MEMORY = (
    "Wavefronts of shared memory and 32-byte sectors of global memory at {size}³, in millions: predicted by "
    "the static "
    "analysis / counted by ncu. Arithmetic intensity at 4096³ by the analysis."
)


def _pair(step: dict[str, Any], names: tuple[str, ...]) -> str:
    predicted = sum(step["predicted"].get(name, 0) for name in names)
    measured = [step["measured"][name] for name in names if name in step["measured"]]
    text = f"{predicted / 1e6:.2f}"
    return f"{text} / {sum(measured) / 1e6:.2f}" if measured else text


def _verdict(step: dict[str, Any], before: dict[str, Any] | None, sizes: list[str]) -> str:
    if before is None or not sizes:
        return ""
    n = sizes[0]
    gain = step["tflops"][n] / before["tflops"][n]
    if gain < 0.99:
        return f" It is slower than the step before: {gain:.2f} times its speed at {n}³."
    return f" {gain:.2f} times the speed of the step before at {n}³."


def _table(heads: list[str], rows: list[list[str]]) -> list[str]:
    line = "| " + " | ".join(heads) + " |"
    return [line, "|" + "---|" * len(heads), *("| " + " | ".join(row) + " |" for row in rows)]


def plot(found: dict[str, Any]) -> str:
    """Bars of TFLOP/s for each size, with a line for the library and one for the peak, as SVG."""
    sizes, steps = list(found.get("library_tflops", {})), found["steps"]
    peak = max([step["peak_tflops"] for step in steps] + [1.0])
    scale, top = _BAR / peak, 46
    height = top + _ROW * len(steps) + 40
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="20" font-size="15">{escape(found["title"])}, TFLOP/s</text>',
    ]
    for number, n in enumerate(sizes):
        out.append(
            f'<rect x="{_LEFT + 120 * number}" y="26" width="12" height="12" fill="{_COLOURS[number % 2]}"/>'
        )
        out.append(f'<text x="{_LEFT + 120 * number + 18}" y="36">{n}³</text>')
    for row, step in enumerate(steps):
        y = top + _ROW * row
        out.append(f'<text x="12" y="{y + 15}">{escape(step["name"])}</text>')
        bar = (_ROW - 6) / max(1, len(sizes))
        for number, n in enumerate(sizes):
            rate = step["tflops"][n]
            at = y + 2 + bar * number
            out.append(
                f'<rect x="{_LEFT}" y="{at:.1f}" width="{rate * scale:.1f}" height="{bar - 1:.1f}" '
                f'fill="{_COLOURS[number % 2]}"/>'
            )
        if sizes:
            n = sizes[0]
            x = _LEFT + max(step["tflops"][s] for s in sizes) * scale + 6
            out.append(
                f'<text x="{x:.1f}" y="{y + 15}">{step["tflops"][n]:.1f} ({step["ratio"][n]:.2f})</text>'
            )
    bottom = top + _ROW * len(steps) + 4
    marks = [(peak, f"peak {peak:.0f}", "#888")]
    if sizes:
        marks.append(
            (found["library_tflops"][sizes[0]], f"cuBLAS {found['library_tflops'][sizes[0]]}", "#c03")
        )
    for rate, text, colour in marks:
        x = _LEFT + rate * scale
        out.append(
            f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}" stroke="{colour}" '
            'stroke-dasharray="4 3"/>'
        )
        out.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle" fill="{colour}">{text}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"
