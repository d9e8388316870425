"""Minimum, maximum, quotients and search of traced integers, for the tile scheduler of `plan.work`."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from cutegemm.machine.arch import WARP_THREADS
from cutegemm.plan.work.arithmetic import Arithmetic


@cute.jit
def search(number: Int32, run: tuple, count: Int32, bounds: cutlass.Constexpr, numbers: cutlass.Constexpr):
    """Return the run of consecutive numbers that contains a number, as `plan.work.arithmetic.search` does.

    All threads of a warp call it together, with the same values. If the number is in the run where the search begins,
    nothing is read. Otherwise lane i reads run index + i, a prefix sum tells where each run ends, and a ballot counts
    the runs that end before the number. 32 runs take one step.

    bounds    function from the index of a run to its begin and its size
    numbers   function from the size of a run to the count of its numbers
    """
    index, first, begin, size = run
    lane = cute.arch.lane_idx()
    is_sought = index < count
    if is_sought:
        is_sought = number >= first + numbers(size)
    while is_sought:
        begin, size = bounds(index + lane)
        own = Int32(0)
        if index + lane < count:
            own = Int32(numbers(size))
        last = own  # becomes the count of numbers of the runs from `index` to this lane's
        for step in cutlass.range_constexpr(5):
            before = cute.arch.shuffle_sync_up(last, 1 << step, mask_and_clamp=0)
            if lane >= 1 << step:
                last += before
        is_later = cute.arch.vote_ballot_sync(number >= first + last)
        passed = cute.arch.popc(is_later)  # runs that end before the number: those of the first lanes
        at = cutlass.min(passed, WARP_THREADS - 1)
        whole, own, begin, size = [cute.arch.shuffle_sync(each, at) for each in (last, own, begin, size)]
        if passed < WARP_THREADS:
            first += whole - own
            is_sought = False
        else:
            first += whole
            is_sought = index + WARP_THREADS < count
        index += passed
    return cutlass.min(index, count), first, begin, size


class Divisor:
    """A positive integer that only the device knows, to divide by: `x // divisor` and `x % divisor` in f32.

    They take about half of the 150 cycles of a division of integers, and are exact for x from 0 to 2**21 - 1:
    (x + 0.5) / divisor is at least 0.5 / divisor away from an integer. The roundings of the reciprocal (1 ulp) and of
    the product (0.5 ulp) move it by less.

    divisor   the integer
    """

    def __init__(self, divisor: Int32) -> None:
        self.divisor, self.reciprocal = divisor, cute.arch.rcp_approx(Float32(divisor))

    def __rfloordiv__(self, dividend: Int32) -> Int32:
        return Int32((Float32(dividend) + 0.5) * self.reciprocal)

    def __rmod__(self, dividend: Int32) -> Int32:
        return dividend - (dividend // self) * self.divisor


def divisors(numbers: tuple[Int32, ...]) -> tuple[Divisor, ...]:
    """Return objects that divide by positive integers which only the device knows: see `Divisor`."""
    return tuple([Divisor(number) for number in numbers])


TRACED = Arithmetic(cutlass.min, cutlass.max, cute.ceil_div, search, divisors)
