"""Rows of experts: their order, the copies of tokens to rows, and the sums of rows to tokens, with gradients.

Copy and sum are transposes: the gradient of one is the other. No atomics add, so that results and gradients have the
same bits in each run. CUDA tensors take the kernels of `plan.memory.rows`, others and graphs torch's operations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch.compiler import is_compiling

from cutegemm.compile import exported
from cutegemm.compile.cache import has_dsl
from cutegemm.compile.plans import compile_rows
from cutegemm.dtypes import bf16, f16, f32
from cutegemm.plan.memory.rows import RowKernel, SortRows, SortTokens, SpreadRows, SumRows, TotalRows
from cutegemm.run import torch_ops
from cutegemm.run.calls import ASKING
from cutegemm.run.launches import on_device
from cutegemm.run.torch_ops import DTYPES
from cutegemm.run.views import ALIGN_BYTES

_SUMMED = {torch_ops.memory_of(kind): kind for kind in (f32, f16, bf16)}
_MOST_SORTED = 1 << 20  # entries of an index that a cluster sorts
_LEAST_SHARED, _CTAS = 1 << 13, 8  # an index of at least this many entries is sorted by a cluster of 8 CTAs
_LEAST_WARPS = 8  # least warps of a CTA that sorts
_MOST_ROWS = 32  # rows of a token that a thread holds at once


def has_kernels(x: torch.Tensor) -> bool:
    """Return whether kernels may take a tensor: it is on a GPU, or stands for one, and no graph is traced."""
    return (x.is_cuda or ASKING.device is not None) and not is_compiling()


class Launcher:
    """Launches a kernel of rows on a device. The kernel is compiled at the first launch.

    kernel   the kernel
    device   index of the device
    """

    __slots__ = ("device", "function", "kernel")

    def __init__(self, kernel: RowKernel, device: int) -> None:
        self.kernel, self.device = kernel, device
        self.function: Callable[..., None] | None = None

    @property
    def arch(self) -> str:
        """Return the architecture that the kernel is compiled for."""
        return torch_ops.device_arch(self.device) if ASKING.device is None else ASKING.device.arch

    def can_launch(self) -> bool:
        """Return whether there is a kernel: it was launched before, the CuTe DSL compiles it, or a library has it."""
        return self.function is not None or has_dsl() or exported.loaded(self.kernel, self.arch) is not None

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Launch the kernel. Its arguments are those of `kernels.rows.host_function`."""
        if ASKING.kernels is not None and ASKING.notes(self.kernel, self.arch):
            return
        if self.function is None:
            self.function = compiled(self.kernel, self.arch)
        self.function(*tensors)


def compiled(kernel: RowKernel, arch: str) -> Callable[..., None]:
    """Return the function of a kernel for an architecture: from a loaded library, or compiled."""
    return on_device(exported.loaded(kernel, arch) or compile_rows(kernel, arch)[1])


# --- order --------------------------------------------------------------------------------------------------------


