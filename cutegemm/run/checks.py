"""What `gemm` asks of its arguments: every rule that is broken, in the caller's own values, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from cutegemm.choice.sm90.choice import ACCUMULATIONS
from cutegemm.dtypes import tf32
from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.plan.epilogue import LINEAR, SCALED
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.rules.limits import MOST_EXTENT
from cutegemm.run.calls import How, shapes_of
from cutegemm.run.views import MODES, Region, View, share_memory

WITHOUT_A_GPU = (
    "Without a GPU `cutegemm.simulate(plan, a, b)` carries out a plan on the CPU, and "
    "`cutegemm.emulate(plan, a, b)` what it is compiled to."
)


def without_torch() -> UnsupportedError:
    """Return the error of a call if torch cannot be imported."""
    return UnsupportedError(f"gemm: torch is needed to launch a kernel: pip install 'cutegemm[torch]'. {WITHOUT_A_GPU}")


def refused(a: Any, b: Any, rules: Sequence[str]) -> UnsupportedError:
    """The error that says every rule that a call breaks."""
    if len(rules) == 1:
        return UnsupportedError(f"gemm of {shapes_of(a, b)}: {rules[0]}")
    listed = "\n".join(f"  - {rule}" for rule in rules)
    return UnsupportedError(f"gemm of {shapes_of(a, b)}: {len(rules)} rules are broken.\n{listed}")


def wrong_choices(how: How) -> list[str]:
    plan, accumulate = how.plan, how.accumulate
    found = [
        f"{name} = {getattr(how, name)!r}; True or False is expected."
        for name in ("allow_tf32", "varying_rows", "tune")
        if not isinstance(getattr(how, name), bool)
    ]
    if plan is not None and how.tune is True:
        found.append("a plan is given, and tune=True asks for the one that is timed to be the fastest. Leave one out.")
    if accumulate not in ACCUMULATIONS:
        known = " or ".join(repr(name) for name in ACCUMULATIONS)
        found.append(f"accumulate = {accumulate!r}; {known} is expected.")
    if plan is not None and not isinstance(plan, (GemmPlan, str)):
        found.append(f"plan is a {type(plan).__name__}; a GemmPlan, or the name of one, is expected.")
    return found


def wrong_dtypes(given: dict[str, Any], torch_ops: Any) -> list[str]:
    """Return the rules that the types of a, b, c and out break."""
    kinds = {name: _name(tensor.dtype) for name, tensor in given.items()}
    served = ", ".join(_name(t) for t in torch_ops.RESULTS)
    strange = [name for name in ("a", "b") if given[name].dtype not in torch_ops.RESULTS]
    found = []
    of_float8 = all(given[name].dtype in torch_ops.FLOAT8 for name in "ab")
    if kinds["b"] != kinds["a"] and not of_float8:
        found.append(f"a is of {kinds['a']}, b of {kinds['b']}; they must be of one type, or both of float8.")
    if strange:
        found.append(f"{_are(strange)} of {kinds[strange[0]]}; {served} are served.")
    allowed = [_name(t) for t in torch_ops.RESULTS.get(given["a"].dtype, ())]
    for name in ("c", "out"):
        if name in given and allowed and kinds[name] not in allowed:
            found.append(f"{name} is of {kinds[name]}; {' or '.join(allowed)} is expected.")
    of_bytes = given["a"].dtype.is_floating_point and given["a"].element_size() == 1  # C is then read apart
    if "c" in given and "out" in given and kinds["c"] != kinds["out"] and not of_bytes:
        found.append(f"c is of {kinds['c']}, out of {kinds['out']}; they must be of one type.")
    return found


def wrong_out_dtype(
    dtype: Any,
    out_dtype: Any,
    torch_ops: Any,
    results: Sequence[Any] = (None,),
    outs: Sequence[Any] = (None,),
) -> list[str]:
    """Return the rules that the types break which a caller asks for.

    dtype      of a
    out_dtype  a type, or None; or a sequence with one for each result
    results    for each result its reduction, or None
    outs       for each result the caller's tensor, or None
    """
    several = isinstance(out_dtype, (tuple, list))
    asked = list(out_dtype) if several else [out_dtype]
    if several and len(asked) != len(results):
        return [
            f"out_dtype has {len(asked)} types; the number of results is {len(results)}. Pass one for each, or None "
            "in its place."
        ]
    found = []
    for place, kind in enumerate(asked):
        if kind is None:
            continue
        name, reduction, out = f"out_dtype[{place}]" if several else "out_dtype", results[place], outs[place]
        allowed = torch_ops.FLOATS if place else torch_ops.RESULTS.get(dtype, (kind,))
        if reduction is not None:
            allowed = (torch_ops.reduced_dtype(dtype),)
        if kind not in allowed:
            of = "" if reduction is None else f" for {reduction}"
            found.append(f"{name} = {_name(kind)}; {' or '.join(map(_name, allowed))} is expected{of}.")
        elif out is not None and out.dtype != kind:
            at = "out" if len(results) == 1 else f"out[{place}]"
            found.append(f"{at} is of {_name(out.dtype)}, but {name} = {_name(kind)}. Leave one of them out.")
    return found


def wrong_devices(given: dict[str, Any]) -> list[str]:
    """Return the rules that devices break: all tensors on one CUDA device are expected."""
    found = []
    elsewhere = [name for name, tensor in given.items() if not tensor.is_cuda]
    if elsewhere:
        moved = ", ".join(f"{name}.cuda()" for name in elsewhere)
        devices = dict.fromkeys(str(given[name].device) for name in elsewhere)
        listed = [
            f"{_are([name for name in elsewhere if str(given[name].device) == device])} on {device}"
            for device in devices
        ]
        found.append(
            f"{', '.join(listed)}; tensors on a CUDA device are served, as torch makes them: {moved}. {WITHOUT_A_GPU}"
        )
    there = {name: tensor.device for name, tensor in given.items() if tensor.is_cuda}
    if len(set(there.values())) > 1:
        places = ", ".join(f"{name} is on {device}" for name, device in there.items())
        found.append(f"{places}; all must be on one device.")
    return found


def wrong_memory(given: dict[str, Any]) -> list[str]:
    """Where a kernel may not read the elements of a tensor at the places that it names."""
    found = []
    for name, tensor in given.items():
        if tensor.numel() and not tensor.data_ptr() and tensor.device.type != "meta":
            found.append(
                f"{name} is a {type(tensor).__name__} without memory of its own. Pass the tensor inside of it."
            )
        elif tensor.is_neg():
            found.append(f"{name} is a view whose elements are negated. Pass {name}.resolve_neg().")
    return found


def without_addresses(given: dict[str, Any]) -> list[str]:
    """Torch tensors that no kernel can be given: sparse ones, and those that a transformation stands for."""
    found = []
    for name, tensor in given.items():
        try:
            tensor.data_ptr(), tensor.stride()
        except RuntimeError:
            layout = _name(tensor.layout)
            way = f" Pass {name}.to_dense()." if layout != "strided" else ""
            found.append(
                f"{name} is a {type(tensor).__name__} of layout {layout} without addresses; dense tensors on a CUDA "
                f"device are expected.{way}"
            )
    return found


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _are(names: Sequence[str]) -> str:
    """a is; a and b are; a, b and c are"""
    *first, last = names
    return f"{', '.join(first)} and {last} are" if first else f"{last} is"


def extents_of(a: Any, b: Any) -> tuple[int, int, int, int]:
    """(M, N, K, L) of matrices or batches that `wrong_extents` has let pass; symbols, if they are those of a graph."""
    return a.shape[-2], b.shape[-1], a.shape[-1], a.shape[0] if a.dim() == 3 else 1


def wrong_extents(given: dict[str, Any], gated: str = "", most: int | None = MOST_EXTENT) -> list[str]:
    """The rules of D = A @ B, or of a D of half its columns, that shapes break.

    gated   where the two columns lie that one column of D is made of; "" if it is one column
    most    the largest extent; None if an extent may be a symbol of a graph, which has no limit of its own
    """
    a, b = given["a"], given["b"]
    if a.dim() not in (2, 3) or a.dim() != b.dim():
        return [
            f"a has shape {tuple(a.shape)}, b {tuple(b.shape)}; two matrices, or two batches of "
            "matrices, are expected. Expand a matrix that all of a batch share: b.expand(l, -1, -1)."
        ]
    m, n, k, l = extents_of(a, b)  # noqa: E741
    batch = (l,) if a.dim() == 3 else ()
    found = []
    if b.shape[-2] != k:
        swap_ab = " Pass b.mT, which fits." if n == k else ""
        found.append(f"a has {k} columns, b has {b.shape[-2]} rows; both are K.{swap_ab}")
    if batch and b.shape[0] != l:
        found.append(f"a is a batch of {l}, b of {b.shape[0]}; they must be of one length.")
    if gated and n % 2:
        found.append(f"b has {n} columns; {gated} of an even number of them are expected.")
    of_d = (*batch, m, n // 2 if gated else n)
    found += [
        f"{name} has shape {tuple(given[name].shape)}; {of_d} is expected."
        for name in ("c", "out")
        if name in given and tuple(given[name].shape) != of_d
    ]
    if most is not None:
        found += [
            f"{letter} is {extent}; {most} at most is served."
            for letter, extent in zip("MNKL", (m, n, k, l), strict=True)
            if extent > most
        ]
    return found


def wanted_mode(plan: GemmPlan | str | None, name: str, element_bytes: int, gated: str) -> int | None:
    """Return the mode of a matrix that a plan has contiguous, 0 or 1, if its elements are to lie so; else None.

    A plan that the caller made has its own. For any plan factors of one byte are K-major, and results of one byte of a
    gated epilogue are row-major.
    """
    if isinstance(plan, GemmPlan):
        return MODES[name].index(getattr(plan.operands, "d" if name == "out" else name).major)
    if element_bytes > 1 or (name == "out" and not gated) or name == "c":
        return None
    return MODES[name].index("n" if name == "out" else "k")


def check_plan(plan: GemmPlan, operands: Operands, problem: Problem, has_c: bool, has_epilogue: bool) -> GemmPlan:
    """Return a plan that the caller made, if it serves a call.

    operands       of the problem; those of D^T if the plan is transposed
    has_c          whether a c is given
    has_epilogue   whether an epilogue is given: it takes the place of the plan's own
    raises         PlanError with every rule that the plan breaks
    """
    found = []
    ours = plan.operands
    if ours.a.dtype is tf32:  # f32 in memory
        operands = operands.as_tf32
    if not has_epilogue and plan.epilogue not in (LINEAR, SCALED):
        found.append(
            f"the plan computes {plan.epilogue}; without an epilogue, D is alpha * acc + beta * c. Pass epilogue= and "
            "its operands."
        )
    elif not has_epilogue and has_c and not plan.has_c:
        found.append("c is given, but the plan does not read C. Make it with_c=True.")
    for name in "abcd":
        want, have = getattr(ours, name), getattr(operands, name)
        if want.dtype != have.dtype or want.major != have.major:
            found.append(f"{name.upper()} is {have}; the plan is made for {want}.")
        elif have.align_bytes < want.align_bytes:
            found.append(
                f"{name.upper()} is aligned to {have.align_bytes} bytes, in its address, its strides and its "
                f"contiguous extent; the plan needs {want.align_bytes}."
            )
    if ours.batched != operands.batched:
        found.append(f"the tensors have {'a' if operands.batched else 'no'} batch mode; the plan expects otherwise.")
    if found:
        swap_ab = ", as D^T = B^T A^T," if plan.swap_ab else ""
        raise PlanError(f"gemm of {problem}{swap_ab} by the plan {plan.name!r}", found)
    return plan


def wrong_values(given: dict[str, Any], beta: float) -> list[str]:
    """What a signature does not show: beta, and gradients that would be lost."""
    found = []
    if beta != 0 and "c" not in given:
        found.append(f"beta = {beta!r}, but no c is given. Pass c, or leave beta at 0.")
    wanting = [name for name, tensor in given.items() if tensor.requires_grad]
    if wanting:
        from torch import is_grad_enabled

        if is_grad_enabled():
            detached = ", ".join(f"{name}.detach()" for name in wanting)
            found.append(
                f"{_are(wanting)} to have gradients; into a given out nothing is recorded. Leave out away, pass "
                f"{detached}, or call it under torch.no_grad()."
            )
    return found


def without_epilogue(operands: Mapping[str, Any]) -> str:
    """Say that operands are passed, and no epilogue."""
    return f"{', '.join(operands)} given without an epilogue that takes them. Pass epilogue=."


def wrong_numbers(given: Mapping[str, Any]) -> list[str]:
    """Return the rules that alpha and beta break: a real number is expected, or a tensor of one.

    >>> wrong_numbers({"alpha": 2j, "beta": 1})
    ['alpha = 2j; a real number is expected.']
    """
    found = []
    for name, x in given.items():
        if isinstance(x, Real) or type(x).__name__ in ("SymFloat", "SymInt"):  # as graphs name numbers
            continue
        if not (hasattr(x, "numel") and x.numel() == 1 and not x.is_complex()):
            found.append(f"{name} = {x!r}; a real number is expected.")
    return found


def check_out(views: Sequence[View], a: Any, b: Any, c: Any, out: Any) -> None:
    """Raise UnsupportedError if `out` overlaps a or b, or a c that is not `out` itself.

    views   of a, b, c and out
    """
    region, start = views[3].region, out.data_ptr()
    for name, tensor, view in (("a", a, views[0]), ("b", b, views[1])):
        if overlaps(region, start, view.region, tensor.data_ptr()):
            raise refused(a, b, [overwritten("out", name, False)])
    if c is not None and not is_same(c, out) and overlaps(region, start, views[2].region, c.data_ptr()):
        raise refused(a, b, [overwritten("out", "c", True)])


def overlaps(first: Region, start: int, second: Region, other_start: int) -> bool:
    """Whether two regions at these addresses have a byte in common: of nearly all calls their ends say so."""
    if other_start >= start + first.span or start >= other_start + second.span:
        return False
    return share_memory(first, start, second, other_start)


def is_same(tensor: Any, out: Any) -> bool:
    """Whether each element of a tensor is the element of `out` that is computed from it."""
    if tensor is out:
        return True
    same = tensor.data_ptr() == out.data_ptr() and tensor.dtype == out.dtype
    return bool(same and tensor.shape == out.shape and tensor.stride() == out.stride())


def overwritten(out: str, name: str, may_be_out: bool) -> str:
    """Say that the tensor of a result overlaps one that is read."""
    itself = f", or {name} itself" if may_be_out else ""
    return (
        f"{out} overlaps {name} in memory, which would be read after it is overwritten. Pass another out{itself}, or "
        "leave it out."
    )
