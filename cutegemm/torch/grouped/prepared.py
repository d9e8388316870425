"""A grouped GEMM prepared for one signature: how its tensors are loaded, where results are stored, and its launch.

TMA needs rows whose pitch is a multiple of 16 bytes. It clips a matrix at the end of a group only along a mode that is
not contiguous: see `plan.memory.groups`. Tensor cores need factors of float8 and float32 whose K is contiguous. Other
matrices are copied first. Such results are stored to the memory of their transpose, and copied.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch

from cutegemm.errors import CopyWarning, CutegemmError
from cutegemm.plan.epilogue import Tensor, Tile
from cutegemm.plan.mainloop.block_scaled import BLOCKS, ROWS
from cutegemm.plan.plan import GemmPlan
from cutegemm.run.views import ALIGN_BYTES, MODES, View
from cutegemm.torch.epilogue import Formula
from cutegemm.torch.grouped.forms import Form, operand_of
from cutegemm.torch.launch import caller_level
from cutegemm.torch.reference import interleave

Loader: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Call:
    """A prepared grouped GEMM, for all calls of one signature: a function of a, b, ends, operands and block scales.

    plan       the plan
    wanted     the plan of the caller, its name, or None; the signature has its address
    function   the compiled kernel: (a, b, tensors in the order of the plan's signature, numbers)
    order      index in (a, b, ends, operands, scales, indices of rows, what is stored) of each tensor that the kernel
               takes
    loaders    for each of a, b, ends, operands, scales and indices a function to what the kernel takes; None: itself
    memories   memory of each result
    """

    plan: GemmPlan
    wanted: GemmPlan | str | None
    function: Callable[..., None]
    order: tuple[int, ...]
    loaders: tuple[Loader | None, ...]
    memories: tuple[Memory, ...]

    def __call__(self, *tensors: torch.Tensor, scalars: Sequence[float] = ()) -> list[torch.Tensor]:
        """Launch the kernel, and return the results.

        scalars   numbers of the epilogue
        """
        passed = loaded(self.loaders, tensors)
        return self.launch(passed, [memory.allocate(tensors[0]) for memory in self.memories], scalars)

    def launch(
        self, passed: list[torch.Tensor], allocated: Sequence[torch.Tensor], scalars: Sequence[float]
    ) -> list[torch.Tensor]:
        """Launch the kernel on tensors as it takes them, and return the results.

        passed      a, b, ends, operands, scales, and indices of rows if there are any
        allocated   memory of each result
        """
        for memory, whole in zip(self.memories, allocated, strict=True):
            passed += memory.stored(whole)
        try:
            self.function(*[passed[index] for index in self.order], *scalars)
        except (TypeError, ValueError, RuntimeError) as error:
            raise CutegemmError(
                f"grouped_mm of {tuple(passed[0].shape)} by {tuple(passed[1].shape)}, {self.plan.name}: {error}"
            ) from error
        return [memory.finished(whole) for memory, whole in zip(self.memories, allocated, strict=True)]


def loaded(loaders: Sequence[Loader | None], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return what a kernel takes of each tensor."""
    return [x if load is None else load(x) for load, x in zip(loaders, tensors, strict=True)]


# --- results --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a result, for all calls of one signature.

    allocate   function of the tensor a, on whose device it allocates the memory
    parts      function from the memory to what the kernel stores; None: the memory itself
    result     function from the memory to the result; None: the memory itself
    """

    allocate: Loader
    parts: Callable[[torch.Tensor], Sequence[torch.Tensor]] | None = None
    result: Loader | None = None

    @staticmethod
    def of(shape: Sequence[int], dtype: torch.dtype, form: Form, zeroed: bool, interleaved: bool | None) -> Memory:
        """Return the memory of a result.

        shape         shape of the result
        zeroed        whether it is filled with 0
        interleaved   whether gate and up, stored separately, are adjacent columns of the result. Otherwise they are its
                      halves. None if the kernel stores the result as one
        """
        *front, columns = shape
        if interleaved is None:
            is_plain = form.groups != "n" and columns * dtype.itemsize % ALIGN_BYTES == 0
            return Memory(
                allocator(shape, dtype, form, zeroed),
                (lambda memory: (memory.view(-1, columns),)) if form.is_padded else None,
                None if is_plain else torch.Tensor.contiguous,
            )
        half = columns // 2
        if not interleaved and half * dtype.itemsize % ALIGN_BYTES == 0:
            return Memory(allocator(shape, dtype, form, zeroed), lambda memory: _rows(memory, form).split(half, -1))
        return Memory(
            allocator((2, *front, half), dtype, form, zeroed),
            lambda memory: [_rows(part, form) for part in memory.unbind()],
            lambda memory: _joined(memory[0], memory[1], interleaved),
        )

    def stored(self, memory: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return what the kernel stores: the result, or its gate and its up columns."""
        return (memory,) if self.parts is None else self.parts(memory)

    def finished(self, memory: torch.Tensor) -> torch.Tensor:
        """Return the result after the kernel has stored it."""
        return memory if self.result is None else self.result(memory)


def allocator(shape: Sequence[int], dtype: torch.dtype, form: Form, zeroed: bool) -> Loader:
    """Return a function that allocates a result on the device of a tensor.

    TMA can store the memory, and clip it at the end of a group.

    shape    shape of the result
    zeroed   whether it is filled with 0
    """
    unit, is_transposed = max(1, ALIGN_BYTES // dtype.itemsize), form.groups == "n"
    *front, last = (*shape[:-2], shape[-1], shape[-2]) if is_transposed else shape
    whole = (*front, -(-last // unit) * unit)

    def allocate(a: torch.Tensor) -> torch.Tensor:
        memory = a.new_zeros(whole, dtype=dtype) if zeroed else a.new_empty(whole, dtype=dtype)
        if whole[-1] != last:
            memory = memory[..., :last]
        return memory.mT if is_transposed else memory

    return allocate


def _rows(x: torch.Tensor, form: Form) -> torch.Tensor:
    """Return the matrices of a padded form as one matrix, and others as they are."""
    return x.view(-1, x.shape[-1]) if form.is_padded else x


def joined_results(results: list[torch.Tensor], interleaved: bool | None) -> list[torch.Tensor]:
    """Return results with the first two as adjacent columns (True) or as halves (False) of one; None: as they are."""
    if interleaved is None:
        return results
    gate, up, *others = results
    return [_joined(gate, up, interleaved), *others]


def _joined(gate: torch.Tensor, up: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Return gate and up as adjacent columns of one tensor if `interleaved`, else as its halves."""
    return interleave(gate, up) if interleaved else torch.cat([gate, up], -1)


# --- factors and operands -------------------------------------------------------------------------------------------


def loaders_of(
    a: torch.Tensor,
    b: torch.Tensor,
    operands: Sequence[torch.Tensor],
    scales: Sequence[torch.Tensor],
    form: Form,
    read: Formula,
    indices: int,
) -> tuple[Loader | None, ...]:
    """Return the loaders of a `Call` with that many indices of rows."""
    flat = _flattened if form.is_padded else None
    is_halved = read.columns_of_d(2) == 1
    of_a, of_b = _factor_loader("a", a if flat is None else flat(a), form), _factor_loader("b", b, form, is_halved)
    if flat is not None:
        rest, of_a = of_a, flat if of_a is None else lambda x: rest(flat(x))  # type: ignore[misc]
    found: list[Loader | None] = [of_a, of_b, _as_column]
    for name, x in zip(read.names, operands, strict=False):
        kind, seen = loadable_operand(read, name, x, form)
        is_view = seen.data_ptr() == x.data_ptr()
        found.append(_view_loader(x, seen) if is_view else _operand_loader(read, name, form, kind is Tile))
    for scale, granularity in zip(scales, granularity_of(form, scales), strict=True):
        is_loadable = loadable_scales(scale, granularity) is scale
        found.append(None if is_loadable else partial(loadable_scales, granularity=granularity))
    return (*found, *[_as_column] * indices)


def _as_column(x: torch.Tensor) -> torch.Tensor:
    """Return a vector as a matrix of one column."""
    return x.contiguous().unsqueeze(-1)


def _view_loader(x: torch.Tensor, view: torch.Tensor) -> Loader | None:
    """Return a function from a tensor like x to a view with the shape and strides of `view`; None if x has them."""
    shape, strides = view.shape, view.stride()
    return None if (shape, strides) == (x.shape, x.stride()) else lambda x: x.as_strided(shape, strides)


def _operand_loader(read: Formula, name: str, form: Form, is_tile: bool) -> Loader:
    """Return a function that copies an operand of the epilogue to what a kernel takes.

    is_tile   whether it has the shape of D, so that the copy needs a warning
    """

    def copied(x: torch.Tensor) -> torch.Tensor:
        if is_tile:
            along = {"m": " along N", "n": " along M"}.get(form.groups, "")
            warnings.warn(
                f"grouped_mm: a copy of {name}, of shape {tuple(x.shape)} and strides {x.stride()}, is made in each "
                f"call. It must be contiguous{along}.",
                CopyWarning,
                stacklevel=caller_level(),
            )
        return loadable_operand(read, name, x, form)[1]

    return copied


def loadable_operand(read: Formula, name: str, x: torch.Tensor, form: Form) -> tuple[type[Tensor], torch.Tensor]:
    """Return the results of `operand_of`, with a tensor of the shape of D as a kernel can load it: a view, or a copy.

    It is contiguous along the mode of D that groups do not divide.
    """
    kind, seen = operand_of(read, name, x, form)
    if kind is not Tile:
        return kind, seen
    major = {"m": 1, "n": 0}.get(form.groups)
    view = View.of("c", seen, seen.dim() == 3, major)
    if view.major is None or major not in (None, view.major):
        return kind, padded(seen, 1 if major is None else major)
    return kind, seen if view.strides is None else seen.as_strided(seen.shape, view.strides)


def _flattened(a: torch.Tensor) -> torch.Tensor:
    """Return the rows of a batch as one matrix: a view, or a copy with a warning."""
    flat = a.flatten(0, 1)
    if flat.data_ptr() != a.data_ptr():
        warnings.warn(
            f"grouped_mm: a copy of a, of shape {tuple(a.shape)} and strides {a.stride()}, is made in each call. Its "
            "matrices must follow each other without gaps.",
            CopyWarning,
            stacklevel=caller_level(),
        )
    return flat


def _factor_loader(name: str, x: torch.Tensor, form: Form, is_halved: bool = False) -> Loader | None:
    """Return a function from a factor to what a grouped kernel can load; None if it can load the factor itself.

    It returns a copy, with a warning, if other strides are needed.

    name        "a" or "b"
    is_halved   whether an epilogue takes the halves of its columns as gate and up

    >>> form = Form("k", 2, 64, 64, 128)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     _factor_loader("a", torch.zeros(64, 128), form)(torch.zeros(64, 128)).stride()
    (1, 64)
    """
    view, of_k = View.of(name, x, x.dim() == 3), MODES[name].find("k")
    majors: tuple[int, ...]
    if form.groups == "k":
        majors, which = (1 - of_k,), ", and not be contiguous along K, which groups divide"
    elif form.groups in MODES[name]:
        majors, which = (of_k,), f", and be contiguous along K, not {form.groups.upper()}, which groups divide"
    elif x.element_size() != 2:
        majors, which = (of_k,), f", and be contiguous along K, as tensor cores need {x.dtype}"
    elif is_halved and form.n // 2 * x.element_size() % ALIGN_BYTES:
        majors, which = (of_k,), ", and be contiguous along K, as half of its columns are not such a multiple"
    else:
        majors, which = (0, 1), ""
    if view.major in majors and view.boxed >= ALIGN_BYTES:
        return None if view.strides is None else _view_loader(x, x.as_strided(x.shape, view.strides))
    major = majors[0] if view.major == majors[0] else majors[-1]

    def copied(x: torch.Tensor) -> torch.Tensor:
        warnings.warn(
            f"grouped_mm: a copy of {name}, of shape {tuple(x.shape)} and strides {x.stride()}, is made in each call. "
            f"Its rows or columns must be contiguous with a pitch of a multiple of {ALIGN_BYTES} bytes{which}.",
            CopyWarning,
            stacklevel=caller_level(),
        )
        return padded(x, major)

    return copied


def padded(x: torch.Tensor, major: int) -> torch.Tensor:
    """Return a copy of a matrix or batch whose rows or columns are contiguous and start at multiples of 16 bytes.

    major   1 for contiguous rows, 0 for contiguous columns

    >>> padded(torch.zeros(3, 5, dtype=torch.bfloat16), 1).stride()
    (8, 1)
    """
    if major == 0:
        return padded(x.mT, 1).mT
    unit = max(1, ALIGN_BYTES // x.element_size())
    *front, last = x.shape
    return x.new_empty((*front, -(-last // unit) * unit))[..., :last].copy_(x)


def granularity_of(form: Form, scales: Sequence[torch.Tensor]) -> tuple[str, ...]:
    """Return whether each block scale of a and of b belongs to a row or to a block: "1x128" or "128x128"; () for none.

    scales   as for `compute_grouped`
    """
    return (ROWS, ROWS if scales[1].shape[-2] == form.n else BLOCKS) if scales else ()


def loadable_scales(scales: torch.Tensor, granularity: str) -> torch.Tensor:
    """Return block scales as a kernel loads them: contiguous along K, or along the rows with a pitch of 16 bytes.

    scales        (rows or blocks of rows, K/128), with L in front or not
    granularity   "1x128" or "128x128"
    """
    if granularity == BLOCKS:
        return scales.contiguous()
    view = View(tuple(scales.shape), tuple(scales.stride()), 4, scales.data_ptr(), scales.dim() == 3, wanted=0)
    if view.major == 0 and view.boxed >= ALIGN_BYTES and view.strides is None:
        return scales
    return padded(scales, 0)
