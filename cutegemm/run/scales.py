"""Block scales of a call of `gemm`: their granularity by their shapes, checks, and the memory that a kernel loads.

A call passes scales of a and of b in the orientation of a and b. They are further arguments of the call, named as the
caller writes them: "scales[0]" and "scales[1]".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cutegemm.plan.mainloop.block_scaled import BLOCK, BLOCKS, ROWS
from cutegemm.run.calls import BLAS_SCALARS
from cutegemm.run.checks import refused, without_epilogue
from cutegemm.run.views import ALIGN_BYTES, View

NAMES = ("scales[0]", "scales[1]")  # scales of a and of b, as messages name them
_F32_BYTES = 4
UNIT = ALIGN_BYTES // _F32_BYTES  # scales of rows are padded to a multiple of this


def linear(acc: Any, alpha: Any, beta: Any, c: Any) -> Any:
    """Epilogue of a `gemm` call with block scales, c, alpha and beta: return alpha * acc + beta * c.

    All arguments are symbols of an epilogue expression; acc is the accumulator.
    """
    return alpha * acc + beta * c


def scaled(acc: Any, alpha: Any) -> Any:
    """Return alpha * acc: the epilogue of a `gemm` call with block scales and alpha."""
    return alpha * acc


def plain(acc: Any) -> Any:
    """Return the accumulator: the epilogue of a `gemm` call with block scales and nothing else."""
    return acc


def with_scales(a: Any, b: Any, scales: Any, named: Mapping[str, Any], operands: dict[str, Any]) -> dict[str, Any]:
    """Add the block scales of a `gemm` call to its operands, and return its epilogue, alpha and beta.

    Without an epilogue, one is made from c, alpha and beta, as far as they are passed.

    scales     pair of tensors: scales of a and of b
    named      "c", "alpha", "beta" and "epilogue" of the call; None for one that is not passed
    operands   operands of the epilogue by name; the scales are added to it
    returns    "epilogue", "alpha" and "beta"
    raises     UnsupportedError if `scales` is not a pair, for operands without an epilogue, and for a beta without c
    """
    if (
        not isinstance(scales, (tuple, list))
        or len(scales) != len(NAMES)
        or not all(hasattr(x, "shape") for x in scales)
    ):
        raise refused(a, b, [f"scales is {_shown(scales)}. Pass a pair of tensors: the scales of a and those of b."])
    epilogue, alpha, beta = named["epilogue"], named["alpha"], named["beta"]
    if epilogue is None:
        wrong = [without_epilogue(operands)] if operands else []
        if named["c"] is None and beta:
            wrong.append(f"beta = {beta!r}, but no c is given. Pass c, or leave beta at 0.")
        if wrong:
            raise refused(a, b, wrong)
        if named["c"] is not None:
            alpha, beta = [BLAS_SCALARS[name] if x is None else x for name, x in (("alpha", alpha), ("beta", beta))]
            epilogue = linear
        else:
            epilogue, beta = (plain if alpha is None else scaled), None
    operands.update(zip(NAMES, scales, strict=True))
    return {"epilogue": epilogue, "alpha": alpha, "beta": beta}


def _shown(value: Any) -> str:
    """Return a wrong value of `scales` as text for an error message: its type, and its length if it has one."""
    count = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
    return f"a {type(value).__name__}{count}"


def separated(operands: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the block scales among the operands of a call, and all other operands, as two dictionaries by name.

    >>> separated({"bias": 1, "scales[0]": 2, "scales[1]": 3})
    ({'scales[0]': 2, 'scales[1]': 3}, {'bias': 1})
    """
    scales = {name: operands[name] for name in NAMES if name in operands}
    return scales, {name: value for name, value in operands.items() if name not in NAMES}


def blocks_of(extent: Any) -> Any:
    """Return the number of blocks of 128 elements that cover an extent. In a torch graph the extent may be a symbol."""
    return (extent + BLOCK - 1) // BLOCK


def granularity(scale: Any, extent: Any, k: Any, batch: tuple[Any, ...], is_b: bool) -> str | None:
    """Return the granularity of block scales, found by their shape: "1x128", "128x128", or None for a wrong shape.

    "1x128" is one scale for 128 elements along K in one row; "128x128" one for 128 elements along K in 128 rows. For
    an extent of 1 both have the same shape; it counts as "1x128".

    scale    tensor of scales, (rows, K / 128) for a and (K / 128, columns) for b, with the batch in front
    extent   M for a, N for b
    k        extent K
    batch    (L,), or () without a batch
    is_b     True for the scales of b
    """
    shape = tuple(scale.shape)
    if len(shape) != len(batch) + 2:
        return None
    along, deep = (shape[-1], shape[-2]) if is_b else (shape[-2], shape[-1])
    if deep != blocks_of(k) or any(own != wide for own, wide in zip(shape, batch, strict=False)):
        return None
    if along == extent:
        return ROWS
    return BLOCKS if along == blocks_of(extent) else None


