"""docs/measured/proof.md: predictions and counters of random plans and ragged problems, the largest misses first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from docs.evidence.counters.proof import read
from docs.evidence.counters.random_plans import DEVICES, FAMILIES
from docs.evidence.pages.markdown import table

_NAME = "measured/proof.md"
# By counter, where no register spills.
_REASONS = {
    "DRAM bytes read": "the model of L2: see [the analysis](../analysis.md#l2-and-dram-traffic)",
    "shared load wavefronts, by instructions": (
        "two counters contradict each other: that of the hardware is as predicted, that of patched instructions "
        "shows half as many more"
    ),
}

Row = Mapping[str, Any]


def pages(data: Path) -> dict[str, str]:
    """Return the text of the page by its path below `docs`; nothing if nothing was recorded."""
    found = {
        (device, family): read(file)
        for device in DEVICES
        for family in FAMILIES
        if (file := data / f"proof_{family}_{device}.json").exists()
    }
    return {_NAME: page(found)} if found else {}


def page(found: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    """Return the page of the recorded devices and families."""
    of_device = {device: held["machine"] for (device, _), held in found.items()}
    machines = [
        f"{machine['gpu']}, driver {machine['driver']}, ncu {machine['ncu']}, DSL {machine['nvidia-cutlass-dsl']}, "
        f"{machine['date']}"
        for machine in of_device.values()
    ]
    seeds = sorted({str(held["seed"]) for held in found.values()})
    cases = [(family, {**row, "device": device}) for (device, family), held in found.items() for row in held["cases"]]
    lost = [(family, row) for family, row in cases if row["missed"]]
    parts = [
        "# Random plans: predictions and counters",
        f"{len(cases) // len(found)} random plans and ragged problems of each family (seed {' and '.join(seeds)}): "
        "the predictions of [the analysis](../analysis.md) and the counters of Nsight Compute, on an "
        f"{'; and on an '.join(machines)}. A plan is a text that spells out tile sizes, threads, stages, layouts, "
        "copies and the raster. A plan that breaks a rule is drawn again; nothing else is. Extents are multiples of "
        "what the alignment requires.",
        "Shared memory is predicted by `check --compiled`: the PTX of the compiled kernel is executed on a CPU for a "
        "few tiles, and its accesses are added up over the grid. Sectors are those of the plan. DRAM is a range.",
        "No constant is fitted to these counters, but some promises were withdrawn because of them: see [Counters "
        "without a promise](#counters-without-a-promise).",
        "## Promises",
        summary(cases),
        f"{len(lost)} of {len(cases)} miss a promise. All of them, sorted by their error:",
        losers(cases),
        "## The bound",
        bound(cases),
        "## Counters without a promise",
        _UNPROMISED.strip(),
        "## Data",
        "As data, with every counter: "
        + ", ".join(f"[{family}, {device}](../evidence/data/proof_{family}_{device}.json)" for device, family in found)
        + ". `python -m docs.evidence proof --family simt --plans 60 --seed "
        + f"{seeds[0]}` measures a family again, with `--list` it names the plans, and `--replay FILE` computes "
        "today's predictions next to the counters of a file.",
    ]
    return "\n\n".join(parts) + "\n"


def summary(cases: Sequence[tuple[str, Row]]) -> str:
    """Return a table that shows how often each promise is kept, family by family."""
    names: dict[str, dict[str, list[Row]]] = {}
    for family, row in cases:
        for name, told in row["promised"].items():
            kept = name not in row["missed"]
            names.setdefault(name, {}).setdefault(family, []).append({"kept": kept, "error": told[2] or 0.0})
    families = list(dict.fromkeys(family for family, _ in cases))
    rows = []
    for name, by_family in names.items():
        every = [one for of in by_family.values() for one in of]
        worst = max([abs(one["error"]) for one in every if one["kept"]], default=0.0)
        rows.append([name, f"**{_kept(every)}**", f"{worst:.1%}", *[_kept(by_family.get(f, [])) for f in families]])
    return table(("counter", "kept", "worst kept", *families), rows)


def bound(cases: Sequence[tuple[str, Row]]) -> str:
    """Return a sentence that says for how many plans the predicted least time is below the measured time."""
    timed = [(*row["time_ns"], row) for _, row in cases if len(row["time_ns"]) == 2 and None not in row["time_ns"]]
    below = [(least / took, row) for least, took, row in timed if least > took]
    said = (
        f"The least time that the roofline of `check --compiled` gives is below the time that the kernel took for "
        f"{len(timed) - len(below)} of {len(timed)} plans"
    )
    if not below:
        return said + "."
    worst, row = max(below, key=lambda pair: pair[0])
    extents = "x".join(map(str, row["extents"]))
    return said + f"; the worst is {worst:.2f} of it, `{row['plan']}`, {extents}, {row['device']}."


def _kept(found: Sequence[Row]) -> str:
    return f"{sum(one['kept'] for one in found)} of {len(found)}" if found else ""


def losers(cases: Sequence[tuple[str, Row]]) -> str:
    """Return a table of the missed promises, with reasons."""
    rows = []
    seen: dict[Any, list[Row]] = {}
    for _, row in cases:
        seen.setdefault(_question(row), []).append(row)
    for _, row in cases:
        for name in row["missed"]:
            predicted, counted, error = row["promised"][name]
            shown = "-" if error is None else f"{100 * error:+.1f}%"
            rows.append(
                (
                    abs(error or 1.0),
                    [f"`{row['plan']}`", "x".join(map(str, row["extents"])), f"{row['dtype']} {row['layout']}",
                     row["device"], name, _range(predicted), _number(counted), shown,
                     _reason(name, row, seen[_question(row)])],
                )
            )  # fmt: skip
    rows.sort(key=lambda entry: -entry[0])
    head = (
        "plan",
        "M, N, K, L",
        "type, layout",
        "device",
        "counter",
        "predicted",
        "counted",
        "error",
        "reason",
    )
    return table(head, [cells for _, cells in rows])


def _question(row: Row) -> tuple[Any, ...]:
    """Return the key of a plan and a problem, without the device."""
    return (row["plan"], *row["extents"])


def _reason(name: str, row: Row, on_all: Sequence[Row]) -> str:
    """Return why a promise is missed.

    on_all   rows of the plan on all devices, which execute the same instructions
    """
    if row["spills"] and name != "shared load wavefronts, by instructions":
        return f"{row['spills']} instructions spill"
    by_instructions = "shared load wavefronts, by instructions"
    if name == "shared load wavefronts" and by_instructions in row["promised"]:
        return "by instructions it is as predicted: this counter shows waits too"
    counted = [of["promised"][name][1] for of in on_all if name in of["promised"]]
    if name not in _REASONS and len(set(counted)) > 1:
        apart = " and ".join(_number(count) for count in counted)
        return f"the same instructions are counted as {apart} on two chips: this counter shows waits too"
    return _REASONS.get(name, "not understood")


def _range(value: Any) -> str:
    return " to ".join(_number(end) for end in value) if isinstance(value, list) else _number(value)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 100 else f"{value:g}"


_UNPROMISED = """
- **Sectors into L1, of loads that L1 keeps** (LDG, and cp.async of 4 and 8 bytes). CTAs of one SM read the same
  panels, and rows that start within a sector share it with the next k-tile. Up to 50% fewer sectors arrive than are
  requested. They are promised if one CTA has the SM and no sector belongs to two k-tiles.
- **Sectors into L1, of multicast boxes.** Up to 35% more arrive than the rows touch. They are promised if the rows
  are whole lines of 128 bytes that start at a multiple of 64, and are not tf32.
- **Sectors of 16-byte cp.async whose halves lie in two sectors**, because of a padding of 16 bytes or of rows that
  start within a sector: -12% to +10%. Otherwise they are exact.
- **Wavefronts of loads of D during wgmma.** The counter includes waits for wgmma and TMA. By instructions they are
  exact.
- **Accesses that ptxas merges.** The machine code then has wider accesses to shared memory than the PTX, which is
  executed.
- **Plans that spill, and plans that split K**: their sectors into L1.
"""
