"""Random calls of `gemm` with an epilogue: operands of all kinds, types and strides, and results of different types.

`random_call` chooses by a function that picks one of several options: a hypothesis strategy on the CPU, a random number
generator on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F

from cutegemm import epilogue as functions
from cutegemm import gemm
from cutegemm.run.torch_ops import DTYPES, FLOAT8, RESULTS

Pick = Callable[[Sequence[Any]], Any]

FLOATS = [dtype for dtype in DTYPES if dtype.is_floating_point]
POISON = dict.fromkeys(FLOATS, float("nan")) | {torch.int8: -113, torch.int32: -1234567}
EXTENTS = (1, 2, 7, 8, 16, 24, 40, 64, 72, 100, 128, 200, 256)
NAMES = ("r", "bias", "c", "alpha", "beta")
OPERATIONS = ("({x} + {y})", "({x} - {y})", "({x} * {y})", "maximum({x}, {y})")
WHOLE_OPERATIONS = OPERATIONS[::2]
SMOOTH = ("relu", "tanh", "sigmoid", "gelu", "silu", "abs")
GATES = {"swiglu": F.silu, "geglu": F.gelu, "reglu": F.relu, "glu": torch.sigmoid}
REDUCTIONS = {
    "row_sum": lambda x: x.sum(-1),
    "row_max": lambda x: x.amax(-1),
    "column_sum": lambda x: x.sum(-2),
    "column_max": lambda x: x.amax(-2),
    "total_sum": lambda x: x.sum((-2, -1)),
    "total_max": lambda x: x.amax((-2, -1)),
}
# Bytes of an element of a -> names of plans. A named plan may not support the call.
NAMED = {
    1: ("sm90_epi_stages", "sm90_wide_2x1"),
    2: (
        "mma_128x128",
        "sm90_epi_stages",
        "sm90_wide_2x1",
        "swap_ab:sm90_epi_stages",
        "sm90_epi_stages/k3",
        "simt_64x64",
    ),
    4: ("simt_64x64", "simt_64x64/k2", "swap_ab:simt_64x64"),
    8: ("simt_64x64", "simt_64x64/k2"),
}


@dataclass(frozen=True)
class Place:
    """The type, shape and memory layout of a tensor.

    by_columns   whether the matrix is column-major
    pad          elements between rows, or between columns if column-major
    offset       elements before the first element of the tensor
    shared       modes with stride 0
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    by_columns: bool = False
    pad: int = 0
    offset: int = 0
    shared: tuple[int, ...] = ()

    @property
    def strides(self) -> tuple[int, ...]:
        """Return the strides in elements."""
        order = list(range(len(self.shape)))
        if self.by_columns:
            order[-2:] = order[-1], order[-2]
        strides, running = [0] * len(order), 1
        for mode in reversed(order):
            if mode not in self.shared:
                strides[mode] = running
                running = running * self.shape[mode] + (self.pad if running == 1 else 0)
        return tuple(strides)

    def memory(self, device: str) -> torch.Tensor:
        """Return memory for the tensor and around it, filled with poison: NaN if the type has NaN."""
        reach = sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True))
        found = torch.empty(self.offset + reach + 17, dtype=self.dtype, device=device)
        if self.dtype in FLOAT8:
            found.view(torch.uint8).fill_(0x7F)
            return found
        return found.fill_(POISON[self.dtype])

    def tensor(self, values: torch.Tensor, device: str) -> torch.Tensor:
        """Return a tensor with this layout and these values, which must be equal along the shared modes."""
        found = self.memory(device).as_strided(self.shape, self.strides, self.offset)
        once = found
        for mode in self.shared:
            once, values = once.narrow(mode, 0, 1), values.narrow(mode, 0, 1)
        once.copy_(values)
        return found


@dataclass(frozen=True)
class Call:
    """The arguments of a call of `gemm` with an epilogue.

    a, b       factors
    text       source of the epilogue's function
    operands   operands of the epilogue by name: numbers, and tensors
    outs       a tensor for each result, or None for a new one; None if no tensor is passed
    options    further arguments of `gemm`
    """

    a: Place
    b: Place
    text: str
    operands: dict[str, float | Place]
    outs: tuple[Place | None, ...] | None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def function(self) -> Callable[..., Any]:
        """Return the epilogue's function."""
        return self.read({name: getattr(functions, name) for name in functions.__all__})

    def read(self, namespace: dict[str, Any]) -> Callable[..., Any]:
        """Return the epilogue's function with the functions in `namespace` in place of the functions of
        `cutegemm.epilogue`."""
        function: Callable[..., Any] = eval(self.text, namespace)
        return function

    def run(self, a: torch.Tensor, b: torch.Tensor, operands: dict[str, Any], outs: Any) -> tuple[Any, ...]:
        """Return the results of `gemm` as a tuple."""
        passed = {} if outs is None else {"out": outs if len(outs) > 1 else outs[0]}
        found = gemm(a, b, epilogue=self.function, **operands, **passed, **self.options)
        return found if isinstance(found, tuple) else (found,)


