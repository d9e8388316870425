"""The problem of a GEMM: D = alpha * A @ B + beta * C, A is M x K, B is K x N, C and D are M x N, L a batch.

`Operands` is what a plan is made for: element types, majorness and alignment. `Problem` adds the extents.
Inside, as in CuTe, B is seen as (N, K); an operand's majorness names the mode whose stride is 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from cutegemm.dtypes import DType, f32, tf32
from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.layout import Layout
from cutegemm.plan.epilogue import BROADCAST, Tensor
from cutegemm.plan.typed import not_of_types

_GATED = ("", "halves", "pairs")  # where the two columns of B lie that a column of D is made of
_TRANSPOSED = {"m": "n", "n": "m", "k": "k"}
_MODES = {"a": ("m", "k"), "b": ("n", "k"), "c": ("m", "n"), "d": ("m", "n")}
# BLAS letters for row-major data: A is k-major and B n-major where neither is transposed.
_BLAS = {"a": {"n": "k", "t": "m"}, "b": {"n": "n", "t": "k"}}


@dataclass(frozen=True)
class Operand:
    """One matrix as a plan sees it.

    dtype         element type
    major         "m", "n" or "k": the mode of stride 1
    align_bytes   the base address and every other stride are multiples of it; a power of two
    broadcast     modes along which it stays the same: "m" of a row of N numbers, "n" of a column of M
    gated         of B, or of a row beside it: where the two columns lie that a column of D is made of, "halves" or
                  "pairs"; "" where it is one
    modes         of a further operand of the mainloop: ("m", "k") or ("n", "k"). A mode "k/128" or "n/128" has an
                  element for every 128 of K or N. () for all others, whose modes follow from their names
    """

    dtype: DType
    major: str
    align_bytes: int = 16
    broadcast: tuple[str, ...] = ()
    gated: str = ""
    modes: tuple[str, ...] = ()

    @property
    def transposed(self) -> Operand:
        """What runs along M runs along N, and the other way round.

        >>> print(Operand(f32, "m", 4, ("n",)).transposed)
        f32 row of N, 4-byte aligned
        """
        turned = tuple(_TRANSPOSED[mode] for mode in reversed(self.broadcast))
        major = "n" if len(turned) == 2 else _TRANSPOSED[self.major]
        modes = tuple([_TRANSPOSED[mode[0]] + mode[1:] for mode in self.modes])
        return replace(self, major=major, broadcast=turned, modes=modes)

    @property
    def align_elems(self) -> int:
        """Elements that one aligned access may hold."""
        return max(1, self.align_bytes * 8 // self.dtype.bits)

    @staticmethod
    def of_kind(kind: type[Tensor], dtype: DType, major: str = "n", align_bytes: int | None = None) -> Operand:
        """An operand of an epilogue in the device's memory.

        kind          Tile, Row, Column or Element
        major         of a tile
        align_bytes   of one element where left out

        >>> from cutegemm.plan.epilogue import Row
        >>> print(Operand.of_kind(Row, f32))
        f32 row of N, 4-byte aligned
        """
        along = {("m",): "n", ("n",): "m", ("m", "n"): "n"}.get(BROADCAST[kind], major)
        return Operand(dtype, along, align_bytes or max(1, dtype.bits // 8), BROADCAST[kind])

    def __str__(self) -> str:
        lies = {("m",): "row of N", ("n",): "column of M", ("m", "n"): "one element"}
        gated = f", gated by {self.gated}" if self.gated else ""
        have = f"{self.dtype} {lies.get(self.broadcast, f'{self.major}-major')}"
        return f"{have}, {self.align_bytes}-byte aligned{gated}"


@dataclass(frozen=True)
class Operands:
    """Element types, majorness and alignment of all four matrices, and the type that sums are kept in.

    batched   whether the matrices carry a batch mode L
    aux       operands and results of an epilogue that are made otherwise than C, or than D, by name
    raises    PlanError with every rule that is broken

    >>> Operands.of("f32", layout="nt").b.major
    'k'
    """

    a: Operand
    b: Operand
    c: Operand
    d: Operand
    acc: DType
    batched: bool = False
    aux: tuple[tuple[str, Operand], ...] = ()

    def __post_init__(self) -> None:
        violations = []
        of_epilogue = [(name, operand, operand.modes or _MODES["d"]) for name, operand in self.aux]
        of_gemm = [(name, getattr(self, name), modes) for name, modes in _MODES.items()]
        for name, operand, modes in (*of_gemm, *of_epilogue):
            if operand.major not in [str(mode)[:1] for mode in modes]:
                violations.append(f"{name.upper()} is {operand.major!r}-major; it has the modes {' and '.join(modes)}.")
            if operand.broadcast and (name, operand) not in self.aux:
                violations.append(
                    f"{name.upper()} stays the same along {' and '.join(operand.broadcast)}; rows, columns and single "
                    "elements are operands of an epilogue alone."
                )
            align = operand.align_bytes
            if type(align) is not int or align < 1 or align & (align - 1):
                violations.append(f"{name.upper()} is aligned to {align!r} bytes, which is no power of two.")
            elif align * 8 % operand.dtype.bits:
                violations.append(
                    f"{name.upper()} is aligned to {align} bytes, less than an element of {operand.dtype}."
                )
            if operand.gated not in _GATED:
                known = " nor ".join(repr(by) for by in _GATED)
                violations.append(f"{name.upper()} is gated by {operand.gated!r}, which is neither {known}.")
        for name, operand, _ in (*of_gemm, *of_epilogue):
            if operand.modes and (name in _MODES or not _are_of_stream(operand.modes)):
                violations.append(
                    f"{name.upper()} has the modes {operand.modes!r}; A, B, C and D have none of their own, and an "
                    'operand of the mainloop has two, such as ("n", "k/128").'
                )
        violations += not_of_types({"batched": (self.batched, (bool,))})
        if violations:
            raise PlanError("operands", violations)

    @staticmethod
    def of(
        dtype: DType | str = "f32",
        *,
        b: DType | str | None = None,
        layout: str = "nn",
        out: DType | str | None = None,
        acc: DType | str | None = None,
        out_major: str = "n",
        align_bytes: int = 16,
        batched: bool = False,
    ) -> Operands:
        """Return operands of one type, or of a type for each of A and B.

        dtype    type of A
        b        type of B; None is that of A. e4m3 and e5m2 are multiplied with each other, by wgmma
        layout   two BLAS letters for A and B stored row by row: "n" as it is, "t" transposed
        out      type of C and D; None is that of A as it is in memory: f32 for tf32
        acc      type of the sums; None is f32 for narrower inputs, else that of A

        >>> str(Operands.of("f32").a)
        'f32 k-major, 16-byte aligned'
        >>> str(Operands.of("e4m3", b="e5m2", layout="nt", out="bf16").b)
        'e5m2 k-major, 16-byte aligned'
        """
        kind = DType.parse(dtype)
        if not isinstance(layout, str) or len(layout) != 2 or any(letter not in "nt" for letter in layout):
            raise PlanError("operands", [f"layout is {layout!r}; two letters of n and t are expected."])
        result = DType.parse(out if out is not None else "f32" if kind.name == "tf32" else kind)
        total = DType.parse(acc) if acc is not None else _accumulator(kind)
        a = Operand(kind, _BLAS["a"][layout[0]], align_bytes)
        of_b = Operand(kind if b is None else DType.parse(b), _BLAS["b"][layout[1]], align_bytes)
        d = Operand(result, out_major, align_bytes)
        return Operands(a, of_b, d, d, total, batched)

    def matrix(self, name: str) -> Operand:
        """The operand A, B, C or D, or one of an epilogue, which is like C where nothing else is said of it.

        >>> operands = Operands.of("f32")
        >>> operands.matrix("a") is operands.a, operands.matrix("residual") is operands.c
        (True, True)
        """
        found = dict(self.aux).get(name)
        if found is not None:
            return found
        operand: Operand = getattr(self, name if name in _MODES else "c")
        return operand

    def modes(self, name: str) -> tuple[str, ...]:
        """Return the two modes of an operand.

        >>> Operands.of("f32").modes("b"), Operands.of("f32").modes("residual")
        (('n', 'k'), ('m', 'n'))
        """
        return self.matrix(name).modes or _MODES.get(name, _MODES["d"])

    @property
    def of_mainloop(self) -> tuple[str, ...]:
        """Return the names of the mainloop's operands besides A and B: those of a stream, and those threads read.

        >>> Operands.of("f32").with_aux(bias=Operand(f32, "n"), x=Operand(f32, "n", modes=("n", "k/64"))).of_mainloop
        ('x',)
        """
        return tuple([name for name, operand in self.aux if operand.modes])

    def aligned(self, align_bytes: int) -> Operands:
        """The same operands, none aligned to more than `align_bytes`."""
        parts = {
            n: replace(getattr(self, n), align_bytes=min(align_bytes, getattr(self, n).align_bytes)) for n in _MODES
        }
        return replace(self, **parts)

    def fitted(self, m: int, n: int, k: int) -> Operands:
        """The same operands, each aligned to no more than the rows of a compact matrix are.

        >>> Operands.of("f32").fitted(64, 6, 5).b.align_bytes
        8
        """
        whole = Problem(m, n, k, operands=self)
        parts = {}
        for name in _MODES:
            operand = getattr(self, name)
            row_bytes = whole.extent(name, operand.major) * operand.dtype.bits // 8
            align = operand.align_bytes
            while row_bytes % align:
                align //= 2
            parts[name] = replace(operand, align_bytes=align)
        return replace(self, **parts)

    @property
    def gated(self) -> str:
        """Where the two columns of B lie that a column of D is made of: "halves" or "pairs"; "" where it is one."""
        return self.b.gated

    def as_gated(self, by: str, rows: tuple[str, ...] = ()) -> Operands:
        """The same operands where D, and what is like D, has half of B's columns.

        by     "halves" or "pairs"; "" for a D of B's columns
        rows   of an epilogue, that have a number for each column of B

        >>> print(Operands.of("bf16").as_gated("pairs").b)
        bf16 n-major, 16-byte aligned, gated by pairs
        """
        aux = [(name, replace(operand, gated=by if name in rows else "")) for name, operand in self.aux]
        return replace(self, b=replace(self.b, gated=by), aux=tuple(aux))

    def with_aux(self, **operands: Operand) -> Operands:
        """The same operands, with others of an epilogue by name."""
        return replace(self, aux=tuple({**dict(self.aux), **operands}.items()))

    @cached_property
    def transposed(self) -> Operands:
        """The operands of D^T = B^T A^T: what ran along M runs along N, and the other way round.

        >>> turned = Operands.of("bf16", layout="tt", out_major="m").transposed
        >>> turned.layout, turned.d.major
        ('nn', 'n')
        """
        parts = {name: getattr(self, of).transposed for name, of in (("a", "b"), ("b", "a"), ("c", "c"), ("d", "d"))}
        aux = tuple([(name, operand.transposed) for name, operand in self.aux])
        return replace(self, **parts, aux=aux)

    @property
    def as_tf32(self) -> Operands:
        """The same operands, A and B of f32 taken as tf32.

        >>> Operands.of("f32").as_tf32 == Operands.of("tf32"), Operands.of("f16").as_tf32 == Operands.of("f16")
        (True, True)
        """
        if self.a.dtype is not f32:
            return self
        return replace(self, a=replace(self.a, dtype=tf32), b=replace(self.b, dtype=tf32))

    @property
    def layout(self) -> str:
        """BLAS letters of A and B.

        >>> Operands.of("f32", layout="tn").layout
        'tn'
        """
        return ("n" if self.a.major == "k" else "t") + ("n" if self.b.major == "n" else "t")

    def __str__(self) -> str:
        batch = ", batched" if self.batched else ""
        aux = "".join([f"; {name} {operand}" for name, operand in self.aux])
        return f"A {self.a}; B {self.b}; C {self.c}; D {self.d}{aux}; accumulators in {self.acc}{batch}"


def _are_of_stream(modes: Any) -> bool:
    """Whether modes are those of an operand of the mainloop: ("m", "k"), ("n/128", "k/128") and the like."""
    if not isinstance(modes, tuple) or len(modes) != 2 or not all(isinstance(mode, str) for mode in modes):
        return False
    (first, *_), (second, *_) = parted = [mode.partition("/") for mode in modes]
    are_counts = all(not mark or (every.isdigit() and int(every) > 0) for _, mark, every in parted)
    return first in ("m", "n") and second == "k" and are_counts


def _accumulator(dtype: DType) -> DType:
    if dtype.name == "s8":
        return DType.parse("s32")
    return dtype if dtype.bits >= 32 and dtype.name != "tf32" else DType.parse("f32")


def _is_leading(ld: Any) -> bool:
    """Whether a value is leading strides by name."""
    return isinstance(ld, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and type(pair[1]) is int for pair in ld
    )


@dataclass(frozen=True)
class Problem:
    """The extents of one GEMM, and the operands with their strides.

    m, n, k, l   extents, 0 or more; l is the batch
    operands     what the matrices are made of
    ld           leading strides in elements by operand name; the compact ones where left out

    >>> p = Problem(4, 6, 8)
    >>> str(p.layout("a")), str(p.layout("b")), p.flops
    ('(4,8,1):(8,1,32)', '(6,8,1):(1,6,48)', 384)
    """

    m: int
    n: int
    k: int
    l: int = 1  # noqa: E741 - the batch, as in CuTe
    operands: Operands = field(default_factory=Operands.of)
    ld: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        violations = [
            f"{name} = {value!r}; an integer of 0 or more is expected."
            for name, value in (("m", self.m), ("n", self.n), ("k", self.k), ("l", self.l))
            if isinstance(value, bool) or not isinstance(value, int) or value < 0
        ]
        if not isinstance(self.operands, Operands):
            expected = "Operands are expected, such as Operands.of('f32')"
            raise PlanError("problem", [*violations, f"operands = {self.operands!r}; {expected}."])
        if self.l != 1 and not self.operands.batched:
            violations.append(f"l = {self.l}, but the operands have no batch mode. Make them batched=True.")
        if not _is_leading(self.ld):
            expected = 'pairs of a name and an integer are expected, such as (("a", 128),)'
            raise PlanError("problem", [*violations, f"ld = {self.ld!r}; {expected}."])
        leading = dict(self.ld)
        for name in leading:
            if name not in (*_MODES, *dict(self.operands.aux)):
                known = ", ".join(["a, b, c", *dict(self.operands.aux)])
                violations.append(f"ld names {name!r}; the operands are {known} and d.")
        if not violations:
            for name, value in leading.items():
                operand = self.operands.matrix(name)
                needed = next(self.extent(name, mode) for mode in self.operands.modes(name) if mode[0] == operand.major)
                if value < max(1, needed):
                    violations.append(
                        f"the leading stride of {name.upper()} is {value}, less than its contiguous extent {needed}."
                    )
        if violations:
            raise PlanError("problem", violations)

    @property
    def d_columns(self) -> int:
        """Columns of D: N, or half of them."""
        return self.n // 2 if self.operands.gated else self.n

    def extent(self, name: str, mode: str) -> int:
        """An operand's extent along "m", "n" or "k"; along "k/128" or "n/128", K or N divided by 128, rounded up.

        >>> gated = Problem(4, 6, 8, operands=Operands.of("bf16").as_gated("halves"))
        >>> [gated.extent(name, "n") for name in "bcd"]
        [6, 3, 3]
        """
        whole, _, every = mode.partition("/")
        if every:
            return -(-self.extent(name, whole) // int(every))
        of_b = name == "b" or bool(self.operands.matrix(name).gated) or bool(self.operands.matrix(name).modes)
        return self.d_columns if mode == "n" and not of_b else int(getattr(self, mode))

    def layout(self, name: str) -> Layout:
        """The layout (M, K, L), (N, K, L) or (M, N, L) of operand "a", "b", "c" or "d" in its memory.

        That of another tile that an epilogue reads is the layout of C; those of its rows, columns and single elements
        have strides of 0.

        >>> from cutegemm.plan.epilogue import Row
        >>> operands = Operands.of("f32").with_aux(bias=Operand.of_kind(Row, f32))
        >>> str(Problem(4, 6, 8, operands=operands).layout("bias"))
        '(4,6,1):(0,1,6)'
        """
        operand = self.operands.matrix(name)
        modes = self.operands.modes(name)
        shape = tuple(self.extent(name, mode) for mode in modes)
        if operand.broadcast:
            along = [self.extent(name, mode) for mode in modes if mode not in operand.broadcast]
            unit = operand.align_elems
            of_batch = -(-max([1, *along]) // unit) * unit
            return Layout((*shape, self.l), (*[int(mode not in operand.broadcast) for mode in modes], of_batch))
        like = name if name in _MODES or name in dict(self.operands.aux) else "c"
        major = [mode[0] for mode in modes].index(operand.major)
        leading = dict(self.ld).get(like, max(1, self.extent(like, self.operands.modes(like)[major])))
        stride = tuple(1 if mode == major else leading for mode in (0, 1))
        other = shape[1 - major]
        return Layout((*shape, self.l), (*stride, leading * max(1, other)))

    @property
    def transposed(self) -> Problem:
        """The problem D^T = B^T A^T, on the same memory.

        >>> p = Problem(4, 6, 8, ld=(("a", 10),))
        >>> str(p.layout("a")), str(p.transposed.layout("b")), p.transposed.m
        ('(4,8,1):(10,1,40)', '(4,8,1):(10,1,40)', 6)
        """
        leading = tuple([({"a": "b", "b": "a"}.get(name, name), value) for name, value in self.ld])
        return Problem(self.n, self.m, self.k, self.l, self.operands.transposed, leading)

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.n * self.k * self.l

    def bytes_of(self, name: str) -> int:
        """Bytes of all elements of an operand or of a result.

        >>> from cutegemm.plan.epilogue import Row
        >>> operands = Operands.of("bf16").with_aux(bias=Operand.of_kind(Row, f32))
        >>> of = Problem(4, 6, 8, operands=operands)
        >>> of.bytes_of("a"), of.bytes_of("d"), of.bytes_of("bias")
        (64, 48, 24)
        """
        operand = self.operands.matrix(name)
        count = self.l
        for mode in self.operands.modes(name):
            count *= 1 if mode in operand.broadcast else self.extent(name, mode)
        return count * operand.dtype.bits // 8

    @property
    def min_bytes(self) -> int:
        """Bytes of A, B and further operands of an epilogue read once, and of D and further results written once."""
        return sum(self.bytes_of(name) for name in ("a", "b", "d", *dict(self.operands.aux)))

    def __str__(self) -> str:
        batch = f"x{self.l}" if self.operands.batched else ""
        return f"{self.m}x{self.n}x{self.k}{batch}"


def check_is_problem(operation: str, problem: Any) -> None:
    """Checks that an operation was given a problem, or None.

    raises   UnsupportedError

    >>> check_is_problem("check", 3)
    Traceback (most recent call last):
        ...
    cutegemm.errors.UnsupportedError: check: problem = 3; a Problem is expected, of the plan's operands.
    """
    if problem is not None and not isinstance(problem, Problem):
        expected = "a Problem is expected, of the plan's operands"
        raise UnsupportedError(f"{operation}: problem = {problem!r}; {expected}.")
