"""The tables of docs/measured/counters.md, made from the recorded runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from cutegemm.analysis import device_named, plan_occupancy, traffic
from cutegemm.errors import CutegemmError
from cutegemm.machine.arch import SECTOR_BYTES
from cutegemm.profile import Case
from cutegemm.profile.compare import QUANTITIES, Comparison, Row
from docs.evidence.counters.cases import GROUPS
from docs.evidence.counters.misses import REASONS
from docs.evidence.counters.recorded import Evidence, replay
from docs.evidence.pages.markdown import table

_MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_MB = 1e6
_PLANS = ("plans", "mma", "hopper", "traffic")

_COLUMNS = {
    "shared load wavefronts": "LDS, LDSM wavefronts",
    "shared store wavefronts": "STS, STSM wavefronts, waits too",
    "shared store wavefronts less conflicts": "STS wavefronts less conflicts",
    "shared store wavefronts, by instructions": "STS, STSM wavefronts by instruction",
    "cp.async wavefronts, by instructions": "cp.async wavefronts",
    "global load sectors, cp.async too": "load sectors",
    "global store sectors": "store sectors",
    "sectors read into L1": "sectors into L1",
    "DRAM bytes read": "DRAM read",
    "registers of a thread": "registers",
    "theoretical occupancy, %": "occupancy",
}


class Runs:
    """The recorded runs, with today's predictions."""

    def __init__(self, folder: Path) -> None:
        self.evidence: dict[str, Evidence] = {}
        self.found: dict[str, list[Comparison]] = {}
        self.stale: dict[str, list[str]] = {}
        for group, cases in GROUPS.items():
            path = folder / f"analysis_{group}.json"
            if path.exists():
                self.evidence[group] = Evidence.load(path)
                self.found[group], self.stale[group] = replay(self.evidence[group], cases())

    def plans(self, *groups: str) -> list[Comparison]:
        """Return the comparisons of plans that have not changed since they were counted."""
        return [c for group in groups or _PLANS for c in self.found.get(group, [])]

    def misses(self) -> list[tuple[Comparison, Row]]:
        """Return every missed promise."""
        return [(c, row) for found in self.found.values() for c in found for row in c.misses]


def _percent(error: float | None) -> str:
    return "-" if error is None else "0" if error == 0 else f"{100 * error:+.1f}%"


def runs_table(runs: Runs) -> str:
    """Return a table of the runs: machine, versions, date and command."""
    rows = []
    for group, e in runs.evidence.items():
        m = e.machine
        versions = ", ".join(
            f"{what} {m[key]}"
            for key, what in (("driver", "driver"), ("ncu", "ncu"), ("nvidia-cutlass-dsl", "DSL"))
            if key in m
        )
        gpu = m.get("gpu", m.get("device", ""))
        link = f"[{group}](../evidence/data/analysis_{group}.json)"
        rows.append([link, str(len(e.cases)), gpu, versions, m["date"][:16], f"`{m['command']}`"])
    return table(("run", "cases", "GPU", "versions", "UTC", "command"), rows)


@cache
def _played(group: str) -> frozenset[str]:
    """Return the names of the cases of a group that are launched several times, to test the model of L2."""
    return frozenset([case.name for case in GROUPS[group]() if isinstance(case, Case) and case.launches > 1])


def _basis(group: str, name: str) -> str:
    """Return what the DRAM counter of a case proves: see the text of the page."""
    if name not in _played(group):
        return "each byte once"
    return "out of sample" if name.startswith("simt") else "fitted"


def summary_table(runs: Runs) -> str:
    """Return, for each counter with a promise, how many plans keep it, group by group."""

    def seen(rows: Sequence[Row]) -> list[Row]:
        return [r for r in rows if r.holds is not None and (r.measured or r.predicted)]

    def held(rows: Sequence[Row]) -> str:
        return f"{sum(1 for r in seen(rows) if r.holds)} of {len(seen(rows))}" if seen(rows) else ""

    out = []
    for q in QUANTITIES:
        if q.tolerance is None:
            continue
        by_group = {g: [(c.case, r) for c in runs.found.get(g, []) for r in c.rows if r.name == q.name] for g in _PLANS}
        every = [r for rows in by_group.values() for _, r in rows]
        worst = max((abs(r.error or 0.0) for r in seen(every) if r.holds), default=0.0)
        cells = [held([r for _, r in by_group[g]]) for g in _PLANS]
        allowed = "a range" if q.between else f"{q.tolerance:.0%}" if q.tolerance else "exact"
        out.append([q.name, allowed, f"**{held(every)}**", f"{worst:.1%}", *cells])
        if q.name != "DRAM bytes read":
            continue
        for basis in ("each byte once", "fitted", "out of sample"):
            part = {g: [r for case, r in by_group[g] if _basis(g, case) == basis] for g in _PLANS}
            total = held([r for rows in part.values() for r in rows])
            out.append([f"- {basis}", "", total, "", *[held(part[g]) for g in _PLANS]])
    single = [c.rows[0] for c in runs.found.get("probes", [])]
    out.append(["wavefronts of single instructions", "exact", f"**{held(single)}**", *[""] * 5])
    return table(("counter", "within", "all", "worst kept", *_PLANS), out)


