"""The constants of the model of time for Hopper plans, as `python -m docs.evidence fit-sm90` finds them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sm90Costs:
    """What is fitted, in microseconds and KiB.

    start          of a kernel: until its first product, and from its last one to the end
    fill           for each 256 rows of the k-tile that comes first
    single         share of the start, of one warpgroup with one tile, or of CTAs that share K
    fours          for each four CTAs of a cluster, until all of them have met
    narrow         times a k-tile's products, where rows of B along N have 32 bytes
    two_level      of a k-tile, whose sums threads add to those before it
    l2             times what a device takes for what a CTA reads from L2, when all multiprocessors do
    lines          share of that which is for the lines that boxes touch; the rest is for their sectors
    l2_fours       times that, in clusters of four or eight
    l2_joined      times that, of rows that no multicast brings, where clusters take tiles in the order of the GPCs:
                   reads of a GPC are joined
    l2_larger      power of the other operand's share of what is read, twice: reads that wait for memory are joined more
    asked          for each time that a line of the first k-tiles is asked for by CTAs that begin together
    missing        times a KiB from L2, of rows beyond the end of an operand, which TMA fills with zeros, or beside a
                   tile
    load           of a k-tile, from asking for it until it is there
    deeper         for each stage more than four, more of the exponent by which waves and memory add up: a deep ring
                   evens out what comes from memory by fits and starts
    step           of a k-tile, besides
    asks           of a k-tile that is asked for by what multiplies it, besides
    store          KiB a microsecond that a multiprocessor stores of D
    store_across   share of that, of a D that TMA does not store, where threads store columns of the tile
    ends_of_rows   bytes that such a D takes besides, for each row of the tiles of a cluster: sectors filled in part
    written        of a D that L2 does not keep, times what as much takes to be read from memory
    store_along    times the rate of such a D, where tiles follow each other along the rows of a larger D
    subtile        of a consumer that leaves through shared memory
    tile           of a tile, besides
    cooperative, deferred   share of the store of a tile that no products overlap, by the way of D
    waited         times that, of a D larger than L2
    meet           where K is split, until the CTAs of a tile have met
    part           for each part that is added
    sums           KiB a microsecond that a CTA writes to L2 or reads from there, of the sums of parts
    shared         where CTAs of a cluster share K, until each has the sums of its own columns
    sent           KiB a microsecond that a CTA sends of its sums, and adds
    evens          more of the exponent by which waves and memory add up, where CTAs of a cluster share K: memory serves
                   them alike, so that the last of them ends not much later than the others
    runs           power of the bytes that the tiles of a cluster have of a row along M or N: the more of them, the
                   faster it is read from memory
    ends           where tiles have owners, until they have what others took of the k-tiles
    burst          of tensor cores at work, before the chip is at its power limit
    rests          times the share of a wave in which no products run: so much longer a problem takes at the power
                   limit, since the clock does not make up for it
    """

    start: float = 6.15
    fill: float = 0.3
    single: float = 0.9
    fours: float = 0.2
    narrow: float = 2.2
    two_level: float = 0.025
    l2: float = 1.0
    lines: float = 0.75
    l2_fours: float = 0.76
    l2_joined: float = 0.8
    l2_larger: float = 0.035
    asked: float = 0.002
    missing: float = 3.3
    load: float = 0.359
    deeper: float = 0.05
    step: float = 0.0535
    asks: float = 0.0537
    store: float = 46.2
    store_along: float = 2.1
    store_across: float = 0.5
    ends_of_rows: float = 128.0
    written: float = 0.756
    subtile: float = 0.0495
    tile: float = 0.138
    cooperative: float = 0.547
    waited: float = 1.82
    deferred: float = 0.319
    meet: float = 1.8
    part: float = 0.0843
    sums: float = 49.0
    shared: float = 0.9
    sent: float = 30.0
    evens: float = 0.35
    runs: float = 0.04
    ends: float = 4.51
    burst: float = 80.0
    rests: float = 2.0


COSTS = Sm90Costs()
