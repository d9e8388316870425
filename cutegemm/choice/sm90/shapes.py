"""Shapes of Hopper plans: the properties that the predicted time depends on, of one plan and as columns of many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from cutegemm.build.epi_stages import FEWEST_COLUMNS
from cutegemm.build.sm90 import columns_loaded, is_gpc_aware, pipeline_of
from cutegemm.choice.columns import Column
from cutegemm.choice.sm90.tiles import is_pingpong
from cutegemm.machine.device import Device
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.work.gpcs import PAIR
from cutegemm.tile.tma import TMA_INNER_ALIGNED_BYTES

K_TILE_BYTES = 128  # bytes of a k-tile along K: one row of the widest swizzle
_OVERLAPPED_BITS = 16  # bits of an element of D, at most, if registers hold a finished tile next to the accumulators
_SHARED_BITS = 16  # bits of an element of D for which consumers may share the only tile of a CTA
_JOINT_COLUMNS = 32  # columns of a tile whose MMAs do not hide that consumers wait for each other, at most
_STREAMED_COLUMNS = 16  # columns of a tile with cluster split-K for which loads of A hide the rest, at most
_BAND = 8  # rows of tiles in a band, if the raster follows from the cluster


@dataclass(frozen=True)
class TileShape:
    """Properties of one Hopper plan that its predicted time depends on, such as tile, cluster and kind of epilogue.

    tile                     (bM, bN), the tile of a CTA
    cluster                  CTAs of a cluster along M and N
    epilogue                 which MMAs hide the store of a tile: "pingpong" (those of the other warpgroup),
                             "overlapped" (those of the next tile), "cooperative" (none) or "single" (none; there is no
                             producer warp either)
    raster                   order of the tiles; None if it follows from the cluster
    promoted                 whether threads add the accumulators of each k-tile to a total in f32
    consumers                number of consumer warpgroups
    epi_tile_n, epi_stages   columns of an epilogue tile, and epilogue stages; None if they follow from the tile
    is_direct                whether D is stored from registers
    depth                    k-tiles of 128 bytes in a stage; they are waited for together
    cluster_k                CTAs of a cluster that split the K of a tile
    ctas_per_sm              CTAs that share an SM
    alone                    whether a CTA computes one tile only; its consumers share it if D is aligned and has 16
                             bits
    """

    tile: tuple[int, int]
    cluster: tuple[int, int] = (1, 1)
    epilogue: str = "pingpong"
    raster: str | None = None
    promoted: bool = False
    consumers: int = 2
    epi_tile_n: int | None = None
    epi_stages: int | None = None
    is_direct: bool = False
    depth: int = 1
    cluster_k: int = 1
    ctas_per_sm: int = 1
    alone: bool = False

    @property
    def streams(self) -> bool:
        """Return whether this plan's loads of A take most of the time: cluster split-K with a tile of few columns."""
        return bool(_streams(self.cluster_k, self.tile[1]))

    def is_pingpong(self, operands: Operands) -> bool:
        """Return whether this plan's consumer warpgroups take tiles in turn (pingpong) instead of sharing each tile.

        If a CTA has one tile only, its consumers share the tile. They do so only if the type and alignment of D allow
        it.
        """
        return self.epilogue == "pingpong" or (self.alone and is_pingpong(self.tile) and not may_share(operands))

    @property
    def waits_for_next(self) -> bool:
        """Return whether this plan stores a tile during the MMAs of the next one, with tiles in the default order.

        False for deep k-tiles, cluster split-K and stores from registers.
        """
        is_usual = self.raster is None and self.depth == self.cluster_k == 1 and not self.is_direct
        return is_usual and self.epilogue in ("pingpong", "overlapped")

    @property
    def is_gpc_aware(self) -> bool:
        """Return whether this plan's clusters take tiles in GPC-aware order, on devices whose order of CTAs is known.

        In this order, CTAs of one GPC share an operand.
        """
        is_usual = self.raster is None and self.epilogue != "single" and self.cluster_k == 1
        return is_usual and is_gpc_aware(self.tile, self.cluster)

    def pipeline_state(self, operands: Operands) -> tuple[int, int]:
        """Return (mainloop stages, epilogue tiles of a consumer) that this plan has for given operands.

        The plan is not built for this.

        operands   types, majorness and alignment of A to D, as the kernel sees them

        >>> TileShape((128, 192)).pipeline_state(Operands.of("bf16", layout="nt"))
        (4, 6)
        """
        bm, bn = self.tile
        rows = bm if self.is_pingpong(operands) else bm // self.consumers
        k_tile = self.depth * K_TILE_BYTES * 8 // operands.a.dtype.bits
        return pipeline_of(
            operands, (bm, bn, k_tile), (rows, bn // self.cluster_k), self.consumers, self.epi_tile_n, self.epi_stages,
            self.is_direct, self.cluster_k, self.ctas_per_sm,
        )  # fmt: skip


def may_share(operands: Operands) -> bool:
    """Return whether the consumer warpgroups of a CTA that computes a single tile may share that tile.

    They may if D has 16 bits and TMA can store it. Otherwise they take tiles in turn, as in CTAs with several tiles:
    epilogue stages of a 32-bit D would take the room of a mainloop stage, and a D that TMA cannot store was not timed.

    >>> may_share(Operands.of("bf16")), may_share(Operands.of("tf32")), may_share(Operands.of("bf16", align_bytes=2))
    (True, False, False)
    """
    return operands.d.dtype.bits == _SHARED_BITS and operands.d.align_bytes >= TMA_INNER_ALIGNED_BYTES


def may_overlap(operands: Operands) -> bool:
    """Return whether plans for these operands can overlap the epilogue of a tile with the MMAs of the next one.

    TMA must be able to store D, and its type must be small enough for registers to hold a finished tile.

    >>> may_overlap(Operands.of("bf16")), may_overlap(Operands.of("tf32"))
    (True, False)
    >>> may_overlap(Operands.of("bf16", align_bytes=2))
    False
    """
    return operands.d.dtype.bits <= _OVERLAPPED_BITS and operands.d.align_bytes >= TMA_INNER_ALIGNED_BYTES


@dataclass(frozen=True, eq=False)
class Shapes:
    """Properties of many Hopper plans that their predicted times depend on, as arrays with one entry per plan.

    bm, bn             tile (bM, bN)
    loaded_n           columns of B that are loaded for a k-tile: those of the tile, or more to fill cache lines
    cm, cn             CTAs of a cluster along M and N
    cooperative        whether a CTA issues no MMAs while it stores a tile
    overlapped         whether the epilogue is overlapped with the next tile's MMAs
    alone              whether a CTA computes one tile only
    band               rows of tiles in a band of the rasterization
    gpc_aware          whether clusters take tiles in GPC-aware order, on devices whose order is known
    along_m, along_n   whether consecutive tiles lie along M, and along N
    late               share of a load's latency that a k-tile waits: 1 / (stages - 1)
    epi_tiles          epilogue tiles of a consumer
    epi_tile_n         columns of an epilogue tile; 0 if they follow from the tile
    depth              k-tiles of 128 bytes that are waited for together
    cluster_k          CTAs of a cluster that split K
    single             whether one warpgroup computes the only tile of a CTA, and loads its own k-tiles
    ctas_per_sm        CTAs that share an SM
    swap_ab            whether the plan computes D^T
    reads_a            whether threads load A into registers, so that no repack pass copies it
    """

    bm: Column
    bn: Column
    loaded_n: Column
    cm: Column
    cn: Column
    cooperative: Column
    overlapped: Column
    alone: Column
    band: Column
    gpc_aware: Column
    along_m: Column
    along_n: Column
    late: Column
    epi_tiles: Column
    epi_tile_n: Column
    depth: Column
    cluster_k: Column
    single: Column
    ctas_per_sm: Column
    swap_ab: Column
    reads_a: Column

    @classmethod
    def of(
        cls,
        shapes: Sequence[TileShape],
        operands: Operands,
        swap_ab: bool = False,
        with_c: bool = False,
        reads_a: bool = False,
    ) -> Shapes:
        """Convert the properties of plans to arrays, and add what follows from the operands, e.g. the mainloop stages.

        shapes     properties of each plan
        operands   operands of the problem for D
        swap_ab    whether the plans compute D^T = B^T A^T
        with_c     whether the epilogue reads a C; plans then have no overlapped epilogue
        reads_a    whether threads load A into registers

        >>> Shapes.of([TileShape((128, 192)), TileShape((64, 16))], Operands.of("bf16", layout="nt")).bn
        array([192.,  16.])
        """
        overlaps = may_overlap(operands) and not with_c
        seen = replace(operands, b=operands.transposed.b) if swap_ab else operands
        pipelines = [one.pipeline_state(seen) for one in shapes]
        bands: dict[str | None, int] = {"along_m": 1 << 20, "along_n": 1}
        columns: dict[str, list[Any]] = {
            "bm": [one.tile[0] for one in shapes],
            "bn": [one.tile[1] for one in shapes],
            "cm": [one.cluster[0] for one in shapes],
            "cn": [one.cluster[1] for one in shapes],
            "cooperative": [_stops_to_store(one, overlaps) for one in shapes],
            "overlapped": [overlaps and one.epilogue == "overlapped" for one in shapes],
            "band": [bands.get(one.raster, _BAND) for one in shapes],
            "gpc_aware": [one.is_gpc_aware for one in shapes],
            "along_m": [one.raster == "along_m" for one in shapes],
            "along_n": [one.raster == "along_n" for one in shapes],
            "epi_tile_n": [one.epi_tile_n or 0 for one in shapes],
            "single": [one.epilogue == "single" for one in shapes],
            "loaded_n": [columns_loaded(seen.b, one.tile) for one in shapes],
            "late": [1 / max(1, stages - 1) for stages, _ in pipelines],
            "epi_tiles": [epi_tiles for _, epi_tiles in pipelines],
            "swap_ab": [swap_ab for _ in shapes],
            "reads_a": [reads_a for _ in shapes],
        }
        for name in ("alone", "depth", "cluster_k", "ctas_per_sm"):
            columns[name] = [getattr(one, name) for one in shapes]
        kind = None if shapes else bool  # an empty array of floats has no & and ~
        return cls(**{name: _as_floats(np.array(column, kind)) for name, column in columns.items()})

    def take(self, rows: Column) -> Shapes:
        """Return the properties of some of these Hopper plans.

        rows   indices of the plans, which give the order of the result
        """
        return Shapes(*[column.take(rows) for column in self._columns()])

    @classmethod
    def joined(cls, groups: Sequence[Shapes]) -> Shapes:
        """Concatenate several sets of Hopper plans: all plans of the first group, then those of the next."""
        columns = zip(*[group._columns() for group in groups], strict=True)
        return groups[0] if len(groups) == 1 else cls(*[np.concatenate(column) for column in columns])

    def _columns(self) -> list[Column]:
        """Return the arrays of properties, one per field of this class, in the order of the fields."""
        return [getattr(self, field.name) for field in fields(self)]

    @cached_property
    def cluster_m(self) -> Column:
        """Return the number of rows of D that the CTAs of a cluster cover together, for each plan."""
        return self.bm * self.cm

    @cached_property
    def cluster_n(self) -> Column:
        """Return the number of columns of D that the CTAs of a cluster cover together, for each plan."""
        return self.bn * self.cn

    @cached_property
    def is_large_cluster(self) -> Column:
        """Return an array of flags, one per plan: does a cluster compute more than two tiles (four or eight)?"""
        return self.cm * self.cn > PAIR

    @cached_property
    def has_other_form(self) -> Column:
        """Return an array of flags, one per plan: is there another plan with the same tile for larger grids?

        Such a pair consists of a plan whose CTAs compute one tile each, for which the flag is True, and a plan whose
        CTAs compute several tiles. Only clusters of at most two CTAs have pairs.
        """
        return self.alone & ~self.is_large_cluster

    @cached_property
    def by_eight(self) -> Column:
        """Return an array of flags, one per plan: do its epilogue tiles have only eight columns?"""
        return self.epi_tile_n == FEWEST_COLUMNS

    @cached_property
    def is_two(self) -> Column:
        """Return an array of flags, one per plan: does a cluster compute exactly two tiles?"""
        return self.cm * self.cn == PAIR

    @cached_property
    def is_crowded(self) -> Column:
        """Return an array of flags, one per plan: do several CTAs share an SM?"""
        return self.ctas_per_sm > 1

    @cached_property
    def is_joint(self) -> Column:
        """Return an array of flags, one per plan: do consumer warpgroups share a tile of few columns?

        Such plans suit only a D of few columns, because the MMAs of a narrow tile are too short to hide waiting at
        barriers.
        """
        return self.cooperative & ~self.single & (self.bn <= _JOINT_COLUMNS)

    @cached_property
    def streams(self) -> Column:
        """Return an array of flags, one per plan: do the loads of A take most of its time?

        They do with cluster split-K and a tile of few columns.
        """
        return _streams(self.cluster_k, self.bn)

    @cached_property
    def is_for_few(self) -> Column:
        """Return an array of flags, one per plan: is it tried only for a D of few columns?

        Loading A takes most of the time of such problems.
        """
        return self.is_joint | self.streams | (self.is_deep & (self.cm > 1) & (self.cn == 1))

    @cached_property
    def is_deep(self) -> Column:
        """Return an array of flags, one per plan: are its k-tiles deep, i.e. more than 128 bytes along K?"""
        return self.depth > 1

    @cached_property
    def splits_k_in_cluster(self) -> Column:
        """Return an array of flags, one per plan: do CTAs of a cluster split the K of a tile (cluster split-K)?"""
        return self.cluster_k > 1

    @cached_property
    def stages(self) -> Column:
        """Return the number of stages of the mainloop pipeline of each plan, computed from the field `late`."""
        return 1 + 1 / self.late

    @cached_property
    def waits(self) -> Column:
        """Return the factor on a plan's waiting time for each 128 bytes of K; below 1 if it waits for several at once.

        It is 1 / sqrt(depth), where `depth` is the number of k-tiles of 128 bytes that are waited for together.
        """
        return self.depth**-0.5

    def extents(self, problem: Problem) -> tuple[Column, Column]:
        """Return arrays (M, N) with the extents of D as the kernel of each plan sees them, at least 1.

        M and N are exchanged for plans that compute D^T (swap A/B).

        problem   extents of the GEMM
        """
        return by_orientation(self.swap_ab, np.maximum(1, problem.m), np.maximum(1, problem.n))

    def grid(self, device: Device) -> Column:
        """Return the number of clusters of each plan that run on the device at a time, at least 1."""
        ctas = (self.cm * self.cn * self.cluster_k).astype(int)
        return np.maximum(1.0, np.array(device.clusters_by_size)[ctas]) * self.ctas_per_sm


def _streams(cluster_k: Any, columns: Any) -> Any:
    """Return whether the loads of A take most of the time of a plan: cluster split-K with a tile of few columns.

    cluster_k   CTAs of a cluster that split K, as a number or an array
    columns     columns of the tile, as a number or an array
    """
    return (cluster_k > 1) & (columns <= _STREAMED_COLUMNS)


def _as_floats(column: Column) -> Column:
    """Convert an array to floats, so that later arithmetic need not; an array of booleans is returned unchanged."""
    return column if column.dtype == bool else column.astype(float)


def by_orientation(swap_ab: Column, a_value: Any, b_value: Any) -> tuple[Column, Column]:
    """Return (value of the kernel's A, value of the kernel's B) for each plan, from values of the problem's A and B.

    They are exchanged for plans that swap A and B. If both values are the same number, it is returned for all plans.

    swap_ab            array of flags: does the plan compute D^T = B^T A^T, so that the problem's B is the kernel's A?
    a_value, b_value   value of the problem's A, and of its B
    """
    if np.ndim(a_value) == np.ndim(b_value) == 0 and a_value == b_value:
        return a_value, b_value
    return np.where(swap_ab, b_value, a_value), np.where(swap_ab, a_value, b_value)


def _stops_to_store(one: TileShape, overlaps: bool) -> bool:
    """Return whether a CTA issues no MMAs while it stores a tile that is not its last one.

    one        properties of the plan
    overlaps   whether operands and epilogue allow an overlapped epilogue
    """
    stops = one.epilogue in ("cooperative", "single") or (not overlaps and one.epilogue == "overlapped")
    return stops and not one.streams
