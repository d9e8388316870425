"""What the builders of plans share: complaints; and, for threads, how tiles are copied and lie in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from math import gcd
from types import NoneType
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from cutegemm.errors import CutegemmError, PlanError
from cutegemm.layout import ComposedLayout, Layout, Swizzle, hooks
from cutegemm.machine.arch import ACCESS_BITS, WARP_THREADS
from cutegemm.plan.epilogue import Epilogue
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand, Operands
from cutegemm.plan.role import Role
from cutegemm.plan.shared import SharedLayout
from cutegemm.plan.typed import not_of_types
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.copy_atoms import cp_async, universal_copy
from cutegemm.tile.raster import Raster
from cutegemm.tile.tiled_copy import TiledCopy, make_tiled_copy_tv
from cutegemm.tile.tiled_mma import TiledMma

P = ParamSpec("P")
T = TypeVar("T")

K_RUN = 8  # elements along K that neighbouring threads fetch of a k-major operand: one 32-byte sector of f32
LOADS = (None, "cp.async", "register")  # how threads copy A and B; None: as their alignment asks for


@dataclass(frozen=True)
class Shared:
    """How a tile lies in shared memory.

    major     "mn": the elements along M or N are neighbours, as the threads read them; "k": those along K
    pad       elements left free after each run of neighbours
    swizzle   of the offsets, in elements, or None
    raises    PlanError for other values
    """

    major: str = "mn"
    pad: int = 0
    swizzle: Swizzle | None = None

    def __post_init__(self) -> None:
        violations = not_of_types({"pad": (self.pad, (int,)), "swizzle": (self.swizzle, (Swizzle, NoneType))})
        if self.major not in ("mn", "k"):
            violations.append(f"major = {self.major!r} is neither 'mn' nor 'k'.")
        if not violations and self.pad < 0:
            violations.append(f"pad = {self.pad}; at least 0 is expected.")
        if violations:
            raise PlanError("Shared", violations)

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


def copy_of_lines(d: Operand, vector: int, run: int, threads: int) -> TiledCopy:
    """Threads that copy lines of D: `run` of them neighbours of a line, by `vector` elements each."""
    atom, across = vector_copy(d, vector), threads // run
    if d.major == "n":
        return make_tiled_copy_tv(atom, Layout((across, run), (run, 1)), Layout((1, vector)))
    return make_tiled_copy_tv(atom, Layout((run, across)), Layout((vector, 1)))


class _Builds(Protocol[P]):
    """A builder of plans that also takes an epilogue."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> GemmPlan: ...
    @overload
    def __call__(
        self,
        ops: Operands | None = None,
        /,
        *,
        epilogue: Callable[..., Any] | Epilogue | str,
        operands: Mapping[str, str] | None = None,
        **options: Any,
    ) -> GemmPlan: ...


def takes_epilogue(builder: Callable[P, GemmPlan]) -> _Builds[P]:
    """Return a builder with two more arguments, for a plan with a custom epilogue.

    epilogue   a function of the accumulator and of operands by name, as `gemm` takes it; or its text
    operands   kind of each operand by name, such as {"bias": "row"} or {"bias": "row:f32"}: row, column, tile,
               element or scalar. A type alone, {"aux": "f16"}, is that of an auxiliary output
    raises     PlanError if the plan cannot have this epilogue

    >>> from cutegemm.build import sm90_plan
    >>> plan = sm90_plan(epilogue="relu(acc + bias)", operands={"bias": "row:f32"})
    >>> print(plan.epilogue, "|", plan.operands.matrix("bias"))
    relu(acc + bias) | f32 row of N, 4-byte aligned
    """
    reads_c = "with_c" in signature(builder).parameters

    @wraps(builder)
    def build(ops: Any = None, /, *, epilogue: Any = None, operands: Any = None, **options: Any) -> GemmPlan:
        if operands is not None and not isinstance(operands, Mapping):  # the first argument, by its name
            ops, operands = operands, None
        if operands and epilogue is None:
            raise PlanError(builder.__name__, [f"operands = {operands!r}, but no epilogue. Give epilogue=... too."])
        plan = builder(ops, **options)
        if epilogue is None:
            return plan
        spec = hooks.fused(epilogue, operands)
        if spec.reads_tiles and reads_c:
            plan = builder(spec.made_for(plan.operands), **{**options, "with_c": True})
        ended: GemmPlan = spec.on(plan)
        return ended

    build.__doc__ = f"{builder.__doc__}\n    epilogue, operands: see `cutegemm.build.building.takes_epilogue`.\n    "
    return build  # type: ignore[return-value]


class Complaints:
    """Complaints about several arguments, so that all can be said at once.

    subject   what they are arguments of

    >>> complaints = Complaints("a caller")
    >>> complaints.attempt(lambda: Raster.parse("along_q")), len(complaints.violations)
    (None, 1)
    """

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.violations: list[str] = []

    def attempt(self, make: Callable[[], T]) -> T | None:
        """The result of `make`, or None with its complaint noted."""
        try:
            return make()
        except PlanError as error:
            self.violations += [rule for rule in error.violations if rule not in self.violations]
        except CutegemmError as error:
            self.violations.append(str(error))
        return None

    def check(self) -> None:
        """raises PlanError with all that was noted, if anything was"""
        if self.violations:
            raise PlanError(self.subject, self.violations)


