"""Parser of epilogues as users type them: `gelu(acc + bias)`, with options such as `bias:row:f32`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from cutegemm.build.building import Complaints, made
from cutegemm.build.fused import KINDS, FusedEpilogue
from cutegemm.dtypes import DType, f32, round_to
from cutegemm.errors import PlanError
from cutegemm.plan import GemmPlan, Operands
from cutegemm.plan.epilogue import Column, Element, Input, Row, Scalar, Tile, parse_epilogue

_FORM = "this is not NAME:KIND or NAME:KIND:TYPE, such as bias:row:f32. The kinds are"
_SCALAR = 1.0  # value of a scalar without a value
MOST_SCALAR = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class ParsedEpilogue(FusedEpilogue):
    """The epilogue that a user typed as command-line options, such as --epilogue "gelu(acc + bias)" --operand bias:row.

    An epilogue computes D from the accumulators before D is stored. From this object, a plan with the epilogue and test
    values of its operands can be made.

    epilogue   its expressions, such as gelu(acc + bias)
    kinds      class of each operand by name. Row: one value per column of D, like a bias. Column: one value per row.
               Tile: a matrix of D's shape. Element: a tensor of one value. Scalar: a number passed at the launch
    dtypes     element type of operands and results by name, if an option gives it
    scalars    value of each scalar operand by name, e.g. {"s": 0.5}
    """

    scalars: dict[str, float]

    def is_end_of(self, plan: GemmPlan) -> bool:
        """Return True if a kernel plan can be built with this epilogue, i.e. if no rule of the plan is broken."""
        try:
            return bool(self.on(plan))
        except PlanError:
            return False

    def values(self, operands: Operands, m: int, n: int, batch: int | None, seed: int) -> dict[str, np.ndarray | float]:
        """Return test values for all operands of this epilogue: random tensors, and the scalars that the user typed.

        operands   operands of the plan, which give the element types
        m, n       extents of the GEMM; a gated D has n // 2 columns
        batch      number of batches L; None for matrices without batch
        seed       seed of the random numbers, which are normally distributed
        returns    value by operand name: an array of shape (1, N) for a row, (M, 1) for a column, (M, N) for a tile,
                   (1, 1) for an element, all with L in front if there is a batch; a float for a scalar. N is the number
                   of columns of D
        """
        rng = np.random.default_rng(seed + 1)
        lead = () if batch is None else (batch,)
        columns = n // 2 if self.epilogue.gated else n
        shapes: dict[type[Input], tuple[int, int]] = {
            Row: (1, columns),
            Column: (m, 1),
            Tile: (m, columns),
            Element: (1, 1),
        }
        out: dict[str, np.ndarray | float] = dict(self.scalars)
        for name in self.epilogue.tensors:
            shape = (*lead, *((1, n) if name in self.epilogue.halved else shapes[self.kinds[name]]))
            out[name] = round_to(operands.matrix(name).dtype, rng.standard_normal(shape, dtype=np.float32))
        return out


def parsed_epilogue(operation: str, text: str | None, options: Sequence[str] | None) -> ParsedEpilogue | None:
    """Parse the options --epilogue and --operand of a command; None without the option --epilogue.

    operation   name of the command, for messages
    text        option --epilogue: expressions of acc and of operands, e.g. "gelu(acc + bias)"; None if it is absent
    options     options --operand, each "NAME:KIND" or "NAME:KIND:TYPE"; None if they are absent. KIND is row (one value
                per column of D, like a bias), column (one value per row), tile (a matrix of D's shape), element (a
                tensor of one value), scalar or scalar=VALUE (a number), or result (an auxiliary output)
    raises      PlanError with every fault of the texts

    >>> options = ["bias:row:f32", "s:scalar=0.5", "aux:result:f16"]
    >>> parsed = parsed_epilogue("show", "gelu(acc * s + bias), aux = acc", options)
    >>> print(parsed.epilogue, parsed.dtypes, parsed.scalars)
    gelu(acc * s + bias), aux = acc {'bias': f32, 'aux': f16} {'s': 0.5}
    """
    if text is None:
        if options:
            raise PlanError(operation, [f"--operand {options[0]} needs an --epilogue with that operand."])
        return None
    kinds: dict[str, type[Input]] = {}
    dtypes: dict[str, DType] = {}
    scalars: dict[str, float] = {}
    results, complaints = [], Complaints(operation)
    for option in options or ():
        name, _, rest = option.partition(":")
        kind, _, dtype = rest.partition(":")
        if kind.partition("=")[0] == "scalar":
            kinds[name] = Scalar
            scalars[name] = complaints.attempt(partial(_number, option, kind)) or 0.0
        elif kind == "result":
            results.append(name)
        elif kind in KINDS:
            kinds[name] = KINDS[kind]
        else:
            complaints.violations.append(f"--operand {option}: {_FORM} {', '.join([*KINDS, 'result'])}.")
        if dtype:
            dtypes[name] = complaints.attempt(partial(DType.parse, dtype)) or f32
    names = [option.partition(":")[0] for option in options or ()]
    complaints.violations += [
        f"--operand {name}: the operand appears {names.count(name)} times."
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    complaints.check()
    parsed = complaints.attempt(lambda: parse_epilogue(text, kinds))
    complaints.check()
    epilogue = made(parsed)
    complaints.violations += [
        f"--operand {name}:result: {epilogue} has no result of that name."
        for name in results
        if name not in ("d", *epilogue.beside)
    ]
    complaints.check()
    return ParsedEpilogue(epilogue, kinds, dtypes, scalars)


def _number(option: str, kind: str) -> float:
    """Return the value of a scalar epilogue operand from the command-line option --operand.

    option   the whole option, such as "s:scalar=0.5", for messages
    kind     the part of the option after the name: "scalar" or "scalar=VALUE"; without a value the result is 1.0
    raises   PlanError for a value that is not a finite number of float32
    """
    _, _, value = kind.partition("=")
    try:
        number = float(value) if value else _SCALAR
    except ValueError:
        raise PlanError("scalar", [f"--operand {option}: {value!r} is not a number."]) from None
    if not abs(number) <= MOST_SCALAR:
        raise PlanError("scalar", [f"--operand {option}: {value} is not a number of float32."])
    return number
