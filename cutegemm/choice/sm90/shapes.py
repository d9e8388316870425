"""Shapes of Hopper plans, as far as their time depends on them: one, and many as columns."""

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

K_TILE_BYTES = 128  # along K of a k-tile: one row of the widest swizzle
_OVERLAPPED_BITS = 16  # of an element of D, that registers hold beside the sums of the next tile
_SHARED_BITS = 16  # of an element of D, whose only tile of a CTA consumers share
_JOINT_COLUMNS = 32
_STREAMED_COLUMNS = 16
_BAND = 8  # rows of tiles that are taken side by side, where the order follows from the cluster


@dataclass(frozen=True)
class TileShape:
    """What of a plan its time depends on.

    tile                     (bM, bN)
    cluster                  CTAs along M and N
    epilogue                 pingpong, cooperative, deferred or single: what the products go on behind
    raster                   the order of the tiles, where it does not follow from the cluster
    promoted                 whether threads add up the sums of each k-tile
    consumers                warpgroups
    epi_tile_n, epi_stages   of D, where they do not follow from the tile
    is_direct                whether D leaves straight out of registers
    depth                    k-tiles of 128 bytes that a stage holds, which are waited for together
    cluster_k                CTAs of a cluster that share the K of a tile
    ctas_per_sm              that share a multiprocessor
    alone                    whether a CTA is to have one tile, which consumers share where `may_share` says so
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
        """Whether CTAs share the K of a tile of so few columns that loads of A hide the rest."""
        return bool(_streams(self.cluster_k, self.tile[1]))

    def is_pingpong(self, operands: Operands) -> bool:
        """Whether consumers take tiles in turn: one that is to be alone too, where they share none."""
        return self.epilogue == "pingpong" or (self.alone and is_pingpong(self.tile) and not may_share(operands))

    @property
    def waits_for_next(self) -> bool:
        """Whether the store of a tile goes on behind the next one's products, in the usual order of tiles."""
        is_usual = self.raster is None and self.depth == self.cluster_k == 1 and not self.is_direct
        return is_usual and self.epilogue in ("pingpong", "overlapped")

    @property
    def is_gpc_aware(self) -> bool:
        """Whether clusters take tiles in the order of the GPCs, where that is known."""
        is_usual = self.raster is None and self.epilogue != "single" and self.cluster_k == 1
        return is_usual and is_gpc_aware(self.tile, self.cluster)

    def pipeline_state(self, operands: Operands) -> tuple[int, int]:
        """Stages, and epilogue tiles of a consumer.

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
    """Whether consumers share a tile that is the only one of a CTA: those of a D of 32 bits would need the room of a
    stage for their epilogue stages; others were not timed.

    >>> may_share(Operands.of("bf16")), may_share(Operands.of("tf32")), may_share(Operands.of("bf16", align_bytes=2))
    (True, False, False)
    """
    return operands.d.dtype.bits == _SHARED_BITS and operands.d.align_bytes >= TMA_INNER_ALIGNED_BYTES


def may_defer(operands: Operands) -> bool:
    """Whether a tile can be stored behind the next one's products: TMA stores D, and registers hold it beside the sums.

    >>> may_defer(Operands.of("bf16")), may_defer(Operands.of("tf32")), may_defer(Operands.of("bf16", align_bytes=2))
    (True, False, False)
    """
    return operands.d.dtype.bits <= _OVERLAPPED_BITS and operands.d.align_bytes >= TMA_INNER_ALIGNED_BYTES


@dataclass(frozen=True, eq=False)
class Shapes:
    """Columns of many `TileShape`s, for operands of some types; what follows from them is found once.

    loaded_n      columns of B that come for a k-tile: see `columns_loaded`
    alone         whether a CTA is to have one tile, see `TileShape`
    band          rows of tiles that are taken side by side
    gpc_aware     whether clusters take tiles in the order of the GPCs, where that is known
    late          1 / (stages - 1): a k-tile's share of a load
    epi_tiles     of a consumer
    epi_tile_n    columns of one, where they do not follow from the tile; else 0
    depth         k-tiles of 128 bytes that are waited for together
    cluster_k     CTAs of a cluster that share K
    single        whether one warpgroup takes the one tile of a CTA, and asks for its k-tiles itself
    ctas_per_sm   that share a multiprocessor
    swap_ab       whether the plan is for D^T
    reads_a       whether threads read A into registers, so that B is packed at most
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
        """
        operands   those of the problem for D
        swap_ab    whether the plans are for D^T
        with_c     whether a tile of C is read for each tile of D: none is stored behind the next one's products then
        reads_a    whether threads read A into registers

        >>> Shapes.of([TileShape((128, 192)), TileShape((64, 16))], Operands.of("bf16", layout="nt")).bn
        array([192.,  16.])
        """
        defers = may_defer(operands) and not with_c
        of = replace(operands, b=operands.transposed.b) if swap_ab else operands
        rings = [one.pipeline_state(of) for one in shapes]
        bands: dict[str | None, int] = {"along_m": 1 << 20, "along_n": 1}
        columns: dict[str, list[Any]] = {
            "bm": [one.tile[0] for one in shapes],
            "bn": [one.tile[1] for one in shapes],
            "cm": [one.cluster[0] for one in shapes],
            "cn": [one.cluster[1] for one in shapes],
            "cooperative": [_stops_to_store(one, defers) for one in shapes],
            "overlapped": [defers and one.epilogue == "overlapped" for one in shapes],
            "band": [bands.get(one.raster, _BAND) for one in shapes],
            "gpc_aware": [one.is_gpc_aware for one in shapes],
            "along_m": [one.raster == "along_m" for one in shapes],
            "along_n": [one.raster == "along_n" for one in shapes],
            "epi_tile_n": [one.epi_tile_n or 0 for one in shapes],
            "single": [one.epilogue == "single" for one in shapes],
            "loaded_n": [columns_loaded(of.b, one.tile) for one in shapes],
            "late": [1 / max(1, stages - 1) for stages, _ in rings],
            "epi_tiles": [epi_tiles for _, epi_tiles in rings],
            "swap_ab": [swap_ab for _ in shapes],
            "reads_a": [reads_a for _ in shapes],
        }
        for name in ("alone", "depth", "cluster_k", "ctas_per_sm"):
            columns[name] = [getattr(one, name) for one in shapes]
        kind = None if shapes else bool  # an array of no floats takes no & and no ~
        return cls(**{name: _as_floats(np.array(column, kind)) for name, column in columns.items()})

    def taken(self, rows: Column) -> Shapes:
        """Those of some rows."""
        return Shapes(*[column.take(rows) for column in self._columns()])

    @classmethod
    def joined(cls, every: Sequence[Shapes]) -> Shapes:
        """Return the rows of all, in their order."""
        columns = zip(*[one._columns() for one in every], strict=True)
        return every[0] if len(every) == 1 else cls(*[np.concatenate(each) for each in columns])

    def _columns(self) -> list[Column]:
        return [getattr(self, field.name) for field in fields(self)]

    @cached_property
    def cluster_m(self) -> Column:
        """Rows of D that the tiles of a cluster have."""
        return self.bm * self.cm

    @cached_property
    def cluster_n(self) -> Column:
        """Columns of D that the tiles of a cluster have."""
        return self.bn * self.cn

    @cached_property
    def is_large_cluster(self) -> Column:
        """Whether clusters have four CTAs, or eight, of other tiles."""
        return self.cm * self.cn > PAIR

    @cached_property
    def is_other_orientation(self) -> Column:
        """Whether the shape is for one tile a CTA, and there for several in another way: in small clusters."""
        return self.alone & ~self.is_large_cluster

    @cached_property
    def by_eight(self) -> Column:
        """Whether D leaves by eight columns at a time."""
        return self.epi_tile_n == FEWEST_COLUMNS

    @cached_property
    def is_two(self) -> Column:
        """Whether clusters have two CTAs."""
        return self.cm * self.cn == PAIR

    @cached_property
    def is_crowded(self) -> Column:
        """Whether several CTAs share a multiprocessor."""
        return self.ctas_per_sm > 1

    @cached_property
    def is_joint(self) -> Column:
        """Whether consumers share a tile of few columns, whose products do not hide what they wait for each other."""
        return self.cooperative & ~self.single & (self.bn <= _JOINT_COLUMNS)

    @cached_property
    def streams(self) -> Column:
        """See `TileShape.streams`."""
        return _streams(self.cluster_k, self.bn)

    @cached_property
    def is_for_few(self) -> Column:
        """Whether the shape is for a D of few columns alone, most of whose time is the reading of A from memory."""
        return self.is_joint | self.streams | (self.is_deep & (self.cm > 1) & (self.cn == 1))

    @cached_property
    def is_deep(self) -> Column:
        """Whether k-tiles have more than 128 bytes along K."""
        return self.depth > 1

    @cached_property
    def splits_k_in_cluster(self) -> Column:
        """Whether CTAs of a cluster share K."""
        return self.cluster_k > 1

    @cached_property
    def stages(self) -> Column:
        """Of the ring."""
        return 1 + 1 / self.late

    @cached_property
    def waits(self) -> Column:
        """Share of a wait that a k-tile of 128 bytes takes: one for twice as many takes 1.4 times as long."""
        return self.depth**-0.5

    def extents(self, problem: Problem) -> tuple[Column, Column]:
        """M and N, of D or of D^T; at least 1."""
        m, n = max(1, problem.m), max(1, problem.n)
        return (m, n) if m == n else by_orientation(self.swap_ab, m, n)

    def grid(self, device: Device) -> Column:
        """Clusters that run at a time."""
        ctas = (self.cm * self.cn * self.cluster_k).astype(int)
        return np.maximum(1.0, np.array(device.clusters_by_size)[ctas]) * self.ctas_per_sm


def _streams(cluster_k: Any, columns: Any) -> Any:
    """See `TileShape.streams`."""
    return (cluster_k > 1) & (columns <= _STREAMED_COLUMNS)


def _as_floats(column: Column) -> Column:
    """Numbers, so that none is converted later; what is true or false stays so."""
    return column if column.dtype == bool else column.astype(float)


def by_orientation(swap_ab: Column, of_a: Any, of_b: Any) -> tuple[Column, Column]:
    """What there is of A and of B, for D or for D^T = B^T A^T; a number, where it is that of both."""
    if of_a is of_b or (isinstance(of_a, float) and of_a == of_b):
        return of_a, of_b
    return np.where(swap_ab, of_b, of_a), np.where(swap_ab, of_a, of_b)


def _stops_to_store(one: TileShape, defers: bool) -> bool:
    """Whether a CTA multiplies nothing while it stores a tile that is not its last one."""
    shared = one.epilogue in ("cooperative", "single") or (not defers and one.epilogue == "overlapped")
    return shared and not one.streams
