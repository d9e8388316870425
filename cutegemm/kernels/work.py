"""Minimum, maximum, rounded-up quotient and search of traced integers, for the tile scheduler of `plan.work`."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cutegemm.machine.arch import WARP_THREADS
from cutegemm.plan.work.arithmetic import Arithmetic


@cute.jit
def search(number: Int32, start: Int32, first: Int32, count: Int32, sizes: cutlass.Constexpr):
    """Return which run of consecutive numbers contains a number, and the first number of that run.

    All threads of a warp call it together, with the same values: each looks at another run. See
    `plan.work.arithmetic.search`, which does the same with Python's integers.

    sizes   function from the index of a run to the count of its numbers
    """
    lane = cute.arch.lane_idx()
    is_sought = start < count
    while is_sought:
        size = Int32(0)
        if start + lane < count:
            size = Int32(sizes(start + lane))
        last = size  # becomes the count of numbers of the runs from `start` to this lane's
        for step in cutlass.range_constexpr(5):
            before = cute.arch.shuffle_sync_up(last, 1 << step, mask_and_clamp=0)
            if lane >= 1 << step:
                last += before
        is_later = cute.arch.vote_ballot_sync(number >= first + last)
        passed = cute.arch.popc(is_later)  # runs that end before the number: those of the first lanes
        own = cutlass.min(passed, WARP_THREADS - 1)
        whole, size = cute.arch.shuffle_sync(last, own), cute.arch.shuffle_sync(size, own)
        if passed < WARP_THREADS:
            first += whole - size
            is_sought = False
        else:
            first += whole
            is_sought = start + WARP_THREADS < count
        start += passed
    return cutlass.min(start, count), first


TRACED = Arithmetic(cutlass.min, cutlass.max, cute.ceil_div, search)