def random_call(pick: Pick, extents: Sequence[int] = EXTENTS, may_name: bool = True) -> Call:
    """Return a random call that `gemm` supports, unless its plan is named and does not fit.

    pick       function that picks one element of a sequence
    extents    values to pick M, N and K from
    may_name   whether a fifth of the calls name a plan; the others let `gemm` choose
    """
    dtype, lead = pick(list(RESULTS)), pick([(), (), (), (1,), (3,)])
    m, n, k = pick(extents), pick(extents), pick(extents)
    gate = pick([None] * 5 + list(GATES)) if n % 2 == 0 else None
    columns = n // 2 if gate else n
    # An int32 result allows only numbers and tiles as operands. A tile of one row would be a row.
    is_matrix = m > 1 and columns > 1 and not gate
    d = pick([each for each in RESULTS[dtype] if each.is_floating_point or is_matrix])
    is_whole = d == torch.int32
    kinds = ["number", "tile"] if is_whole else ["number", "element", "row", "column", "tile"]
    drawn = [(name, pick(kinds)) for name in NAMES if pick([True, False])][:3]
    operands = {name: _operand(pick, kind, lead, m, columns) for name, kind in drawn}
    x = "acc"
    if gate:
        if pick([True, False]):
            operands["inner"] = _operand(pick, "row", lead, m, n)
            x = "acc + inner"
        x = f"{gate}({x})"
    for name in operands:
        if name != "inner":
            x = pick(WHOLE_OPERATIONS if is_whole else OPERATIONS).format(x=x, y=name)
    results = [x]
    if not is_whole:
        results = [pick([x, x, f"{pick(SMOOTH)}({x})"])]
        if pick([False, False, True]):
            results += [pick([x, x, f"{pick(list(REDUCTIONS))}({x})"])]
    text = f"lambda {', '.join(['acc', *operands])}: ({', '.join(results)},)"
    b_dtype = pick(FLOAT8) if dtype in FLOAT8 and not gate else dtype
    is_named = may_name and pick([False] * 4 + [True])
    options: dict[str, Any] = {"plan": pick(NAMED[dtype.itemsize]) if is_named else None}
    outs = None
    if pick([True, False]):
        shape = (*lead, m, columns)
        of_d = _place(pick, d, shape)
        if gate and d.itemsize == 1:
            of_d = replace(of_d, by_columns=False)
        aux = [_place(pick, pick(FLOATS), shape) if "_" not in each.split("(")[0] else None for each in results[1:]]
        outs = (of_d, *[pick([None, each]) for each in aux])
    elif len(results) > 1 and pick([True, False]):
        options["out_dtype"] = [d, None if "_" in results[1].split("(")[0] else pick([None, *FLOATS])]
    elif d != RESULTS[dtype][0]:
        options["out_dtype"] = d
    a, b = _place(pick, dtype, (*lead, m, k), True), _place(pick, b_dtype, (*lead, k, n), True)
    return Call(a, b, text, operands, outs, options)


def _operand(pick: Pick, kind: str, lead: tuple[int, ...], m: int, columns: int) -> float | Place:
    """Return a random operand of a kind for an M x columns result: a number, or the layout of a tensor."""
    if kind == "number":
        return float(pick([0.5, -1.25, 1.0, 0.0]))
    own = {"element": (1, 1), "row": (1, columns), "column": (m, 1), "tile": (m, columns)}[kind]
    shapes = [own] if not lead else [own, (1, *own), (*lead, *own)]
    shapes += {"element": [(), (1,)], "row": [(columns,)]}.get(kind, [])
    return _place(pick, pick(list(DTYPES)), pick(shapes), may_share=kind == "tile")


def _place(pick: Pick, dtype: torch.dtype, shape: tuple[int, ...], may_share: bool = False) -> Place:
    """Return a random memory layout for a tensor of this shape, with stride 1 in one of its last two modes.

    may_share   whether the stride of the batch or of the rows may be 0
    """
    if len(shape) < 2:
        return Place(dtype, shape, offset=pick([0, 0, 1, 8]))
    shared = pick([(), (), (), *[(mode,) for mode in range(len(shape) - 1)]]) if may_share else ()
    return Place(dtype, shape, pick([False, True]), pick([0, 0, 1, 8]), pick([0, 0, 1, 8]), shared)


# Allowed error of an accumulator, relative to the sum of |a| * |b|. wgmma keeps about 14 bits for float8.
SUMS = dict.fromkeys(RESULTS, 2.0**-19) | dict.fromkeys(FLOAT8, 2.0**-10) | {torch.float64: 2.0**-45}
# (relative, absolute) rounding error of each type. For wide types it is the error of f32 functions.
ROUNDING = {
    torch.float16: (2.0**-11, 1e-4), torch.bfloat16: (2.0**-8, 1e-4), torch.float32: (2e-5, 1e-4),
    torch.float64: (2e-5, 1e-4), torch.float8_e4m3fn: (2.0**-4, 2.0**-10), torch.float8_e5m2: (2.0**-3, 1e-4),
    torch.int32: (1e-6, 0.5),
}  # fmt: skip
OF_DOUBLE = (1e-12, 1e-12)


