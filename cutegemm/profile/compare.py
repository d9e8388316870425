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
    """A number that the analysis of a plan predicts and that Nsight Compute (ncu) measures, e.g. DRAM bytes read.

    It tells how to compute both values, and how far they may differ.

    name        name in tables, such as "shared load wavefronts"
    metrics     ncu metrics whose sum is the measured value; those that the GPU does not have are left out
    predicted   function from the analysis to the predicted value, or to None if there is no prediction
    tolerance   largest relative error that is promised, e.g. 0.02; None if no accuracy is promised
    why         reason that no accuracy is promised; "" for none
    less        ncu metrics that are subtracted from the sum
    unless      function from the analysis to True if, for that plan, no accuracy is promised after all
    between     function from the analysis to the (lowest, highest) measured value. This range then replaces the
                tolerance. None for no range
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
    """Return a function that maps an analysis to a count of shared-memory accesses, summed over operations.

    index   what is counted. 0: instructions; 1: wavefronts (passes of the shared-memory pipe); 2: ideal wavefronts,
            i.e. without bank conflicts
    ops     operations, such as "load" and "ldmatrix"
    """
    return lambda a: float(sum(a.counts(op)[index] for op in ops))


def _conflicts(*ops: str) -> Callable[[Analysis], float]:
    """Return a function that maps an analysis to the number of its shared-memory bank conflicts.

    A conflict is a wavefront (pass of the shared-memory pipe) beyond those that the accesses would take without
    conflicts.

    ops   operations whose conflicts are added, such as "load" and "ldmatrix"
    """
    return lambda a: float(sum(a.counts(op)[1] - a.counts(op)[2] for op in ops))


def _sectors(*ops: str) -> Callable[[Analysis], float]:
    """Return a function that maps an analysis to the number of 32-byte sectors that its global-memory accesses touch.

    ops   operations whose sectors are added, such as "ld" and "ldgsts"
    """
    return lambda a: float(sum(a.sector_count(op)[1] for op in ops))


def _of_traffic(read: Callable[[Traffic], float | None]) -> Callable[[Analysis], float | None]:
    """Return a function from an analysis to one number of its memory traffic; it returns None without traffic.

    read   function from the traffic to one of its numbers, such as bytes read from DRAM
    """
    return lambda a: None if a.traffic is None else read(a.traffic)


def _sm_sectors(a: Analysis) -> float | None:
    """Return how many 32-byte sectors arrive at the SMs, as analysis `a` predicts; None if it has no traffic."""
    if a.traffic is None:
        return None
    return float(a.arriving() + a.sum_sectors("ld"))


def _l2_sectors(a: Analysis) -> float | None:
    """Return how many 32-byte sectors SMs request from L2, as analysis `a` predicts; None if it has no traffic."""
    return None if a.traffic is None else a.traffic.l2_read_bytes / SECTOR_BYTES + a.sum_sectors("ld")


def _dram_write_bytes(a: Analysis) -> float | None:
    """Return how many bytes the kernel writes to DRAM, as the analysis `a` predicts; None if it has no traffic."""
    if a.traffic is None or a.ends is None:
        return None
    stored = a.traffic.dram_write_bytes * a.ends.stores / a.tiles if a.tiles else 0.0
    return stored + a.sum_sectors("st") * SECTOR_BYTES


def _dram_read_bytes(t: Traffic) -> float:
    """Return how many bytes the GEMM reads from DRAM: A, B and C, and partial results of split-K.

    t   predicted traffic
    """
    return t.dram_read_bytes + (t.partials_read_bytes or 0.0)


def _l2_hits(a: Analysis) -> float | None:
    """Return the L2 hit rate of reads in percent, as the analysis `a` predicts; None if it has no traffic.

    L2 has two partitions. A read of a line that belongs to the far partition misses in the near one; if the line is not
    in the far one either, the read misses twice.
    """
    asked = _l2_sectors(a)
    if a.traffic is None or asked is None:
        return None
    far = a.traffic.far_bytes or 0.0
    total = asked * SECTOR_BYTES + far
    return 100 * (1 - (_dram_read_bytes(a.traffic) + far) / total) if total else 100.0


def _shares_tiles(a: Analysis) -> bool:
    """Return True if CTAs of the analysed plan exchange partial results of a tile (split-K or stream-K plans)."""
    return a.ends is not None and a.ends.writes > 0


def _waits_for_boxes(a: Analysis) -> bool:
    """Return True if ncu's counter of shared-memory loads also counts waits for wgmma or TMA, for the analysed plan.

    The counter cannot be compared with a prediction of the loads then. This holds for all wgmma plans, and for plans
    with TMA that load nothing but semaphores of split-K from shared memory by threads.

    a   analysis of the plan
    """
    if a.counts("wgmma")[0]:
        return True
    return bool(a.counts("tma")[0]) and a.ends is not None and _shared(1, "load")(a) == a.ends.asked > 0


def _rewritten(a: Analysis) -> bool:
    """Return True if ptxas merged memory accesses of the analysed kernel that are separate in its PTX.

    The prediction counts the accesses in the PTX, so it differs from the hardware's counters then.
    """
    return a.executed is not None and a.executed.rewritten


def _not_as_executed(a: Analysis) -> bool:
    """Return True if ncu's counter of shared-memory loads does not count exactly the accesses that are predicted.

    Either ptxas merged accesses that are separate in the PTX, or the counter also counts waits for wgmma or TMA.

    a   analysis of the plan, which predicts the accesses
    """
    return _rewritten(a) or _waits_for_boxes(a)


def _is_torn(a: Analysis) -> bool:
    """Return True if 16-byte cp.async copies of the analysed plan move the halves of some sectors separately.

    A sector has 32 bytes, i.e. two such copies. If rows are padded or not aligned, its halves may be copied by
    different instructions. It is not known in general how ncu counts such a sector, so nothing is promised for that
    counter.
    """
    parts = [part.in_grid for part in a.global_ if part.op == "ldgsts" and part.bits == _LINE_COPY_BITS]
    return any(grid is not None and grid.arriving != grid.sectors for grid in parts)


def _arrives_otherwise(a: Analysis) -> bool:
    """Return True if the number of 32-byte sectors that arrive at SMs cannot be predicted exactly for a plan.

    It is True if registers spill, if CTAs exchange partial results (split-K, stream-K), if rows that are not aligned
    to sectors are multicast, or if L1 may already hold data that another CTA or the previous k-tile has read.

    a   analysis of the plan and problem
    """
    if _shares_tiles(a) or a.traffic is None or a.spills:
        return True
    if any(part.is_torn for part in a.global_):
        return True
    once = a.traffic.sm_read_bytes / SECTOR_BYTES
    return any(part.by_l1 for part in a.global_) and (a.occupancy.ctas > 1 or a.arriving() > (1 + _COUNTS) * once)


def _time(a: Analysis) -> float | None:
    """Return the roofline of analysis `a`, a lower bound of the kernel's time, in nanoseconds; None if it has none."""
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
        "sectors read into L1", ("l1tex__m_xbar2l1tex_read_sectors.sum",), _sm_sectors, _COUNTS,
        unless=_arrives_otherwise,
    ),
    Quantity(
        "L2 read sectors from L1", (_L2_READ_OF_L1,), _l2_sectors, None, _COALESCED,
    ),
    Quantity(
        "L2 read sectors from another partition", (_L2_READ,),
        _of_traffic(lambda t: None if t.far_bytes is None else t.far_bytes / SECTOR_BYTES), None,
        "which side of the chip a CTA runs on is not known", less=(_L2_READ_OF_L1,),
    ),
    Quantity(
        "DRAM bytes read", ("dram__bytes_read.sum",), _of_traffic(_dram_read_bytes), _DRAM,
        unless=_shares_tiles,  # measured for one such plan only
        between=lambda a: None if a.traffic is None else a.traffic.dram_range,
    ),
    Quantity(
        "DRAM bytes written", ("dram__bytes_write.sum",), _dram_write_bytes, None,
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
    """Compares the predicted with the measured value of one quantity of a kernel, such as DRAM bytes read.

    name        name of the quantity
    predicted   predicted value, or None if the analysis has no prediction
    measured    measured value, or None if it was not measured
    tolerance   largest relative error that is promised, e.g. 0.02; None if nothing is promised
    between     promised range of the measured value, (lowest, highest), which replaces the tolerance; None for no range
    """

    name: str
    predicted: float | None
    measured: float | None
    tolerance: float | None
    between: tuple[float, float] | None = None

    @property
    def error(self) -> float | None:
        """Relative error of this row's prediction, (predicted - measured) / measured; None if a value is missing."""
        if self.predicted is None or self.measured is None:
            return None
        if self.measured == 0:
            return 0.0 if self.predicted == 0 else float("inf")
        return (self.predicted - self.measured) / self.measured

    @property
    def holds(self) -> bool | None:
        """True if this row's error is within its tolerance, or the measured value in its promised range.

        None if nothing is promised, or if a value is missing.
        """
        if self.tolerance is None or self.error is None:
            return None
        if self.between is not None and self.measured is not None:
            return self.between[0] <= self.measured <= self.between[1]
        return abs(self.error) <= self.tolerance + 1e-6


@dataclass(frozen=True)
class Comparison:
    """Compares predictions for one kernel with what Nsight Compute (ncu) measured, quantity by quantity.

    case   name that the user chose for this kernel launch
    what   name of the kernel's plan, and the problem size, as text
    rows   one row per quantity, such as "DRAM bytes read"
    """

    case: str
    what: str
    rows: tuple[Row, ...]

    @property
    def misses(self) -> tuple[Row, ...]:
        """Rows of this comparison whose error exceeds their tolerance, or whose measured value is outside their range.

        Rows without a tolerance, and rows with a missing value, are not among them. () if there are no such rows.
        """
        return tuple(row for row in self.rows if row.holds is False)


def compare(case: Case, analysis: Analysis, counters: Mapping[str, float]) -> Comparison:
    """Pair each quantity that the analysis predicts for a kernel with its measured value.

    case       plan and problem that were profiled; gives the names in the result
    analysis   analysis of that plan and problem, for the device that was measured
    counters   measured value of each ncu metric
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
    """Return comparisons of predicted and measured values as lists and dicts for JSON.

    Each row also has "error" (relative) and "holds" (True if it is within the promised tolerance, None without one).
    """
    return [
        {
            "case": c.case,
            "what": c.what,
            "rows": [{**asdict(row), "error": row.error, "holds": row.holds} for row in c.rows],
        }
        for c in found
    ]


def render(found: Sequence[Comparison], *, width: int = 110) -> str:
    """Return comparisons of predicted and measured values as text tables.

    Each comparison with several rows gets its own table. Comparisons with one row, i.e. of test kernels for one
    instruction, share a table.

    found   comparisons to print
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
    """Return a number as a table cell, with thousands separators and at most two decimals; "-" for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def _error(row: Row) -> str:
    """Return the relative error of a row's prediction as a table cell, e.g. "+1.5%"; "-" if a value is missing.

    "!" follows if the error exceeds the tolerance, and "(not promised)" without a tolerance.
    """
    if row.error is None:
        return "-"
    mark = {True: "", False: "  !", None: "  (not promised)"}[row.holds]
    return f"{row.error:+.1%}{mark}"
