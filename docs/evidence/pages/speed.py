"""docs/measured/speed.md: speeds of the kernels and of cuBLAS, made from docs/evidence/data/*.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from docs.evidence.choosing import rows_of
from docs.evidence.pages import charts
from docs.evidence.pages.markdown import picture, recorded, source, table
from docs.evidence.rows import SUITES, Row, by_plan, shape_of

_TITLES = {
    "simt": "f32 without tf32: SIMT",
    "hopper": "bf16 by wgmma: K from 64 to 2048, and squares",
    "hopper_llama": "bf16 by wgmma: sizes of language models",
    "hopper_small": "bf16 by wgmma: small M and small problems",
    "hopper_shapes": "bf16 by wgmma: other sizes",
    "hopper_tf32": "tf32 by wgmma: all layouts, with and without repack",
    "hopper_unaligned": "bf16 by wgmma: rows that TMA cannot load, repacked",
    "hopper_fp8": "e4m3 by wgmma: cuBLAS without fast accumulation",
    "hopper_fp8_fast": "e4m3 by wgmma: cuBLAS with fast accumulation",
    "mma_layouts_bf16": "bf16 by mma.sync: all layouts, and CUTLASS's example for Ampere",
    "mma_layouts_f16": "f16 by mma.sync: all layouts, and CUTLASS's example for Ampere",
    "mma_layouts_tf32": "tf32 by mma.sync: all layouts (`gemm` chooses wgmma)",
}
_SWEEP, _SWEEP_PLOT = "hopper", "hopper_sweep"
_POWER = {
    "hopper_alone": "bf16 by wgmma, short K: clock and power",
    "mma_power_tf32": "tf32 by mma.sync: clock and power",
    "mma_power_bf16": "bf16 by mma.sync: clock and power",
}
_CHAIN, _HOST, _CHOOSING = "chain", "simt_host", "choosing"


def names() -> set[str]:
    """Return the names of the files that the page is made from, without .json."""
    return {*_TITLES, *_POWER, _CHAIN, _HOST, _CHOOSING}


def pages(benchmarks: Path, ladders: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the text of the page and of its plot, by path below docs. Files that are missing are left out.

    benchmarks   folder of the measurements
    ladders      titles of the pages to link to, by file name
    """
    found = recorded(benchmarks, sorted(names()))
    made = {}
    if _SWEEP in found and _swept(found[_SWEEP]["rows"]):
        made[f"plots/{_SWEEP_PLOT}.svg"] = sweep_plot(found[_SWEEP]["rows"])
    made["measured/speed.md"] = _page(found, ladders or {})
    return made


def _page(found: Mapping[str, Mapping[str, Any]], ladders: Mapping[str, str]) -> str:
    parts = [
        "# Speed",
        "A ratio is the time of cuBLAS, called through torch, divided by the time of the plan that `gemm` chose at "
        "the date of the file: above 1, the plan is faster. Both run in one process, in alternating order, on the same "
        "normally distributed data. The chip throttles at its power limit, so a ratio varies by a few percent from run "
        "to run. `python -m docs.evidence run` makes `docs/evidence/data/*.json` on a machine with a GPU, and "
        "`python -m docs.evidence report` makes this page from them. Each file holds the machine, the versions, the "
        "date and the command.",
    ]
    if ladders:
        links = ", ".join(f"[{title}]({name})" for name, title in ladders.items())
        parts.append(f"Step by step, from the simplest plan to the fastest: {links}.")
    for name, title in _TITLES.items():
        if name in found:
            parts += [f"## {title}", source(found[name]["machine"], f"{name}.json")]
            if "note" in found[name]:
                parts.append(found[name]["note"])
            if name == _SWEEP and _swept(found[name]["rows"]):
                parts.append(picture("TFLOP/s over K", _SWEEP_PLOT))
            parts.append(_by_shape(found[name]["rows"]))
    for name, title in _POWER.items():
        if name in found:
            parts += [f"## {title}", source(found[name]["machine"], f"{name}.json"), _ALONE]
            parts.append(_by_power(found[name]))
    if _CHAIN in found:
        parts += _chain(found[_CHAIN])
    if _HOST in found:
        rows = [(call, f"{us:.1f}") for call, us in found[_HOST]["host_us"].items()]
        parts += ["## Host time of a call", source(found[_HOST]["machine"], f"{_HOST}.json")]
        parts.append(table(("call", "µs"), rows))
    if _CHOOSING in found:
        parts += _choosing(found[_CHOOSING])
    return "\n\n".join(parts) + "\n"


