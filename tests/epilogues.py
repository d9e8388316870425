"""Epilogues for tests of the simulator, the emulator and the kernels, and their values in float64.

The reference evaluates the printed expression in Python with numpy's functions. It shares no code with the simulator,
the kernels or the emulator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from cutegemm import epilogue as e
from cutegemm.build import with_epilogue
from cutegemm.dtypes import DTYPES, DType, f32, round_to
from cutegemm.plan.epilogue import (
    Column,
    Element,
    Epilogue,
    Expression,
    Input,
    Row,
    Scalar,
    Tensor,
    Tile,
    epilogue_of,
)
from cutegemm.plan.epilogue.symbols import result_name
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _rounded(kind: DType, x: Any) -> Any:
    return round_to(kind, x).astype(np.float64)


NAMESPACE: dict[str, Any] = {
    "abs": np.abs,
    "square": np.square,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "erf": _erf,
    "sigmoid": _sigmoid,
    "relu": lambda x: np.where(x > 0, x, x * 0),
    "gelu": lambda x: x * (1 + _erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x * _sigmoid(x),
    "minimum": np.minimum,
    "maximum": np.maximum,
    "where": np.where,
    **{kind.name: partial(_rounded, kind) for kind in DTYPES},
}


def reference(epilogue: Epilogue, acc: np.ndarray, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return all results of an epilogue in float64, by name.

    acc        the accumulator: A @ B
    operands   numbers, and arrays that broadcast to the shape of the accumulator
    """
    names: dict[str, Any] = {name: np.float64(value) for name, value in operands.items()}
    names["acc"], shape = acc.astype(np.float64), acc.shape
    if epilogue.gated:
        names |= {name: _halves(names[name], epilogue.gated) for name in ("acc", *epilogue.halved)}
        shape = names["acc"].gate.shape
    with np.errstate(all="ignore"):

        def value(expression: Expression) -> np.ndarray:
            return np.broadcast_to(eval(str(expression), {**NAMESPACE, **names}), shape)

        found = {name: value(each) for name, each in epilogue.results}
        for name, each in epilogue.reductions:
            axes = tuple([{"m": -2, "n": -1}[mode] for mode in each.along])
            children = value(each.child)
            total = each.operation == "sum"
            found[name] = children.sum(axes) if total else children.max(axes, initial=-np.inf)
        return found


def returned(epilogue: Epilogue) -> tuple[str, ...]:
    """Return the names of all results in the order of the function's returned tuple."""
    return ("d", *[result_name(i) for i in range(len(epilogue.beside))])


def unreduced(epilogue: Epilogue) -> Epilogue:
    """Return the epilogue with the values that are reduced as auxiliary outputs, instead of the reductions."""
    children = [(name, reduction.child) for name, reduction in epilogue.reductions]
    return Epilogue(epilogue.expression, (*epilogue.aux, *children))


