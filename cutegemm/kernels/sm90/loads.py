"""Load k-tiles of A and B to stages by TMA, and trace the program of the producer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
from cutlass import Int16, Int32
from cutlass.cute.nvgpu import cpasync

from cutegemm.kernels import lower
from cutegemm.kernels.glu import box_tile
from cutegemm.kernels.sm90.gathered import GatheredRows
from cutegemm.kernels.sm90.groups import k_of, tiles_along_k
from cutegemm.kernels.trace import LOADED, At, MainloopPipeline, Tracer
from cutegemm.plan.memory.groups import elements_between_starts
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.program import steps as step
from cutegemm.plan.program.reader import reads
from cutegemm.plan.work.work import State, Work


@dataclass
class Boxes:
    """What one CTA needs to load an operand by TMA: the copy, and its source and destination.

    A box is what one TMA instruction copies.

    atom      the TMA copy, for `cute.copy`
    gX        coordinates in global memory, with four modes: elements of a box, tiles along M or N, k-tiles, batches
    sX        shared memory, with two modes: elements of a box, stages of the mainloop pipeline
    options   keyword arguments of `cute.copy`: multicast mask and L2 policy
    """

    atom: cute.CopyAtom
    gX: cute.Tensor
    sX: cute.Tensor
    options: dict[str, Any]


def tiles_of(mX: cute.Tensor, tile: tuple[int, int], step: int) -> cute.Tensor:
    """Divide a matrix (MN, K, L) into tiles that start `step` rows or columns apart: (b_MN, bK, tiles, k_tiles, L).

    mX     A (M, K, L) or B (N, K, L)
    tile   (b_MN, bK). If b_MN is larger than `step`, neighbouring tiles overlap
    """
    if tile[0] == step:
        return cute.local_tile(mX, tile, (None, None, None))
    (extent, K, L), (by_mn, by_k, by_l) = mX.shape, mX.stride
    shape = (*tile, cute.ceil_div(extent, step), cute.ceil_div(K, tile[1]), L)
    layout = cute.make_layout(shape, stride=(by_mn, by_k, step * by_mn, tile[1] * by_k, by_l))
    return cute.make_tensor(mX.iterator, layout)


def loaded_mnl(plan: GemmPlan, work: Work, state: State, rank, mA: cute.Tensor, mB: cute.Tensor) -> tuple:
    """Return which tiles of A and B a CTA loads for a work tile: (m_tile of A, n_tile of B, batch).

    If groups divide M, the first number is the first row of the tile of A; if they divide N, the second number is the
    first column of the tile of B. The last number is then the group.

    work     the scheduler, which gives each cluster its work tiles (a tile of D and a range of K)
    state    integers that identify the work tile, such as its number
    rank     rank of the CTA in its cluster
    mA, mB   A (M, K, L) and B (N, K, L)
    """
    tile = work.tile(state)
    own = work.tile_mnl(tile, rank)
    bM, bN, _ = plan.mma_tile
    if plan.operands.groups == "m":
        return Int32(tile.begin + own[0] * bM), Int32(own[1]), Int32(own[2])
    if plan.operands.groups == "n":
        return Int32(own[0]), Int32(tile.begin + own[1] * bN), Int32(own[2])
    rows = ((mA, bM), (mB, bN // 2 if plan.operands.gated else bN))
    tiles = [cute.ceil_div(cute.size(mX, mode=[0]), step) for mX, step in rows]
    return tuple([Int32(each) for each in work.tiles.loaded_mnl(own, *tiles)])


class Loads:
    """Issues the TMA loads of one CTA: its share of the tiles of A, B and other mainloop operands, for each k-tile.

    CTAs of a cluster that need the same tile load a part of it each, and send it to all of them (multicast).

    streams   for each mainloop operand, such as A: (TMA copy atom, coordinate tensor of the operand in global memory)
    """

    def __init__(self, plan: GemmPlan, streams: tuple) -> None:
        self.plan, self.streams = plan, streams
        self.boxes: tuple[Boxes, ...] = ()
        self.gathered: GatheredRows | None = None

    def mnl_of(self, work: Work, state: State, rank) -> tuple:
        """Return which tiles of A and B this CTA loads for a work tile: (m_tile of A, n_tile of B, batch).

        If rows are gathered, their indices are loaded as well.

        work    the scheduler, which gives each cluster its work tiles (a tile of D and a range of K)
        state   integers that identify the work tile, such as its number
        rank    rank of the CTA in its cluster
        """
        (_, mA), (_, mB), *_ = self.streams
        mnl = loaded_mnl(self.plan, work, state, rank, mA, mB)
        if self.gathered is not None:
            tile = work.tile(state)
            self.gathered.find(mnl["mn".index(self.plan.operands.groups)], tile.begin + tile.size)
        return mnl

    def set_up(self, pipeline_state: MainloopPipeline, rank, warp=None) -> None:
        """Partition the tensors of all operands into what this CTA loads. It is called before the first load.

        pipeline_state   stages in shared memory, and their barriers
        rank             rank of the CTA in its cluster
        warp             warp of the producer, if all of its warps load
        """
        plan = self.plan
        (cm, _), (_, cn) = plan.cluster_mn, plan.multicast_mn
        m_rank, n_rank = plan.cluster_tile.rank_mn(rank)
        row = sum(1 << (n * cm) for n in range(cn))  # the ranks with the same m_rank, for m_rank = 0
        column = (1 << cm) - 1
        shared_by = {"m": (n_rank if cn > 1 else 0, row << m_rank), "n": (m_rank, column << (n_rank * cm))}
        extents, boxes = dict(zip("mn", plan.mma_tile, strict=False)), []
        for stream, (atom, mX) in zip(plan.streams, self.streams, strict=True):
            share, mask = shared_by[stream.mode] if stream.multicast > 1 else (0, 0)
            sX, tile = pipeline_state.smem[stream.name], box_tile(plan, stream)
            step = 1 if plan.operands.groups == stream.mode else extents[stream.mode]
            if stream.index:
                sX, step = cute.local_tile(sX, tile, (None, 0, None)), 1  # (1, bK, rows, stages)
            boxes.append(self.partition(stream.load, atom, mX, sX, tile, step, share, mask))
            if stream.index:
                index = pipeline_state.gmem[stream.index]
                self.gathered = GatheredRows(stream, plan.roles[0].warps, warp, boxes[-1], index)
        self.boxes, self.pipeline_state = tuple(boxes), pipeline_state

    def partition(self, box, atom, mX, sX, tile, step, share, mask) -> Boxes:
        """Prepare the TMA loads of one operand: partition its tensors into the boxes that this CTA loads.

        A box is what one TMA instruction copies. If several CTAs of a cluster need the same tile, each loads an equal
        part of it and sends that part to all of them (multicast).

        box     TMA box of the plan: the extents of one copy, its multicast and its L2 policy
        atom    TMA copy object of the CuTe DSL for this box
        mX      coordinates of the operand in global memory
        sX      the operand's stages in shared memory
        tile    (rows of A or columns of B, k) of the tile that is loaded for a k-tile
        step    distance between the starts of neighbouring tiles, in rows or columns
        share   which part of the tile this CTA loads: its index among the CTAs that need the tile; 0 without multicast
        mask    bit mask of the cluster ranks that receive this part; 0 without multicast
        """
        if len(tile) == 3:  # (gates, gate or up, bK, tiles, k_tiles, L)
            gX = cute.local_tile(mX, tile, (None, 0, None, None))
        elif self.plan.operands.groups == "k":
            gX = tiles_along_k(mX, tile, step)
        else:
            gX = tiles_of(mX, tile, step)  # (b_MN, bK, tiles, k_tiles, L)
        tXsX, tXgX = cpasync.tma_partition(
            atom,
            share,
            cute.make_layout(box.multicast),
            cute.group_modes(sX, 0, 2),
            cute.group_modes(gX, 0, len(tile)),
        )
        options = lower.l2_policy(box)
        if box.multicast > 1:
            options["mcast_mask"] = Int16(mask)
        return Boxes(atom, tXgX, tXsX, options)

    def fill(self, tile_mnl, k_tile, stage, work_tile) -> None:
        """Load one k-tile of A, B and any other mainloop operand by TMA to a stage of shared memory.

        One warp calls it; all warps of the producer if rows are gathered.

        tile_mnl    (m_tile of A, n_tile of B, batch), as `loaded_mnl` returns it
        k_tile      index of the k-tile among all k-tiles of the problem; in its group, if groups divide K
        stage       index of the stage
        work_tile   the work tile
        """
        full = self.pipeline_state.full + stage
        if self.gathered is None:
            self.fill_whole(tile_mnl, k_tile, stage, work_tile, full)
            return
        self.gathered.arrive(lambda: self.fill_whole(tile_mnl, k_tile, stage, work_tile, full), full)
        self.gathered.load(k_tile, stage, full)

    def fill_whole(self, tile_mnl, k_tile, stage, work_tile, full) -> None:
        """Load the part of a k-tile that does not consist of single rows. One warp calls it.

        full   barrier of the stage. The other parameters are those of `fill`
        """
        m_tile, n_tile, batch = tile_mnl
        tiles = {"m": m_tile, "n": n_tile}
        size_bytes = self.plan.barrier("full").transaction_bytes
        if self.gathered is not None:
            size_bytes -= self.gathered.bytes_left_out()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(full, size_bytes)
        for stream, box in zip(self.plan.streams, self.boxes, strict=True):
            if stream.index:
                continue
            if self.plan.operands.groups == "k":
                at = k_of(self.plan, k_tile, work_tile)
            else:
                at = (k_tile, 0 if self.plan.operands.groups == stream.mode else batch)
            first, apart = tiles[stream.mode], elements_between_starts(self.plan.operands, stream.name)
            source = box.gX[(None, first if apart == 1 else first // apart * apart, *at)]
            cute.copy(box.atom, source, box.sX[None, stage], tma_bar_ptr=full, **box.options)


class ProducerTracer(Tracer):
    """Emits the code of the producer, the warp that loads tiles of A and B by TMA, step by step.

    plan        the plan of the kernel
    loads       issues the TMA loads of the CTA
    first_mnl   (m_tile of A, n_tile of B, batch) of the first tiles to load, if they were computed while barriers were
                set up; None: the producer computes them
    """

    name = "producer"
    carries = LOADED

    def __init__(self, plan: GemmPlan, loads: Loads, first_mnl: tuple | None) -> None:
        super().__init__(plan)
        self.loads, self.first_mnl = loads, first_mnl

    def trace(self, program, who, pipeline_state, work) -> None:
        """Emit the code of the producer's program, after partitioning the tensors that it loads.

        program          the steps of the program
        who              warp, CTA and cluster of the producer
        pipeline_state   stages in shared memory, and their barriers
        work             the scheduler, which gives each cluster its work tiles (a tile of D and a range of K)
        """
        self.loads.set_up(pipeline_state, who.rank, who.warp_idx)
        super().trace(program, who, pipeline_state, work)

    @reads(step.ForTiles)
    def on_for_tiles(self, loop: step.ForTiles, at: At) -> None:
        at.put(LOADED, self.first_mnl or self.loads.mnl_of(self.work, at.state, self.who.rank))
        super().on_for_tiles(loop, at)

    def tile(self, loop, at, names, state, values) -> tuple:
        """Emit the loads of one work tile, then the code that finds which tiles of A and B the next work tile needs.

        The computation follows the loads, so that it does not delay them.

        names, values   names of the loop-carried variables, such as "stage", and their values before this tile
        state           integers that identify the work tile, such as its number
        returns         values of these variables after it
        """
        values = super().tile(loop, at, names, state, values)
        next_mnl = self.loads.mnl_of(self.work, self.work.ahead(state, loop.every), self.who.rank)
        carried = dict(zip(names, values, strict=True)) | dict(zip(LOADED, next_mnl, strict=True))
        return tuple(carried.values())

    @reads(step.Load)
    def on_load(self, load: step.Load, at: At) -> None:
        self.loads.fill(at.get(LOADED), at.tile.k_first + at.k_tile, at.stage, at.tile)
