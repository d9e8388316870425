"""What each counter should read by the analysis, and how far it is from what it reads."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cutegemm.analysis import Analysis, Traffic
from cutegemm.machine.arch import SECTOR_BYTES

if TYPE_CHECKING:
    from cutegemm.profile.case import Case

_EXACT = 0.0
_COUNTS = 0.02
_DRAM = 0.10
_LINE_COPY_BITS = 128  # of a cp.async that is not kept in L1

# Counters of the shared-memory pipe: what ldmatrix does is counted with loads, stmatrix with stores.
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"
SASS_WAVEFRONTS = "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"  # of the instructions alone
_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_{}.sum"
_L2_READ = "lts__t_sectors_op_read.sum"
_L2_READ_OF_L1 = "lts__t_sectors_srcunit_tex_op_read.sum"


@dataclass(frozen=True)
class Quantity:
    """One thing that is predicted and counted.

    metrics     whose sum counts it; those that the GPU has not are left out, but one must be there
    predicted   from an analysis, or None where it says nothing
    tolerance   relative, or None where nothing is promised
    why         nothing is promised
    less        metrics that are subtracted
    unless      whether nothing is promised of an analysis after all
    between     a range that is promised instead of a tolerance
    """

    name: str
    metrics: tuple[str, ...]
    predicted: Callable[[Analysis], float | None]
    tolerance: float | None
    why: str = ""
    less: tuple[str, ...] = ()
    unless: Callable[[Analysis], bool] = lambda _: False
    between: Callable[[Analysis], tuple[float, float] | None] | None = None


def _shared(index: int, *ops: str) -> Callable[[Analysis], float]:
    return lambda a: float(sum(a.counts(op)[index] for op in ops))


def _conflicts(*ops: str) -> Callable[[Analysis], float]:
    return lambda a: float(sum(a.counts(op)[1] - a.counts(op)[2] for op in ops))


def _sectors(*ops: str) -> Callable[[Analysis], float]:
    return lambda a: float(sum(a.sector_count(op)[1] for op in ops))


def _moved(read: Callable[[Traffic], float | None]) -> Callable[[Analysis], float | None]:
    return lambda a: None if a.traffic is None else read(a.traffic)


def _arriving(a: Analysis) -> float | None:
    if a.traffic is None:
        return None
    return float(a.arriving() + a.sum_sectors("ld"))


def _asked(a: Analysis) -> float | None:
    return None if a.traffic is None else a.traffic.l2_read_bytes / SECTOR_BYTES + a.sum_sectors("ld")


def _written(a: Analysis) -> float | None:
    if a.traffic is None or a.ends is None:
        return None
    stored = a.traffic.dram_write_bytes * a.ends.stores / a.tiles if a.tiles else 0.0
    return stored + a.sum_sectors("st") * SECTOR_BYTES


def _from_dram(t: Traffic) -> float:
    return t.dram_read_bytes + (t.partials_read_bytes or 0.0)


def _l2_hits(a: Analysis) -> float | None:
    """Lines that come from the other partition miss once here, and once more there where they are not."""
    asked = _asked(a)
    if a.traffic is None or asked is None:
        return None
    far = a.traffic.far_bytes or 0.0
    total = asked * SECTOR_BYTES + far
    return 100 * (1 - (_from_dram(a.traffic) + far) / total) if total else 100.0


def _shares_tiles(a: Analysis) -> bool:
    return a.ends is not None and a.ends.writes > 0


def _waits_for_boxes(a: Analysis) -> bool:
    """Whether the only loads are of tickets or of D: the counter shows what wgmma and TMA make them wait for."""
    if a.counts("wgmma")[0]:
        return True
    return bool(a.counts("tma")[0]) and a.ends is not None and _shared(1, "load")(a) == a.ends.asked > 0


def _rewritten(a: Analysis) -> bool:
    """Whether ptxas is seen to have joined accesses that the PTX, which was executed, has one by one."""
    return a.executed is not None and a.executed.rewritten


def _not_as_executed(a: Analysis) -> bool:
    return _rewritten(a) or _waits_for_boxes(a)


def _is_torn(a: Analysis) -> bool:
    """Whether a cp.async of 16 bytes moves the halves of a sector by themselves: which of them count as one is known of
    some paddings alone."""
    parts = [part.in_grid for part in a.global_ if part.op == "ldgsts" and part.bits == _LINE_COPY_BITS]
    return any(grid is not None and grid.arriving != grid.sectors for grid in parts)


def _arrives_otherwise(a: Analysis) -> bool:
    """Whether more or fewer sectors come to multiprocessors than the boxes and copies of a plan touch.

    Fewer where L1 holds what a CTA beside it has read, or the k-tile before; more where torn rows are multicast, or
    registers spill.
    """
    if _shares_tiles(a) or a.traffic is None or a.spills:
        return True
    if any(part.is_torn for part in a.global_):
        return True
    once = a.traffic.sm_read_bytes / SECTOR_BYTES
    return any(part.by_l1 for part in a.global_) and (a.occupancy.ctas > 1 or a.arriving() > (1 + _COUNTS) * once)


def _time(a: Analysis) -> float | None:
    return a.roofline.seconds * 1e9 if a.roofline else None


_COALESCED = (
    "the L2 request coalescer joins reads that meet in it, so that fewer arrive at L2 than leave it for the "
    "multiprocessors; how many meet is a matter of time"
)
_PAST = (
    "copies past the last k-tile, stages - 1 of them, are counted where the compiler switches them off by a "
    "predicate, and not where it branches round them"
)
_PARTIAL = "the counter misses the main loop of some plans, see below"
_WAITS = "shows more than the stores need, see below"

QUANTITIES = (
    Quantity(
        "shared load instructions",
        ("smsp__inst_executed_op_shared_ld.sum", "smsp__inst_executed_op_ldsm.sum"),
        _shared(0, "load", "ldmatrix"), None,
        "the compiler joins reads along K, and those past the end are counted though their predicate is off",
    ),
    Quantity(
        "shared load wavefronts", (WAVEFRONTS.format("ld"),), _shared(1, "load", "ldmatrix"), _COUNTS,
        unless=_not_as_executed,
    ),
    Quantity(
        "shared load wavefronts, by instructions", (SASS_WAVEFRONTS.format("ld"),), _shared(1, "load"), _COUNTS,
        unless=_rewritten,
    ),
    Quantity(
        "shared load conflicts", (_CONFLICTS.format("ld"),), _conflicts("load", "ldmatrix"), None,
        "follows from the wavefronts",
    ),
    Quantity(
        "shared store instructions",
        ("smsp__inst_executed_op_shared_st.sum", "smsp__inst_executed_op_stsm.sum"),
        _shared(0, "store", "stmatrix"), None, "counts no stmatrix, but stores whose predicate is off",
    ),
    Quantity(
        "shared store wavefronts, by instructions", (SASS_WAVEFRONTS.format("st"),), _shared(1, "store"), _COUNTS,
        unless=_rewritten,
    ),
    Quantity(
        "shared store wavefronts", (WAVEFRONTS.format("st"),), _shared(1, "store", "stmatrix"), None, _WAITS
    ),
    Quantity(
        "shared store wavefronts less conflicts", (WAVEFRONTS.format("st"),),
        lambda a: None if a.counts("tma")[0] else _shared(2, "store")(a), _COUNTS,  # else it waits for TMA
        less=(_CONFLICTS.format("st"),), unless=_rewritten,
    ),
    Quantity(
        "shared store conflicts", (_CONFLICTS.format("st"),), _conflicts("store", "stmatrix"), None, _WAITS
    ),
    Quantity(
        "cp.async instructions", ("smsp__inst_executed_op_ldgsts.sum",), _shared(0, "cp.async"), None,
        _PAST,
    ),
    Quantity(
        "cp.async wavefronts, by instructions", (SASS_WAVEFRONTS.format("ldgsts"),), _shared(1, "cp.async"), None,
        _PARTIAL,
    ),
    Quantity(
        "global load sectors, cp.async too",  # those of cp.async alone are a part of it
        (_SECTORS.format("ld"),),
        _sectors("ld", "ldgsts"), _COUNTS, unless=_is_torn,
    ),
    Quantity("global store sectors", (_SECTORS.format("st"),), _sectors("st"), _COUNTS),
    Quantity(
        "sectors read into L1", ("l1tex__m_xbar2l1tex_read_sectors.sum",), _arriving, _COUNTS,
        unless=_arrives_otherwise,
    ),
    Quantity(
        "L2 read sectors from L1", (_L2_READ_OF_L1,), _asked, None, _COALESCED,
    ),
    Quantity(
        "L2 read sectors from another partition", (_L2_READ,),
        _moved(lambda t: None if t.far_bytes is None else t.far_bytes / SECTOR_BYTES), None,
        "which side of the chip a CTA runs on is not known", less=(_L2_READ_OF_L1,),
    ),
    Quantity(
        "DRAM bytes read", ("dram__bytes_read.sum",), _moved(_from_dram), _DRAM,
        unless=_shares_tiles,  # held against the counters of one plan only
        between=lambda a: None if a.traffic is None else a.traffic.dram_range,
    ),
    Quantity(
        "DRAM bytes written", ("dram__bytes_write.sum",), _written, None,
        "what is still in L2 when the kernel ends is written later",
    ),
    Quantity("L2 hit rate of reads, %", ("lts__t_sector_op_read_hit_rate.pct",), _l2_hits, None, _COALESCED),
    Quantity(
        "registers of a thread", ("launch__registers_per_thread",),
        lambda a: float(a.occupancy.registers), _EXACT,
    ),
    Quantity(
        "CTAs of a multiprocessor by registers", ("launch__occupancy_limit_registers",),
        lambda a: float(a.occupancy.limits["registers"]), _EXACT,
    ),
    Quantity(
        "CTAs of a multiprocessor by shared memory", ("launch__occupancy_limit_shared_mem",),
        lambda a: float(a.occupancy.limits["shared memory"]), None,
        "ncu divides the shared memory that the driver set aside for this launch, not the most that there is",
    ),
    Quantity(
        "theoretical occupancy, %", ("sm__maximum_warps_per_active_cycle_pct",),
        lambda a: round(100 * a.occupancy.theoretical, 2), _EXACT,  # ncu prints two decimals
    ),
    Quantity(
        "achieved occupancy, %", ("sm__warps_active.avg.pct_of_peak_sustained_active",),
        lambda a: 100 * a.occupancy.theoretical, None,
        "the idle warps of a producer's group end at once: 9 of 64 stay, 14.06%",
    ),
    Quantity("time, ns", ("gpu__time_duration.sum",), _time, None, "the prediction is a bound"),
)  # fmt: skip

# Asked for as well, to tell the reasons apart. Of those of shared memory one may count the stmatrix of a whole
# plan, which none above does; what a GPU has not is left out.
ALSO = (
    "smsp__sass_inst_executed_op_stsm.sum",
    "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared.sum",
    "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldsm.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_cmd_read.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_cmd_write.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_cmd_write.sum",
    "l1tex__data_bank_writes.sum",
    "l1tex__data_bank_reads.sum",
    "launch__shared_mem_config_size",
    "lrc__xbar2gpc_sectors_op_read.sum",
    "lrc__lts2lrc_sectors_op_read.sum",
    "lts__t_sectors_srcunit_ltcfabric.sum",
)

# What is promised something of.
PROMISED_METRICS = tuple(
    dict.fromkeys([name for q in QUANTITIES if q.tolerance is not None for name in (*q.metrics, *q.less)])
)
METRICS = tuple(dict.fromkeys([*(name for q in QUANTITIES for name in (*q.metrics, *q.less)), *ALSO]))


@dataclass(frozen=True)
class Row:
    """One counter.

    error       (predicted - measured) / measured
    tolerance   that the error is held against, or None
    between     the range that the counter is held against instead
    """

    name: str
    predicted: float | None
    measured: float | None
    tolerance: float | None
    between: tuple[float, float] | None = None

    @property
    def error(self) -> float | None:
        """Relative to what was measured; None where one side is missing."""
        if self.predicted is None or self.measured is None:
            return None
        if self.measured == 0:
            return 0.0 if self.predicted == 0 else float("inf")
        return (self.predicted - self.measured) / self.measured

    @property
    def holds(self) -> bool | None:
        """Whether the error is within the tolerance, or the counter in its range; None where nothing was promised or
        counted."""
        if self.tolerance is None or self.error is None:
            return None
        if self.between is not None and self.measured is not None:
            return self.between[0] <= self.measured <= self.between[1]
        return abs(self.error) <= self.tolerance + 1e-6


@dataclass(frozen=True)
class Comparison:
    """All counters of one case."""

    case: str
    what: str
    rows: tuple[Row, ...]

    @property
    def misses(self) -> tuple[Row, ...]:
        """The rows beyond their tolerance."""
        return tuple(row for row in self.rows if row.holds is False)


def compare(case: Case, analysis: Analysis, counters: Mapping[str, float]) -> Comparison:
    """The prediction for a plan and a problem beside what was counted."""
    rows = []
    for q in QUANTITIES:
        found = [counters[name] for name in q.metrics if name in counters]
        there = found and all(name in counters for name in q.less)
        measured = sum(found) - sum(counters[name] for name in q.less) if there else None
        tolerance = None if q.unless(analysis) else q.tolerance
        between = q.between(analysis) if q.between is not None else None
        rows.append(Row(q.name, q.predicted(analysis), measured, tolerance, between))
    return Comparison(case.name, f"{case.plan.name} {case.problem}", tuple(rows))


def to_dict(found: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Plain data for JSON."""
    return [
        {
            "case": c.case,
            "what": c.what,
            "rows": [{**asdict(row), "error": row.error, "holds": row.holds} for row in c.rows],
        }
        for c in found
    ]


