"""Base classes and helpers of the plan builders: collected violations, copies by threads, tiles in shared memory."""

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
from cutegemm.plan.store import Store
from cutegemm.plan.stream import OperandStream
from cutegemm.plan.typed import not_of_types
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.copy_atoms import cp_async, universal_copy
from cutegemm.tile.raster import Raster
from cutegemm.tile.tiled_copy import TiledCopy, make_tiled_copy_tv
from cutegemm.tile.tiled_mma import TiledMma

P = ParamSpec("P")
T = TypeVar("T")

K_RUN = 8  # elements along K that neighbouring threads load of a K-major operand: one sector of 32 bytes of f32
LOADS = (None, "cp.async", "register")  # how threads load A and B; None: as their alignment allows


@dataclass(frozen=True)
class Shared:
    """Layout in shared memory that a user requests for the tiles of A or B of a plan: majorness, padding and swizzle.

    The method `layout` turns this description into a CuTe layout for tiles of a given size.

    major     contiguous mode of the tile: "mn" (M for A, N for B) or "k"
    pad       unused elements after each contiguous run, e.g. after each row of a row-major tile
    swizzle   XOR swizzle of the offsets, in elements; None: no swizzle
    raises    PlanError with every rule that is broken
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
        """Return the layout of all pipeline stages of an A or B tile in shared memory: (extent, bK, stages) -> offset.

        The layout has the majorness, padding and swizzle of this object.

        extent   rows of A, or columns of B, of a tile
        bk       elements of a tile along K
        stages   number of pipeline stages; each holds one tile, and the tiles lie one after the other

        >>> str(Shared(pad=4).layout(128, 8, 3))
        '(128,8,3):(1,132,1056)'
        """
        run = (extent if self.major == "mn" else bk) + self.pad
        runs = bk if self.major == "mn" else extent
        stride = (1, run) if self.major == "mn" else (run, 1)
        outer = Layout((extent, bk, stages), (*stride, run * runs))
        return outer if self.swizzle is None else ComposedLayout(self.swizzle, 0, outer)


def vector_copy(operand: Operand, elements: int) -> CopyAtom:
    """Return the copy atom for a plain load or store of neighbouring elements by one thread.

    operand    matrix whose element type counts
    elements   number of neighbouring elements; an instruction moves at most 16 bytes of them
    """
    bits = operand.dtype.bits
    return universal_copy(operand.dtype, min(ACCESS_BITS, bits * max(1, elements)))


def copy_of_lines(d: Operand, vector: int, run: int, threads: int) -> TiledCopy:
    """Return a coalesced tiled copy of a tile of D: neighbouring threads copy neighbouring vectors of a line.

    A line is a row of an N-major D, or a column of an M-major one.

    d         the operand D: element type and majorness
    vector    elements of one access
    run       number of threads that copy one line together; the next `run` threads copy the next line
    threads   number of threads
    """
    atom, across = vector_copy(d, vector), threads // run
    if d.major == "n":
        return make_tiled_copy_tv(atom, Layout((across, run), (run, 1)), Layout((1, vector)))
    return make_tiled_copy_tv(atom, Layout((run, across)), Layout((vector, 1)))


class _Builds(Protocol[P]):
    """Type of a plan builder, such as `sm90_plan`, after the decorator `takes_epilogue` has added two keywords to it.

    It is called like the undecorated function, or with the additional keywords `epilogue` (a custom epilogue, i.e. an
    expression that computes D from the accumulators) and `operands` (kinds of the epilogue's operands by name).
    """

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
    """Decorate a plan builder, such as `sm90_plan`, so that it also takes a custom epilogue.

    A custom epilogue computes D from the accumulators and from further operands. The decorated builder has two more
    keyword arguments:

    epilogue   a function of the accumulator and of operands by name, e.g. `lambda acc, bias: acc + bias`; or its text
    operands   dict from the name of each operand to its kind, e.g. {"bias": "row"}, or to kind and type, e.g. {"bias":
               "row:f32"}. The kinds are row (one value per column of D), column (one per row), tile (a matrix of D's
               shape), element (a tensor of one value) and scalar (a number). For an auxiliary output, the value is its
               type only, e.g. {"aux": "f16"}
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
    """Collects the rules that several arguments break, so that one PlanError reports all of them.

    The method `attempt` runs a computation and remembers the rules that it breaks, instead of raising. The method
    `check` raises one PlanError with all remembered rules.

    subject   what the error is about, such as "sm90_plan 'mine'"

    >>> complaints = Complaints("a caller")
    >>> complaints.attempt(lambda: Raster.parse("along_q")), len(complaints.violations)
    (None, 1)
    """

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.violations: list[str] = []

    def attempt(self, make: Callable[[], T]) -> T | None:
        """Return the result of a function; if it raises an error of cutegemm, remember it and return None.

        The method `check` of this object raises all remembered errors as one.

        make   function without arguments
        """
        try:
            return make()
        except PlanError as error:
            self.violations += [rule for rule in error.violations if rule not in self.violations]
        except CutegemmError as error:
            self.violations.append(str(error))
        return None

    def check(self) -> None:
        """Raise one PlanError with all violations (broken rules) that were collected, if any."""
        if self.violations:
            raise PlanError(self.subject, self.violations)


def made(result: T | None) -> T:
    """Return `result` unchanged, so that the type checker no longer takes it for a value that may be None.

    Plan builders compute components that are None if a rule is broken, and raise all broken rules as one error before
    they use the components. After that, none is None.

    result   a component of a plan; it must not be None
    """
    assert result is not None
    return result


class PlanBuilder(Complaints):
    """Base class of the plan builders: it checks options, and reports all broken rules in one PlanError.

    Its methods check single options and remember the broken rules; `check` raises them. Each kernel family has a
    subclass that makes the components of a plan, such as the tiled MMA.

    subject    what errors are about, such as "sm90_plan 'mine'"
    operands   types, majorness and alignment of A, B, C and D
    """

    def __init__(self, subject: str, operands: Operands) -> None:
        super().__init__(subject)
        self.operands = operands

    def choices(self, **arguments: tuple[object, tuple[object, ...]]) -> None:
        """Remember a broken rule for each argument whose value is not one of the allowed values.

        arguments   a pair (value, allowed values) for each argument by name, e.g. store=(store, ("tma", "direct"))
        """
        for name, (value, known) in arguments.items():
            if value not in known:
                names = " nor ".join(repr(allowed) for allowed in known if allowed is not None)
                self.violations.append(f"{name} = {value!r} is neither {names}.")

    def order(self, raster: Raster | str) -> Raster | None:
        """Return the order in which CTAs take the tiles of D (rasterization).

        raster    a `Raster`, which is returned as it is; or its text, such as "grouped_m:8"
        returns   None if the text is not valid; `check` of this object then raises an error
        """
        if isinstance(raster, Raster):
            return raster
        if not isinstance(raster, str):
            self.violations.append(f"raster = {raster!r}; a Raster is expected, or its text, such as 'grouped_m:8'.")
            return None
        return self.attempt(lambda: Raster.parse(raster))


class Builder(PlanBuilder):
    """Base class of the builders of plans without warp roles (SIMT, mma.sync, gemv): all threads copy and multiply.

    Its methods make the copies that these kernel families share, and assemble the plan.

    block    tile (bM, bN, bK) of a CTA, in elements
    stages   number of k-tiles in shared memory at a time
    """

    least_stages = 1

    def __init__(self, subject: str, operands: Operands, block: tuple[int, int, int], stages: int) -> None:
        super().__init__(subject, operands)
        self.block, self.stages = block, stages
        if stages < self.least_stages:
            self.violations.append(f"stages = {stages}; at least {self.least_stages} is expected.")

    def plan(self, mma: TiledMma, a: OperandStream, b: OperandStream, store: Store, **others: Any) -> GemmPlan:
        """Assemble a plan without warp roles from its components: all threads of a CTA load, multiply and store.

        mma      tiled MMA of the CTA's tile
        a, b     how the tiles of A and B are loaded to shared memory and read from it
        store    how the tile of D is stored
        others   further fields of `GemmPlan` by name, e.g. family="simt"
        raises   PlanError with every rule that is broken
        """
        return GemmPlan(
            operands=self.operands,
            cta_tile=self.block,
            tiled_mma=mma,
            streams=(a, b),
            store=store,
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
        """Return the tiled copy with which the threads of a CTA load a tile of A or B, coalesced.

        Neighbouring threads copy neighbouring vectors along the operand's contiguous mode. When a row is full, the next
        threads copy the next row.

        operand   A or B: element type, majorness and alignment
        extent    extent of the tile along M or N; along K it is the builder's bK
        threads   number of threads of the CTA
        kind      "cp.async", or "register" for a load to registers and a store to shared memory
        vector    largest number of elements of one access; halved until every thread has one
        k_run     for a K-major operand, elements along K that neighbouring threads copy before the next row; None: all
                  bK
        cache     for cp.async of 16 bytes: "cg" bypasses L1, "ca" goes through it
        several   for accesses of one element: largest number of neighbouring elements that a thread copies, one by one;
                  halved like `vector`
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
        own = max(vector, several)
        run = gcd(threads, along // own)
        across = threads // run
        if operand.major != "k":
            return make_tiled_copy_tv(atom, Layout((run, across)), Layout((own, 1)))
        rows = gcd(across, extent)
        deep = across // rows  # if the tile has fewer rows than threads across, some threads copy further along K
        thr = Layout((rows, (run, deep)), (run, (1, run * rows)))
        return make_tiled_copy_tv(atom, thr, Layout((1, own)))

    def copy_of_lines(self, vector: int, threads: int) -> TiledCopy:
        """Return the tiled copy of a tile of D from shared to global memory, coalesced along D's rows (or columns).

        vector    elements of an access
        threads   number of threads of the CTA
        raises    PlanError if the threads do not divide the tile evenly
        """
        d, (bm, bn, _) = self.operands.d, self.block
        line = bn if d.major == "n" else bm
        run = gcd(line // vector, WARP_THREADS)
        if line % vector or threads % run:
            raise PlanError(self.subject, [f"{threads} threads cannot store lines of {line} elements of D evenly."])
        return copy_of_lines(d, vector, run, threads)
