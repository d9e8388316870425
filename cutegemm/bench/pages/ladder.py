"""Pages of ladders that `bench ladder` measured, or only compiled and analysed: speed, resources, memory, reasons."""

from __future__ import annotations

from typing import Any

from cutegemm.bench.pages import charts
from cutegemm.bench.pages.markdown import picture, table


def page(found: dict[str, Any], name: str) -> str:
    """What each step changes, reaches and uses, and why it is there.

    name   of its plot
    """
    sizes = list(found.get("library_tflops", {}))
    lines = [f"# {found['title']}", ""]
    if sizes:
        at = found["machine"]
        library = ", ".join(f"{rate} TFLOP/s at {n}³" for n, rate in found["library_tflops"].items())
        lines += [
            f"Measured on one {at['gpu']}, {at['date']}, torch {at['torch']}, "
            f"{found['data']}, normal data, all in turns in one process; {found['library']}: {library}. Made by "
            f"`cutegemm bench ladder {found['ladder']} --json` and `cutegemm bench report`.",
            "",
            picture("TFLOP/s of each step", name),
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
    lines.append(table(heads, rows))
    if found.get("failed"):
        lines += [
            "",
            "Left out: " + "; ".join(f"`{name}`: {why}" for name, why in found["failed"].items()) + ".",
        ]
    for key, what in (("not_timed", "timed"), ("not_counted", "counted")):
        if key in found:
            lines += ["", f"What is missing was not {what}: {found[key]}"]
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
    lines.append(table(heads, rows))
    lines += ["", "## Why", ""]
    before: dict[str, Any] | None = None
    for step in found["steps"]:
        verdict = _verdict(step, before, sizes)
        lines += [f"**{step['number']}. `{step['name']}`: {step['change']}.** {step['why']}{verdict}", ""]
        before = step
    return "\n".join(lines).rstrip() + "\n"


_MEMORY = (
    "Wavefronts of shared memory and 32-byte sectors of global memory at {size}³, in millions: predicted by the "
    "static analysis / counted by ncu. Arithmetic intensity at 4096³ by the analysis."
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


def plot(found: dict[str, Any]) -> str:
    """Bars of TFLOP/s for each size, with a line for the library and one for the peak, as SVG."""
    sizes, steps = list(found.get("library_tflops", {})), found["steps"]
    marks = {}
    if sizes:
        rate = found["library_tflops"][sizes[0]]
        marks[f"cuBLAS {rate}"] = rate
    peak = max(step["peak_tflops"] for step in steps)
    marks[f"peak {peak:.0f}"] = peak
    series = {f"{n}³": [step["tflops"][n] for step in steps] for n in sizes}
    notes = [
        ", ".join(f"{step['tflops'][n]:.1f} ({step['ratio'][n]:.2f})" for n in sizes) for step in steps
    ]  # fmt: skip
    return charts.bars(
        f"{found['title']}, TFLOP/s (of cuBLAS)", [s["name"] for s in steps], series, marks, notes=notes
    )