def _halves(whole: np.ndarray, by: str) -> SimpleNamespace:
    """Return the gate and up columns of a matrix, as attributes `gate` and `up`.

    by   "halves" or "pairs"
    """
    if by == "pairs":
        return SimpleNamespace(gate=whole[..., 0::2], up=whole[..., 1::2])
    return SimpleNamespace(gate=whole[..., : whole.shape[-1] // 2], up=whole[..., whole.shape[-1] // 2 :])


@dataclass(frozen=True)
class Case:
    """An epilogue as a user writes it, with the kinds and types of its operands.

    function   the epilogue's function
    kinds      operand name -> its kind
    dtypes     operand or auxiliary output -> its type in memory, if it is not the type of D
    """

    function: Callable[..., Any]
    kinds: dict[str, type[Input]]
    dtypes: dict[str, DType]

    @property
    def epilogue(self) -> Epilogue:
        return epilogue_of(self.function, self.kinds)

    def on(self, plan: GemmPlan, align_bytes: int | None = None) -> GemmPlan:
        """Return a plan with this epilogue instead of its own.

        align_bytes   alignment of rows, columns and elements; None: the size of their type
        """
        d, epilogue = plan.operands.d, self.epilogue
        of_kind = {}
        for name, kind in self.kinds.items():
            if issubclass(kind, Tensor):
                dtype = self.dtypes.get(name, d.dtype)
                align = max(d.align_bytes, dtype.bits // 8) if kind is Tile else align_bytes
                of_kind[name] = Operand.of_kind(kind, dtype, d.major, align)
        stored = {
            name: Operand(kind, d.major, max(d.align_bytes, kind.bits // 8))
            for name in epilogue.outputs[1:]
            for kind in [self.dtypes.get(name, d.dtype)]
        }
        wide = plan.operands.acc if plan.operands.acc.bits > 32 else f32
        reduced = {name: Operand.of_kind(each.kind, wide) for name, each in epilogue.reductions}
        return with_epilogue(epilogue, plan, {**of_kind, **stored, **reduced})

    def operands(self, rng: np.random.Generator, m: int, n: int, batch: int | None = None) -> dict[str, Any]:
        """Return random values of all operands for an M x N accumulator, as `values_of` does."""
        return values_of(self.epilogue, self.kinds, rng, m, n, batch)


def values_of(
    epilogue: Epilogue,
    kinds: Mapping[str, type[Input]],
    rng: np.random.Generator,
    m: int,
    n: int,
    batch: int | None = None,
) -> dict[str, Any]:
    """Return random numbers and arrays for all operands of an epilogue, in the shapes of their kinds.

    kinds   operand name -> its kind
    m, n    extents of the accumulator
    batch   number of matrices of a batch, each with its own operands; None without a batch
    """
    of_d, lead = n // 2 if epilogue.gated else n, () if batch is None else (batch,)
    shapes = {Row: (1, of_d), Column: (m, 1), Tile: (m, of_d), Element: (1, 1)}
    return {
        name: 0.75
        if kind is Scalar
        else rng.standard_normal((*lead, *((1, n) if name in epilogue.halved else shapes[kind])))  # type: ignore[index]
        for name, kind in kinds.items()
    }


def _bias(name: str) -> Case:
    function = getattr(e, name)
    return Case(lambda acc, bias: function(acc + bias), {"bias": Row}, {"bias": f32})


def _gated_sums(acc: Any, bias: Any, residual: Any) -> Any:
    gate, up = e.halves(acc + bias)
    y = e.silu(gate) * up + residual
    return y, e.row_sum(e.square(y)), gate, e.column_max(up), e.total_max(e.abs(y))


def _pairs_sums(acc: Any) -> Any:
    gate, up = e.pairs(acc)
    return e.relu(gate) * up, e.column_sum(gate), e.row_max(up)


def _pairs(acc: Any, bias: Any, scale: Any, residual: Any, shift: Any, s: Any) -> Any:
    gate, up = e.pairs(acc * scale + bias)
    return e.silu(gate) * up * s + residual + shift * 0.5, gate


CASES: dict[str, Case] = {
    **{f"bias_{name}": _bias(name) for name in ("gelu", "gelu_tanh", "silu", "relu", "sigmoid", "tanh")},
    "residual": Case(lambda acc, residual: acc + residual, {"residual": Tile}, {}),
    "scales": Case(
        lambda acc, by_row, by_column, scale: acc * by_row * by_column * scale,
        {"by_row": Column, "by_column": Row, "scale": Element},
        {"by_row": f32, "by_column": f32, "scale": f32},
    ),
    "preact": Case(
        lambda acc, bias: (e.gelu(acc + bias), acc + bias), {"bias": Row}, {"bias": f32}
    ),
    "three": Case(
        lambda acc, bias, gate, s: (e.silu(acc * s + bias) * gate, acc * s + bias, e.square(acc)),
        {"bias": Row, "gate": Tile, "s": Scalar},
        {"bias": f32, "aux2": f32},
    ),
    "all_kinds": Case(
        lambda acc, row, column, tile, one, s: e.where(acc > row, acc * column - tile / one, e.maximum(s, -tile)),
        {"row": Row, "column": Column, "tile": Tile, "one": Element, "s": Scalar},
        {"row": f32, "column": f32, "one": f32},
    ),
    "rms": Case(
        lambda acc, residual: (acc + residual, e.row_sum(e.square(acc + residual))), {"residual": Tile}, {}
    ),
    "absmax": Case(
        lambda acc, bias: (e.silu(acc + bias), e.total_max(e.abs(e.silu(acc + bias)))), {"bias": Row}, {"bias": f32}
    ),
    "reduced": Case(
        lambda acc, bias, scale: (
            acc * scale, e.column_sum(acc * scale), acc + bias, e.row_max(1 + e.abs(acc)), e.column_max(bias - acc),
            e.total_sum(acc + 1),
        ),
        {"bias": Column, "scale": Row}, {"bias": f32, "scale": f32},
    ),
    "capped": Case(lambda acc, s: e.clamp(e.softcap(acc * s, 30), -20, 25), {"s": Scalar}, {}),
    "roots": Case(
        lambda acc: e.sqrt(e.abs(acc)) + e.rsqrt(1 + e.square(acc)) + e.log(1 + e.exp(-e.abs(acc))) + e.erf(acc), {}, {}
    ),
    "swiglu": Case(lambda acc: e.swiglu(acc), {}, {}),
    "geglu_bias": Case(lambda acc, bias: e.geglu(acc + bias), {"bias": Row}, {"bias": f32}),
    "pairs": Case(
        _pairs,
        {"bias": Row, "scale": Column, "residual": Tile, "shift": Row, "s": Scalar},
        {"bias": f32, "scale": f32, "shift": f32},
    ),
    "gated_rms": Case(
        lambda acc, residual: (e.swiglu(acc) + residual, e.row_sum(e.square(e.swiglu(acc) + residual))),
        {"residual": Tile}, {},
    ),
    "gated_sums": Case(_gated_sums, {"bias": Row, "residual": Tile}, {"bias": f32}),
    "pairs_sums": Case(_pairs_sums, {}, {}),
}  # fmt: skip
