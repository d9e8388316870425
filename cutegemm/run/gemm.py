"""`gemm(a, b)`: check the arguments, choose a plan, compile it if needed, and launch it.

The first call of a signature (types, shapes, strides, alignments and device of the arguments) prepares everything that
follows from the signature: see `prepare`. Later calls look it up, allocate the result, check that a given `out` does
not overlap an argument, and launch. A tensor whose storage was freed has the address 0. Its signature has 0.5 instead,
which no tensor with memory has, so that a kernel is never launched on it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cutegemm.errors import CopyWarning, CutegemmError, PendingError, UnsupportedError
from cutegemm.run import recall
from cutegemm.run.calls import ENTERED, Calls, How, is_batch_invariant, shapes_of
from cutegemm.run.graph import arguments, belong_to_transformation, by_torch, through_torch, torch_sees
from cutegemm.run.launches import new_like, of_transpose, on_device

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.run.prepare import Prepared

# Modules that only the first call of a signature needs are imported there, so that a process whose kernels are recorded
# on the disk starts fast.

_calls = Calls()


class _Call:
    """A prepared `gemm` call without an epilogue, used again by all calls of one signature: allocate, check and launch.

    A signature consists of the types, shapes, strides, alignments and device of all tensors, and of the options.

    new       function without arguments that allocates the result
    into      function of (a, b, c or None, result, alpha, beta) that launches the kernel
    kernel    text that describes the kernel in error messages
    check     function of (a, b, c, out) that raises UnsupportedError if `out` overlaps one of the other tensors
    written   function that tells autograd that `out` has changed
    plan      the plan that the caller passed. It is kept alive because the signature contains its id
    """

    __slots__ = ("check", "into", "kernel", "new", "plan", "written")

    def __init__(self, into: Callable[..., None], new: Callable[[], Any], kernel: str) -> None:
        from torch.autograd.graph import increment_version

        self.into, self.new, self.kernel, self.written = into, new, kernel, increment_version
        self.check: Any = None
        self.plan: Any = None


def _call_of(prepared: Prepared, a: Any, as_rows: bool = False) -> _Call:
    """Return the `_Call` that stores a prepared kernel with functions to allocate a result, launch it and check `out`.

    Later calls of the same signature (types, shapes, strides and options) use this object again.

    prepared   the compiled kernel, and the memory layouts of its tensors
    a          the first factor, on whose device results are allocated
    as_rows    True if the launch takes the transpose of b, N x K, as a layer stores its weight
    """
    from cutegemm.run.checks import check_out

    strides = [view.strides for view in prepared.views]
    if prepared.kernel is None:

        def into(*arguments: Any) -> None:
            """Do nothing: D is empty."""

    else:
        into = _into(prepared.function, prepared.kernel.plan.has_c, strides, as_rows)
    call = _Call(into, new_like(a, prepared.shape, prepared.dtype), repr(prepared.kernel))
    call.check = partial(check_out, prepared.views)
    return call


def _into(
    function: Callable[..., None], reads_c: bool, strides: Sequence[Any], as_rows: bool = False
) -> Callable[..., None]:
    """Return the function that launches a kernel: (a, b, c or None, out, alpha, beta) -> None.

    function   function of the compiled kernel
    reads_c    True if the kernel takes c and beta; if c is None, it gets `out` in place of c, and does not read it
    strides    for a, b, c and out: None, or strides with which the tensor is passed instead of its own. The kernel's
               checks reject some strides that have no effect, such as that of a mode of extent 1
    as_rows    True if the launch takes the transpose of b, N x K, as a layer stores its weight
    """

    def with_c(a: Any, b: Any, c: Any, out: Any, alpha: float, beta: float) -> None:
        """Launch a kernel that takes c and beta; if c is None, the kernel gets `out` in its place.

        a, b, out     tensors of the call
        alpha, beta   factors of a @ b and of c
        """
        function(a, b.mT if as_rows else b, out if c is None else c, out, alpha, beta)

    def without_c(a: Any, b: Any, c: Any, out: Any, alpha: float, beta: float) -> None:
        """Launch a kernel that does not take c and beta; these two arguments are ignored.

        a, b, out   tensors of the call
        alpha       factor of a @ b
        """
        function(a, b.mT if as_rows else b, out, alpha)

    launch = with_c if reads_c else without_c
    if not any(strides):
        return on_device(launch)
    a_strides, b_strides, c_strides, out_strides = strides
    all_strides = a_strides, of_transpose(b_strides) if as_rows else b_strides, c_strides, out_strides

    def with_strides(a: Any, b: Any, c: Any, out: Any, alpha: float, beta: float) -> None:
        """Launch the kernel on views of the tensors with the strides that it needs.

        a, b, c, out   tensors of the call; c may be None
        alpha, beta    factors of a @ b and of c
        """
        from torch.cuda import device

        tensors = (a, b, out if c is None else c, out)
        a, b, c, out = [
            x if needed is None else x.as_strided(x.shape, needed)
            for x, needed in zip(tensors, all_strides, strict=True)
        ]
        with device(a.get_device()):
            launch(a, b, c, out, alpha, beta)

    return with_strides


def _trial(a: Any, b: Any, c: Any, out: Any, prepared: Prepared) -> Callable[[], None]:
    """Return a function without arguments that launches a prepared kernel, so that the tuner can time it.

    It stores to a new tensor; the caller's tensors are not written.

    a, b, c    tensors that the kernel reads; c may be None
    out        the caller's tensor for the result, whose strides a new tensor gets; None if `gemm` allocates it
    prepared   the compiled kernel
    """
    call = _call_of(prepared, a)
    d = call.new() if out is None else out.new_empty_strided(out.shape, out.stride())
    return lambda: call.into(a, b, c, d, 1.0, 0.0)


def _first_fused(*arguments: Any) -> Any:
    """Compute the first call of `gemm` with an epilogue: import the function `fused`, and replace this one by it.

    So the import takes no time in programs that have no epilogue.
    """
    global _fused
    from cutegemm.run.fused import fused

    _fused = fused
    return fused(*arguments)


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
    batch_invariant: bool | None = None,
    scales: Any = None,
    epilogue: Callable[..., Any] | None = None,
    **operands: Any,
) -> Any:
    """Return D = alpha * a @ b + beta * c, or an epilogue of a @ b, computed on a CUDA device.

    a, b              M x K and K x N, or L x M x K and L x K x N: torch tensors or arrays with DLPack, of one type:
                      float16, bfloat16, float32 or float64; on Hopper also int8 and float8; on Ada float8 that is
                      K-major. On Hopper, one may be float8_e4m3fn and the other float8_e5m2. They may have any
                      strides. If neither of the last two is 1, the tensor is copied, with a `CopyWarning`
    c                 M x N or L x M x N, of the type of the result. With float8, its type may be any type that a
                      result can have. It is needed if beta is not 0
    alpha, beta       numbers; None is 1 and 0. As in BLAS, a matrix that is multiplied by 0 is not read, so that NaN
                      in it has no effect. With an epilogue, c, alpha and beta are operands of the epilogue with these
                      names
    out               tensor for the result, M x N or L x M x N; None for a new one. Its type is that of a, or
                      float32, float16, bfloat16 or float8; int32 or float32 if a is int8. It may be c, or an operand
                      of the epilogue with M x N elements. It must not overlap any other tensor that is read. If the
                      epilogue returns several results: a tuple with a tensor or None for each
    plan              a GemmPlan, or a name that `cutegemm plans` lists; None: the plan with the lowest predicted
                      time. "swap_ab:" in front of a name computes D^T = B^T A^T with that plan
    accumulate        accumulation of float8, if the plan is chosen: "fast" is that of wgmma, with about 14 bits.
                      "promoted" adds the accumulators of every 128 elements of K in float32, as torch._scaled_mm does
                      without use_fast_accum
    allow_tf32        True if a chosen plan may multiply float32 as TF32 on tensor cores
    out_dtype         type of the result if `out` is None. If the epilogue returns several results: the type of D and
                      of all auxiliary outputs, or a sequence with a type or None for each result. Auxiliary outputs
                      may have any floating type. Sums and maxima are float32, or float64 if a is float64
    varying_rows      True if later calls will have other numbers of rows of a, as the input of a layer does. At most
                      six plans are then used for all numbers of rows, so that few kernels are compiled
    tune              True to time the best few plans in the first call with these types, shapes and strides, and use
                      the fastest; see `cutegemm.tuning`
    batch_invariant   True to give each row of D the same bits for every number of rows of a; None: True inside of the
                      context `cutegemm.batch_invariant()`. A call that no plan can compute in this way raises an
                      error
    scales            block scales of float8 a and b: a pair of float32 tensors. They multiply the accumulators of
                      every 128 elements of K. The scales of a have the shape M x K/128 or M/128 x K/128, the scales
                      of b K/128 x N or K/128 x N/128, rounded up. Only on Hopper. See docs/block_scaled.md
    epilogue          function of the accumulator and of operands by name, made of functions of `cutegemm.epilogue`:
                      `lambda acc, bias: gelu(acc + bias)`. It is called with symbols in the first call, and again
                      after something that it reads has changed. It is called in every call if it reads something
                      whose changes cannot be noticed, such as an attribute of an object. If it returns several
                      expressions, the first is D and the others are auxiliary outputs, which are stored too.
                      `row_sum(x)` and other reductions may stand after the first expression. They give one number for
                      each row, for each column, or for D. `quantize(x)` as the whole result gives float8 values, and
                      a scale for every 128 columns of a row
    operands          operands of the epilogue by name: numbers, or tensors of any floating type. A tensor has one
                      element, N or 1 x N, M x 1, or M x N elements, with or without L in front
    returns           `out`, or a new row-major array of the framework of a; a tuple if the epilogue returns several
                      expressions
    raises            UnsupportedError with every rule that the arguments break; PlanError if the plan does not fit
                      them; CutegemmError for other failures. All are raised before anything is launched

    The accumulator is float32; float64 for float64, and int32 for int8, where it wraps beyond 32 bits. A value beyond
    the largest float8 is stored as the largest. float32 is multiplied exactly, unless `allow_tf32` or a plan for
    TF32, such as "mma_128x256" or "sm90_epi_stages", is passed.

    The kernel runs on torch's current stream. A CUDA graph can capture a call whose signature was called before.
    Gradients are recorded, unless `out` is passed, and `torch.compile` sees one operator. If a or b cannot be loaded
    fast as it is, a repack pass copies it to a workspace first.

    >>> a, b = torch.randn(4096, 512, device="cuda"), torch.randn(2048, 512, device="cuda").t()  # doctest: +SKIP
    >>> d = gemm(a, b)  # doctest: +SKIP
    >>> d = gemm(a, b, c=d, alpha=0.5, beta=1.0, out=d, plan="simt_256x128")  # doctest: +SKIP
    """
    if batch_invariant is None:
        batch_invariant = bool(ENTERED)
    if scales is not None:
        from cutegemm.run.scales import with_scales

        ending = with_scales(a, b, scales, {"c": c, "alpha": alpha, "beta": beta, "epilogue": epilogue}, operands)
        epilogue, alpha, beta = ending["epilogue"], ending["alpha"], ending["beta"]
    if torch_sees(a, b, c, operands, out):
        how = How(plan, accumulate, allow_tf32, varying_rows, tune, batch_invariant)
        return through_torch(arguments(a, b, c, alpha, beta, out, out_dtype, how, epilogue, operands))
    if epilogue is not None or operands:
        return _fused(
            a, b, c, alpha, beta, out, plan, accumulate, allow_tf32, out_dtype, varying_rows, tune, batch_invariant,
            epilogue, operands,
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
            varying_rows, tune, batch_invariant,
        )  # fmt: skip
        call = _calls.found.get(key)
    except (AttributeError, RuntimeError):
        how = How(plan, accumulate, allow_tf32, varying_rows, tune, batch_invariant)
        return _through_torch(a, b, c, alpha, beta, out, out_dtype, how)
    except TypeError:  # an argument that cannot be hashed, such as a list, is in no signature
        call = None
    if call is None:
        how = How(plan, accumulate, allow_tf32, varying_rows, tune, batch_invariant)
        if out_dtype.__class__ is list:
            kind = tuple(out_dtype)
            return gemm(a, b, c=c, alpha=alpha, beta=beta, out=out, out_dtype=kind, **vars(how))
        if a.is_meta:  # a tensor on the meta device has only a shape
            return through_torch(arguments(a, b, c, alpha, beta, out, out_dtype, how))
        try:
            call_or_copies = _first(key, a, b, c, out, out_dtype, beta, how)
        except PendingError:
            return by_torch(arguments(a, b, c, alpha, beta, out, out_dtype, how))
        if isinstance(call_or_copies, list):
            return _with_copies(call_or_copies, a, b, c, alpha, beta, out, out_dtype, how)
        call = call_or_copies
    if (beta != 0 and c is None) or (out is not None and out.requires_grad):
        _check_values(a, b, c, out, beta)
    if alpha == 0:  # a and b are not read
        a, b = a[..., :0], b[..., :0, :]
        how = How(varying_rows=varying_rows, batch_invariant=batch_invariant)
        return gemm(a, b, c=c, beta=beta, out=out, out_dtype=out_dtype, **vars(how))
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
    """Prepare the first call of a signature, add it to the cache of prepared calls, and return it.

    key               the signature: types, shapes, strides and alignments of the tensors, and the options
    a, b, c, out      tensors of the call; c and out may be None
    out_dtype, beta   arguments of `gemm`
    how               the other options of `gemm`
    returns           the call; or the names of the matrices that must be copied first, since none of their strides is
                      1
    """
    recalled = recall.find(key, a, how) if c is None and out is None else None
    if recalled is not None:
        new = new_like(a, recalled.shape, recalled.dtype)
        call = _Call(_into(recalled.function, recalled.reads_c, recalled.strides), new, recalled.kernel)
    else:
        from cutegemm.run.prepare import prepare

        prepared = prepare(a, b, c, out, out_dtype, beta, how, None, partial(_trial, a, b, c, out))
        if isinstance(prepared, list):
            return prepared
        call = _call_of(prepared, a)
        call.plan = how.plan
        if c is None and out is None:
            recall.keep(key, a, how, prepared)
    _calls.keep(key, call)
    return call


def _check_values(a: Any, b: Any, c: Any, out: Any, beta: float) -> None:
    """Raise UnsupportedError if beta is not 0 without c, or if storing to `out` would lose required gradients.

    a, b, c, out   tensors of the call; c and out may be None
    beta           factor of c
    """
    from cutegemm.run.checks import refused, wrong_values
    from cutegemm.run.prepare import named

    wrong = wrong_values(named(a, b, c, out), beta)
    if wrong:
        raise refused(a, b, wrong)


def _check_numbers(a: Any, b: Any, alpha: Any, beta: Any) -> None:
    """Raise UnsupportedError if alpha or beta is not a real number, with a message that names the argument.

    `gemm` calls this after a launch has failed, because the kernel's own message does not name the argument.

    a, b          the factors; the message contains their shapes
    alpha, beta   values that the user passed
    """
    if isinstance(alpha, int | float) and isinstance(beta, int | float):
        return
    from cutegemm.run.checks import refused, wrong_numbers

    wrong = wrong_numbers({"alpha": alpha, "beta": beta})
    if wrong:
        raise refused(a, b, wrong)


def _through_torch(a: Any, b: Any, c: Any, alpha: float, beta: float, out: Any, out_dtype: Any, how: How) -> Any:
    """Run `gemm` on arrays of another framework, or on tensors of a torch transformation such as vmap.

    Arrays are converted to torch tensors over the same memory, and the result is converted back.

    a, b, c, alpha, beta, out, out_dtype   arguments of `gemm`
    how                                    the other options of `gemm`
    """
    from cutegemm.run.checks import refused, without_addresses, without_torch
    from cutegemm.run.prepare import named

    try:
        from cutegemm.run import torch_ops
    except ImportError as error:
        raise without_torch() from error
    tensors = torch_ops.tensors_of(named(a, b, c, out, needed=("a", "b")))
    wrong = without_addresses(tensors)
    if wrong and belong_to_transformation(tensors):
        return through_torch(arguments(a, b, c, alpha, beta, out, out_dtype, how))
    if wrong:
        raise refused(tensors["a"], tensors["b"], wrong)
    result = gemm(
        tensors["a"], tensors["b"], c=tensors.get("c"), alpha=alpha, beta=beta, out=tensors.get("out"),
        out_dtype=out_dtype, **vars(how),
    )  # fmt: skip
    if out is None:
        return torch_ops.like(a, result)
    torch_ops.like(out, result)  # makes the current stream of out's framework wait for the kernel
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
    """Run `gemm` with contiguous copies of tensors that have no stride of 1, and warn about the copies.

    names                                  which of "a", "b", "c" and "out" are copied
    a, b, c, alpha, beta, out, out_dtype   arguments of `gemm`
    how                                    the other options of `gemm`
    """
    warnings.warn(
        f"gemm of {shapes_of(a, b)}: a contiguous copy of {' and '.join(names)} is made in each call, since neither of "
        "the last two strides is 1. Pass a contiguous tensor, or a transposed view of one.",
        CopyWarning,
        stacklevel=3,
    )
    a, b, c = (v.contiguous() if name in names else v for name, v in (("a", a), ("b", b), ("c", c)))
    contiguous_out = out.new_empty(out.shape) if "out" in names else out
    result = gemm(a, b, c=c, alpha=alpha, beta=beta, out=contiguous_out, out_dtype=out_dtype, **vars(how))
    return out.copy_(result) if "out" in names else result


def layer(
    x: Any,
    w: Any,
    bias: Any = None,
    epilogue: Callable[..., Any] | None = None,
    batch_invariant: bool = False,
) -> Callable[..., Any]:
    """Return a function (x, w, bias) -> d that computes a linear layer: x @ w.T, with an optional epilogue.

    Use it in loops, because it checks and chooses nothing. So it must be called with tensors that have exactly the
    types, shapes, strides, alignments and device of the tensors passed here. Its kernel is one of the few that are
    compiled for a layer and serve all numbers of rows of x.

    x, w              example tensors, M x K and N x K
    bias              example tensor of N elements, or None
    epilogue          function of the accumulator, and of bias if it is not None; None without bias and activation
    batch_invariant   True to give each row the same bits whatever the other rows are
    raises            the errors of `gemm`; PendingError while the kernel is compiled in the background
    """
    from cutegemm.run.fused import prepared_fused
    from cutegemm.run.prepare import prepare

    how = How(varying_rows=True, batch_invariant=batch_invariant)
    if epilogue is None:
        trial = partial(_trial, x, w.mT, None, None)
        prepared = prepare(x, w.mT, None, None, None, 0.0, how, None, trial)
        if isinstance(prepared, list):
            return lambda x, w, bias: gemm(x, w.mT, **vars(how))  # it copies, and warns about it
        into, new = (plain := _call_of(prepared, x, as_rows=True)).into, plain.new

        def without_epilogue(x: Any, w: Any, bias: Any) -> Any:
            """Return x @ w.T."""
            d = new()
            into(x, w, None, d, 1.0, 0.0)
            return d

        return without_epilogue
    has_bias = bias is not None
    operands = {"bias": bias} if has_bias else {}
    fused_call = prepared_fused(x, w.mT, None, None, how, epilogue, operands, True)
    launch, (new,) = fused_call.launch, fused_call.new

    def with_epilogue(x: Any, w: Any, bias: Any) -> Any:
        """Compute the layer for other tensors: the epilogue of x @ w.T and, if there is one, of bias.

        x, w, bias   tensors like those that the layer was prepared for
        """
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
    batch_invariant: bool | None = None,
    scales: Any = None,
    epilogue: Callable[..., Any] | None = None,
    **operands: Any,
) -> GemmPlan:
    """Return the plan that `gemm` would run for these arguments. No kernel is launched, but the plan is compiled.

    Use it to inspect or to simulate the plan. All arguments are explained at `gemm`.

    raises   the errors of `gemm`; UnsupportedError if D is empty, or if `gemm` would copy a matrix first
    """
    from cutegemm.compile.background import waiting

    how = How(plan, accumulate, allow_tf32, varying_rows, batch_invariant=is_batch_invariant(batch_invariant))
    prepared: Any
    if scales is not None:
        from cutegemm.run.scales import with_scales

        named = {"c": c, "alpha": None, "beta": None, "epilogue": epilogue}
        ending = with_scales(a, b, scales, named, operands)
        epilogue = ending["epilogue"]
        operands |= {name: ending[name] for name in ("alpha", "beta") if ending[name] is not None}
    with waiting():
        if epilogue is not None or operands:
            from cutegemm.run.fused import prepared_fused

            outs = out if out is None or isinstance(out, tuple | list) else (out,)
            with_c = operands if c is None else {"c": c, **operands}
            prepared = prepared_fused(a, b, outs, out_dtype, how, epilogue, with_c).prepared
        else:
            from cutegemm.run.prepare import prepare

            prepared = prepare(a, b, c, out, out_dtype, 0.0, how)
    if isinstance(prepared, list):
        raise UnsupportedError(
            f"plan_of {shapes_of(a, b)}: gemm would copy {' and '.join(prepared)} first, since neither of the last two "
            "strides is 1. Pass a contiguous tensor, or a transposed view of one."
        )
    if prepared.kernel is None:
        raise UnsupportedError(f"plan_of {shapes_of(a, b)}: D is empty, so gemm does not launch a kernel.")
    return prepared.kernel.plan
