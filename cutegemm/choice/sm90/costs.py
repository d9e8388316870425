"""The constants of the model of time for Hopper plans, as `python -m docs.evidence fit-sm90` finds them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sm90Costs:
    """What is fitted, in microseconds and KiB unless it is a factor.

    start                     of a kernel: until its first MMA, and from its last one to the end
    single                    factor on the start, of one warpgroup with one tile, or of CTAs that share K
    fours                     for each four CTAs of a cluster, until all of them have met
    l2                        factor on the reads of a CTA from L2, when all multiprocessors read
    l2_fours                  factor on that, in clusters of four or eight
    l2_joined                 factor on reads without a multicast, if clusters take tiles in the order of the GPCs:
                              reads of a GPC are joined
    asked                     for each time that CTAs which begin together ask for the same line of the first k-tiles
    missing                   factor on rows beyond the end of an operand, which TMA fills with zeros, or beside a tile
    load                      of a k-tile, from asking for it until it is there
    step                      of a k-tile, besides
    asks                      of a k-tile that is asked for by the warpgroup that multiplies it, besides
    store                     KiB of D that a multiprocessor stores in a microsecond
    store_across              factor on that, of a D that TMA does not store, if threads store columns of the tile
    ends_of_rows              bytes that such a D takes besides, for each row of the tiles of a cluster: sectors written
                              in part
    store_along               factor on the rate of such a D, if tiles follow each other along the rows of a larger D
    epi_tile                  of an epilogue tile of a consumer
    tile                      of a tile, besides
    cooperative, overlapped   share of the store of a tile that no MMAs overlap, by the kind of epilogue
    waited                    factor on that, of a D larger than L2
    meet                      if K is split, until the CTAs of a tile have met
    accumulators              KiB of accumulators that a CTA writes to L2, or reads from there, in a microsecond
    shared                    if CTAs of a cluster share K, until each has the accumulators of its own columns
    sent                      KiB of its accumulators that a CTA sends, and adds, in a microsecond
    ends                      if tiles have owners, until these have what others took of the k-tiles
    burst                     of tensor cores at work, before the chip is at its power limit
    rests                     factor on the share of a wave without MMAs: so much longer a problem takes at the power
                              limit, since the clock does not make up for it
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