def placed(index: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which row of a grouped GEMM each entry of an index has, and where the rows of each expert end.

    The rows of an expert are in the order of the tokens. The host does not wait.

    index     (T, k) integers: the experts of each token. Entries from `experts` on come last,
              for no expert; negative ones count as 0
    experts   number of experts L
    returns   (T * k,) int32, a permutation; and (L,) int32 ends, as `grouped_mm` takes them

    >>> placed(torch.tensor([[2, 0], [0, 2]]), 3)
    (tensor([2, 0, 1, 3], dtype=torch.int32), tensor([2, 2, 4], dtype=torch.int32))
    """
    found = _launched_sort(index, experts, None)
    return placed_by_torch(index, experts) if found is None else (found[0], found[1])


def placed_tokens(
    index: torch.Tensor, experts: int, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the results of `placed`, and the token and the weight of each row.

    weights   (T, k): the weight of each entry of the index
    returns   place and ends; tokens (T * k,) int32; weights (T * k, 1)

    >>> weights = torch.tensor([[0.5, 1.0], [2.0, 4.0]])
    >>> _, _, tokens, found = placed_tokens(torch.tensor([[2, 0], [0, 2]]), 3, weights)
    >>> tokens.tolist(), found.flatten().tolist()
    ([0, 1, 0, 1], [1.0, 2.0, 0.5, 4.0])
    """
    found = _launched_sort(index, experts, weights.resolve_neg())
    if found is not None:
        place, ends, tokens, weight = found
        return place, ends, tokens, weight.view(-1, 1)
    place, ends = placed(index, experts)
    order = inverse(place)
    return place, ends, (order // weights.shape[1]).int(), weights.reshape(-1, 1)[order]


def _launched_sort(index: torch.Tensor, experts: int, weights: torch.Tensor | None) -> list[torch.Tensor] | None:
    """Sort an index by a kernel: return place and ends, and the tokens and weights of rows if there are weights.

    None if no kernel can sort it.
    """
    count = index.numel()
    if not has_kernels(index) or not 0 < count <= _MOST_SORTED:
        return None
    if index.dtype not in (torch.int32, torch.int64):
        index = index.long()
    ctas = 1 if count < _LEAST_SHARED else _CTAS
    kind = None if weights is None else (index.shape[1], weights.dtype)
    sort = _sorter(experts, 8 * index.element_size(), ctas, kind, index.get_device())
    if sort is None or not sort.can_launch():
        return None
    # Other operations read the rows as an index, also if no kernel has written them
    allocate = index.new_empty if ASKING.kernels is None else index.new_zeros
    results = [allocate(extent, dtype=torch.int32) for extent in (count, experts)]
    if weights is None:
        sort(index.reshape(-1), *results)
        return results
    tokens, weight = allocate(count, dtype=torch.int32), weights.new_empty(count)
    sort(index.reshape(-1), *results, tokens, weights, weight)
    return [*results, tokens, weight]


def placed_by_torch(index: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the results of `placed` by torch's operations."""
    values, order = index.flatten().long().clamp(0, experts).int().sort(stable=True)
    numbers = torch.arange(experts, device=index.device, dtype=torch.int32)
    return inverse(order).int(), torch.searchsorted(values, numbers, right=True, out_int32=True)


def inverse(permutation: torch.Tensor) -> torch.Tensor:
    """Return the inverse of a permutation, as int64.

    >>> inverse(torch.tensor([2, 0, 1]))
    tensor([1, 2, 0])
    """
    permutation = permutation.long()
    numbers = torch.arange(permutation.shape[0], device=permutation.device)
    return torch.empty_like(permutation).scatter_(0, permutation, numbers)


# --- copies and sums ----------------------------------------------------------------------------------------------


def spread(
    x: torch.Tensor, place: torch.Tensor, k: int, weights: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Copy the row of each token to the k rows of its experts, and the weights of the token with it.

    Row t of x becomes the rows place[t * k] to place[t * k + k - 1] of the result.

    x         (T, K): a row for each token
    place     (T * k,), as `placed` returns it
    k         number of experts of a token
    weights   (T, k), or None for none
    returns   (T * k, K), whose pitch may be padded to 16 bytes; and the weight of each row, (T * k, 1), or None

    >>> spread(torch.tensor([[1.0], [2.0]]), torch.tensor([1, 2, 3, 0]), 2)[0].flatten()
    tensor([2., 1., 1., 2.])
    """
    if not has_kernels(x) or not x.numel() or k > _MOST_ROWS:
        return _spread_by_torch(x, place, k, weights)
    (tokens, columns), size = x.shape, x.element_size()
    if x.stride(1) != 1 or x.is_neg():
        x = x.resolve_neg().contiguous()
    of_weights = None if weights is None else weights.dtype
    copy = _spreader(x.dtype, columns, x.stride(0), x.data_ptr() % ALIGN_BYTES, k, of_weights, x.get_device())
    if not copy.can_launch():
        return _spread_by_torch(x, place, k, weights)
    unit = max(1, ALIGN_BYTES // size)
    pitch = -(-columns // unit) * unit
    rows = x.new_empty((tokens * k, pitch))
    if pitch != columns:
        rows = rows[:, :columns]
    if weights is None:
        copy(x, place, rows)
        return rows, None
    weight = weights.new_empty((tokens * k, 1))
    copy(x, place, rows, weights.resolve_neg(), weight.view(-1))
    return rows, weight


def summed(y: torch.Tensor, place: torch.Tensor, k: int) -> torch.Tensor:
    """Return for each token the sum of its k rows, added in the order of its experts in the index of the router.

    y         (T * k, N): a row for each token and expert
    place     (T * k,), as `placed` returns it
    k         number of experts of a token
    returns   (T, N)

    >>> summed(torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([1, 2, 3, 0]), 2).flatten()
    tensor([5., 5.])
    """
    is_served = y.dtype in _SUMMED and k <= _MOST_ROWS and y.numel() and y.stride(1) == 1
    if not is_served or not has_kernels(y):
        return summed_by_torch(y, place, k)
    add = _adder(y.dtype, y.shape[1], y.stride(0), y.data_ptr() % ALIGN_BYTES, k, y.get_device())
    if not add.can_launch():
        return summed_by_torch(y, place, k)
    sums = y.new_empty((y.shape[0] // k, y.shape[1]))
    add(y, place, sums)
    return sums


def totals(terms: torch.Tensor, place: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the sum of the elements of each row, in the order of the router's index.

    terms     (T * k, H): a row for each token and expert
    place     (T * k,), as `placed` returns it
    weights   (T, k): the result has this shape and type

    >>> totals(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1, 0]), torch.zeros(1, 2))
    tensor([[7., 3.]])
    """
    is_served = terms.dtype in _SUMMED and weights.dtype in _SUMMED and terms.numel() and terms.stride(1) == 1
    if not is_served or not has_kernels(terms):
        return _totals_by_torch(terms, place, weights)
    columns, pitch, rest = terms.shape[1], terms.stride(0), terms.data_ptr() % ALIGN_BYTES
    add = _totaller(terms.dtype, columns, pitch, rest, weights.dtype, terms.get_device())
    if not add.can_launch():
        return _totals_by_torch(terms, place, weights)
    sums = weights.new_empty(weights.shape)
    add(terms, place, sums.view(-1))
    return sums


def gathered(x: torch.Tensor, order: torch.Tensor, k: int) -> torch.Tensor:
    """Return the rows of tokens by expert, by torch's operations: row i is row order[i] // k of x."""
    return x[order // k]


def _spread_by_torch(
    x: torch.Tensor, place: torch.Tensor, k: int, weights: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the results of `spread` by torch's operations."""
    order = inverse(place)
    return gathered(x, order, k), None if weights is None else weights.reshape(-1, 1)[order]


def _totals_by_torch(terms: torch.Tensor, place: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the result of `totals` by torch's operations."""
    found = terms.sum(-1, dtype=torch.promote_types(terms.dtype, torch.float32))
    return found[place].view(weights.shape).to(weights.dtype)


def summed_by_torch(y: torch.Tensor, place: torch.Tensor, k: int) -> torch.Tensor:
    """Return the result of `summed` by torch's operations."""
    return y[place].view(place.shape[0] // k, k, y.shape[1]).sum(1, dtype=y.dtype)  # autocast would widen it


@lru_cache(maxsize=1024)
def _sorter(
    experts: int, bits: int, ctas: int, weights: tuple[int, torch.dtype] | None, device: int
) -> Launcher | None:
    """Return the launcher that sorts an index; None if the counters do not fit to shared memory.

    weights   number of entries of a token, and type of the weights of entries; None without weights
    """
    kernel = SortRows(experts, bits, ctas)
    if weights is not None:
        kernel = SortTokens(experts, bits, ctas, count=weights[0], weight=DTYPES[weights[1]])
    return Launcher(kernel, device) if kernel.warps >= _LEAST_WARPS else None


@lru_cache(maxsize=4096)
def _spreader(
    dtype: torch.dtype, columns: int, pitch: int, rest: int, k: int, of_weights: torch.dtype | None, device: int
) -> Launcher:
    """Return the launcher that copies rows.

    rest         address of the tokens modulo 16
    of_weights   type of the weights; None for none
    """
    kind = DTYPES[dtype]
    weight = None if of_weights is None else DTYPES[of_weights]
    return Launcher(SpreadRows(kind, _vector(kind.bits // 8, columns, pitch, rest), k, weight), device)


@lru_cache(maxsize=4096)
def _adder(dtype: torch.dtype, columns: int, pitch: int, rest: int, k: int, device: int) -> Launcher:
    """Return the launcher that adds rows; `rest` is their address modulo 16."""
    kind = _SUMMED[dtype]
    return Launcher(SumRows(kind, _vector(kind.bits // 8, columns, pitch, rest), k), device)


@lru_cache(maxsize=4096)
def _totaller(dtype: torch.dtype, columns: int, pitch: int, rest: int, of_total: torch.dtype, device: int) -> Launcher:
    """Return the launcher that adds the elements of rows; `rest` is their address modulo 16."""
    kind = _SUMMED[dtype]
    return Launcher(TotalRows(kind, _vector(kind.bits // 8, columns, pitch, rest), _SUMMED[of_total]), device)


def _vector(size: int, columns: int, pitch: int, rest: int) -> int:
    """Return how many elements an access has, at most 16 bytes.

    size   bytes of an element

    >>> _vector(2, 64, 64, 0), _vector(2, 12, 24, 0), _vector(2, 64, 64, 2), _vector(4, 3, 4, 0)
    (8, 4, 1, 1)
    """
    bits = ALIGN_BYTES | columns * size | pitch * size | rest
    return max(1, (bits & -bits) // size)


# --- gradients ----------------------------------------------------------------------------------------------------


def copy_rows(x: torch.Tensor, order: torch.Tensor, place: torch.Tensor, k: int) -> torch.Tensor:
    """Return the rows of tokens by expert: row i is row order[i] // k of x. torch records and transforms it.

    place   the inverse of the permutation `order`
    """
    function = Gathered if is_compiling() else _TransformedGathered  # Dynamo traces no function that has a jvp
    rows: torch.Tensor = function.apply(x, order, place, k)
    return rows


def add_rows(y: torch.Tensor, order: torch.Tensor, place: torch.Tensor, k: int) -> torch.Tensor:
    """Return the sum of the k rows of each token: the transpose of `copy_rows`, with its arguments."""
    function = Summed if is_compiling() else _TransformedSummed
    sums: torch.Tensor = function.apply(y, order, place, k)
    return sums


class _Rows(torch.autograd.Function):  # type: ignore[misc]
    """Base class of `Gathered` and `Summed`. It saves their arguments order, place and k for derivatives."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        _, order, place, ctx.k = inputs
        ctx.save_for_backward(order, place)


class Gathered(_Rows):
    """The autograd function of `copy_rows` in graphs of torch.compile."""

    @staticmethod
    def forward(x: torch.Tensor, order: torch.Tensor, place: torch.Tensor, k: int) -> torch.Tensor:
        return gathered(x, order, k)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[Any, ...]:
        order, place = ctx.saved_tensors
        return add_rows(g, order, place, ctx.k), None, None, None


class Summed(_Rows):
    """The autograd function of `add_rows` in graphs of torch.compile."""

    @staticmethod
    def forward(y: torch.Tensor, order: torch.Tensor, place: torch.Tensor, k: int) -> torch.Tensor:
        return summed_by_torch(y, place, k)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[Any, ...]:
        order, place = ctx.saved_tensors
        return copy_rows(g, order, place, ctx.k), None, None, None


class _Transformed(_Rows):
    """Base class of the autograd functions in eager mode: torch.func and forward differentiation take them too."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        _Rows.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[1:3])


class _TransformedGathered(_Transformed, Gathered):
    """The autograd function of `copy_rows` in eager mode."""

    @staticmethod
    def jvp(ctx: Any, x: torch.Tensor, *_: Any) -> torch.Tensor:
        order, place = ctx.saved_tensors
        return copy_rows(x, order, place, ctx.k)


class _TransformedSummed(_Transformed, Summed):
    """The autograd function of `add_rows` in eager mode."""

    @staticmethod
    def jvp(ctx: Any, y: torch.Tensor, *_: Any) -> torch.Tensor:
        order, place = ctx.saved_tensors
        return add_rows(y, order, place, ctx.k)