def granularities(a: Any, b: Any, scales: Mapping[str, Any]) -> tuple[str, str]:
    """Return the granularity of the block scales of a and of b, "1x128" or "128x128" each.

    a, b     the factors
    scales   the two tensors of scales by name, whose shapes are known to be valid
    """
    of_a, of_b = _of_each(a, b, scales)
    assert of_a is not None
    assert of_b is not None
    return of_a, of_b


def _of_each(a: Any, b: Any, scales: Mapping[str, Any]) -> list[str | None]:
    """Return the granularity of the block scales of a and of b, "1x128" or "128x128"; None for a wrong shape.

    a, b     the factors
    scales   the two tensors of scales by name
    """
    batch, k = tuple(a.shape[:-2]), a.shape[-1]
    extents = (a.shape[-2], b.shape[-1])
    return [
        granularity(scales[name], extent, k, batch, is_b=name == NAMES[1])
        for name, extent in zip(NAMES, extents, strict=True)
    ]


def wrong_scales(a: Any, b: Any, scales: Mapping[str, Any]) -> list[str]:
    """Return one sentence for each rule that the block scales of a call violate; empty if types and shapes are right.

    a, b     factors whose shapes fit each other
    scales   the two tensors of scales by name
    """
    import torch

    from cutegemm.run.torch_ops import FLOAT8

    wrong = []
    for name, x in (("a", a), ("b", b)):
        if x.dtype not in FLOAT8:
            kind = str(x.dtype).removeprefix("torch.")
            wrong.append(
                f"{name} is of {kind}, but block scales belong to float8. Pass {name} in float8, or no scales."
            )
    batch, k, m, n = tuple(a.shape[:-2]), a.shape[-1], a.shape[-2], b.shape[-1]
    deep = blocks_of(k)
    shapes = {
        NAMES[0]: ((*batch, m, deep), (*batch, blocks_of(m), deep), f"row of a and {BLOCK} of K"),
        NAMES[1]: ((*batch, deep, n), (*batch, deep, blocks_of(n)), f"column of b and {BLOCK} of K"),
    }
    for (name, (rows, blocks, each)), found in zip(shapes.items(), _of_each(a, b, scales), strict=True):
        scale = scales[name]
        if found is None:
            remedy = f" {name}.mT fits." if tuple(scale.mT.shape) in (rows, blocks) and scale.dim() > 1 else ""
            wrong.append(
                f"{name} has shape {tuple(scale.shape)}. Pass one scale for each {each}, of shape {rows}, or for each "
                f"block of {BLOCK} x {BLOCK}, of shape {blocks}.{remedy}"
            )
        if scale.dtype != torch.float32:
            kind = str(scale.dtype).removeprefix("torch.")
            wrong.append(f"{name} is of {kind}; scales are of float32. Pass {name}.float().")
    return wrong


def conversion(name: str, by_block: bool, scale: Any, batched: bool) -> Callable[[Any], Any]:
    """Return the function that converts a tensor of block scales to the form that a kernel loads.

    Scales of single rows become contiguous along the rows, with a pitch that is a multiple of 16 bytes, which TMA
    needs. Scales of blocks become contiguous along K. A tensor with other strides is copied.

    name       name of the scales: those of a or those of b
    by_block   True if a scale belongs to a block of 128 rows
    scale      a tensor of scales, which stands for all with the same shape, type and strides
    batched    True if there is a batch mode in front
    returns    tensor -> tensor (rows or columns, K / 128)
    """
    is_b = name == NAMES[1]

    def seen(tensor: Any) -> Any:
        return tensor.mT if is_b else tensor

    own = seen(scale)
    shape, along = tuple(own.shape), int(by_block)
    view = View(shape, tuple(own.stride()), _F32_BYTES, own.data_ptr(), batched, wanted=along)
    if view.major == along and (by_block or view.boxed >= ALIGN_BYTES):
        strides = view.strides
        return seen if strides is None else lambda tensor: seen(tensor).as_strided(shape, strides)
    if by_block:
        return lambda tensor: seen(tensor).contiguous()
    return lambda tensor: padded(seen(tensor))


def padded(scales: Any) -> Any:
    """Return a copy of block scales with contiguous columns, each padded to a multiple of 16 bytes, which TMA needs.

    scales   (rows, K / 128), with or without a batch mode in front. 6 x 3 scales get the strides (1, 8)
    """
    return new_scales(scales, scales.shape).copy_(scales)


def new_scales(like: Any, shape: Sequence[Any]) -> Any:
    """Allocate float32 block scales with one value per row, in the layout that TMA needs.

    The columns are contiguous, and each is padded to a multiple of 16 bytes.

    like    a tensor on the same device
    shape   (rows, blocks along K), with or without a batch mode in front
    """
    from torch import float32

    *batch, rows, blocks = shape
    pitch = (rows + UNIT - 1) // UNIT * UNIT
    return like.new_empty((*batch, blocks, pitch), dtype=float32).mT[..., :rows, :]
