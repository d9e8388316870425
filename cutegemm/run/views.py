"""How a tensor lies in memory, as a plan sees it: majorness, alignment, and strides that mean something."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd
from typing import Any

from cutegemm.dtypes import DType
from cutegemm.errors import UnsupportedError
from cutegemm.plan.problem import Operand, Operands

ALIGN_BYTES = 16  # what the widest accesses need
Steps = tuple[tuple[int, int], ...]  # see `Region`
_MOST_TRIED = 10_000  # multiples of steps, until two regions are taken to meet
MODES = {"a": "mk", "b": "kn", "c": "mn", "out": "mn"}  # of the rows and the columns of each matrix


class View:
    """How a matrix, or a batch of matrices, lies in memory.

    major     0 or 1: the mode of the matrix whose stride is 1; None where there is none
    align     bytes, a power of two up to `ALIGN_BYTES`: of the address, the strides and the rows
    boxed     the same where the length of a row does not count, as TMA has it, whose strides are not 0
    strides   those that a kernel is to see, where those of an extent of 1, or of no elements, are others; else None
    region    the bytes that the elements take

    Where an extent of 0 or 1 leaves `major` open, it is the one that is `wanted`, if any is.
    """

    __slots__ = ("align", "boxed", "major", "region", "strides")

    def __init__(
        self,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        element_bytes: int,
        address: int,
        batched: bool,
        wanted: int | None = None,
    ) -> None:
        self.region = Region(shape, strides, element_bytes)
        (rows, cols), (by_row, by_col) = shape[-2:], strides[-2:]
        is_column = by_row == 1 and cols == 1  # a row of which is one element, whatever its stride
        self.major = 1 if by_col == 1 and not is_column else None
        if self.major is None:
            self.major = 0 if by_row == 1 else 1 if cols <= 1 or 0 in shape else 0 if rows <= 1 else None
        if wanted is not None and (strides[-2:][wanted] == 1 or shape[-2:][wanted] <= 1):
            self.major = wanted
        self.align = self.boxed = element_bytes
        self.strides: tuple[int, ...] | None = None
        if self.major is None:
            return
        along, across = (cols, rows) if self.major == 1 else (rows, cols)
        # The stride of an extent of 1 means nothing, and without elements none does: it becomes that of compact rows,
        # each of which begins at a multiple of `ALIGN_BYTES`.
        unit = max(1, ALIGN_BYTES // element_bytes)
        is_empty = 0 in shape
        leading = by_row if self.major == 1 else by_col
        if across <= 1 or is_empty:
            leading = -(-max(1, along) // unit) * unit
        batch = []
        if batched:
            batch = [strides[0] if shape[0] > 1 and not is_empty else leading * max(1, across)]
        seen = (*batch, leading, 1) if self.major == 1 else (*batch, 1, leading)
        if seen != strides:
            self.strides = seen
        bits = ALIGN_BYTES | address
        for stride in (leading, *batch):
            bits |= stride * element_bytes
        self.boxed = bits & -bits if 0 not in (leading, *batch) else element_bytes
        bits |= along * element_bytes
        self.align = bits & -bits

    @staticmethod
    def of(name: str, tensor: Any, batched: bool, wanted: int | None = None) -> View:
        """A tensor that is there; elements of `out` must not share memory."""
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        if name == "out" and 0 not in shape and _overlaps_itself(shape, strides):
            raise UnsupportedError(
                f"gemm: out has shape {shape} and strides {strides}: several of its elements may lie in one place."
            )
        return View(shape, strides, tensor.element_size(), tensor.data_ptr(), batched, wanted)

    @staticmethod
    def fresh(shape: tuple[int, ...], element_bytes: int, batched: bool, wanted: int | None = None) -> View:
        """Return the view of a row-major tensor that torch is yet to allocate, and will align."""
        strides, running = [], 1
        for extent in reversed(shape):
            strides.append(running)
            running *= max(1, extent)
        return View(shape, tuple(reversed(strides)), element_bytes, 0, batched, wanted)


class Region:
    """The bytes that the elements of a tensor take, from the address of the first one on.

    span    bytes from the first element to the end of the last; 0 if there are none
    steps   (bytes of a step, number of steps) of each mode that has some; the bytes of an element are a mode too

    >>> Region((3, 2), (4, 1), element_bytes=4).steps
    ((1, 3), (16, 2), (4, 1))
    """

    __slots__ = ("span", "steps")

    def __init__(self, shape: Sequence[int], strides: Sequence[int], element_bytes: int) -> None:
        modes = [(stride * element_bytes, extent - 1) for extent, stride in zip(shape, strides, strict=True)]
        self.steps = ((1, element_bytes - 1), *[mode for mode in modes if all(mode)])
        self.span = 0 if 0 in shape else 1 + sum(step * count for step, count in self.steps)

    @staticmethod
    def of(tensor: Any) -> Region:
        """Return the region of a tensor."""
        return Region(tuple(tensor.shape), tuple(tensor.stride()), tensor.element_size())


def share_memory(first: Region, start: int, second: Region, other_start: int) -> bool:
    """Whether two tensors at these addresses have a byte in common.

    Tensors whose elements lie in turn, as the heads of one larger tensor do, have none. If it would take long to find
    out, they are taken to have one.

    >>> row, pair = Region((4,), (8,), 4), Region((4, 2), (8, 1), 4)  # every eighth element; and the one after it too
    >>> [share_memory(row, 4 * at, pair, 0) for at in (0, 1, 2, 7, 8)]
    [True, True, False, False, True]
    """
    if not first.span or not second.span:
        return False
    if start + first.span <= other_start or other_start + second.span <= start:
        return False
    return _meet(first.steps, second.steps, other_start - start)


@lru_cache(maxsize=4096)
def _meet(first: Steps, second: Steps, apart: int) -> bool:
    """Whether an offset in one region is one in another region that begins `apart` bytes later.

    So a difference of two offsets is to be `apart`: a sum of multiples of all steps. Multiples of the small steps are
    all numbers of one interval; those of each larger one are tried, as far as what is left is within reach.
    """
    ranges: dict[int, list[int]] = {}
    for step, count in first:
        ranges.setdefault(step, [0, 0])[1] += count
    for step, count in second:
        ranges.setdefault(step, [0, 0])[0] -= count
    low = high = 0
    # Step, least and greatest multiple, ends of what all smaller steps reach, and their greatest common divisor.
    large: list[tuple[int, ...]] = []
    divisor = 0
    for step, (least, most) in sorted(ranges.items()):
        if not large and step <= high - low + 1:
            low, high = low + least * step, high + most * step
            reach = low, high
        else:
            divisor = gcd(divisor, step)
            large.append((step, least, most, *reach, divisor))
            reach = reach[0] + least * step, reach[1] + most * step
    left = _MOST_TRIED

    def is_sum(of: int, number: int) -> bool:
        nonlocal left
        if number < 0:
            return low <= of <= high
        step, least, most, lowest, highest, common = large[number]
        if (of - low) % common > high - low:
            return False
        for multiple in range(max(least, -((highest - of) // step)), min(most, (of - lowest) // step) + 1):
            left -= 1
            if left < 0 or is_sum(of - multiple * step, number - 1):
                return True
        return False

    return is_sum(apart, len(large) - 1)


def _overlaps_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements may lie in one place: no order of the modes nests them."""
    reach = 0
    for stride, extent in sorted((s, e) for s, e in zip(strides, shape, strict=True) if e > 1):
        if stride <= reach:
            return True
        reach += (extent - 1) * stride
    return False


def operands_of(
    views: dict[str, View],
    kind: DType,
    result: DType,
    batched: bool,
    by_box: str | None = None,
    of_c: DType | None = None,
    of_b: DType | None = None,
) -> Operands:
    """Return the operands that a plan is made for, from the views of "a", "b", "c" and "out".

    kind     type of "a"
    result   type of "out"
    by_box   None: as threads access them all. Else which of "a" and "b" TMA loads, whose rows may end anywhere; what it
             writes ends at a multiple of 16 bytes, and so does a C that it is to load. One that is packed first is
             loaded by threads, and as little aligned as TMA would find it
    of_c     type of "c"; None is that of "out"
    of_b     type of "b"; None is that of "a"
    """
    kinds = {"a": kind, "b": of_b or kind, "c": of_c or result, "out": result}

    def align(name: str, view: View) -> int:
        if by_box is None or name == "out":
            return view.align
        return view.boxed if name in by_box else min(view.align, view.boxed)

    made = {name: Operand(kinds[name], MODES[name][view.major or 0], align(name, view)) for name, view in views.items()}
    acc = Operands.of(kind).acc
    return Operands(made["a"], made["b"], made["c"], made["out"], acc, batched)