def made(part: T | None) -> T:
    """A part that was attempted, once it is known that nothing was wrong."""
    assert part is not None
    return part


class PlanBuilder(Complaints):
    """The base of all builders of plans."""

    def __init__(self, subject: str, operands: Operands) -> None:
        super().__init__(subject)
        self.operands = operands

    def choices(self, **given: tuple[object, tuple[object, ...]]) -> None:
        """Notes which arguments are none of those that there are."""
        for name, (value, known) in given.items():
            if value not in known:
                names = " nor ".join(repr(each) for each in known if each is not None)
                self.violations.append(f"{name} = {value!r} is neither {names}.")

    def order(self, raster: Raster | str) -> Raster | None:
        """The order of the tiles of D, or None with what is wrong with its text noted."""
        if isinstance(raster, Raster):
            return raster
        if not isinstance(raster, str):
            self.violations.append(f"raster = {raster!r}; a Raster is expected, or its text, such as 'grouped_m:8'.")
            return None
        return self.attempt(lambda: Raster.parse(raster))


@dataclass(frozen=True)
class Loading:
    """How a tile of A or B comes to the threads: from global memory, and out of shared memory to fragments."""

    load: TiledCopy
    smem: SharedLayout
    read: CopyAtom | None


@dataclass(frozen=True)
class Storing:
    """How a tile of D leaves the threads: directly or, with the other two, as whole lines of shared memory."""

    store: CopyAtom
    smem: SharedLayout | None = None
    copy: TiledCopy | None = None


class Builder(PlanBuilder):
    """The parts of a plan whose threads copy and multiply."""

    least_stages = 1

    def __init__(self, subject: str, operands: Operands, block: tuple[int, int, int], stages: int) -> None:
        super().__init__(subject, operands)
        self.block, self.stages = block, stages
        if stages < self.least_stages:
            self.violations.append(f"stages = {stages}; at least {self.least_stages} is expected.")

    def plan(self, mma: TiledMma, a: Loading, b: Loading, d: Storing, **others: Any) -> GemmPlan:
        """The plan of such parts, in which all threads have the same role and wait at the CTA's barrier.

        others   the fields of `GemmPlan` that do not follow from the parts
        raises   PlanError with every rule that is broken
        """
        return GemmPlan(
            operands=self.operands,
            cta_tile=self.block,
            tiled_mma=mma,
            load_a=a.load,
            load_b=b.load,
            smem_a=a.smem,
            smem_b=b.smem,
            read_a=a.read,
            read_b=b.read,
            store_d=d.store,
            smem_d=d.smem,
            copy_d=d.copy,
            roles=(Role("all", mma.threads // WARP_THREADS),),
            **others,
        )

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
        several: int = 1,
    ) -> TiledCopy:
        """Neighbouring threads along the contiguous mode, the others across it.

        kind      "cp.async" or "register"
        vector    elements of an access at most; fewer where the tile has not so many for each thread
        k_run     elements along K that neighbouring threads copy of a k-major operand; bK where left out
        cache     of accesses of 16 bytes by cp.async
        several   neighbours that a thread moves by as many accesses, where it moves one at a time; fewer likewise
        """
        bk, dtype = self.block[2], operand.dtype
        along = min(k_run or bk, bk) if operand.major == "k" else extent
        if vector > 1:
            several = 1
        while vector > 1 and (along % vector or extent * bk < threads * vector):
            vector //= 2
        while several > 1 and (along % several or extent * bk < threads * several):
            several //= 2
        if kind == "register":
            atom = universal_copy(dtype, vector * dtype.bits)
        else:
            size = vector * dtype.bits // 8
            atom = cp_async(dtype, size, cache if size == 16 else "ca")
        held = max(vector, several)
        run = gcd(threads, along // held)
        across = threads // run
        if operand.major != "k":
            return make_tiled_copy_tv(atom, Layout((run, across)), Layout((held, 1)))
        rows = gcd(across, extent)
        deep = across // rows  # the threads that the rows leave over: further along K
        thr = Layout((rows, (run, deep)), (run, (1, run * rows)))
        return make_tiled_copy_tv(atom, thr, Layout((1, held)))

    def copy_of_lines(self, vector: int, threads: int) -> TiledCopy:
        """The tile of D from shared to global memory: neighbouring threads move neighbours of a line.

        vector   elements of an access
        """
        d, (bm, bn, _) = self.operands.d, self.block
        line = bn if d.major == "n" else bm
        run = gcd(line // vector, WARP_THREADS)
        if line % vector or threads % run:
            raise PlanError(self.subject, [f"{threads} threads do not store lines of {line} elements of D."])
        return copy_of_lines(d, vector, run, threads)
