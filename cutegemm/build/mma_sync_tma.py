"""Builder of plans whose warps multiply by mma.sync what a producer warp loads by TMA, from sm_90 on.

On sm_90a `choose` leaves these plans out, because wgmma is faster. They are for chips that have TMA but no wgmma, such
as sm_120.
"""

from __future__ import annotations

from math import gcd
from typing import Any

from cutegemm.build.building import made, takes_epilogue
from cutegemm.build.epi_stages import EpiStageBuilder
from cutegemm.build.mma_sync import ATOM_K_BITS, check_is_multiplied, reader
from cutegemm.build.pipeline import MAX_STAGES, PipelineBuilder, registers_of
from cutegemm.errors import PlanError
from cutegemm.layout import Layout
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import CACHE_LINE_BYTES, WARP_THREADS, arch_named
from cutegemm.machine.device import DEFAULT_DEVICE
from cutegemm.plan.arguments import check_arguments
from cutegemm.plan.mainloop.warp_mma import WarpMma
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand, Operands
from cutegemm.plan.store import StagedStore
from cutegemm.plan.warp_roles import WarpRoles
from cutegemm.plan.work.grid import grid_of
from cutegemm.plan.work.scheduler import TileScheduler
from cutegemm.tile.atoms import MmaAtom
from cutegemm.tile.mma_atoms import mma_sync
from cutegemm.tile.raster import Raster
from cutegemm.tile.smem_atoms import KINDS, widest_smem_kind
from cutegemm.tile.tiled_mma import TiledMma
from cutegemm.tile.tma import TMA_INNER_ALIGNED_BYTES

_IN_PLACES = (16, 16)  # (M, N) of D that one stmatrix.x4 of a warp covers
_EPI_STAGES: tuple[int, ...] = (1, 2, 4)  # numbers of epilogue stages of a warp that are tried
_SPREAD = 32  # 32-bit elements of a row of 128 bytes along M or N: see `_places`


