"""The problem of a GEMM: D = alpha * A @ B + beta * C, where A is M x K, B is K x N, C and D are M x N.

`Operands` has the element types, majorness and alignment that a plan is built for. `Problem` adds the extents M, N, K
and the batch L. Layouts of B are (N, K), as in CuTe. The majorness of an operand names its mode of stride 1.
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

_GATED = ("", "halves", "pairs")  # values of `Operand.gated`
_TRANSPOSED = {"": "", "m": "n", "n": "m", "k": "k", "l": "l", "1": "1"}
_COLUMNS = tuple([(mode, "1") for mode in "lmn"])  # modes of a number for each group, row or column
INDEX = "index"  # name of the operand with the row of A for each row of D, or the column of B for each column
D_INDEX = "d_index"  # name of the operand with the row (or column) of D that each row of A @ B is added to
_GATHERED: dict[tuple[str, ...], str] = {("m", "1"): "a", ("n", "1"): "b"}  # the factor by the modes of `INDEX`
_MODES = {"a": ("m", "k"), "b": ("n", "k"), "c": ("m", "n"), "d": ("m", "n")}
# BLAS letters for row-major data: if neither is transposed, A is k-major and B is n-major.
_BLAS = {"a": {"n": "k", "t": "m"}, "b": {"n": "n", "t": "k"}}


@dataclass(frozen=True)
class Operand:
    """Element type, majorness and alignment of one operand of a GEMM.

    dtype         element type
    major         "m", "n" or "k": the mode with stride 1
    align_bytes   a power of two that divides the base address and, in bytes, every stride other than 1
    broadcast     modes along which the operand is broadcast: ("m",) for a row of N elements, ("n",) for a column of M
                  elements, ("m", "n") for a single element, () for a matrix
    gated         gated GEMM (GLU), for B or a row of N elements: "halves" if columns j and j + N / 2 give column j of
                  D, "pairs" if 2j and 2j + 1 do. Otherwise ""
    modes         names of the two modes, for block scales, the sizes of groups and indices of rows only: e.g. ("m",
                  "k/128") for a scale for each row and 128 of K, ("m", "n/128") for the scales of a quantized D, ("l",
                  "1") for a number for each group. () for all other operands, whose names decide
    """

    dtype: DType
    major: str
    align_bytes: int = 16
    broadcast: tuple[str, ...] = ()
    gated: str = ""
    modes: tuple[str, ...] = ()

    @property
    def transposed(self) -> Operand:
        """Return this operand as the transposed GEMM sees it: M and N are exchanged, m-major becomes n-major.

        >>> print(Operand(f32, "m", 4, ("n",)).transposed)
        f32 row of N, 4-byte aligned
        """
        turned = tuple(_TRANSPOSED[mode] for mode in reversed(self.broadcast))
        major = "n" if len(turned) == 2 else _TRANSPOSED[self.major]
        modes = tuple([_TRANSPOSED[mode[0]] + mode[1:] for mode in self.modes])
        return replace(self, major=major, broadcast=turned, modes=modes)

    @property
    def align_elems(self) -> int:
        """Return `align_bytes` in elements of this operand, at least 1: the longest vector that is surely aligned."""
        return max(1, self.align_bytes * 8 // self.dtype.bits)

    @staticmethod
    def of_kind(kind: type[Tensor], dtype: DType, major: str = "n", align_bytes: int | None = None) -> Operand:
        """Return the description of an epilogue's operand in global memory, such as a bias, from its class and type.

        kind          Tile (M x N), Row (N elements), Column (M elements) or Element (one)
        dtype         element type
        major         "m" or "n", for a Tile; the other classes have only one possible majorness
        align_bytes   alignment; None for the size of an element

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
    """Element types, majorness and alignment of A, B, C and D and of further operands, and the accumulator type.

    A plan is built for such operands, and for any extents.

    a, b, c, d   the matrices
    acc          element type of the accumulators
    batched      whether the matrices have a batch mode L
    aux          pairs of a name and an operand: operands and auxiliary outputs of an epilogue that differ from C, and
                 further operands of the mainloop, such as block scales
    groups       for a grouped GEMM of L groups: "m", "n" or "k", the mode that is divided among the groups. Operands
                 with this mode hold the rows, columns or k of all groups one after the other, and have no batch mode;
                 see `plan.memory.groups`. "" for all other GEMMs
    raises       PlanError with every violated rule

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
    groups: str = ""

    def __post_init__(self) -> None:
        violations = []
        of_epilogue = [(name, operand, operand.modes or _MODES["d"]) for name, operand in self.aux]
        of_gemm = [(name, getattr(self, name), modes) for name, modes in _MODES.items()]
        for name, operand, modes in (*of_gemm, *of_epilogue):
            if operand.major not in [str(mode)[:1] for mode in modes]:
                violations.append(f"{name.upper()} is {operand.major!r}-major; its modes are {' and '.join(modes)}.")
            if operand.broadcast and (name, operand) not in self.aux:
                violations.append(
                    f"{name.upper()} is constant along {' and '.join(operand.broadcast)}; only operands of an "
                    "epilogue may be rows, columns or single elements."
                )
            align = operand.align_bytes
            if type(align) is not int or align < 1 or align & (align - 1):
                violations.append(f"{name.upper()} is aligned to {align!r} bytes, which is not a power of two.")
            elif align * 8 % operand.dtype.bits:
                violations.append(
                    f"{name.upper()} is aligned to {align} bytes, less than an element of {operand.dtype}."
                )
            if operand.gated not in _GATED:
                known = " nor ".join(repr(by) for by in _GATED)
                violations.append(f"{name.upper()} is gated by {operand.gated!r}, which is neither {known}.")
        for name, operand, _ in (*of_gemm, *of_epilogue):
            if operand.modes and (name in _MODES or not _are_modes(operand.modes)):
                violations.append(
                    f"{name.upper()} has the modes {operand.modes!r}; A, B, C and D must not have modes, and "
                    'an operand of the mainloop has two, such as ("n", "k/128"). Scales of D have ("m", "n/128").'
                )
        violations += not_of_types({"batched": (self.batched, (bool,))})
        if self.groups not in ("", "m", "n", "k"):
            violations.append(f"groups = {self.groups!r}; groups divide the mode 'm', 'n' or 'k', or none with ''.")
        elif self.groups and not self.batched:
            violations.append("groups need a batch mode, which numbers them. Pass batched=True.")
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
        groups: str = "",
    ) -> Operands:
        """Return the operands of a GEMM with the given element types, layout and alignment.

        dtype        type of A
        b            type of B; None for the type of A. wgmma can multiply e4m3 by e5m2
        layout       two BLAS letters for A and B stored row by row: "n" not transposed, "t" transposed
        out          type of C and D; None for the type of A in memory, which is f32 for tf32
        acc          type of the accumulators. None: s32 for s8, the type of A if it has 32 bits or more, else f32
        out_major    "m" or "n": majorness of C and D
        align_bytes  alignment of all four matrices
        batched      whether the matrices have a batch mode L
        groups       the mode that the groups of a grouped GEMM divide; see `Operands`

        >>> str(Operands.of("f32").a)
        'f32 k-major, 16-byte aligned'
        >>> str(Operands.of("e4m3", b="e5m2", layout="nt", out="bf16").b)
        'e5m2 k-major, 16-byte aligned'
        """
        kind = DType.parse(dtype)
        if not isinstance(layout, str) or len(layout) != 2 or any(letter not in "nt" for letter in layout):
            raise PlanError("operands", [f"layout is {layout!r}; expected two letters, each n or t."])
        result = DType.parse(out if out is not None else "f32" if kind.name == "tf32" else kind)
        total = DType.parse(acc) if acc is not None else _accumulator(kind)
        a = Operand(kind, _BLAS["a"][layout[0]], align_bytes)
        of_b = Operand(kind if b is None else DType.parse(b), _BLAS["b"][layout[1]], align_bytes)
        d = Operand(result, out_major, align_bytes)
        return Operands(a, of_b, d, d, total, batched, groups=groups)

    def matrix(self, name: str) -> Operand:
        """Return the type, majorness and alignment of the operand called `name`.

        It is "a", "b", "c", "d" or a name in `aux`. Any other name gives C: operands of the epilogue that are like C
        need no entry in `aux`.

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
        """Return the names of the two modes of an operand, such as ("m", "k") for "a" and ("n", "k") for "b".

        name   "a", "b", "c", "d" or the name of a further operand; an unknown name has the modes of D

        >>> Operands.of("f32").modes("b"), Operands.of("f32").modes("residual")
        (('n', 'k'), ('m', 'n'))
        """
        return self.matrix(name).modes or _MODES.get(name, _MODES["d"])

    def has_batch(self, name: str) -> bool:
        """Return whether an operand or result has a batch mode: not if groups divide one of its other modes.

        >>> grouped = Operands.of("bf16", batched=True, groups="m")
        >>> [grouped.has_batch(name) for name in "abd"]
        [False, True, False]
        """
        modes = self.modes_with_elements(name)
        return self.batched and "l" not in modes and not (self.groups and self.groups in modes)

    def modes_with_elements(self, name: str) -> tuple[str, ...]:
        """Return the modes along which an operand has different elements: those that it is not constant along."""
        broadcast = self.matrix(name).broadcast
        return tuple([mode[0] for mode in self.modes(name) if mode not in broadcast])

    @property
    def of_mainloop(self) -> tuple[str, ...]:
        """Return the names of the operands that the mainloop reads in addition to A and B, such as block scales.

        >>> Operands.of("f32").with_aux(bias=Operand(f32, "n"), x=Operand(f32, "n", modes=("n", "k/64"))).of_mainloop
        ('x',)
        """
        return tuple([name for name, operand in self.aux if operand.modes and operand.modes[1][0] in "k1"])

    def aligned(self, align_bytes: int) -> Operands:
        """Return these operands with the alignment of A, B, C and D reduced to at most `align_bytes`."""
        parts = {
            n: replace(getattr(self, n), align_bytes=min(align_bytes, getattr(self, n).align_bytes)) for n in _MODES
        }
        return replace(self, **parts)

    def fitted(self, m: int, n: int, k: int) -> Operands:
        """Return these operands with the alignments that compact matrices of the given extents have, if lower.

        The alignment of A, B, C and D is halved until it divides their leading stride in bytes. E.g. rows of 6 f32
        elements have 24 bytes, so they are aligned to 8.

        m, n, k   extents of the problem

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
        """Return how a gated GEMM (GLU) pairs the columns of B: "halves" or "pairs"; "" if it is not gated.

        "halves": columns j and j + N / 2 give column j of D. "pairs": columns 2j and 2j + 1 do.
        """
        return self.b.gated

    def as_gated(self, by: str, rows: tuple[str, ...] = ()) -> Operands:
        """Return these operands for a gated GEMM (GLU): C, D and the epilogue's M x N operands then have N / 2 columns.

        by     how the columns of B are paired: "halves" (j and j + N / 2) or "pairs" (2j and 2j + 1); "" for operands
               that are not gated
        rows   names of the epilogue's row operands that have N elements, like B

        >>> print(Operands.of("bf16").as_gated("pairs").b)
        bf16 n-major, 16-byte aligned, gated by pairs
        """
        aux = [(name, replace(operand, gated=by if name in rows else "")) for name, operand in self.aux]
        return replace(self, b=replace(self.b, gated=by), aux=tuple(aux))

    def with_aux(self, **operands: Operand) -> Operands:
        """Return these operands with further ones in `aux`, by name, such as bias=Operand(...).

        One of the same name is replaced.
        """
        return replace(self, aux=tuple({**dict(self.aux), **operands}.items()))

    @cached_property
    def transposed(self) -> Operands:
        """Return the operands of D^T = B^T A^T: A and B change places, and M and N are exchanged in all operands.

        >>> turned = Operands.of("bf16", layout="tt", out_major="m").transposed
        >>> turned.layout, turned.d.major
        ('nn', 'n')
        """
        parts = {name: getattr(self, of).transposed for name, of in (("a", "b"), ("b", "a"), ("c", "c"), ("d", "d"))}
        aux = tuple([(name, operand.transposed) for name, operand in self.aux])
        return replace(self, **parts, aux=aux, groups=_TRANSPOSED[self.groups])

    @property
    def gathered(self) -> str:
        """Return the name of the factor whose rows (or columns, of B) an operand `INDEX` selects; "" for none.

        An operand of the epilogue may have the same name, but has other `modes`.

        >>> operands = Operands.of("bf16", batched=True, groups="m")
        >>> operands.with_aux(index=Operand(DType.parse("s32"), "m", modes=("m", "1"))).gathered
        'a'
        """
        index = dict(self.aux).get(INDEX)
        return "" if index is None else _GATHERED.get(index.modes, "")

    @property
    def scattered(self) -> bool:
        """Return whether an operand `D_INDEX` selects the row (or column) of D that each one of A @ B is added to.

        >>> operands = Operands.of("bf16", batched=True, groups="m")
        >>> operands.with_aux(d_index=Operand(DType.parse("s32"), "m", modes=("m", "1"))).scattered
        True
        """
        index = dict(self.aux).get(D_INDEX)
        return index is not None and index.modes in _GATHERED

    @property
    def as_tf32(self) -> Operands:
        """Return these operands with A and B as tf32 if A is f32, otherwise unchanged.

        >>> Operands.of("f32").as_tf32 == Operands.of("tf32"), Operands.of("f16").as_tf32 == Operands.of("f16")
        (True, True)
        """
        if self.a.dtype is not f32:
            return self
        return replace(self, a=replace(self.a, dtype=tf32), b=replace(self.b, dtype=tf32))

    @property
    def layout(self) -> str:
        """Return the two BLAS letters of A and B, such as "nt": "n" for stored row by row, "t" for column by column.

        >>> Operands.of("f32", layout="tn").layout
        'tn'
        """
        return ("n" if self.a.major == "k" else "t") + ("n" if self.b.major == "n" else "t")

    def __str__(self) -> str:
        batch = ", batched" if self.batched else ""
        aux = "".join([f"; {name} {operand}" for name, operand in self.aux])
        groups = f", groups along {self.groups}" if self.groups else ""
        return f"A {self.a}; B {self.b}; C {self.c}; D {self.d}{aux}; accumulators in {self.acc}{batch}{groups}"


def _are_modes(modes: Any) -> bool:
    """Return whether `modes` are valid for an operand of the mainloop, e.g. ("n/128", "k/128"), or for scales of D."""
    if modes in _COLUMNS:
        return True
    if not isinstance(modes, tuple) or len(modes) != 2 or not all(isinstance(mode, str) for mode in modes):
        return False
    (first, *_), (second, *_) = parted = [mode.partition("/") for mode in modes]
    are_counts = all(not mark or (every.isdigit() and int(every) > 0) for _, mark, every in parted)
    return (first, second) in (("m", "k"), ("n", "k"), ("m", "n"), ("n", "m")) and are_counts


def _accumulator(dtype: DType) -> DType:
    """Return the default accumulator type: s32 for s8, the type itself for f32, f64 and s32, and f32 for the others.

    dtype   element type of A
    """
    if dtype.name == "s8":
        return DType.parse("s32")
    return dtype if dtype.bits >= 32 and dtype.name != "tf32" else DType.parse("f32")


def _is_leading(ld: Any) -> bool:
    """Return whether a value is a tuple of (operand's name, leading stride) pairs, as `Problem.ld` must be."""
    return isinstance(ld, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and type(pair[1]) is int for pair in ld
    )


@dataclass(frozen=True)
class Problem:
    """The extents, operands and leading strides of one GEMM, D = alpha * A @ B + beta * C.

    m, n, k, l   extents, 0 or more; l is the batch, or the number of groups. The extent that groups divide is that of
                 all of them together
    operands     element types, majorness and alignment of the matrices
    ld           (operand's name, leading stride in elements) pairs. An operand without a pair is compact
    sources      rows of the factor whose rows are gathered, see `Operands.gathered`; None: as many as A @ B has
    targets      rows of a D that rows are added to, see `Operands.scattered`; None: as many as A @ B has
    raises       PlanError with every violated rule

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
    sources: int | None = None
    targets: int | None = None

    def __post_init__(self) -> None:
        violations = [
            f"{name} = {value!r}; an integer of 0 or more is expected."
            for name, value in (("m", self.m), ("n", self.n), ("k", self.k), ("l", self.l))
            if isinstance(value, bool) or not isinstance(value, int) or value < 0
        ]
        for name, count in (("sources", self.sources), ("targets", self.targets)):
            if count is not None and (type(count) is not int or count < 0):
                violations.append(f"{name} = {count!r}; an integer of 0 or more, or None, is expected.")
        if not isinstance(self.operands, Operands):
            expected = "Operands are expected, such as Operands.of('f32')"
            raise PlanError("problem", [*violations, f"operands = {self.operands!r}; {expected}."])
        if self.l != 1 and not self.operands.batched:
            violations.append(f"l = {self.l}, but the operands do not have a batch mode. Make them with batched=True.")
        for name, count, index, selects in (
            ("sources", self.sources, INDEX, self.operands.gathered),
            ("targets", self.targets, D_INDEX, self.operands.scattered),
        ):
            if count is not None and not selects:
                violations.append(
                    f"{name} = {count!r}, but no operand {index!r} selects rows. Leave it out, or add the operand."
                )
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
        """Return the number of columns of D: N, or N / 2 if the GEMM is gated (GLU)."""
        return self.n // 2 if self.operands.gated else self.n

    def extent(self, name: str, mode: str) -> int:
        """Return the extent of an operand of this problem along a mode, in elements.

        name   name of the operand, such as "a" or "bias"
        mode   "m", "n" or "k"; or "k/128" or "n/128" for K or N divided by 128, rounded up. Along "n", operands that
               have the columns of a gated D have N / 2 elements

        >>> gated = Problem(4, 6, 8, operands=Operands.of("bf16").as_gated("halves"))
        >>> [gated.extent(name, "n") for name in "bcd"]
        [6, 3, 3]
        """
        if mode == "1":
            return 1
        if self.sources is not None and mode != "k" and name == self.operands.gathered:
            return self.sources
        if self.targets is not None and name == "d" and mode == self.operands.groups:
            return self.targets
        whole, _, every = mode.partition("/")
        if every:
            return -(-self.extent(name, whole) // int(every))
        of_b = name == "b" or bool(self.operands.matrix(name).gated) or name in self.operands.of_mainloop
        return self.d_columns if mode == "n" and not of_b else int(getattr(self, mode))

    def layout(self, name: str) -> Layout:
        """Return the layout of an operand of this problem in global memory, with strides in elements.

        name   "a": the layout has shape (M, K, L). "b": (N, K, L). "c", "d" or an operand of the epilogue: (M, N, L)

        A tile operand of the epilogue that is not in `aux` has the layout of C. Rows, columns and single elements have
        stride 0 along the modes of `broadcast`.

        >>> from cutegemm.plan.epilogue import Row
        >>> operands = Operands.of("f32").with_aux(bias=Operand.of_kind(Row, f32))
        >>> str(Problem(4, 6, 8, operands=operands).layout("bias"))
        '(4,6,1):(0,1,6)'
        """
        operand = self.operands.matrix(name)
        modes, is_ragged = self.operands.modes(name), self.operands.batched and not self.operands.has_batch(name)
        shape, batch = tuple(self.extent(name, mode) for mode in modes), 1 if is_ragged else self.l
        if operand.broadcast:
            along = [self.extent(name, mode) for mode in modes if mode not in operand.broadcast]
            unit = operand.align_elems
            of_batch = -(-max([1, *along]) // unit) * unit
            return Layout((*shape, batch), (*[int(mode not in operand.broadcast) for mode in modes], of_batch))
        like = name if name in _MODES or name in dict(self.operands.aux) else "c"
        major = [mode[0] for mode in modes].index(operand.major)
        leading = dict(self.ld).get(like, max(1, self.extent(like, self.operands.modes(like)[major])))
        stride = tuple(1 if mode == major else leading for mode in (0, 1))
        other = shape[1 - major]
        return Layout((*shape, batch), (*stride, leading * max(1, other)))

    @property
    def transposed(self) -> Problem:
        """Return the problem D^T = B^T A^T on the same memory: A and B change places, and so do M and N.

        >>> p = Problem(4, 6, 8, ld=(("a", 10),))
        >>> str(p.layout("a")), str(p.transposed.layout("b")), p.transposed.m
        ('(4,8,1):(10,1,40)', '(4,8,1):(10,1,40)', 6)
        """
        leading = tuple([({"a": "b", "b": "a"}.get(name, name), value) for name, value in self.ld])
        return Problem(self.n, self.m, self.k, self.l, self.operands.transposed, leading, self.sources, self.targets)

    @property
    def flops(self) -> int:
        """Return the number of multiplications and additions of A @ B: 2 M N K L, or 2 M N K for a grouped GEMM."""
        return 2 * self.m * self.n * self.k * (1 if self.operands.groups else self.l)

    def bytes_of(self, name: str) -> int:
        """Return the number of bytes of all elements of one operand or result of this problem, over the whole batch.

        name   name of the operand or result, such as "a" or "bias"

        >>> from cutegemm.plan.epilogue import Row
        >>> operands = Operands.of("bf16").with_aux(bias=Operand.of_kind(Row, f32))
        >>> of = Problem(4, 6, 8, operands=operands)
        >>> of.bytes_of("a"), of.bytes_of("d"), of.bytes_of("bias")
        (64, 48, 24)
        """
        operand = self.operands.matrix(name)
        count = self.l if self.operands.has_batch(name) else 1
        for mode in self.operands.modes(name):
            count *= 1 if mode in operand.broadcast else self.extent(name, mode)
        return count * operand.dtype.bits // 8

    @property
    def min_bytes(self) -> int:
        """Return the minimum global memory traffic in bytes: each operand read once, each result written once.

        C is not counted. A, B, D and the operands and results in `aux` are.
        """
        return sum(self.bytes_of(name) for name in ("a", "b", "d", *dict(self.operands.aux)))

    def __str__(self) -> str:
        batch = f"x{self.l}" if self.operands.batched else ""
        return f"{self.m}x{self.n}x{self.k}{batch}"


def check_is_problem(operation: str, problem: Any) -> None:
    """Raise an error unless the optional argument `problem` of a public function is a `Problem` or None.

    operation   name of the function, for the message
    raises      UnsupportedError if `problem` is anything else

    >>> check_is_problem("check", 3)
    Traceback (most recent call last):
        ...
    cutegemm.errors.UnsupportedError: check: problem = 3; a Problem is expected, of the plan's operands.
    """
    if problem is not None and not isinstance(problem, Problem):
        expected = "a Problem is expected, of the plan's operands"
        raise UnsupportedError(f"{operation}: problem = {problem!r}; {expected}.")
