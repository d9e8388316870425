"""Builder of plans whose warps multiply by mma.sync the tiles that a producer warp loads by TMA, from sm_90 on.

On sm_90a `choose` leaves these plans out, since wgmma is faster there. They are for chips that have TMA and no wgmma,
such as sm_120.
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
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand, Operands
from cutegemm.plan.shared import SharedLayout
from cutegemm.plan.warp_roles import EpiStages, WarpRoles
from cutegemm.tile.atoms import MmaAtom
from cutegemm.tile.mma_atoms import mma_sync
from cutegemm.tile.raster import Raster
from cutegemm.tile.smem_atoms import KINDS, widest_smem_kind
from cutegemm.tile.tiled_mma import TiledMma
from cutegemm.tile.tma import TMA_INNER_ALIGNED_BYTES

_IN_PLACES = (16, 16)  # of D: what one stmatrix.x4 of a warp covers
_RINGS: tuple[int, ...] = (1, 2, 4)  # epilogue stages of a warp that are considered
_SPREAD = 32  # elements of 32 bits along M or N, a row of 128 bytes: see `_places`


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
    """A plan of a producer, which fills a ring of stages with k-tiles by TMA, and of warps that multiply by mma.sync.

    operands    of f16, bf16 or tf32, aligned to 16 bytes; bf16, all rows contiguous, where left out
    block       (bM, bN, bK) elements of a CTA; 256 x 128 and rows of 128 bytes along K where left out
    warp        (M, N) elements of a warp; warps take the tile's rows, one row of warps after the other
    stages      k-tiles in shared memory; as many as there is room for, where left out
    store       "shared": each warp's sums leave through epilogue stages of its own, by TMA, or by lines that it copies
                where D is not aligned to 16 bytes; "direct": out of registers, as a D does whose lines would not lie
                together
    mma_order   "m" or "n": the mode whose fragments are outermost; see `GemmPlan.fragment_buffers`
    ctas        of the persistent grid: as many as there are multiprocessors; None: one for each tile
    arch        the least one, whose shared memory is the limit; one with setmaxnreg gives the registers of the
                producer to the warps that multiply
    raises      PlanError with every rule that is broken

    >>> plan = mma_tma_plan()
    >>> plan.threads, plan.stages, plan.load_a.name, plan.epi_stages.store.name
    (384, 4, 'tma.load.64x256.bf16.128B', 'tma.store.64x16.bf16.128B')
    """
    ops = Operands.of("bf16") if operands is None else operands
    subject = f"mma_tma_plan {name!r}"
    tiles: dict[str, tuple[Any, int]] = {"warp": (warp, 2)}
    if block is not None:
        tiles["block"] = (block, 3)
    check_arguments(subject, ops, tiles, {"stages": 0 if stages is None else stages})
    # Hopper's mma.sync of float8 converts fragments to f16, for which warps of so many sums have no registers
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
    tiled_mma, parts = made(mma), made(buffers)
    consumers = tiled_mma.threads // WARP_THREADS
    pipeline = WarpRoles("cooperative", parts.stages, consumers, warp, ctas, consumer_warps=1)
    registers = registers_of(pipeline, many=True)
    return b.plan(
        tiled_mma,
        parts,
        pipeline,
        registers if arch_named(arch).has("setmaxnreg") else None,
        name=name,
        summary=summary,
        family="mma_sync",
        read_a=reader(ops.a, "ldmatrix", parts.smem_a),
        read_b=reader(ops.b, "ldmatrix", parts.smem_b),
        raster=made(order),
        mma_order=mma_order,
    )


def by_gated_warps(subject: str, plan: GemmPlan, operands: Operands) -> dict[str, Any]:
    """What changes in the fields of an `mma_tma_plan` where B is gated: each warp multiplies gates of the first half of
    the tile and their ups of the second, and its epilogue stages have half as many columns.

    operands   with a B that is gated
    raises     PlanError with every rule that is broken
    """
    assert plan.pipeline is not None
    b, (rows, columns) = _Builder(subject, operands, plan.cta_tile, plan.arch), plan.pipeline.consumer_tile
    mma = b.tiled_mma(plan.tiled_mma.atom, (rows, columns))
    changes: dict[str, Any] = {"tiled_mma": mma, "epi_stages": None, "smem_d": None}
    storing = None if plan.epi_stages is None else b.storing(mma, (rows, columns // 2), plan.stages)
    if storing is None:
        return {**changes, "store_d": b.direct_store()}
    epi_stages, smem_d = storing
    return {**changes, "epi_stages": epi_stages, "smem_d": smem_d, "store_d": epi_stages.to_shared.atom}


class _Builder(PipelineBuilder):
    """The parts of a plan of warps that TMA loads for."""

    def tiled_mma(self, atom: MmaAtom, warp: tuple[int, int]) -> TiledMma:
        """Warps with a part of the tile each, that lies together."""
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
                    f"warp tiles of {own} columns hold {own // 2} gates and as many ups, which are no whole lines of "
                    f"shared memory, or no multiple of {_IN_PLACES[1]}."
                )
                continue
            if piece < own and (mode == "M" or piece % _IN_PLACES[1]):
                wrong.append(
                    f"warp tiles of {own} along {mode} end within lines of shared memory that lie along {mode}."
                )
                continue
            if piece < own and is_spread:
                wrong.append(
                    f"B is {self.operands.b}: its places are spread over lines, which gates and ups would share. Pass "
                    "B k-major, as b.mT.contiguous().mT is."
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
        """How many of a warp's rows or columns lie together: all of them, or of a gated B half of them; where lines of
        shared memory would be torn, the greatest pieces of them that it holds whole."""
        operand = self.operands.a if mode == "M" else self.operands.b
        own = own // 2 if operand.gated else own
        if operand.major == "k":
            return own
        line = KINDS[widest_smem_kind(operand.dtype, extent)][1] * 8 // operand.dtype.bits
        return own if own % line == 0 or line % own == 0 else gcd(own, line)

    @property
    def is_spread(self) -> tuple[bool, bool]:
        """Whether the places of a fragment of A along M, and of B along N, are spread over a line."""
        return _is_spread(self.operands.a), _is_spread(self.operands.b)

    def storing(
        self, mma: TiledMma, warp: tuple[int, int], stages: int | None
    ) -> tuple[EpiStages, SharedLayout] | None:
        """Slots of each warp, for epilogue tiles of some of its rows: those of an atom, or where its places are spread
        those of a line, and then fewer columns. As many epilogue stages as leave room for the most stages.

        None for a D that is not aligned to 16 bytes where the places of a warp are spread along N, or its columns do
        not lie together: it leaves straight out of registers.
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
        shared_d, counts, widths = "swizzled", _RINGS, [tile[1]]
        if self.operands.d.align_bytes < TMA_INNER_ALIGNED_BYTES:
            shared_d, counts = "padded", (1,)
            longest = min(warp[1], CACHE_LINE_BYTES * 8 // self.operands.d.dtype.bits)
            widths = [n for n in range(tile[1], longest + 1, tile[1]) if warp[1] % n == 0]
            if piece < warp[1] or self.is_spread[1]:
                return None
        elif not self.is_spread[0]:
            widths = [piece if piece < warp[1] else epi_stages.epi_tile_columns(warp, warps)]
        stored = (tile[0], "evict_normal")
        found = [
            epi_stages.epi_stages(warp, warps, stored, shared_d, columns, count, False)
            for columns in widths
            for count in counts
        ]
        divided = [each for each in found if product(each[0].epi_tiles(warp)) % each[0].count == 0]
        most = MAX_STAGES if stages is None else stages

        def worth(each: tuple[EpiStages, SharedLayout]) -> tuple[int, int]:
            return min(most, self.stages_that_fit(each[1])), product(each[0].epi_tile) * each[0].count

        return max(divided, key=worth, default=None)


def _is_spread(operand: Operand) -> bool:
    """No ldmatrix transposes 32-bit elements: plain loads take 8 of each of 4 neighbouring k."""
    return operand.dtype.bits > 16 and operand.major != "k"


def _places(step: int, own: int, is_spread: bool) -> tuple[Layout, Layout]:
    """The permutation along M or N: where the places of an atom, and the atoms of a warp, lie.

    In memory that TMA swizzles, k chooses among the eight chunks of 16 bytes of a line by exclusive or. Of 8
    neighbours two chunks are read, for four k the same two twice over. Chunks 0 and 4 and their likes for other
    k are eight different ones: the second half of the 8 lies 16 elements further.

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
