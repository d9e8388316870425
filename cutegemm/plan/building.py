"""What the builders of plans share: complaints; and, for threads, how tiles are copied and lie in shared memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import TypeVar

from cutegemm.errors import CutegemmError, PlanError
from cutegemm.layout import ComposedLayout, Layout, Swizzle
from cutegemm.plan.plan import SharedLayout
from cutegemm.plan.problem import Operand, Operands
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.copy_atoms import cp_async, universal_copy
from cutegemm.tile.tiled_copy import TiledCopy, make_tiled_copy_tv

T = TypeVar("T")

K_RUN = 8  # elements along K that neighbouring threads fetch of a k-major operand: one 32-byte sector of f32
ACCESS_BITS = 128  # the widest load and store of one thread


@dataclass(frozen=True)
class Shared:
    """How a tile lies in shared memory.

    major     "mn": the elements along M or N are neighbours, as the threads read them; "k": those along K
    pad       elements left free after each run of neighbours
    swizzle   of the offsets, in elements, or None
    """

    major: str = "mn"
    pad: int = 0
    swizzle: Swizzle | None = None

    def layout(self, extent: int, bk: int, stages: int) -> SharedLayout:
        """The layout (extent, bK, stages).

        >>> str(Shared(pad=4).layout(128, 8, 3))
        '(128,8,3):(1,132,1056)'
        """
        run = (extent if self.major == "mn" else bk) + self.pad
        runs = bk if self.major == "mn" else extent
        stride = (1, run) if self.major == "mn" else (run, 1)
        outer = Layout((extent, bk, stages), (*stride, run * runs))
        return outer if self.swizzle is None else ComposedLayout(self.swizzle, 0, outer)


def vector_copy(operand: Operand, elements: int) -> CopyAtom:
    """A plain access to so many elements of an operand, or to as many as one access may have."""
    bits = operand.dtype.bits
    return universal_copy(operand.dtype, min(ACCESS_BITS, bits * max(1, elements)))


class Complaints:
    """What is wrong with the parts of a plan, so that all of it can be said at once."""

    def __init__(self) -> None:
        self.broken: list[str] = []

    def attempt(self, make: Callable[[], T]) -> T | None:
        """What `make` returns, or None with its complaint noted."""
        try:
            return make()
        except PlanError as error:
            self.broken += [rule for rule in error.violations if rule not in self.broken]
        except CutegemmError as error:
            self.broken.append(str(error))
        return None


class Builder(Complaints):
    """The parts of a plan whose threads copy and multiply."""

    least_stages = 1

    def __init__(
        self,
        subject: str,
        operands: Operands,
        block: tuple[int, int, int],
        stages: int,
        loads: dict[str, str | None],
    ) -> None:
        super().__init__()
        self.subject, self.operands, self.block, self.stages = subject, operands, block, stages
        if stages < self.least_stages:
            self.broken.append(f"stages = {stages}; at least {self.least_stages} is expected.")
        for name, load in loads.items():
            if load not in (None, "cp.async", "register"):
                self.broken.append(f"{name} = {load!r} is neither 'cp.async' nor 'register'.")

    def copy(
        self,
        operand: Operand,
        extent: int,
        threads: int,
        kind: str,
        vector: int,
        *,
        k_run: int | None = None,
        cache: str = "cg",
    ) -> TiledCopy:
        """Neighbouring threads along the contiguous mode, the others across it.

        kind     "cp.async" or "register"
        vector   elements of an access at most; fewer where the tile has not so many for each thread
        k_run    elements along K that neighbouring threads copy of a k-major operand; bK where left out
        cache    of accesses of 16 bytes by cp.async
        """
        bk, dtype = self.block[2], operand.dtype
        along = min(k_run or bk, bk) if operand.major == "k" else extent
        while vector > 1 and (along % vector or extent * bk < threads * vector):
            vector //= 2
        if kind == "register":
            atom = universal_copy(dtype, vector * dtype.bits)
        else:
            size = vector * dtype.bits // 8
            atom = cp_async(dtype, size, cache if size == 16 else "ca")
        run = gcd(threads, along // vector)
        across = threads // run
        if operand.major != "k":
            return make_tiled_copy_tv(atom, Layout((run, across)), Layout((vector, 1)))
        rows = min(across, extent)
        deep = across // rows  # more threads than rows: further along K
        thr = Layout((rows, (run, deep)), (run, (1, run * rows)))
        return make_tiled_copy_tv(atom, thr, Layout((1, vector)))
