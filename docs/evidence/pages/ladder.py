"""Pages of ladders: what each step changes and why, its speed, its resources, predictions and counters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutegemm.choice.catalog import plans
from cutegemm.choice.ladders.ladder import LadderStep
from docs.evidence.ladder import LADDERS
from docs.evidence.pages import charts
from docs.evidence.pages.counted import counters
from docs.evidence.pages.markdown import picture, recorded, source, table
from docs.evidence.rows import CHOSEN, Row, by_plan, groups, mean_ratio

Step = Mapping[str, Any]  # what `bench ladder` knows of one

_SLOWER = 0.99  # times the fastest speed before


@dataclass(frozen=True)
class Page:
    """A page of the documents.

    name    of the page and its plot
    about   page of the family, without .md
    files   name of a file of measurements, without .json -> of the ladder: of `evidence ladder`, or of `evidence gemm`,
            which knows of times alone
    counted cases of `profile` whose counters belong to it: how their names begin
    """

    name: str
    about: str
    title: str
    files: Mapping[str, str]
    counted: str = ""


PAGES = (
    Page("ladder_simt", "simt", "The SIMT ladder", {"ladder_simt": "simt"}),
    Page(
        "ladder_mma_sync",
        "mma_sync",
        "The mma.sync ladder",
        {f"ladder_mma_{kind}": f"mma_{kind}" for kind in ("tf32", "bf16", "f16")},
    ),
    Page(
        "ladder_hopper",
        "hopper",
        "The Hopper ladder: wgmma and TMA",
        {"hopper_ladder": "sm90", "ladder_sm90": "sm90"},
        counted="sm90_",
    ),
)


@dataclass(frozen=True)
class Series:
    """The ratios of a ladder's plans over some shapes: a suite, or all that were timed.

    timed   see `rows.by_plan`
    peak    of the chip, in TFLOP/s, where it is known
    """

    label: str
    timed: Mapping[str, Mapping[str, Row]]
    shapes: Sequence[str]
    peak: float | None

    def means(self, names: Iterable[str]) -> list[float | None]:
        """Geometric means over the shapes, None for plans that did not run at all of them."""
        return [mean_ratio(self.timed.get(name, {}), self.shapes) for name in names]


def pages(benchmarks: Path) -> dict[str, str]:
    """Text by file name, of the pages whose measurements are there and of their plots."""
    made = {}
    for page in PAGES:
        found = recorded(benchmarks, page.files)
        series = [one for file, data in found.items() for one in _series(page.files[file], data)]
        names = _names(page, found, series)
        if names:
            made[f"measured/{page.name}.md"] = _text(page, found, series, names, benchmarks)
        if series:
            made[f"plots/{page.name}.svg"] = _plot(page, series, names)
    return made


def _series(ladder: str, data: Mapping[str, Any]) -> list[Series]:
    timed = by_plan(data["rows"])
    peak = max((step["peak_tflops"] for step in data.get("steps", {}).values()), default=None)
    return [
        Series(f"{ladder}, {suite}" if suite else ladder, timed, shapes, peak)
        for suite, shapes in groups(timed).items()
    ]


def _names(page: Page, found: Mapping[str, Mapping[str, Any]], series: Sequence[Series]) -> list[str]:
    """Of the plans: the steps of the ladders, what else was timed, what was chosen."""
    known = dict.fromkeys(name for one in series for name in one.timed)
    known |= dict.fromkeys(name for data in found.values() for name in data.get("steps", ()))
    steps = [name for name in _steps(page, found) if name in known]
    return sorted(dict.fromkeys([*steps, *known]), key=lambda name: name == CHOSEN)


def _steps(page: Page, found: Iterable[str]) -> dict[str, LadderStep]:
    return {step.name: step for file in found for step in LADDERS[page.files[file]].steps}


def _text(
    page: Page,
    found: Mapping[str, Mapping[str, Any]],
    series: Sequence[Series],
    names: Sequence[str],
    benchmarks: Path,
) -> str:
    steps = _steps(page, found)
    says = {**dict(plans()), **{name: step.change for name, step in steps.items()}}
    parts = [f"# {page.title}"]
    for file, data in found.items():
        on = source(data["machine"], f"{file}.json") if "machine" in data else "not timed."
        parts.append(f"{page.files[file]}: {LADDERS[page.files[file]].data}; {on}")
    parts.append(
        "A ratio is the time of cuBLAS divided by the time of the step, in alternating order in one process; above 1, "
        "the step is faster. Means are geometric. `python -m docs.evidence run` measures again, and "
        "`python -m docs.evidence report` makes this page. "
        f"[The guide to these kernels](../{page.about}.md), [all speeds](speed.md)."
    )
    if series:
        parts.append(picture("Ratio to cuBLAS of each step", page.name))
    means = [one.means(names) for one in series]
    parts += [
        "## What each step changes",
        table(
            ("step", "change", *[f"ratio: {one.label}" for one in series]),
            [
                (_code(name), says.get(name, ""), *["" if of[i] is None else f"{of[i]:.3f}" for of in means])
                for i, name in enumerate(names)
            ],
        ),
    ]
    for one in series:
        shares = "ratio to cuBLAS" + (f", share of the chip's {one.peak:.0f}" if one.peak else "")
        parts += [f"## TFLOP/s ({shares}): {one.label}", _speeds(one, names)]
    for file, data in found.items():
        parts += _known(page.files[file], data)
    if page.counted:
        parts += counters(benchmarks, page.counted)
    told = []
    for at, name in enumerate(names):
        if name in steps:
            brought = _brought(means[0][: at + 1], series) if series else ""
            said = " ".join(
                [f"**`{name}`: {steps[name].change}.**", *filter(None, [_sentence(steps[name].why), brought])]
            )
            told.append(said)
    return "\n\n".join([*parts, "## Why", *told]) + "\n"


def _code(name: str) -> str:
    return name if name == CHOSEN else f"`{name}`"


def _speeds(one: Series, names: Sequence[str]) -> str:
    def cell(row: Row | None) -> str:
        share = f", {row['tflops'] / one.peak:.1%}" if row is not None and one.peak else ""
        return "" if row is None else f"{row['tflops']:.1f} ({row['ratio']:.3f}{share})"

    library = {at: f"{row['library_tflops']:.1f}" for of in one.timed.values() for at, row in of.items()}
    rows = [(_code(name), *[cell(one.timed[name].get(at)) for at in one.shapes]) for name in names if name in one.timed]
    return table(("step", *one.shapes), [("cuBLAS", *[library[at] for at in one.shapes]), *rows])


def _brought(ratios: Sequence[float | None], series: Sequence[Series]) -> str:
    """What a step brought, from its ratio of the first series, the last one here, and those before it."""
    before, own = [ratio for ratio in ratios[:-1] if ratio is not None], ratios[-1]
    if own is None or not before:
        return ""
    where = f" ({series[0].label})" if len(series) > 1 else ""
    gain = own / max(before)
    slower = "It is slower: " if gain < _SLOWER else ""
    return f"{slower}{gain:.2f} times the fastest speed before it{where}."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("." if text and not text.endswith((".", "?")) else "")


def _known(ladder: str, data: Mapping[str, Any]) -> list[str]:
    """What is known of the kernels of the steps, and what went wrong."""
    steps, parts = data.get("steps", {}), []
    if steps:
        parts = [f"## Resources: {ladder}", _columns(_RESOURCES, steps)]
        parts += [f"## Memory: {ladder}", _MEMORY_SAYS.format(data["counted_size"]), _columns(_MEMORY, steps)]
    failed = [f"`{row['plan']}`: {row['error']}" for row in data["rows"] if "error" in row]
    if failed:
        parts.append(f"Left out: {'; '.join(dict.fromkeys(failed))}")
    for key in ("not_timed", "not_counted"):
        if key in data:
            parts.append(f"What is missing was {key.replace('_', ' ')}: {data[key]}")
    return parts


def _columns(columns: Mapping[str, Callable[[Step], str]], steps: Mapping[str, Step]) -> str:
    return table(
        ("step", *columns),
        [(f"`{name}`", *[of(step) for of in columns.values()]) for name, step in steps.items()],
    )


def _pair(name: str) -> Callable[[Step], str]:
    def cell(step: Step) -> str:
        numbers = [step[side][name] / 1e6 for side in ("predicted", "measured") if name in step[side]]
        return " / ".join([f"{number:.2f}" for number in numbers])

    return cell


def _intensity(level: str) -> Callable[[Step], str]:
    return lambda step: f"{step['intensity'][level]:.1f}"


_RESOURCES: Mapping[str, Callable[[Step], str]] = {
    "registers": lambda s: f"{s['registers']}" + (f" ({s['spills']} spills)" if s["spills"] else ""),
    "CTAs x threads": lambda s: f"{s['ctas_per_sm']} x {s['threads']}",
    "occupancy": lambda s: f"{s['occupancy']:.0%}",
    "least time set by": lambda s: f"{s['bound']}, {s['bound_tflops']:.1f} TFLOP/s",
}
_MEMORY: Mapping[str, Callable[[Step], str]] = {
    "shared loads": _pair("load_wavefronts"),
    "shared stores": _pair("store_wavefronts"),
    "cp.async": _pair("async_wavefronts"),
    "load sectors": _pair("load_sectors"),
    "store sectors": _pair("store_sectors"),
    "FLOP/byte: registers": _intensity("register"),
    **{level: _intensity(level) for level in ("shared", "L2", "DRAM")},
}
_MEMORY_SAYS = (
    "Wavefronts of shared memory and 32-byte sectors of global memory at {}³, in millions: predicted by the "
    "static analysis / counted by ncu. Arithmetic intensity at 4096³ by the analysis."
)


def _plot(page: Page, series: Sequence[Series], names: Sequence[str]) -> str:
    """Bars of the ratio to cuBLAS, one of each series for a step, as SVG."""
    values = {one.label: one.means(names) for one in series}
    notes = [", ".join("" if of[i] is None else f"{of[i]:.3f}" for of in values.values()) for i in range(len(names))]
    title = f"{page.title}: ratio to cuBLAS, geometric means"
    return charts.bars(title, [name.replace("`", "") for name in names], values, {"cuBLAS": 1.0}, notes)
