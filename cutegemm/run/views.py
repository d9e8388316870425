"""Memory layouts of tensors: majorness, alignment, strides that a kernel accepts, and overlaps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd
from typing import Any

from cutegemm.dtypes import DType
from cutegemm.errors import UnsupportedError
from cutegemm.plan.problem import Operand, Operands

ALIGN_BYTES = 16  # alignment that the widest accesses need
Steps = tuple[tuple[int, int], ...]  # steps of a `Region`
_MOST_TRIED = 10_000  # multiples that `_meet` tries before it assumes that two regions overlap
MODES = {"a": "mk", "b": "kn", "c": "mn", "out": "mn"}  # names of the row mode and the column mode of each matrix


class View:
    """Memory layout of a matrix, or batch of matrices, that is passed to `gemm`; the choice of a kernel depends on it.

    major     mode of the matrix with stride 1: 0 or 1; None if neither has stride 1. If an extent is 0 or 1, both modes
              may count as contiguous, and `major` is the one that the plan needs, if it needs one
    align     alignment in bytes of the address, the strides and the length of a row; a power of two, at most 16
    boxed     alignment for TMA, which ignores the length of a row. It is the size of an element if a stride is 0, which
              TMA does not support
    strides   strides with which the tensor is passed to a kernel instead of its own; None: its own. They differ in
              modes of extent 1, and in tensors without elements, whose strides have no effect
    region    the bytes that the elements occupy
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
        is_column = by_row == 1 and cols == 1  # a row has one element, so the stride between columns does not matter
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
        # The stride of a mode of extent 1 has no meaning, nor has any stride of a tensor without elements. It becomes
        # the stride of rows without gaps, rounded up to a multiple of `ALIGN_BYTES`.
        unit = max(1, ALIGN_BYTES // element_bytes)
        is_empty = 0 in shape
        leading = by_row if self.major == 1 else by_col
        if across <= 1 or is_empty:
            leading = -(-max(1, along) // unit) * unit
        batch = []
        if batched:
            batch = [strides[0] if shape[0] > 1 and not is_empty else leading * max(1, across)]
        needed = (*batch, leading, 1) if self.major == 1 else (*batch, 1, leading)
        if needed != strides:
            self.strides = needed
        bits = ALIGN_BYTES | address
        for stride in (leading, *batch):
            bits |= stride * element_bytes
        self.boxed = bits & -bits if 0 not in (leading, *batch) else element_bytes
        bits |= along * element_bytes
        self.align = bits & -bits

    @staticmethod
    def of(name: str, tensor: Any, batched: bool, wanted: int | None = None) -> View:
        """Return the memory layout (`View`) of a torch tensor: contiguous mode, alignments and occupied bytes.

        name      "a", "b", "c" or "out"
        tensor    the tensor
        batched   True if the tensor has a batch mode in front
        wanted    mode (0 or 1) to count as contiguous, if both could, because an extent is 1; None for no preference
        raises    UnsupportedError if elements of "out" may share memory
        """
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        if name == "out" and 0 not in shape and _overlaps_itself(shape, strides):
            raise UnsupportedError(
                f"gemm: out has shape {shape} and strides {strides}, so that several of its elements may share memory. "
                "Pass a tensor whose elements do not overlap, such as out.clone()."
            )
        return View(shape, strides, tensor.element_size(), tensor.data_ptr(), batched, wanted)

    @staticmethod
    def fresh(shape: tuple[int, ...], element_bytes: int, batched: bool, wanted: int | None = None) -> View:
        """Return the memory layout of a compact row-major tensor that is not allocated yet.

        Its address counts as aligned, since torch aligns new tensors.

        shape           extents of the tensor
        element_bytes   size of an element in bytes
        batched         True if the tensor has a batch mode in front
        wanted          mode (0 or 1) to count as contiguous, if both could, because an extent is 1; None for no
                        preference
        """
        strides, running = [], 1
        for extent in reversed(shape):
            strides.append(running)
            running *= max(1, extent)
        return View(shape, tuple(reversed(strides)), element_bytes, 0, batched, wanted)


class Region:
    """The bytes that the elements of a tensor occupy, to find out whether two tensors overlap.

    The offset of a byte from the tensor's address is a sum of multiples of the steps, one multiple of each. E.g. rows
    of 8 bytes, 32 bytes apart, have the steps (1, 7) and (32, rows - 1).

    span    bytes from the first element to the end of the last; 0 for a tensor without elements
    steps   (bytes of a step, largest multiple) of each mode with more than one element. The bytes of an element are
            such a mode too

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
        """Return the bytes that the elements of a torch tensor occupy, as offsets from the tensor's address."""
        return Region(tuple(tensor.shape), tuple(tensor.stride()), tensor.element_size())


def share_memory(first: Region, start: int, second: Region, other_start: int) -> bool:
    """Return True if two tensors have a byte in common, taking their strides into account.

    Interleaved tensors, such as the heads of a larger tensor, have none. If the search takes too long, the result is
    True.

    first, second        bytes that the tensors occupy, as offsets from their addresses
    start, other_start   addresses of the first and of the second tensor

    >>> row, pair = Region((4,), (8,), 4), Region((4, 2), (8, 1), 4)  # every eighth element; each with its neighbour
    >>> [share_memory(row, 4 * start, pair, 0) for start in (0, 1, 2, 7, 8)]
    [True, True, False, False, True]
    """
    if not first.span or not second.span:
        return False
    if start + first.span <= other_start or other_start + second.span <= start:
        return False
    return _meet(first.steps, second.steps, other_start - start)


@lru_cache(maxsize=4096)
def _meet(first: Steps, second: Steps, apart: int) -> bool:
    """Return True if two tensors have a byte in common, found by a search over their strides.

    They have one if an offset in the first tensor, minus an offset in the second, equals `apart`. Such a difference is
    a sum of multiples of all steps, with negative multiples for the second tensor. Small steps together reach all
    integers of an interval. For larger steps, all multiples are tried that leave a rest within that interval. If there
    are too many, the result is True.

    first, second   (bytes of a step, largest multiple) of each mode of the tensors
    apart           address of the second tensor minus that of the first, in bytes
    """
    ranges: dict[int, list[int]] = {}
    for step, count in first:
        ranges.setdefault(step, [0, 0])[1] += count
    for step, count in second:
        ranges.setdefault(step, [0, 0])[0] -= count
    low = high = 0
    # (step, least multiple, greatest multiple, least and greatest sum of all smaller steps, common divisor of the large
    # steps up to this one)
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

    def is_sum(total: int, index: int) -> bool:
        """Return True if a number of bytes is a sum of multiples of the small steps and of some large steps.

        A step is the stride of a mode of the tensors, in bytes.

        total   the number of bytes
        index   index of the last large step that may be used; -1: only small steps
        """
        nonlocal left
        if index < 0:
            return low <= total <= high
        step, least, most, lowest, highest, common = large[index]
        if (total - low) % common > high - low:
            return False
        for multiple in range(max(least, -((highest - total) // step)), min(most, (total - lowest) // step) + 1):
            left -= 1
            if left < 0 or is_sum(total - multiple * step, index - 1):
                return True
        return False

    return is_sum(apart, len(large) - 1)


def _overlaps_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return True if two elements of a tensor may have the same address, e.g. because a stride is 0.

    The result is False if the modes nest: sorted by stride, each stride is larger than the largest offset within the
    modes before it.

    shape, strides   extents and strides of the tensor, in elements
    """
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
    """Return element type, majorness and alignment of the operands, from the views of "a", "b", "c" and "out".

    kind      type of a
    result    type of out
    batched   True if the operands are batches of matrices
    by_box    None: threads access all matrices, and the alignment of each is `align` of its view. Otherwise the names
              of the matrices that TMA loads with rows of any length, such as "ab". Their alignment is `boxed` of their
              view. For out it is `align`, and for the other ones the smaller of both
    of_c      type of c; None: that of out
    of_b      type of b; None: that of a
    """
    kinds = {"a": kind, "b": of_b or kind, "c": of_c or result, "out": result}

    def align(name: str, view: View) -> int:
        """Return the alignment in bytes that a kernel may rely on for a matrix; it depends on who loads the matrix.

        name   "a", "b", "c" or "out"
        view   memory layout of the matrix
        """
        if by_box is None or name == "out":
            return view.align
        return view.boxed if name in by_box else min(view.align, view.boxed)

    made = {name: Operand(kinds[name], MODES[name][view.major or 0], align(name, view)) for name, view in views.items()}
    acc = Operands.of(kind).acc
    return Operands(made["a"], made["b"], made["c"], made["out"], acc, batched)
