"""What the functions ask of their tensors: every rule that is broken, in the caller's own values, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Proxy

from cutegemm.errors import UnsupportedError
from cutegemm.run.graph import carried
from cutegemm.run.torch_ops import DTYPES, FLOAT8, RESULTS

_FOR_FX = " torch.fx traces a function as one node if you pass its name to torch.fx.wrap."


def refuse(called: str, given: Mapping[str, Any], rules: Sequence[str]) -> None:
    """Raise UnsupportedError with every rule that a call breaks, if it breaks any.

    called   name of the function
    given    its arguments by name
    rules    broken rules, a sentence each
    """
    if not rules:
        return
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in given.items() if isinstance(x, torch.Tensor))
    if len(rules) == 1:
        raise UnsupportedError(f"{called} of {shapes}: {rules[0]}")
    listed = "\n".join(f"  - {rule}" for rule in rules)
    raise UnsupportedError(f"{called} of {shapes}: {len(rules)} rules are broken.\n{listed}")


def wrong_tensors(given: Mapping[str, Any], optional: Sequence[str] = ()) -> list[str]:
    """Return the rules that arguments break which are not tensors, or are on several devices."""
    strange = [
        f"{name} is a {type(x).__name__}; a torch tensor is expected.{_FOR_FX if isinstance(x, Proxy) else ''}"
        for name, x in given.items()
        if not isinstance(x, torch.Tensor) and not (x is None and name in optional)
    ]
    if strange:
        return strange
    tensors = {name: x for name, x in given.items() if x is not None}
    places = {name: x.device for name, x in tensors.items()}
    found = []
    if len(set(places.values())) > 1:
        said = ", ".join(f"{name} is on {device}" for name, device in places.items())
        found.append(f"{said}; all must be on one device.")
    return found


def wrong_factors(names: tuple[str, str], a: torch.Tensor, b: torch.Tensor) -> list[str]:
    """Return the rules that the types of two factors break: one type, or two of float8.

    names   the caller's names for a and b
    """
    kinds = [str(x.dtype).removeprefix("torch.") for x in (a, b)]
    found = []
    if a.dtype != b.dtype and not all(x.dtype in FLOAT8 for x in (a, b)):
        found.append(
            f"{names[0]} is of {kinds[0]}, {names[1]} of {kinds[1]}; they must be of one type. "
            f"Pass {names[1]}.to({names[0]}.dtype), or run it under torch.autocast."
        )
    if a.dtype not in RESULTS:
        served = ", ".join(str(kind).removeprefix("torch.") for kind in RESULTS)
        found.append(f"{names[0]} is of {kinds[0]}; {served} are served.")
    return found


def wrong_out_dtype(a: torch.Tensor, out_dtype: torch.dtype | None) -> list[str]:
    """Return the rule that the type of a result breaks."""
    allowed = RESULTS.get(a.dtype, ())
    if out_dtype is None or not allowed or out_dtype in allowed:
        return []
    said = " or ".join(str(kind).removeprefix("torch.") for kind in allowed)
    return [f"out_dtype = {out_dtype}; of {str(a.dtype).removeprefix('torch.')} {said} is served."]


def wrong_product(
    names: tuple[str, str], a: torch.Tensor, b: torch.Tensor, rank: int, out_dtype: torch.dtype | None
) -> list[str]:
    """Return the rules that two factors break: in their ranks, in K, in their types, and in that of the result.

    names   the caller's names for a and b
    rank    2 for two matrices; 3 for two batches, or a batch and a matrix
    """
    x, y = names
    found = wrong_factors(names, a, b) + wrong_out_dtype(a, out_dtype)
    ranks = (2,) if rank == 2 else (2, 3)
    if a.dim() not in ranks or b.dim() not in ranks or rank not in (2, 3, a.dim()):
        wanted = "two matrices are" if rank == 2 else "matrices, or batches of them, are"
        return [*found, f"{x} has shape {tuple(a.shape)}, {y} {tuple(b.shape)}; {wanted} expected."]
    if a.shape[-1] != b.shape[-2]:
        turned = f" Pass {y}.mT, which fits." if a.shape[-1] == b.shape[-1] else ""
        found.append(f"{x} has {a.shape[-1]} columns, {y} has {b.shape[-2]} rows; both are K.{turned}")
    lengths = (a.shape[0], b.shape[0]) if a.dim() == b.dim() == 3 else (1, 1)
    if lengths[0] != lengths[1] and lengths[0] != 1 and lengths[1] != 1:
        found.append(
            f"{x} is a batch of {a.shape[0]}, {y} of {b.shape[0]}; they must be of one length, or of 1."
        )
    return found


def wrong_operand_dtypes(a: torch.Tensor, **operands: torch.Tensor | None) -> list[str]:
    """Return the rules that the types of operands of an epilogue break.

    a   the first factor. If it is floating, operands are floating, of any type that a kernel reads; torch refuses
        integers too. If it is int8, operands may also be int8 or int32
    """
    found = []
    of_floats = a.dtype.is_floating_point
    for name, x in operands.items():
        if x is None or (x.dtype in DTYPES and (x.dtype.is_floating_point or not of_floats)):
            continue
        kind = str(x.dtype).removeprefix("torch.")
        wanted, remedy = "float64, float32, float16, bfloat16 or float8", str(a.dtype)
        if not of_floats:
            wanted, remedy = f"{wanted}, or int32 or int8", "torch.float32"
        found.append(f"{name} is of {kind}; {wanted} is expected. Pass {name}.to({remedy}).")
    return found


def wrong_operand(name: str, x: Any, shape: Sequence[int]) -> list[str]:
    """Return the rule that an operand breaks if it does not broadcast against a result.

    shape   shape of the result
    """
    if x is None:
        return []
    own, wide = tuple(x.shape), tuple(shape)
    pairs = zip(own[::-1], wide[::-1], strict=False)
    # Comparisons one by one: `in` does not look at the value of an extent that a graph has by name.
    if len(own) <= len(wide) and all(extent == 1 or extent == of for extent, of in pairs):
        return []
    *batch, m, n = wide
    would = [(n,), (m, 1), (m, n), *([(*batch, m, n)] if batch else [])]
    listed = ", ".join([f"{each}" for each in would])
    return [f"{name} has shape {own}; a number, {listed} or what broadcasts to the last is expected."]


def wrong_gradients(given: Mapping[str, Any], out: torch.Tensor | None, called: str = "out") -> list[str]:
    """Return the rule that derivatives break if a result is written to `out`: none are recorded or carried then.

    given    tensors by name, and None
    called   the name of the argument `out`
    """
    if out is None:
        return []
    named = {**given, called: out}
    if carried(named.values()):
        return [
            f"derivatives are carried forward, and {called} is given, into which they are not. Leave {called} away."
        ]
    if not torch.is_grad_enabled():
        return []
    names = [name for name, x in named.items() if isinstance(x, torch.Tensor) and x.requires_grad]
    if not names:
        return []
    are = f"{names[0]} is" if len(names) == 1 else f"{' and '.join(names)} are"
    return [
        f"{are} to have gradients, and {called} is given: none are recorded then. Leave {called} away, or call it "
        "under torch.no_grad()."
    ]