@takes_epilogue
def mma_tma_plan(
    operands: Operands | None = None,
    *,
    name: str = "mma_tma",
    summary: str = "",
    block: tuple[int, int, int] | None = None,
    warp: tuple[int, int] = (64, 64),
    stages: int | None = None,
    store: str = "shared",
    raster: Raster | str = "grouped_m:8",
    mma_order: str = "n",
    ctas: int | None = DEFAULT_DEVICE.sms,
    arch: str = "sm_90a",
) -> GemmPlan:
    """Return a plan whose producer warp fills a mainloop pipeline by TMA, and whose other warps multiply by mma.sync.

    operands        types, majorness and alignment of A to D: f16, bf16 or tf32, aligned to 16 bytes; None: bf16 with
                    K-major A, N-major B and D
    name, summary   name of the plan, and what is special about it
    block           tile (bM, bN, bK) of a CTA; None: 256 x 128, and 128 bytes along K
    warp            tile (M, N) of a warp; warps fill the block row by row
    stages          mainloop stages, i.e. k-tiles in shared memory; None: as many as fit
    store           "shared": each warp stores D through its own epilogue stages, by TMA, or line by line if D is not
                    aligned to 16 bytes; "direct": from registers. D is also stored from registers if its lines would
                    not be contiguous
    raster          order of the tiles, such as "grouped_m:8": see `Raster.parse`
    mma_order       "m" or "n": the mode whose fragments are outermost; see `GemmPlan.fragment_buffers`
    ctas            CTAs of the persistent grid, one per multiprocessor; None: one CTA for each tile
    arch            oldest architecture, whose shared memory is the limit; if it has setmaxnreg, the producer gives
                    registers to the other warps
    raises          PlanError with every rule that is broken

    >>> plan = mma_tma_plan()
    >>> plan.threads, plan.stages, plan.a.load.name, plan.store.to_global.name
    (384, 4, 'tma.load.64x256.bf16.128B', 'tma.store.64x16.bf16.128B')
    """
    ops = Operands.of("bf16") if operands is None else operands
    subject = f"mma_tma_plan {name!r}"
    tiles: dict[str, tuple[Any, int]] = {"warp": (warp, 2)}
    if block is not None:
        tiles["block"] = (block, 3)
    check_arguments(subject, ops, tiles, {"stages": 0 if stages is None else stages})
    # Hopper's mma.sync of float8 converts fragments to f16; warps with this many accumulators lack the registers
    check_is_multiplied(subject, ops, least_bits=16)
    tile = block or (256, 128, CACHE_LINE_BYTES * 8 // ops.a.dtype.bits)
    b = _Builder(subject, ops, tile, arch)
    b.choices(store=(store, ("shared", "direct")))
    order = b.order(raster)
    atom = b.attempt(lambda: mma_sync(ops.a.dtype, ATOM_K_BITS // ops.a.dtype.bits, ops.acc, ops.b.dtype))
    mma = None if atom is None else b.attempt(lambda: b.tiled_mma(atom, warp))
    storing = None
    if store == "shared" and mma is not None:
        storing = b.attempt(lambda: b.storing(mma, warp, stages))
    buffers = b.buffers(ops, storing, stages)
    b.check()
    tiled_mma, both = made(mma), made(buffers)
    consumers = tiled_mma.threads // WARP_THREADS
    pipeline = WarpRoles("cooperative", both.stages, consumers, warp, WarpMma(), consumer_warps=1)
    registers = registers_of(pipeline, many=True)
    return b.plan(
        tiled_mma,
        both,
        pipeline,
        registers if arch_named(arch).has("setmaxnreg") else None,
        {each.name: reader(ops.matrix(each.name), "ldmatrix", each.smem) for each in (both.a, both.b)},
        name=name,
        summary=summary,
        family="mma_sync",
        scheduler=TileScheduler(made(order), grid=grid_of(ctas)),
        mma_order=mma_order,
    )


def by_gated_warps(subject: str, plan: GemmPlan, operands: Operands) -> dict[str, Any]:
    """Return the changes to a TMA plan with mma.sync that a gated B needs, as field name -> new value.

    A gated B holds the gate and the up projection of a GLU in the two halves of its columns. Each warp then multiplies
    gate columns and the up columns that belong to them. Its tile of D, and its epilogue stages (shared-memory buffers
    for D), have half as many columns.

    subject    what an error is about
    plan       the plan without a gate, from `mma_tma_plan`
    operands   operands with the gated B
    returns    new values of "tiled_mma" and "store"
    raises     PlanError with every rule that is broken
    """
    b, (rows, columns) = _Builder(subject, operands, plan.cta_tile, plan.arch), plan.consumer_tile
    mma = b.tiled_mma(plan.tiled_mma.atom, (rows, columns))
    through_stages = isinstance(plan.store, StagedStore)
    storing = b.storing(mma, (rows, columns // 2), plan.stages) if through_stages else None
    return {"tiled_mma": mma, "store": storing or b.direct_store()}


class _Builder(PipelineBuilder):
    """Makes the components of an `mma_tma_plan`: one warp loads k-tiles by TMA, other warps multiply by mma.sync."""

    def tiled_mma(self, atom: MmaAtom, warp: tuple[int, int]) -> TiledMma:
        """Return the tiled MMA of the CTA: each warp computes a warp tile of D.

        The rows of a warp are consecutive if possible. They lie in several pieces if a 128-byte line of shared memory
        would be divided between warps. The columns are divided too if B holds gate and up columns in two halves.

        atom     MMA instruction of a warp
        warp     (M, N) of a warp tile
        raises   PlanError with every rule that the tiles break
        """
        wrong, permutation, counts = [], [], []
        modes = zip("MN", self.tile[:2], warp, atom.shape_mnk[:2], self.is_spread, strict=True)
        for mode, extent, own, step, is_spread in modes:
            whole = max(step, _SPREAD) if is_spread else step
            if own < 1 or own % whole or extent % own:
                of_lines = " and lines of 128 bytes" if is_spread else ""
                wrong.append(
                    f"b{mode} = {extent} does not divide into warp tiles of {own}, which hold whole atoms of "
                    f"{step}{of_lines}."
                )
                continue
            piece = self.piece(mode, extent, own)
            if mode == "N" and self.operands.gated and (2 * piece != own or piece % _IN_PLACES[1]):
                wrong.append(
                    f"warp tiles of {own} columns hold {own // 2} gate and as many up columns, which are not whole "
                    f"lines of shared memory, or not a multiple of {_IN_PLACES[1]}."
                )
                continue
            if piece < own and (mode == "M" or piece % _IN_PLACES[1]):
                wrong.append(
                    f"warp tiles of {own} along {mode} end within lines of shared memory that lie along {mode}."
                )
                continue
            if piece < own and is_spread:
                wrong.append(
                    f"B is {self.operands.b}: its columns are permuted within lines of shared memory, which gate and "
                    "up columns would share. Pass B k-major, as b.mT.contiguous().mT is."
                )
                continue
            counts.append(extent // own)
            first, rest = _places(step, own, is_spread)
            if piece < own:
                rest = Layout((piece // step, own // piece), (step, piece * counts[-1]))
            permutation.append(Layout((first.shape, counts[-1], rest.shape), (first.stride, piece, rest.stride)))
        if wrong:
            raise PlanError(self.subject, wrong)
        return TiledMma(atom, Layout((*counts, 1), (counts[1], 1, 0)), (permutation[0], permutation[1], None))

    def piece(self, mode: str, extent: int, own: int) -> int:
        """Return how many consecutive rows (or columns) of the CTA's tile a warp has before its next piece begins.

        It is the whole warp tile, or half of it if B holds gate and up columns in two halves. If an operand is not
        K-major and such pieces would divide 128-byte lines of shared memory between warps, pieces are shorter.

        mode     "M" or "N"
        extent   extent of the CTA's tile along the mode
        own      extent of a warp tile along the mode
        """
        operand = self.operands.a if mode == "M" else self.operands.b
        own = own // 2 if operand.gated else own
        if operand.major == "k":
            return own
        line = KINDS[widest_smem_kind(operand.dtype, extent)][1] * 8 // operand.dtype.bits
        return own if own % line == 0 or line % own == 0 else gcd(own, line)

    @property
    def is_spread(self) -> tuple[bool, bool]:
        """Pair of flags (A, B): are the rows (columns) of an MMA atom spread over 32 rows of A's (columns of B's) tile?

        This is so for 32-bit elements that are not K-major: ldmatrix cannot transpose them, and plain loads of
        neighbouring rows would have bank conflicts.
        """
        return _is_spread(self.operands.a), _is_spread(self.operands.b)

    def storing(self, mma: TiledMma, warp: tuple[int, int], stages: int | None) -> StagedStore | None:
        """Choose epilogue stages (shared-memory buffers for D) for each warp, and return how D is stored through them.

        Among the possible widths of an epilogue tile, the one that leaves room for the most mainloop stages is chosen.
        An epilogue tile has 16 rows, or 32 if the rows of an atom are spread over 32 rows.

        mma       tiled MMA of the CTA
        warp      tile (M, N) of D that a warp stores
        stages    requested number of mainloop stages, or None
        returns   None if D must be stored from registers: no epilogue stages fit, or D is not aligned to 16 bytes and
                  the columns of a warp are not contiguous
        raises    PlanError if no epilogue tiles fill the warp's tile
        """
        warps = mma.threads // WARP_THREADS
        tile, own = [], []
        for step, least, is_spread in zip(mma.shape_mnk, _IN_PLACES, self.is_spread, strict=False):
            tile.append(_SPREAD if is_spread else least)
            first, rest = _places(step, tile[-1], is_spread)
            own.append(Layout((first.shape, rest.shape), (first.stride, rest.stride)))
        fragment = TiledMma(mma.atom, permutation_mnk=(own[0], own[1], None)).tv_layout_C_tiled
        epi_stages = EpiStageBuilder(
            self.subject, self.operands, fragment, (tile[0], tile[1]), not any(self.is_spread), least=1
        )
        piece = warp[1] if self.operands.gated else self.piece("N", self.tile[1], warp[1])
        shared_d, counts, widths = "swizzled", _EPI_STAGES, [tile[1]]
        if self.operands.d.align_bytes < TMA_INNER_ALIGNED_BYTES:
            shared_d, counts = "padded", (1,)
            longest = min(warp[1], CACHE_LINE_BYTES * 8 // self.operands.d.dtype.bits)
            widths = [n for n in range(tile[1], longest + 1, tile[1]) if warp[1] % n == 0]
            if piece < warp[1] or self.is_spread[1]:
                return None
        elif not self.is_spread[0]:
            widths = [piece if piece < warp[1] else epi_stages.epi_tile_columns(warp, warps)]
        stored = (tile[0], "evict_normal")
        candidates = [
            epi_stages.epi_stages(warp, warps, stored, shared_d, columns, count, False)
            for columns in widths
            for count in counts
        ]
        divided = [one for one in candidates if not one.has_remainder(warp)]
        most = MAX_STAGES if stages is None else stages

        def worth(candidate: StagedStore) -> tuple[int, int]:
            """Return the sort key of a way to store D: (mainloop stages that fit, elements in its epilogue stages)."""
            return min(most, self.stages_that_fit(candidate.smem)), product(candidate.epi_tile) * candidate.count

        return max(divided, key=worth, default=None)


def _is_spread(operand: Operand) -> bool:
    """Return True if the rows of an MMA atom are spread over 32 rows of the tile, instead of being neighbours.

    This is so for 32-bit elements that are not K-major. ldmatrix cannot transpose them, so a warp reads them by plain
    loads, each of 8 rows by 4 values of k. Loads of 8 neighbouring rows would have bank conflicts. Loads of rows that
    are spread over a whole 128-byte line of shared memory have none.

    operand   A or B: its element type and majorness
    """
    return operand.dtype.bits > 16 and operand.major != "k"


def _places(step: int, own: int, is_spread: bool) -> tuple[Layout, Layout]:
    """Return which rows of a warp tile each MMA atom multiplies, as two layouts (first, second) along M or N.

    Row r of atom i is row first(r) + second(i) of the warp tile. With `_places(8, 64, True)`, rows 0 to 3 of atom 0
    are rows 0 to 3 of the tile, and its rows 4 to 7 are rows 16 to 19. Along N, rows stand for columns.

    step        rows of the MMA atom
    own         rows of a warp tile
    is_spread   True if the rows of an atom are spread over 32 rows of the tile, one line of shared memory

    Reason for the spread: TMA's swizzle moves a 16-byte chunk (four rows) of a line to chunk XOR k. For k = 0 to 3,
    chunks 0 and 1 (eight neighbouring rows) move to chunks 0 to 3, each twice, which is a bank conflict. Chunks 0 and 4
    move to eight different chunks.

    >>> [str(layout) for layout in _places(8, 64, True)]
    ['(4,2,1):(1,16,4)', '(4,2):(4,32)']
    """
    if not is_spread:
        return Layout(step, 1), Layout(own // step, step)
    halves = step // 8
    return (
        Layout((4, 2, halves), (1, _SPREAD // 2, 4)),
        Layout((_SPREAD // step, own // _SPREAD), (4 * halves, _SPREAD)),
    )
