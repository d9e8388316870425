"""Check the arguments of `gemm`. Each check returns a sentence for each broken rule, with the value and the remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from cutegemm.choice.sm90.choice import ACCUMULATIONS
from cutegemm.dtypes import tf32
from cutegemm.errors import PlanError, UnsupportedError, how_to_install
from cutegemm.plan.epilogue import LINEAR, SCALED
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.rules.limits import MOST_EXTENT
from cutegemm.run.calls import ASKING, How, shapes_of
from cutegemm.run.views import MODES, Region, View, share_memory

WITHOUT_A_GPU = (
    "Without a GPU, `cutegemm.simulate(plan, a, b)` simulates a plan on the CPU, and "
    "`cutegemm.emulate(plan, a, b)` emulates its compiled kernel."
)


def without_torch() -> UnsupportedError:
    """Return the error that `gemm` raises if torch cannot be imported."""
    return UnsupportedError(f"gemm: torch is needed to launch a kernel. {how_to_install('torch')} {WITHOUT_A_GPU}")


def refused(a: Any, b: Any, rules: Sequence[str]) -> UnsupportedError:
    """Return the UnsupportedError for a call of `gemm` whose arguments violate rules.

    a, b    the factors; the message contains their shapes
    rules   one sentence for each violated rule
    """
    if len(rules) == 1:
        return UnsupportedError(f"gemm of {shapes_of(a, b)}: {rules[0]}")
    listed = "\n".join(f"  - {rule}" for rule in rules)
    return UnsupportedError(f"gemm of {shapes_of(a, b)}: {len(rules)} rules are broken.\n{listed}")


def wrong_choices(how: How) -> list[str]:
    """Return one sentence for each option of `gemm`, such as `accumulate` or `plan`, whose value is not valid.

    how       the options of the call
    returns   sentences for the error message; empty if all options are valid
    """
    plan, accumulate = how.plan, how.accumulate
    wrong = [
        f"{name} = {getattr(how, name)!r} is not a bool. Pass True or False."
        for name in ("allow_tf32", "varying_rows", "tune", "batch_invariant")
        if not isinstance(getattr(how, name), bool)
    ]
    if plan is not None and how.tune is True:
        wrong.append("plan is passed with tune=True, which times several plans and uses the fastest. Leave out one.")
    if accumulate not in ACCUMULATIONS:
        known = " or ".join(repr(name) for name in ACCUMULATIONS)
        wrong.append(f"accumulate = {accumulate!r} is unknown. Pass {known}.")
    if plan is not None and not isinstance(plan, (GemmPlan, str)):
        wrong.append(f"plan is a {type(plan).__name__}. Pass a GemmPlan or the name of a plan.")
    return wrong


def wrong_dtypes(tensors: dict[str, Any], torch_ops: Any) -> list[str]:
    """Return one sentence for each rule that the element types of a, b, c and out violate; empty if all are supported.

    tensors     "a", "b", and if they are passed "c" and "out", by name
    torch_ops   the module `run.torch_ops`, which imports torch
    """
    kinds = {name: _name(tensor.dtype) for name, tensor in tensors.items()}
    supported = ", ".join(_name(t) for t in torch_ops.RESULTS)
    unsupported = [name for name in ("a", "b") if tensors[name].dtype not in torch_ops.RESULTS]
    wrong = []
    both_float8 = all(tensors[name].dtype in torch_ops.FLOAT8 for name in "ab")
    if kinds["b"] != kinds["a"] and not both_float8:
        wrong.append(f"a is of {kinds['a']}, b of {kinds['b']}. Pass two tensors of one type, or two of float8.")
    if unsupported:
        wrong.append(f"{_are(unsupported)} of {kinds[unsupported[0]]}. Supported are {supported}.")
    allowed = [_name(t) for t in torch_ops.RESULTS.get(tensors["a"].dtype, ())]
    for name in ("c", "out"):
        if name in tensors and allowed and kinds[name] not in allowed:
            wrong.append(f"{name} is of {kinds[name]}. For a of {kinds['a']}, pass {' or '.join(allowed)}.")
    # For float8, the kernel reads C as an operand of its own, whose type may differ from that of D.
    is_float8 = tensors["a"].dtype.is_floating_point and tensors["a"].element_size() == 1
    if "c" in tensors and "out" in tensors and kinds["c"] != kinds["out"] and not is_float8:
        wrong.append(f"c is of {kinds['c']}, out of {kinds['out']}. Pass two tensors of one type.")
    return wrong


def wrong_out_dtype(
    dtype: Any,
    out_dtype: Any,
    torch_ops: Any,
    results: Sequence[Any] = (None,),
    outs: Sequence[Any] = (None,),
) -> list[str]:
    """Return one sentence for each rule that the argument `out_dtype` of `gemm` violates; empty if it is valid.

    dtype       torch dtype of a
    out_dtype   a torch dtype or None; or a sequence with one of these for each result
    torch_ops   the module `run.torch_ops`, which imports torch
    results     for each result of the epilogue, the reduction (sum or maximum) that it is; None for a result with the
                extents of D
    outs        for each result the tensor that the caller passed to store it to, or None
    """
    is_sequence = isinstance(out_dtype, (tuple, list))
    kinds = list(out_dtype) if is_sequence else [out_dtype]
    if is_sequence and len(kinds) != len(results):
        return [
            f"out_dtype has {len(kinds)} types, but the number of results is {len(results)}. Pass a type or None for "
            "each result."
        ]
    wrong = []
    for index, kind in enumerate(kinds):
        if kind is None:
            continue
        name, reduction, out = f"out_dtype[{index}]" if is_sequence else "out_dtype", results[index], outs[index]
        allowed = torch_ops.FLOATS if index else torch_ops.RESULTS.get(dtype, (kind,))
        if reduction is not None:
            allowed = (torch_ops.reduced_dtype(dtype),)
        if kind not in allowed:
            subject = f"a of {_name(dtype)}" if reduction is None else str(reduction)
            wrong.append(f"{name} = {kind!r} is not supported. For {subject}, pass {' or '.join(map(repr, allowed))}.")
        elif out is not None and out.dtype != kind:
            out_name = "out" if len(results) == 1 else f"out[{index}]"
            wrong.append(f"{out_name} is of {_name(out.dtype)}, but {name} = {kind!r}. Leave out one of the two.")
    return wrong


def wrong_devices(tensors: dict[str, Any]) -> list[str]:
    """Return one sentence for each rule on devices that tensors violate: all must be on the same CUDA device.

    While plans are only collected for compiling in advance, nothing is checked.

    tensors   the tensors of a call, by name
    """
    wrong: list[str] = []
    if ASKING.device is not None:
        return wrong
    not_cuda = [name for name, tensor in tensors.items() if not tensor.is_cuda]
    if not_cuda:
        remedy = ", ".join(f"{name}.cuda()" for name in not_cuda)
        devices = dict.fromkeys(str(tensors[name].device) for name in not_cuda)
        places = [
            f"{_are([name for name in not_cuda if str(tensors[name].device) == device])} on {device}"
            for device in devices
        ]
        wrong.append(f"{', '.join(places)}. Pass tensors on a CUDA device: {remedy}. {WITHOUT_A_GPU}")
    cuda_devices = {name: tensor.device for name, tensor in tensors.items() if tensor.is_cuda}
    if len(set(cuda_devices.values())) > 1:
        listed = ", ".join(f"{name} is on {device}" for name, device in cuda_devices.items())
        wrong.append(f"{listed}. Pass tensors on one device.")
    return wrong


def wrong_memory(tensors: dict[str, Any]) -> list[str]:
    """Return one sentence for each tensor that kernels cannot read as it lies in memory; empty if they can read all.

    These are tensors without memory of their own, and tensors whose elements torch negates when it reads them.

    tensors   the tensors of a call, by name
    """
    wrong = []
    for name, tensor in tensors.items():
        if tensor.numel() and not tensor.data_ptr() and tensor.device.type != "meta":
            wrong.append(
                f"{name} is a {type(tensor).__name__} without memory of its own. Pass the tensor inside of it."
            )
        elif tensor.is_neg():
            wrong.append(f"{name} is a view whose elements are negated. Pass {name}.resolve_neg().")
    return wrong


def without_addresses(tensors: dict[str, Any]) -> list[str]:
    """Return one sentence for each torch tensor without an address: a sparse one, or one inside of e.g. torch.vmap.

    tensors   the tensors of a call, by name
    """
    wrong = []
    for name, tensor in tensors.items():
        try:
            tensor.data_ptr(), tensor.stride()
        except RuntimeError:
            layout = _name(tensor.layout)
            remedy = f": {name}.to_dense()" if layout != "strided" else ""
            wrong.append(
                f"{name} is a {type(tensor).__name__} of layout {layout} without an address. Pass a dense tensor on a "
                f"CUDA device{remedy}."
            )
    return wrong


def _name(dtype: Any) -> str:
    """Return the name of a torch dtype or layout without "torch.", such as "float16"."""
    return str(dtype).removeprefix("torch.")


def _are(names: Sequence[str]) -> str:
    """Return names as the subject of a sentence with its verb: ["a"] becomes "a is", ["a", "b"] "a and b are".

    >>> _are(["a"]), _are(["a", "b", "c"])
    ('a is', 'a, b and c are')
    """
    *first, last = names
    return f"{', '.join(first)} and {last} are" if first else f"{last} is"


def extents_of(a: Any, b: Any) -> tuple[int, int, int, int]:
    """Return (M, N, K, L) of matrices whose shapes fit each other; L is 1 without a batch.

    In a torch graph the extents may be symbols.

    a   M x K, or L x M x K
    b   K x N, or L x K x N
    """
    return a.shape[-2], b.shape[-1], a.shape[-1], a.shape[0] if a.dim() == 3 else 1


def wrong_extents(tensors: dict[str, Any], gated: str = "", most: int | None = MOST_EXTENT) -> list[str]:
    """Return one sentence for each rule that the shapes of a, b, c and out violate; empty if the shapes fit.

    tensors   a, b, and c and out if they are passed, by name
    gated     "halves" or "pairs" for a gated epilogue such as SwiGLU, whose D has half of the columns of b. Gate and up
              columns are the two halves of b, or pairs of neighbours; "" for any other epilogue
    most      largest extent that is allowed; None: no limit, for extents that are symbols of a torch graph
    """
    a, b = tensors["a"], tensors["b"]
    if a.dim() not in (2, 3) or a.dim() != b.dim():
        return [
            f"a has shape {tuple(a.shape)}, b {tuple(b.shape)}. Pass two matrices, or two batches of matrices. Expand "
            "a matrix that all of a batch share: b.expand(l, -1, -1)."
        ]
    m, n, k, l = extents_of(a, b)  # noqa: E741
    batch = (l,) if a.dim() == 3 else ()
    wrong = []
    if b.shape[-2] != k:
        remedy = " Pass b.mT, which fits." if n == k else ""
        wrong.append(f"a has {k} columns, b has {b.shape[-2]} rows, but both are K.{remedy}")
    if batch and b.shape[0] != l:
        wrong.append(f"a is a batch of {l} matrices, b of {b.shape[0]}. Pass batches of one length.")
    if gated and n % 2:
        wrong.append(f"b has {n} columns, but a gated epilogue reads {gated} of them. Pass an even number of columns.")
    d_shape = (*batch, m, n // 2 if gated else n)
    wrong += [
        f"{name} has shape {tuple(tensors[name].shape)}. Pass a tensor of shape {d_shape}."
        for name in ("c", "out")
        if name in tensors and tuple(tensors[name].shape) != d_shape
    ]
    if most is not None:
        wrong += [
            f"{letter} is {extent}. The largest extent is {most}."
            for letter, extent in zip("MNKL", (m, n, k, l), strict=True)
            if extent > most
        ]
    return wrong


def wanted_mode(plan: GemmPlan | str | None, name: str, element_bytes: int, gated: str) -> int | None:
    """Return which mode of a matrix, 0 or 1, a plan needs to be contiguous (stride 1); None if either may be.

    A plan that the caller made fixes this for each matrix. Otherwise one-byte factors are K-major, and one-byte results
    of a gated epilogue are row-major.

    plan            the caller's plan, or its name, or None
    name            "a", "b", "c" or "out"
    element_bytes   size of an element of the matrix
    gated           "halves" or "pairs" for a gated epilogue, by how gate and up columns lie in b; "" for any other
                    epilogue
    """
    if isinstance(plan, GemmPlan):
        return MODES[name].index(getattr(plan.operands, "d" if name == "out" else name).major)
    if element_bytes > 1 or (name == "out" and not gated) or name == "c":
        return None
    return MODES[name].index("n" if name == "out" else "k")


def check_plan(plan: GemmPlan, operands: Operands, problem: Problem, has_c: bool, has_epilogue: bool) -> GemmPlan:
    """Return the plan that the caller passed to `gemm` if it can compute the call, else raise PlanError.

    plan           the caller's plan
    operands       element types, majorness and alignment of the call's matrices; those of D^T = B^T A^T if the plan
                   swaps A and B
    problem        the call's problem, for the error message
    has_c          True if c is passed
    has_epilogue   True if an epilogue is passed, which replaces the plan's own
    raises         PlanError with every rule that the plan violates
    """
    if plan.operands.groups:
        rule = "the plan is made for a grouped GEMM. Call cutegemm.torch.grouped.functional.grouped_mm."
        raise PlanError(f"gemm of {problem} by the plan {plan.name!r}", [rule])
    wrong = []
    if plan.operands.a.dtype is tf32:  # the elements in memory are f32
        operands = operands.as_tf32
    if not has_epilogue and plan.epilogue not in (LINEAR, SCALED):
        wrong.append(
            f"the plan computes {plan.epilogue}, but without an epilogue D is alpha * acc + beta * c. Pass epilogue= "
            "and its operands."
        )
    elif not has_epilogue and has_c and not plan.has_c:
        wrong.append("c is passed, but the plan does not read C. Make the plan with with_c=True.")
    for name in "abcd":
        needed, actual = getattr(plan.operands, name), getattr(operands, name)
        if needed.dtype != actual.dtype or needed.major != actual.major:
            wrong.append(f"{name.upper()} is {actual}; the plan is made for {needed}.")
        elif actual.align_bytes < needed.align_bytes:
            wrong.append(
                f"{name.upper()} is aligned to {actual.align_bytes} bytes in its address, its strides and its "
                f"contiguous extent, but the plan needs {needed.align_bytes}."
            )
    needed_scales, scales = [{name: of.modes(name) for name in of.of_mainloop} for of in (plan.operands, operands)]
    if needed_scales != scales:
        listed = [
            " and ".join(f"{name} by ({', '.join(modes)})" for name, modes in each.items()) or "no block scales"
            for each in (needed_scales, scales)
        ]
        wrong.append(f"the plan is made for {listed[0]}, the call has {listed[1]}.")
    if plan.operands.batched != operands.batched:
        have = "have a batch mode" if operands.batched else "do not have a batch mode"
        needed = "batched" if plan.operands.batched else "not batched"
        wrong.append(f"the tensors {have}, but the plan is {needed}.")
    if wrong:
        swap_ab = ", as D^T = B^T A^T," if plan.swap_ab else ""
        raise PlanError(f"gemm of {problem}{swap_ab} by the plan {plan.name!r}", wrong)
    return plan


def wrong_values(tensors: dict[str, Any], beta: float) -> list[str]:
    """Return one sentence for each broken rule: beta needs c unless it is 0, and `out` needs tensors without gradients.

    tensors   "a", "b", and if they are passed "c" and "out", by name
    beta      factor of c
    """
    wrong = []
    if beta != 0 and "c" not in tensors:
        wrong.append(f"beta = {beta!r}, but no c is given. Pass c, or leave beta at 0.")
    need_gradients = [name for name, tensor in tensors.items() if tensor.requires_grad]
    if need_gradients:
        from torch import is_grad_enabled

        if is_grad_enabled():
            detached = ", ".join(f"{name}.detach()" for name in need_gradients)
            verb = "require" if len(need_gradients) > 1 else "requires"
            wrong.append(
                f"{', '.join(need_gradients)} {verb} gradients, but a call with out= does not record them. Leave out "
                f"`out`, pass {detached}, or call gemm under torch.no_grad()."
            )
    return wrong


def without_epilogue(operands: Mapping[str, Any]) -> str:
    """Return the error message for a `gemm` call with extra named operands, such as bias=, but without an epilogue.

    operands   the operands by name
    """
    return f"{', '.join(operands)} passed without an epilogue that reads them. Pass epilogue=."


def wrong_numbers(numbers: Mapping[str, Any]) -> list[str]:
    """Return one sentence for each value that is neither a real number nor a tensor with one real element.

    numbers   "alpha" and "beta" with their values

    >>> wrong_numbers({"alpha": 2j, "beta": 1})
    ['alpha = 2j is not a real number. Pass a real number.']
    """
    wrong = []
    for name, x in numbers.items():
        if isinstance(x, Real) or type(x).__name__ in ("SymFloat", "SymInt"):  # numbers in a torch graph
            continue
        if not (hasattr(x, "numel") and x.numel() == 1 and not x.is_complex()):
            wrong.append(f"{name} = {x!r} is not a real number. Pass a real number.")
    return wrong


def check_out(views: Sequence[View], a: Any, b: Any, c: Any, out: Any) -> None:
    """Raise UnsupportedError if `out` overlaps a or b, or a c that is not `out` itself.

    views     memory layouts of a, b, c and out
    a, b, c   tensors that the call reads; c may be None
    out       tensor that the result is written to
    """
    region, start = views[3].region, out.data_ptr()
    for name, tensor, view in (("a", a, views[0]), ("b", b, views[1])):
        if overlaps(region, start, view.region, tensor.data_ptr()):
            raise refused(a, b, [overwritten("out", name, False)])
    if c is not None and not is_same(c, out) and overlaps(region, start, views[2].region, c.data_ptr()):
        raise refused(a, b, [overwritten("out", "c", True)])


def overlaps(first: Region, start: int, second: Region, other_start: int) -> bool:
    """Return True if two tensors have a byte in common.

    If one ends before the other begins, they have none. Otherwise their strides are taken into account, since tensors
    can be interleaved without sharing a byte.

    first, second        the bytes that each tensor occupies, as offsets from its address
    start, other_start   addresses of the two tensors in bytes
    """
    if other_start >= start + first.span or start >= other_start + second.span:
        return False
    return share_memory(first, start, second, other_start)


def is_same(tensor: Any, out: Any) -> bool:
    """Return True if a tensor is `out` itself, or has the same address, type, shape and strides."""
    if tensor is out:
        return True
    same = tensor.data_ptr() == out.data_ptr() and tensor.dtype == out.dtype
    return bool(same and tensor.shape == out.shape and tensor.stride() == out.stride())


def overwritten(out: str, name: str, may_be_out: bool) -> str:
    """Return the error message for a result whose tensor overlaps a tensor that the call reads.

    out          name of the result's tensor
    name         name of the tensor that is read
    may_be_out   True if the result may be stored to the tensor that is read, so that the message can say so
    """
    itself = f", or {name} itself" if may_be_out else ""
    return (
        f"{out} overlaps {name} in memory, which would be read after it is overwritten. Pass another out{itself}, or "
        "leave it out."
    )