def _by_shape(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the chosen plan of each problem and of the best that was timed.

    If no row of a problem is marked as chosen, the best one stands for it.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    peers: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in rows:
        at = (shape_of(row), row["layout"])
        if "ratio" in row and row.get("peer"):
            peers[at] = row
        elif "ratio" in row:
            groups.setdefault(at, []).append(row)
    cells: list[tuple[str, ...]] = []
    ratios = []
    for (shape, layout), timed in groups.items():
        best = max(timed, key=lambda row: row["ratio"])
        chosen = next((row for row in timed if row.get("chosen")), best)
        ratios.append(chosen["ratio"])
        cells.append(
            (shape, layout, f"{chosen['library_tflops']:.1f}", f"{chosen['tflops']:.1f}", f"{chosen['ratio']:.3f}",
             f"`{chosen['plan']}`", f"{best['ratio']:.3f}", *_beside(chosen, peers.get((shape, layout)), bool(peers)))
        )  # fmt: skip
    head = ["M×N×K", "layout", "cuBLAS TFLOP/s", "TFLOP/s", "ratio", "plan", "best of those timed"]
    if peers:
        peer = next(iter(peers.values()))["plan"]
        head += [f"{peer} TFLOP/s", f"ratio to {peer}"]
    return table(head, cells) + f"\n\nGeometric mean of the ratios: {geometric_mean(ratios):.3f}."


def _beside(chosen: Mapping[str, Any], peer: Mapping[str, Any] | None, has_peers: bool) -> tuple[str, ...]:
    """Return the cells of a peer that was timed in the same rounds."""
    if not has_peers:
        return ()
    return ("", "") if peer is None else (f"{peer['tflops']:.1f}", f"{chosen['tflops'] / peer['tflops']:.3f}")


_ALONE = (
    "Each kernel runs alone, repeatedly, while the sensors of the chip are read. The last row is a loop of mma.sync "
    "without loads. *Of mma.sync alone* is the share of its rate at the clock of the kernel; kernels with wgmma, those "
    "of cuBLAS and the `sm90` plans, exceed it."
)


def _by_power(found: Mapping[str, Any]) -> str:
    """Return a table of rate, clock and power of each plan, of cuBLAS and of mma.sync alone."""
    rows: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    for row in found["rows"]:
        if "alone" in row:
            at, layout, name = shape_of(row), row["layout"], row["plan"]
            rows[at, layout, "cuBLAS"] = row["library_alone"]
            rows[at, layout, name if row.get("peer") else f"`{name}`"] = row["alone"]
    if found.get("ceiling"):
        rows["", "", "mma.sync alone"] = found["ceiling"]
    return table(
        ("M×N×K", "layout", "kernel", "TFLOP/s", "MHz", "W", "of mma.sync alone", "throttled by"),
        [
            (*key, f"{one['tflops']:.1f}", str(one.get("clock_mhz", "")),
             f"{one['power_w']:.1f}" if "power_w" in one else "",
             f"{one['share_at_clock']:.3f}" if "share_at_clock" in one else "",
             ", ".join(f"{why} {share:.0%}" for why, share in one.get("throttle", {}).items()))
            for key, one in rows.items()
        ],
    )  # fmt: skip


def _swept(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """Return the rows of the sweep over K, as `by_plan` does."""
    m, n, _ = SUITES["sweep"][0]
    return by_plan(row for row in rows if (row["m"], row["n"]) == (m, n))


def sweep_plot(rows: Sequence[Row]) -> str:
    """Return a plot of TFLOP/s over K: cuBLAS, the chosen plan, and two named plans."""
    m, n, _ = SUITES["sweep"][0]
    by_k = {name: {row["k"]: row for row in of.values()} for name, of in _swept(rows).items()}
    *names, chosen = by_k
    xs = sorted({k for of in by_k.values() for k in of})

    def over_k(name: str, key: str) -> list[float | None]:
        return [of[key] if (of := by_k[name].get(k)) else None for k in xs]

    series = {"cuBLAS": over_k(chosen, "library_tflops")}
    series |= {name.replace("`", ""): over_k(name, "tflops") for name in (chosen, *names[:2])}
    return charts.curves(f"bf16, {m}×{n}×K", xs, series, "K", "TFLOP/s")


def _chain(found: Mapping[str, Any]) -> list[str]:
    rows = [
        (f"{row['m']}×{row['n']}×{row['k']}", row["dtype"], f"`{row['plan']}`", f"{row['us']['chosen']:.2f}",
         f"{row['us']['library']:.2f}", f"{row['us']['library'] / row['us']['chosen']:.3f}")
        for row in found["rows"]
    ]  # fmt: skip
    return [
        "## Chains",
        "Square weights in one CUDA graph, each multiplied by the result of the previous product: microseconds per "
        "product. A kernel is launched before the previous one has ended, and waits for it: see "
        "[several kernels](../lowering.md#several-kernels-of-one-call). " + source(found["machine"], f"{_CHAIN}.json"),
        table(("M×N×K", "type", "plan", "µs", "cuBLAS, µs", "ratio"), rows),
    ]


def _choosing(found: Mapping[str, Any]) -> list[str]:
    return [
        "## Choosing a plan",
        f"Milliseconds for a new problem, median and 90th percentile of {found['problems']} random problems. *Ranking* "
        f"predicts the times of all candidates; *choosing* also builds each plan when it is first needed, "
        f"{found['plans']} in all. {found['machine']}, Python {found['python']}, numpy "
        f"{found['numpy']}, {found['date'][:10]}: `{_CHOOSING}.json`.",
        table(("type", "ranking", "90th percentile", "choosing", "90th percentile"), rows_of(dict(found))),
    ]
