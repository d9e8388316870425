"""gemm(a, b): checks its arguments, chooses a plan, compiles it or finds it compiled, and launches it.

A call looks up the signature of its arguments (types, shapes, strides, alignment, device); all that follows
from the signature was decided when it was first seen: see `prepare`. What a warm call still does is to allocate the
result, to compare addresses where a result is given, and to launch. In a signature the address of a tensor
without memory, such as one whose storage was freed, is 0.5: no kernel is launched on it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cutegemm.errors import CopyWarning, CutegemmError, UnsupportedError, how_to_install
from cutegemm.run import recall
from cutegemm.run.calls import Calls, How, shapes_of
from cutegemm.run.graph import are_stood_for, arguments, through_torch, torch_sees
from cutegemm.run.launches import new_like, of_transpose, on_device

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.run.prepare import Prepared

# What only the first call of a signature needs is imported by it: a process whose kernels are known begins at once.

_calls = Calls()


class _Call:
    """What a warm call needs.

    new        allocates the result
    into       takes a, b, c or None, the result, alpha and beta
    kernel     in words
    check      of a, b, c and `out`: raises where `out` lies where it must not
    written    is told of `out`, so that autograd sees that it has changed
    held       the caller's plan, whose id is in the signature
    """

    __slots__ = ("check", "held", "into", "kernel", "new", "written")

    def __init__(self, into: Callable[..., None], new: Callable[[], Any], kernel: str) -> None:
        from torch.autograd.graph import increment_version

        self.into, self.new, self.kernel, self.written = into, new, kernel, increment_version
        self.check: Any = None
        self.held: Any = None


def _call_of(prepared: Prepared, a: Any, as_rows: bool = False) -> _Call:
    """What was prepared, as it is called."""
    from cutegemm.run.checks import check_out

    strides = [view.strides for view in prepared.views]
    if prepared.kernel is None:

        def into(*given: Any) -> None: ...

    else:
        into = _into(prepared.function, prepared.kernel.plan.has_c, strides, as_rows)
    call = _Call(into, new_like(a, prepared.shape, prepared.dtype), repr(prepared.kernel))
    call.check = partial(check_out, prepared.views)
    return call


def _into(
    function: Callable[..., None], reads_c: bool, strides: Sequence[Any], as_rows: bool = False
) -> Callable[..., None]:
    """Return the launch of a kernel: (a, b, c or None, out, alpha, beta).

    reads_c   whether the kernel takes c and beta; it then takes `out` in the place of a c that is None
    strides   of a, b, c and out: those that the kernel is to see; None for the tensor's own
    as_rows   whether it is given the transpose of b, N x K, as a layer keeps its weight
    """

    def with_c(a: Any, b: Any, c: Any, out: Any, alpha: float, beta: float) -> None:
        function(a, b.mT if as_rows else b, out if c is None else c, out, alpha, beta)

    def without_c(a: Any, b: Any, c: Any, out: Any, alpha: float, beta: float) -> None:
        function(a, b.mT if as_rows else b, out, alpha)

    as_given = with_c if reads_c else without_c
    if not any(strides):
        return on_device(as_given)
    of_a, of_b, of_c, of_out = strides
    given_strides = of_a, of_transpose(of_b) if as_rows else of_b, of_c, of_out

    def as_seen(a: Any, b: Any, c: Any, out: Any, alpha: float, beta: float) -> None:
        from torch.cuda import device

        tensors = (a, b, out if c is None else c, out)
        a, b, c, out = [
            x if of is None else x.as_strided(x.shape, of) for x, of in zip(tensors, given_strides, strict=True)
        ]
        with device(a.get_device()):
            as_given(a, b, c, out, alpha, beta)

    return as_seen


def _trial(a: Any, b: Any, c: Any, out: Any, prepared: Prepared) -> Callable[[], None]:
    """A call of what was prepared, for the tuner: its result is written to memory of its own, laid out as `out` is."""
    call = _call_of(prepared, a)
    d = call.new() if out is None else out.new_empty_strided(out.shape, out.stride())
    return lambda: call.into(a, b, c, d, 1.0, 0.0)


def _first_fused(*given: Any) -> Any:
    global _fused
    from cutegemm.run.fused import fused

    _fused = fused
    return fused(*given)


_fused: Callable[..., Any] = _first_fused


def gemm(
    a: Any,
    b: Any,
    *,
    c: Any = None,
    alpha: float | None = None,
    beta: float | None = None,
    out: Any = None,
    plan: GemmPlan | str | None = None,
    accumulate: str = "fast",
    allow_tf32: bool = False,
    out_dtype: Any = None,
    varying_rows: bool = False,
    tune: bool = False,
    epilogue: Callable[..., Any] | None = None,
    **operands: Any,
) -> Any:
    """Return alpha * a @ b + beta * c, or what an epilogue makes of a @ b, on a CUDA device.

    a, b          M x K and K x N, or L x M x K and L x K x N: torch tensors, or arrays with DLPack, of one type:
                  float32, float64, float16 or bfloat16; on Hopper also float8 and int8, from Ada on float8 that lies
                  along K. On Hopper one may be float8_e4m3fn and the other float8_e5m2. Any strides; where neither of
                  the last two is 1, a copy is made, and a `CopyWarning` says so
    c             M x N or L x M x N, of the type of the result, or beside float8 of any that it might have; needed if
                  beta is not 0
    alpha, beta   numbers, 1 and 0 if they are not passed. As in BLAS, what is multiplied by 0 is not read: NaN in a, b
                  or c does not count then. With an epilogue, c, alpha and beta are its operands of these names
    out           where the result goes: M x N or L x M x N, of the type of a, float32, float16 or bfloat16; of int8
                  int32 or float32. int8 products are added in 32 bits and wrap past them, so every sum that fits int32
                  is exact. What is past the largest float8 becomes that. It may be c, or an operand of the epilogue
                  that has one number for each element; it must not overlap anything else that is read
    plan          a GemmPlan, or a name from `cutegemm.choice.catalog.plans()`; chosen by the shape where left out.
                  After "swap_ab:" the name of a plan for D^T = B^T A^T
    accumulate    of a plan that is chosen for float8: "fast", as wgmma sums up, with about 14 bits; or "promoted": the
                  sums of every 128 products are added up in float32, as torch._scaled_mm does without use_fast_accum
    allow_tf32    whether a plan that is chosen for float32 may multiply it as tf32, by tensor cores
    out_dtype     the type of the result, if no `out` has one. If an epilogue returns several, the type of D and of all
                  others of its extents, of any floating type; or a sequence with a type for each result, or None in its
                  place. Sums and maxima are float32, or float64 if a is
    varying_rows whether a has other numbers of rows in other calls, as the input of a layer has: of the plans, six
                 serve all of them, so that few kernels are compiled
    tune       whether the best few plans are timed at the first call of a signature, and the fastest is taken: see
               `cutegemm.tuning`
    epilogue   a function of the sums of a @ b and of operands by name: `lambda acc, bias: gelu(acc + bias)`, of the
               functions of `cutegemm.epilogue`. It is called with symbols: once, and again after something that it
               reads has changed; in each call, if it reads what may change unseen, as an object's attribute. If it
               returns several expressions, the first is D, and the others are stored as well; `row_sum(x)` and the
               like, which stand behind the first alone, give one float32 for each row, for each column, or for all of D
    operands   of the epilogue: numbers, or tensors of one element, of N or 1 x N, of M x 1, of M x N, with L in front
               or without; of any floating type
    returns    a tuple where the epilogue returns several; `out`, or a new row-major array of the framework of a
    raises     UnsupportedError with the rules that the arguments break, PlanError where the plan does not fit them, or
               CutegemmError; before anything is launched

    Sums are kept in float32, or float64 for float64. float32 is multiplied as it is, unless tf32 is allowed, or a plan
    is asked for that takes it as that: "mma_128x256", "sm90_epi_stages" and their like do. It runs on torch's current
    stream, and a CUDA graph may capture it once the same signature has been called before. Gradients are recorded as
    torch's are, and `torch.compile` sees one operator; into an `out` nothing is recorded. Where operands lie otherwise
    than the kernel can load them fast, one before it packs them into a workspace.

    >>> a, b = torch.randn(4096, 512, device="cuda"), torch.randn(2048, 512, device="cuda").t()  # doctest: +SKIP
    >>> d = gemm(a, b)  # doctest: +SKIP
    >>> d = gemm(a, b, c=d, alpha=0.5, beta=1.0, out=d, plan="simt_256x128")  # doctest: +SKIP
    """
    if torch_sees(a, b, c, operands, out):
        how = How(plan, accumulate, allow_tf32, varying_rows, tune)
        return through_torch(arguments(a, b, c, alpha, beta, out, out_dtype, how, epilogue, operands))
    if epilogue is not None or operands:
        return _fused(
            a, b, c, alpha, beta, out, plan, accumulate, allow_tf32, out_dtype, varying_rows, tune, epilogue,
            operands,
        )  # fmt: skip
    if alpha is None:
        alpha = 1.0
    if beta is None:
        beta = 0.0
    try:
        key = (
            a.__class__, a.dtype, a.shape, a.stride(), (a.data_ptr() or 0.5) % 16, a.get_device(), a.is_neg(),
            b.__class__, b.dtype, b.shape, b.stride(), (b.data_ptr() or 0.5) % 16, b.get_device(), b.is_neg(),
            plan if plan is None or plan.__class__ is str else id(plan), accumulate, allow_tf32, out_dtype,
            out if out is None else (
                out.__class__, out.dtype, out.shape, out.stride(), (out.data_ptr() or 0.5) % 16, out.get_device(),
                out.is_neg(),
            ),
            c if c is None else (
                c.__class__, c.dtype, c.shape, c.stride(), (c.data_ptr() or 0.5) % 16, c.get_device(), c.is_neg()
            ),
            varying_rows, tune,
        )  # fmt: skip
        call = _calls.found.get(key)
    except (AttributeError, RuntimeError):
        how = How(plan, accumulate, allow_tf32, varying_rows, tune)
        return _through_torch(a, b, c, alpha, beta, out, out_dtype, how)
    except TypeError:  # an argument without a hash, which no signature has
        call = None
    if call is None:
        how = How(plan, accumulate, allow_tf32, varying_rows, tune)
        if out_dtype.__class__ is list:
            kind = tuple(out_dtype)
            return gemm(a, b, c=c, alpha=alpha, beta=beta, out=out, out_dtype=kind, **vars(how))
        if a.is_meta:  # shapes alone
            return through_torch(arguments(a, b, c, alpha, beta, out, out_dtype, how))
        found = _first(key, a, b, c, out, out_dtype, beta, how)
        if isinstance(found, list):
            return _with_copies(found, a, b, c, alpha, beta, out, out_dtype, how)
        call = found
    if (beta != 0 and c is None) or (out is not None and out.requires_grad):
        _check_values(a, b, c, out, beta)
    if alpha == 0:  # a and b are not read
        a, b = a[..., :0], b[..., :0, :]
        return gemm(a, b, c=c, beta=beta, out=out, out_dtype=out_dtype, varying_rows=varying_rows)
    result = out
    if out is None:
        result = call.new()
    else:
        call.check(a, b, c, out)
    try:
        call.into(a, b, c, result, alpha, beta)
    except (TypeError, ValueError, RuntimeError) as error:
        _check_numbers(a, b, alpha, beta)
        raise CutegemmError(f"gemm of {shapes_of(a, b)} by {call.kernel}: {error}") from error
    if out is not None:
        call.written(out)
    return result


def _first(key: Any, a: Any, b: Any, c: Any, out: Any, out_dtype: Any, beta: float, how: How) -> _Call | list[str]:
    """The call of a signature that is new, remembered; or the names of what is to be copied first."""
    known = recall.find(key, a, how) if c is None and out is None else None
    if known is not None:
        new = new_like(a, known.shape, known.dtype)
        call = _Call(_into(known.function, known.reads_c, known.strides), new, known.kernel)
    else:
        from cutegemm.run.prepare import prepare

        prepared = prepare(a, b, c, out, out_dtype, beta, how, None, partial(_trial, a, b, c, out))
        if isinstance(prepared, list):
            return prepared
        call = _call_of(prepared, a)
        call.held = how.plan
        if c is None and out is None:
            recall.keep(key, a, how, prepared)
    _calls.keep(key, call)
    return call


def _check_values(a: Any, b: Any, c: Any, out: Any, beta: float) -> None:
    from cutegemm.run.checks import refused, wrong_values
    from cutegemm.run.prepare import named

    wrong = wrong_values(named(a, b, c, out), beta)
    if wrong:
        raise refused(a, b, wrong)


def _check_numbers(a: Any, b: Any, alpha: Any, beta: Any) -> None:
    """Raise UnsupportedError if alpha or beta is not a real number, which a kernel refuses in its own words."""
    if isinstance(alpha, int | float) and isinstance(beta, int | float):
        return
    from cutegemm.run.checks import refused, wrong_numbers

    wrong = wrong_numbers({"alpha": alpha, "beta": beta})
    if wrong:
        raise refused(a, b, wrong)


def _through_torch(a: Any, b: Any, c: Any, alpha: float, beta: float, out: Any, out_dtype: Any, how: How) -> Any:
    """For arrays of other frameworks: as torch tensors over the same memory.

    how   the other arguments of `gemm`
    """
    from cutegemm.run.checks import WITHOUT_A_GPU, refused, without_addresses
    from cutegemm.run.prepare import named

    try:
        from cutegemm.run import torch_ops
    except ImportError as error:
        raise UnsupportedError(
            f"gemm: torch is needed to launch a kernel. {how_to_install('torch')} {WITHOUT_A_GPU}"
        ) from error
    given = torch_ops.tensors_of(named(a, b, c, out, needed=("a", "b")))
    wrong = without_addresses(given)
    if wrong and are_stood_for(given):
        return through_torch(arguments(a, b, c, alpha, beta, out, out_dtype, how))
    if wrong:
        raise refused(given["a"], given["b"], wrong)
    result = gemm(
        given["a"], given["b"], c=given.get("c"), alpha=alpha, beta=beta, out=given.get("out"),
        out_dtype=out_dtype, **vars(how),
    )  # fmt: skip
    if out is None:
        return torch_ops.like(a, result)
    torch_ops.like(out, result)  # the stream of its framework waits for the kernel
    return out


def _with_copies(
    names: Sequence[str],
    a: Any,
    b: Any,
    c: Any,
    alpha: float,
    beta: float,
    out: Any,
    out_dtype: Any,
    how: How,
) -> Any:
    warnings.warn(
        f"gemm of {shapes_of(a, b)}: a contiguous copy of {' and '.join(names)} is made, where neither of the "
        "last two dimensions has a stride of 1. Pass a contiguous tensor, or a transposed one.",
        CopyWarning,
        stacklevel=3,
    )
    a, b, c = (v.contiguous() if name in names else v for name, v in (("a", a), ("b", b), ("c", c)))
    given = out.new_empty(out.shape) if "out" in names else out
    result = gemm(a, b, c=c, alpha=alpha, beta=beta, out=given, out_dtype=out_dtype, **vars(how))
    return out.copy_(result) if "out" in names else result


def layer(x: Any, w: Any, bias: Any = None, epilogue: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """What computes a layer's x @ w.T, and an epilogue of it and of its bias: (x, w, bias) -> d.

    It serves tensors of the types, shapes, strides, alignment and device of these, whose rows vary from call to call.

    x, w       M x K and N x K
    epilogue   None where there is neither a bias nor an activation
    raises     as `gemm` does
    """
    from cutegemm.run.fused import prepared_fused
    from cutegemm.run.prepare import prepare

    how = How(varying_rows=True)
    if epilogue is None:
        trial = partial(_trial, x, w.mT, None, None)
        prepared = prepare(x, w.mT, None, None, None, 0.0, how, None, trial)
        if isinstance(prepared, list):
            return lambda x, w, bias: gemm(x, w.mT, varying_rows=True)  # which says what it copies
        into, new = (plain := _call_of(prepared, x, as_rows=True)).into, plain.new

        def multiplied(x: Any, w: Any, bias: Any) -> Any:
            d = new()
            into(x, w, None, d, 1.0, 0.0)
            return d

        return multiplied
    has_bias = bias is not None
    given = {"bias": bias} if has_bias else {}
    fused_call = prepared_fused(x, w.mT, None, None, how, epilogue, given, True)
    launch, (new,) = fused_call.launch, fused_call.new

    def with_epilogue(x: Any, w: Any, bias: Any) -> Any:
        d = new()
        if launch is not None:
            launch(x, w, (bias,) if has_bias else (), (d,))
        return d

    return with_epilogue


def plan_of(
    a: Any,
    b: Any,
    *,
    c: Any = None,
    out: Any = None,
    plan: GemmPlan | str | None = None,
    accumulate: str = "fast",
    allow_tf32: bool = False,
    out_dtype: Any = None,
    varying_rows: bool = False,
    epilogue: Callable[..., Any] | None = None,
    **operands: Any,
) -> GemmPlan:
    """The plan that `gemm` carries out for these tensors, which are not touched.

    raises   as `gemm` does, and UnsupportedError where nothing is launched or a copy is made first
    """
    how = How(plan, accumulate, allow_tf32, varying_rows)
    prepared: Any
    if epilogue is not None or operands:
        from cutegemm.run.fused import prepared_fused

        outs = out if out is None or isinstance(out, tuple | list) else (out,)
        given = operands if c is None else {"c": c, **operands}
        prepared = prepared_fused(a, b, outs, out_dtype, how, epilogue, given).prepared
    else:
        from cutegemm.run.prepare import prepare

        prepared = prepare(a, b, c, out, out_dtype, 0.0, how)
    if isinstance(prepared, list) or prepared.kernel is None:
        raise UnsupportedError(f"plan_of {shapes_of(a, b)}: no kernel is launched on these tensors as they are.")
    return prepared.kernel.plan
