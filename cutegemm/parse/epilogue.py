"""Epilogues as they are typed: `gelu(acc + bias)`, with `bias:row:f32` for each operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from cutegemm.build import ending_in
from cutegemm.build.building import Complaints, made
from cutegemm.dtypes import DType, f32, f64, round_to
from cutegemm.errors import PlanError
from cutegemm.machine.arch import ACCESS_BITS
from cutegemm.plan import GemmPlan, Operands
from cutegemm.plan.epilogue import (
    Column,
    Element,
    Epilogue,
    Input,
    Row,
    Scalar,
    Tensor,
    Tile,
    parse_epilogue,
)
from cutegemm.plan.problem import Operand

_KINDS: dict[str, type[Input]] = {
    "row": Row,
    "column": Column,
    "tile": Tile,
    "element": Element,
    "scalar": Scalar,
}
_FORM = "NAME:KIND or NAME:KIND:TYPE is expected, such as bias:row:f32, of the kinds"
_SCALAR = 1.0  # where no value is given
MOST_SCALAR = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class ParsedEpilogue:
    """An epilogue that a command was given.

    kinds     of its operands
    dtypes    of operands in memory and of further results, where they are given: else the type of D
    scalars   values
    """

    epilogue: Epilogue
    kinds: dict[str, type[Input]]
    dtypes: dict[str, DType]
    scalars: dict[str, float]

    @property
    def reads_tiles(self) -> bool:
        """Whether an operand is a tile, of which the first takes the place of C."""
        return bool(self.epilogue.tiles)

    def made_for(self, operands: Operands) -> Operands:
        """The operands that a plan is made for: the first tile is C there."""
        if not self.reads_tiles:
            return operands
        return replace(operands, c=self._matrix(operands, self.epilogue.tiles[0]))

    def ends(self, operands: Operands) -> Operands:
        """The operands of a plan, with those of the epilogue, which are aligned as D and as single numbers are."""
        further = {}
        for name in self.epilogue.tensors:
            kind = self.kinds[name]
            if kind is not Tile:
                assert issubclass(kind, Tensor)
                further[name] = Operand.of_kind(kind, self.dtypes.get(name, operands.d.dtype))
        for name in (*self.epilogue.tiles[1:], *self.epilogue.outputs[1:]):
            further[name] = self._matrix(operands, name)
        for name, reduction in self.epilogue.reductions:
            sums = f64 if operands.acc == f64 else f32
            further[name] = Operand.of_kind(reduction.kind, self.dtypes.get(name, sums))
        whole = self.made_for(operands).with_further(**further)
        return whole.as_gated(self.epilogue.gated, self.epilogue.halved)

    def _matrix(self, operands: Operands, name: str) -> Operand:
        d = operands.d
        dtype = self.dtypes.get(name, d.dtype)
        return Operand(dtype, d.major, min(ACCESS_BITS, d.align_elems * dtype.bits) // 8)

    def on(self, plan: GemmPlan, turned: bool = False) -> GemmPlan:
        """A plan that ends so.

        turned   whether it is for the transposed problem
        """
        epilogue = self.epilogue.transposed if turned else self.epilogue
        whole = self.ends(plan.operands.transposed).transposed if turned else self.ends(plan.operands)
        return ending_in(epilogue, plan, dict(whole.further))

    def is_end_of(self, plan: GemmPlan) -> bool:
        """Whether a plan can end so."""
        try:
            return bool(self.on(plan))
        except PlanError:
            return False

    def values(
        self, operands: Operands, m: int, n: int, batch: int | None, seed: int
    ) -> dict[str, np.ndarray | float]:
        """Values of all operands by name: normally distributed, or the scalars that are given."""
        rng = np.random.default_rng(seed + 1)
        lead = () if batch is None else (batch,)
        of_d = n // 2 if self.epilogue.gated else n
        shapes: dict[type[Input], tuple[int, int]] = {
            Row: (1, of_d),
            Column: (m, 1),
            Tile: (m, of_d),
            Element: (1, 1),
        }
        out: dict[str, np.ndarray | float] = dict(self.scalars)
        for name in self.epilogue.tensors:
            shape = (*lead, *((1, n) if name in self.epilogue.halved else shapes[self.kinds[name]]))
            out[name] = round_to(operands.matrix(name).dtype, rng.standard_normal(shape, dtype=np.float32))
        return out


def parsed_epilogue(operation: str, text: str | None, given: Sequence[str] | None) -> ParsedEpilogue | None:
    """The epilogue that a command was given; None where it was given none.

    raises   PlanError with all that is wrong with the texts

    >>> given = ["bias:row:f32", "s:scalar=0.5", "aux:result:f16"]
    >>> found = parsed_epilogue("show", "gelu(acc * s + bias), aux = acc", given)
    >>> print(found.epilogue, found.dtypes, found.scalars)
    gelu(acc * s + bias), aux = acc {'bias': f32, 'aux': f16} {'s': 0.5}
    """
    if text is None:
        if given:
            raise PlanError(operation, [f"--operand {given[0]} without an --epilogue that takes it."])
        return None
    kinds: dict[str, type[Input]] = {}
    dtypes: dict[str, DType] = {}
    scalars: dict[str, float] = {}
    results, complaints = [], Complaints(operation)
    for each in given or ():
        name, _, rest = each.partition(":")
        kind, _, dtype = rest.partition(":")
        if kind.partition("=")[0] == "scalar":
            kinds[name] = Scalar
            scalars[name] = complaints.attempt(partial(_number, each, kind)) or 0.0
        elif kind == "result":
            results.append(name)
        elif kind in _KINDS:
            kinds[name] = _KINDS[kind]
        else:
            complaints.broken.append(f"--operand {each}: {_FORM} {', '.join([*_KINDS, 'result'])}.")
        if dtype:
            dtypes[name] = complaints.attempt(partial(DType.parse, dtype)) or f32
    names = [each.partition(":")[0] for each in given or ()]
    complaints.broken += [
        f"--operand {name}: it is given {names.count(name)} times."
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    complaints.check()
    found = complaints.attempt(lambda: parse_epilogue(text, kinds))
    complaints.check()
    epilogue = made(found)
    complaints.broken += [
        f"--operand {name}:result: {epilogue} has no such result."
        for name in results
        if name not in ("d", *epilogue.beside)
    ]
    complaints.check()
    return ParsedEpilogue(epilogue, kinds, dtypes, scalars)


def _number(each: str, kind: str) -> float:
    _, _, value = kind.partition("=")
    try:
        number = float(value) if value else _SCALAR
    except ValueError:
        raise PlanError("scalar", [f"--operand {each}: {value!r} is no number."]) from None
    if not abs(number) <= MOST_SCALAR:
        raise PlanError("scalar", [f"--operand {each}: {value} is no number that float32 holds."])
    return number