def render(found: Sequence[Comparison], *, width: int = 110) -> str:
    """The tables as text: each plan by itself, the single instructions together."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(file=io.StringIO(), width=width, highlight=False)

    def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: str) -> None:
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for i, column in enumerate(columns):
            table.add_column(column, justify=numbers if i else "left")  # type: ignore[arg-type]
        for row in rows:
            table.add_row(*row)
        console.print(table)

    for c in found:
        if len(c.rows) > 1:
            told = [row for row in c.rows if row.predicted or row.measured]
            cells = [(r.name, _number(r.predicted), _number(r.measured), _error(r)) for r in told]
            show(f"{c.case}: {c.what}", ("", "predicted", "measured", "error"), cells, "right")
    single = [
        (c.case, c.what, _number(row.predicted), _number(row.measured), _VERDICTS[row.holds])
        for c in found
        if len(c.rows) == 1
        for row in c.rows
    ]
    if single:
        show("single instructions", ("case", "instruction", "predicted", "measured", ""), single, "left")
    missed = sum(1 for c in found if c.misses)
    console.print(f"{len(found)} cases, {missed} with a counter beyond its tolerance")
    return console.file.getvalue()  # type: ignore[attr-defined]


_VERDICTS = {True: "", False: "differs", None: "not counted"}


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def _error(row: Row) -> str:
    if row.error is None:
        return "-"
    mark = {True: "", False: "  !", None: "  (not promised)"}[row.holds]
    return f"{row.error:+.1%}{mark}"
