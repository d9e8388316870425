"""The fitted constants of the time model for Hopper plans; `python -m docs.evidence fit-sm90` fits them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sm90Costs:
    """Constants that predict the time of Hopper plans, fitted to measured times.

    They are in microseconds, unless called KiB, a factor or a share.

    start                     time from the kernel's start to its first MMA, plus that from its last MMA to its end
    single                    factor on `start`, if one warpgroup computes one tile, or with cluster split-K
    fours                     time for each four CTAs of a cluster, until all of them have started
    l2                        factor on the time of loads from L2, if all SMs load
    l2_fours                  further factor on the time of loads from L2 in clusters of four or eight
    l2_joined                 factor on loads without multicast under GPC-aware rasterization: loads within one GPC
                              coalesce
    asked                     time of each request for the same cache line of first k-tiles, by CTAs that start at the
                              same time
    missing                   factor on rows that are loaded but not needed: beyond the end of an operand (TMA fills
                              zeros) or next to the tile
    load                      latency of the load of a k-tile
    step                      further time of each k-tile
    asks                      further time of each k-tile, if the warpgroup that multiplies it also issues its load
    store                     KiB of D that an SM stores in a microsecond
    store_across              factor on `store` for a D that threads store, if its rows are the columns of the kernel's
                              tile
    ends_of_rows              bytes added to such a D for each row of the tiles of a cluster, because of partial sectors
    store_along               factor on `store` for a D larger than L2, if tiles follow each other along the rows of D
    epi_tile                  time of each epilogue tile of a consumer
    tile                      time of each tile
    cooperative, overlapped   share of a tile's store that no MMAs overlap, by the kind of epilogue
    waited                    factor on that share for a D larger than L2
    meet                      split-K: time until the CTAs of a tile have met
    accumulators              KiB of accumulators that a CTA writes to L2, or reads from there, in a microsecond
    shared                    cluster split-K: time until each CTA has the accumulators of its own columns
    sent                      KiB of accumulators that a CTA sends and adds in a microsecond
    ends                      stream-K fixup: time until the CTAs of the shared tiles have the accumulators of the
                              helpers
    burst                     time of tensor cores at work until the chip reaches its power limit
    rests                     factor on the share of a wave without MMAs: at the power limit a problem takes that much
                              longer, because the clock does not make up for the pause
    """

    start: float = 6.45
    single: float = 0.9
    fours: float = 0.2
    l2: float = 0.9
    l2_fours: float = 0.76
    l2_joined: float = 0.752
    asked: float = 0.0025
    missing: float = 3.86
    load: float = 0.323
    step: float = 0.0535
    asks: float = 0.0537
    store: float = 46.2
    store_along: float = 2.1
    store_across: float = 0.5
    ends_of_rows: float = 128.0
    epi_tile: float = 0.0495
    tile: float = 0.117
    cooperative: float = 0.547
    waited: float = 1.82
    overlapped: float = 0.24
    meet: float = 1.8
    accumulators: float = 39.2
    shared: float = 0.9
    sent: float = 27.0
    ends: float = 4.51
    burst: float = 54.4
    rests: float = 2.34


COSTS = Sm90Costs()
