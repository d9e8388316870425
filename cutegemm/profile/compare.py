"""Compare the counters of Nsight Compute with the predictions of the analysis."""

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
_LINE_COPY_BITS = 128  # width of a cp.async that bypasses L1

# Counters of the shared-memory pipe. ldmatrix is counted with loads, and stmatrix with stores.
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"
SASS_WAVEFRONTS = "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"  # does not count waits
_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_{}.sum"
_L2_READ = "lts__t_sectors_op_read.sum"
_L2_READ_OF_L1 = "lts__t_sectors_srcunit_tex_op_read.sum"


@dataclass(frozen=True)
class Quantity:
    """A quantity that the analysis predicts and that hardware counters measure, such as "shared load wavefronts".

    name        name of the quantity in tables
    metrics     ncu metrics whose sum is the measured value. Metrics that the GPU does not have are left out; at least
                one must exist
    predicted   function from an analysis to the predicted value, or to None if the analysis has no prediction
    tolerance   maximum of the relative error that is promised to users, or None if no maximum is promised
    why         reason that nothing is promised
    less        metrics that are subtracted from the sum; all must exist
    unless      function from an analysis to True if nothing is promised for that analysis
    between     function from an analysis to the range that is promised for the measured value, instead of a tolerance;
                None for no range
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
    """Return a function from an analysis to one count of its shared-memory operations `ops`, such as "load", summed.

    index   0: instructions; 1: wavefronts; 2: ideal wavefronts, without conflicts
    """
    return lambda a: float(sum(a.counts(op)[index] for op in ops))


def _conflicts(*ops: str) -> Callable[[Analysis], float]:
    """Return a function from an analysis to the bank conflicts of its shared-memory operations `ops` ("load", ...)."""
    return lambda a: float(sum(a.counts(op)[1] - a.counts(op)[2] for op in ops))


def _sectors(*ops: str) -> Callable[[Analysis], float]:
    """Return a function from an analysis to the 32-byte sectors that its global-memory operations `ops` touch.

    ops   operations such as "ld" and "ldgsts"
    """
    return lambda a: float(sum(a.sector_count(op)[1] for op in ops))


def _moved(read: Callable[[Traffic], float | None]) -> Callable[[Analysis], float | None]:
    """Return a function from an analysis to a number of its memory traffic; None if the analysis has no traffic.

    read   function from the traffic to this number
    """
    return lambda a: None if a.traffic is None else read(a.traffic)


def _arriving(a: Analysis) -> float | None:
    """Return the predicted number of 32-byte sectors that arrive at the SMs; None if the analysis has no traffic."""
    if a.traffic is None:
        return None
    return float(a.arriving() + a.sum_sectors("ld"))


def _asked(a: Analysis) -> float | None:
    """Return the predicted number of 32-byte sectors that SMs read from L2; None if the analysis has no traffic."""
    return None if a.traffic is None else a.traffic.l2_read_bytes / SECTOR_BYTES + a.sum_sectors("ld")


def _written(a: Analysis) -> float | None:
    """Return the predicted number of bytes that the GEMM writes to DRAM; None if the analysis has no traffic."""
    if a.traffic is None or a.ends is None:
        return None
    stored = a.traffic.dram_write_bytes * a.ends.stores / a.tiles if a.tiles else 0.0
    return stored + a.sum_sectors("st") * SECTOR_BYTES


def _from_dram(t: Traffic) -> float:
    """Return the predicted number of bytes that the GEMM reads from DRAM: operands, and partial results of K splits."""
    return t.dram_read_bytes + (t.partials_read_bytes or 0.0)


def _l2_hits(a: Analysis) -> float | None:
    """Return the predicted L2 hit rate of reads in percent; None if the analysis has no traffic.

    A line of the far L2 partition misses in the near partition, and misses again in the far partition if it is absent.
    """
    asked = _asked(a)
    if a.traffic is None or asked is None:
        return None
    far = a.traffic.far_bytes or 0.0
    total = asked * SECTOR_BYTES + far
    return 100 * (1 - (_from_dram(a.traffic) + far) / total) if total else 100.0


def _shares_tiles(a: Analysis) -> bool:
    """Return True if CTAs of the analysed plan exchange partial results of tiles through the workspace."""
    return a.ends is not None and a.ends.writes > 0


def _waits_for_boxes(a: Analysis) -> bool:
    """Return True if the hardware counter of shared-memory loads also counts waits for wgmma or TMA.

    This is so for wgmma plans, and for TMA plans whose only shared-memory loads read semaphore values or D.
    """
    if a.counts("wgmma")[0]:
        return True
    return bool(a.counts("tma")[0]) and a.ends is not None and _shared(1, "load")(a) == a.ends.asked > 0


def _rewritten(a: Analysis) -> bool:
    """Return True if the assembler ptxas merged accesses that are separate in the PTX whose accesses were counted."""
    return a.executed is not None and a.executed.rewritten


def _not_as_executed(a: Analysis) -> bool:
    """Return True if the hardware counter of shared-memory loads does not count just the predicted accesses.

    Either ptxas merged accesses, or the counter also counts waits.
    """
    return _rewritten(a) or _waits_for_boxes(a)


def _is_torn(a: Analysis) -> bool:
    """Return True if 16-byte cp.async copies move the halves of some sectors separately.

    How the counter counts such halves is known only for some paddings.
    """
    parts = [part.in_grid for part in a.global_ if part.op == "ldgsts" and part.bits == _LINE_COPY_BITS]
    return any(grid is not None and grid.arriving != grid.sectors for grid in parts)


def _arrives_otherwise(a: Analysis) -> bool:
    """Return True if the sectors that arrive at SMs may differ from those that the plan's boxes and copies touch.

    Fewer sectors arrive if L1 holds data that another CTA of the SM or the previous k-tile has read. More sectors
    arrive if rows that are not sector-aligned are multicast, if registers spill, or if CTAs exchange partial results.
    """
    if _shares_tiles(a) or a.traffic is None or a.spills:
        return True
    if any(part.is_torn for part in a.global_):
        return True
    once = a.traffic.sm_read_bytes / SECTOR_BYTES
    return any(part.by_l1 for part in a.global_) and (a.occupancy.ctas > 1 or a.arriving() > (1 + _COUNTS) * once)


def _time(a: Analysis) -> float | None:
    """Return the lower bound of the time (the roofline) in nanoseconds; None if the analysis has no roofline."""
    return a.roofline.seconds * 1e9 if a.roofline else None


_COALESCED = (
    "the L2 request coalescer merges concurrent reads, so that fewer reach L2 than leave it for the SMs; how many "
    "merge depends on timing"
)
_PAST = (
    "the stages - 1 copies past the last k-tile are counted if the compiler switches them off by a predicate, but not "
    "if it branches around them"
)
_PARTIAL = "the counter misses the main loop of some plans, see below"
_WAITS = "the counter includes more than the stores, see below"

QUANTITIES = (
    Quantity(
        "shared load instructions",
        ("smsp__inst_executed_op_shared_ld.sum", "smsp__inst_executed_op_ldsm.sum"),
        _shared(0, "load", "ldmatrix"), None,
        "the compiler merges reads along K, and reads past the end are counted although their predicate is off",
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
        _shared(0, "store", "stmatrix"), None,
        "the counter leaves out stmatrix and includes stores whose predicate is off",
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
        "global load sectors, cp.async too",  # the counter includes cp.async
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
        unless=_shares_tiles,  # measured for one such plan only
        between=lambda a: None if a.traffic is None else a.traffic.dram_range,
    ),
    Quantity(
        "DRAM bytes written", ("dram__bytes_write.sum",), _written, None,
        "data that is still in L2 at the end of the kernel is written later",
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
        "ncu divides the shared memory that the driver configured for this launch, not the maximum",
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
    Quantity("time, ns", ("gpu__time_duration.sum",), _time, None, "the prediction is a lower bound"),
)  # fmt: skip

# More metrics to collect, which help to explain differences. One of the shared-memory metrics may count all stmatrix
# instructions of a plan, which no metric above does. Metrics that the GPU does not have are left out.
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

# Metrics of the quantities that have a tolerance.
PROMISED_METRICS = tuple(
    dict.fromkeys([name for q in QUANTITIES if q.tolerance is not None for name in (*q.metrics, *q.less)])
)
METRICS = tuple(dict.fromkeys([*(name for q in QUANTITIES for name in (*q.metrics, *q.less)), *ALSO]))


@dataclass(frozen=True)
class Row:
    """The predicted and the measured value of one quantity, such as "shared load wavefronts".

    name        name of the quantity
    predicted   predicted value, or None if the analysis has no prediction
    measured    measured value, or None if it was not measured
    tolerance   promised maximum of the relative error, or None if no maximum is promised
    between     promised range of the measured value, which replaces the tolerance; None for no range
    """

    name: str
    predicted: float | None
    measured: float | None
    tolerance: float | None
    between: tuple[float, float] | None = None

    @property
    def error(self) -> float | None:
        """Relative error of the prediction, (predicted - measured) / measured; None if one of the values is missing."""
        if self.predicted is None or self.measured is None:
            return None
        if self.measured == 0:
            return 0.0 if self.predicted == 0 else float("inf")
        return (self.predicted - self.measured) / self.measured

    @property
    def holds(self) -> bool | None:
        """True if the prediction is as accurate as promised.

        The measured value is then in its range, or the error within the tolerance. None if nothing is promised, or if a
        value is missing.
        """
        if self.tolerance is None or self.error is None:
            return None
        if self.between is not None and self.measured is not None:
            return self.between[0] <= self.measured <= self.between[1]
        return abs(self.error) <= self.tolerance + 1e-6


@dataclass(frozen=True)
class Comparison:
    """The comparison of predicted with measured quantities for one case (a plan for a problem).

    case   name of the case
    what   name of the plan, and the problem
    rows   one row per quantity
    """

    case: str
    what: str
    rows: tuple[Row, ...]

    @property
    def misses(self) -> tuple[Row, ...]:
        """Rows whose error exceeds the tolerance, or whose measured value is outside its range."""
        return tuple(row for row in self.rows if row.holds is False)


def compare(case: Case, analysis: Analysis, counters: Mapping[str, float]) -> Comparison:
    """Return the comparison of a case's predicted quantities with its measured counters.

    analysis   analysis of the case's plan and problem, for the device that was measured
    counters   ncu metric -> value
    """
    rows = []
    for q in QUANTITIES:
        values = [counters[name] for name in q.metrics if name in counters]
        complete = values and all(name in counters for name in q.less)
        measured = sum(values) - sum(counters[name] for name in q.less) if complete else None
        tolerance = None if q.unless(analysis) else q.tolerance
        between = q.between(analysis) if q.between is not None else None
        rows.append(Row(q.name, q.predicted(analysis), measured, tolerance, between))
    return Comparison(case.name, f"{case.plan.name} {case.problem}", tuple(rows))


def to_dict(found: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return comparisons as lists and dicts for JSON. Each row also has its error, and whether the prediction holds."""
    return [
        {
            "case": c.case,
            "what": c.what,
            "rows": [{**asdict(row), "error": row.error, "holds": row.holds} for row in c.rows],
        }
        for c in found
    ]


def render(found: Sequence[Comparison], *, width: int = 110) -> str:
    """Return comparisons as text tables: one table per plan, and one table for all single instructions.

    found   comparisons; one with a single row is that of a single instruction, not of a plan
    width   characters per line
    """
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
            shown = [row for row in c.rows if row.predicted or row.measured]
            cells = [(r.name, _number(r.predicted), _number(r.measured), _error(r)) for r in shown]
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
    """Return a value with thousands separators and at most two decimals, or "-" for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def _error(row: Row) -> str:
    """Return the error of a prediction in percent, with a mark if it exceeds the tolerance or no tolerance is promised.

    The result is "-" if the predicted or the measured value is missing.
    """
    if row.error is None:
        return "-"
    mark = {True: "", False: "  !", None: "  (not promised)"}[row.holds]
    return f"{row.error:+.1%}{mark}"