def probes_table(runs: Runs) -> str:
    """Return, for single instructions, how many counters equal the prediction."""
    kinds: dict[str, list[Row]] = {}
    for c in runs.found.get("probes", []):
        kinds.setdefault(c.what, []).append(c.rows[0])
    rows = []
    for kind, seen in kinds.items():
        counted = [r for r in seen if r.measured is not None]
        exact = sum(1 for r in counted if r.error == 0)
        most = max((int(r.measured or 0) for r in counted), default=0)
        rows.append([kind, str(len(seen)), str(exact) if counted else "-", str(len(counted)), str(most or "-")])
    return table(("instruction", "patterns", "equal", "counted", "most wavefronts"), rows)


def plans_table(runs: Runs) -> str:
    """Return the error of each prediction for every plan."""
    rows = []
    for c in runs.plans():
        by_name = {row.name: row for row in c.rows}
        cells = []
        for name in _COLUMNS:
            row = by_name[name]
            if not row.predicted and not row.measured:
                cells.append("")
            else:
                cells.append(_percent(row.error) + (" **!**" if row.holds is False else ""))
        rows.append([c.case, *cells])
    return table(("case", *_COLUMNS.values()), rows)


def traffic_table(runs: Runs) -> str:
    """Return DRAM traffic and traffic between L2 partitions, for matrices that do not fit into L2."""
    rows = []
    for group in ("plans", "hopper", "traffic"):
        if group not in runs.evidence:
            continue
        cases = {case.name: case for case in GROUPS[group]() if isinstance(case, Case)}
        for c in runs.found[group]:
            case, e = cases[c.case], runs.evidence[group]
            if case.launches == 1:
                continue
            device = device_named(e.device)
            held = plan_occupancy(case.plan, e.arch, None)
            in_step = traffic(
                case.plan, case.problem, ctas_per_wave=device.sms * held.ctas,
                l2_bytes=device.l2_bytes // device.l2_partitions,
            )  # fmt: skip
            by_name = {row.name: row for row in c.rows}
            dram, far = by_name["DRAM bytes read"], by_name["L2 read sectors from another partition"]
            seen = [launch["dram__bytes_read.sum"] / _MB for launch in e.cases[c.case].launches]
            spread = f" ({min(seen):,.0f} to {max(seen):,.0f})" if len(seen) > 1 else ""
            sizes = [
                in_step.min_bytes, in_step.dram_read_bytes, dram.predicted or 0.0, dram.measured or 0.0,
                SECTOR_BYTES * (far.predicted or 0.0), SECTOR_BYTES * (far.measured or 0.0),
            ]  # fmt: skip
            least, step, time, counted, far_time, far_counted = [f"{size / _MB:,.0f}" for size in sizes]
            fitted = _basis(group, c.case)
            error = _percent(dram.error)
            rows.append([c.case, least, step, time, counted + spread, error, far_time, far_counted, fitted])
    head = (
        "case",
        "A and B, MB",
        "in step",
        "in time",
        "DRAM read",
        "error",
        "far, predicted",
        "far, read",
        "",
    )
    return table(head, rows)


def misses_table(runs: Runs) -> str:
    """Return the missed promises with their reasons."""
    rows = [
        [c.case, row.name, f"{row.predicted:,.0f}", f"{row.measured:,.0f}", _percent(row.error),
         REASONS.get((c.case, row.name), "not understood")]
        for c, row in runs.misses()
    ]  # fmt: skip
    return table(("case", "counter", "predicted", "counted", "error", "reason"), rows)


def unpromised_table(runs: Runs) -> str:
    """Return the counters without a promise, with the reasons."""
    rows = []
    for q in QUANTITIES:
        if q.tolerance is not None:
            continue
        errors = [
            r.error for c in runs.plans() for r in c.rows
            if r.name == q.name and r.error is not None and (r.measured or r.predicted)
        ]  # fmt: skip
        finite = [e for e in errors if e != float("inf")]
        between = f"{_percent(min(finite))} to {_percent(max(finite))}" if finite else "-"
        rows.append([q.name, between, q.why])
    return table(("counter", "errors", "why nothing is promised"), rows)


TABLES: dict[str, Callable[[Runs], str]] = {
    "summary": summary_table,
    "runs": runs_table,
    "probes": probes_table,
    "plans": plans_table,
    "traffic": traffic_table,
    "misses": misses_table,
    "unpromised": unpromised_table,
}


def regenerated(text: str, runs: Runs) -> str:
    """Return a page with its tables made again.

    raises   CutegemmError for a marker with an unknown table
    """

    def made(match: re.Match[str]) -> str:
        if match[2] not in TABLES:
            raise CutegemmError(f"the table {match[2]!r} is not one of {', '.join(TABLES)}.")
        return f"{match[1]}{TABLES[match[2]](runs)}\n{match[3]}"

    return _MARKED.sub(made, text)
