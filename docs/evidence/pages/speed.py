"""docs/measured/speed.md: what the kernels reach beside the library, made from docs/evidence/data/*.json."""

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
    "simt": "f32 without TF32, SIMT",
    "hopper": "bf16, Hopper: wgmma and TMA",
    "hopper_llama": "bf16, Hopper, the sizes of language models",
    "hopper_small": "bf16, Hopper, few rows and small problems",
    "hopper_shapes": "bf16, Hopper, sizes of all kinds",
    "hopper_tf32": "tf32, Hopper: every layout, and what packing first would take",
    "hopper_unaligned": "bf16, Hopper, rows that TMA cannot load: packed first",
    "hopper_fp8": "e4m3, Hopper, beside the library without fast accumulation",
    "hopper_fp8_fast": "e4m3, Hopper, beside the library with fast accumulation",
    "mma_layouts_bf16": "bf16, mma.sync, every layout, beside CUTLASS's example for mma.sync",
    "mma_layouts_f16": "f16, mma.sync, every layout, beside CUTLASS's example for mma.sync",
    "mma_layouts_tf32": "tf32, mma.sync, every layout; `gemm` itself takes wgmma",
}
_SWEEP, _SWEEP_PLOT = "hopper", "hopper_sweep"
_POWER = {
    "hopper_alone": "bf16, Hopper, short K: clock and power",
    "mma_power_tf32": "tf32, mma.sync: clock and power",
    "mma_power_bf16": "bf16, mma.sync: clock and power",
}
_CHAIN, _HOST, _CHOOSING = "chain", "simt_host", "choosing"


def names() -> set[str]:
    """Names of the files that the page is made from, without .json."""
    return {*_TITLES, *_POWER, _CHAIN, _HOST, _CHOOSING}


def pages(benchmarks: Path, ladders: Mapping[str, str] | None = None) -> dict[str, str]:
    """Text by file name: the page of all measurements in a folder and its plot; what is not there is left out.

    ladders   file name -> title of the pages to link to
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
        "Ratios are to cuBLAS through torch, in the same process, in turns, on the same normally distributed "
        "data: above 1 is faster. The chip throttles by power, so a ratio moves by a few percent from run to "
        "run. `python -m docs.evidence run` makes `docs/evidence/data/*.json` on a machine with a GPU, and "
        "`python -m docs.evidence report` makes this page of them; each file holds the machine, the versions, the date "
        "and the command. A plan is the one that `gemm` chose at that date.",
    ]
    if ladders:
        links = ", ".join(f"[{title}]({name})" for name, title in ladders.items())
        parts.append(f"Step by step, from the plainest plan to the fastest: {links}.")
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
    """The plan that is chosen, or the best where none is said to be, and the best of those timed."""
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
    """The cells of a peer that was timed in the same turns."""
    if not has_peers:
        return ()
    return ("", "") if peer is None else (f"{peer['tflops']:.1f}", f"{chosen['tflops'] / peer['tflops']:.3f}")


_ALONE = (
    "Each contestant runs alone, again and again, while the chip's sensors are read. The last row is a kernel of "
    "mma.sync without loads; a share of its rate is at the clock that the contestant ran at. Kernels of wgmma, "
    "cuBLAS's and the `sm90` plans, are above it."
)


def _by_power(found: Mapping[str, Any]) -> str:
    """What the chip does while a kernel runs by itself: each plan, the library, mma.sync alone."""
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
            (*key, f"{one['tflops']:.1f}", str(one.get("clock_mhz", "")), str(one.get("power_w", "")),
             f"{one['share_at_clock']:.3f}" if "share_at_clock" in one else "",
             ", ".join(f"{why} {share:.0%}" for why, share in one.get("throttle", {}).items()))
            for key, one in rows.items()
        ],
    )  # fmt: skip


def _swept(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """The times of the sweep, as `by_plan` has them."""
    m, n, _ = SUITES["sweep"][0]
    return by_plan(row for row in rows if (row["m"], row["n"]) == (m, n))


def sweep_plot(rows: Sequence[Row]) -> str:
    """TFLOP/s over K of the Hopper sweep: the library, the plan that is chosen, the plans that were named."""
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
        f"Milliseconds for a problem that was not met before, of {found['problems']} that are drawn by a seed, median "
        "and one in ten above: to rank the candidates; and to choose, where plans are built on the way, each when it "
        f"is taken first, {found['plans']} in all. {found['machine']}, Python {found['python']}, numpy "
        f"{found['numpy']}, {found['date'][:10]}: `{_CHOOSING}.json`.",
        table(("type", "ranking", "one in ten", "choosing", "one in ten"), rows_of(dict(found))),
    ]