@dataclass(frozen=True)
class Reduced:
    """Values to reduce, and the name of the reduction."""

    name: str
    values: torch.Tensor


def exact(call: Call, acc: torch.Tensor, operands: dict[str, Any]) -> tuple[torch.Tensor | Reduced, ...]:
    """Return the results of a call in float64, for a given accumulator a @ b. A reduction is returned as `Reduced`.

    acc        the accumulator in float64
    operands   operands of the epilogue by name: numbers, and float64 tensors
    """
    namespace: dict[str, Any] = {
        **{name: partial(Reduced, name) for name in REDUCTIONS},
        **{name: partial(_gated, function) for name, function in GATES.items()},
        **{name: getattr(F, name) for name in ("relu", "gelu", "silu")},
        **{name: getattr(torch, name) for name in ("tanh", "sigmoid", "abs")},
        "maximum": lambda x, y: torch.maximum(x, torch.as_tensor(y, dtype=x.dtype, device=x.device)),
    }
    found: tuple[torch.Tensor | Reduced, ...] = call.read(namespace)(acc, **operands)
    return found


def _gated(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, -1)
    return function(gate) * up


def hold(call: Call, device: str, seed: int) -> None:
    """Run a call on random values, and assert that its results are those of float64.

    It also asserts that the memory around the caller's tensors for results has not changed.
    """
    generator = torch.Generator().manual_seed(seed)

    def made(place: Any) -> Any:
        if not isinstance(place, Place):
            return place
        if place.dtype.is_floating_point:
            values = torch.randn(place.shape, generator=generator, dtype=torch.float64) / 2
        else:
            values = torch.randint(-3, 4, place.shape, generator=generator).double()
        return place.tensor(values, device)

    a, b = made(call.a), made(call.b)
    operands = {name: made(place) for name, place in call.operands.items()}
    memories = [None if place is None else place.memory(device) for place in call.outs or ()]
    before = [None if memory is None else memory.clone() for memory in memories]
    pairs = list(zip(call.outs or (), memories, strict=True))
    outs = tuple([None if memory is None else _view(place, memory) for place, memory in pairs])
    _poison_free_memory(device)
    found = call.run(a, b, operands, outs if call.outs is not None else None)
    wide = {name: x if isinstance(x, float) else x.double() for name, x in operands.items()}
    acc, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    wanted, of_double = exact(call, acc, wide), a.dtype == torch.float64
    around = [exact(call, acc + size * SUMS[a.dtype] * signs, wide) for signs in _signs(acc)]
    for number, (got, want) in enumerate(zip(found, wanted, strict=True)):
        others = [each[number] for each in around]
        hold_values(got, want, others, of_double)
    for (place, memory), old in zip(pairs, before, strict=True):
        if memory is not None:
            _view(place, memory).copy_(_view(place, old))
            assert torch.equal(memory.view(torch.uint8), old.view(torch.uint8)), "written around a result"


def hold_values(got: torch.Tensor, want: Any, others: Sequence[Any], of_double: bool) -> None:
    """Assert that a result equals the float64 value within the errors of its accumulator and its type.

    others      result for accumulators with the largest allowed errors
    of_double   whether a is float64
    """
    relative, absolute = OF_DOUBLE if of_double and got.dtype == torch.float64 else ROUNDING[got.dtype]
    reduced = want if isinstance(want, Reduced) else None
    if reduced is not None:
        want, others = want.values, [other.values for other in others]
    spread = torch.stack([(other - want).abs() for other in others]).amax(0)
    if got.dtype.is_floating_point and got.dtype.itemsize == 1:
        want = want.clamp(-torch.finfo(got.dtype).max, torch.finfo(got.dtype).max)
    allowed = 2 * spread + want.abs() * relative + absolute
    if reduced is not None:
        by = REDUCTIONS[reduced.name]
        want, allowed = by(want), by(allowed) + (by(want.abs()) * 2e-6 if "sum" in reduced.name else 0)
    assert got.shape == want.shape
    found = got.double()
    wrong = ~((found - want).abs() <= allowed)
    assert not wrong.any(), (
        int(wrong.sum()),
        wrong.nonzero()[:3].tolist(),
        found[wrong][:3],
        want[wrong][:3],
    )


def _signs(acc: torch.Tensor) -> list[torch.Tensor]:
    """Return the signs of accumulator errors to test: all combinations of one sign for gate and one for up columns."""
    is_up = torch.arange(acc.shape[-1], device=acc.device) >= acc.shape[-1] // 2
    return [torch.where(is_up, ups, gates).double() for gates, ups in product((-1, 1), (-1, 1))]


def _view(place: Place, memory: torch.Tensor) -> torch.Tensor:
    return memory.as_strided(place.shape, place.strides, place.offset)


def _poison_free_memory(device: str) -> None:
    """Fill free GPU memory that the results will likely get, so that elements that a kernel does not store are NaN."""
    if device != "cpu":
        sizes = [1 << exponent for exponent in range(9, 23)]
        kept = [torch.full((size,), 0xFF, dtype=torch.uint8, device=device) for size in sizes]
        del kept
