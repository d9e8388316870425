"""Two weights side by side in one piece of memory, each a parameter as before."""

from __future__ import annotations

from typing import Any

import torch


def are_side_by_side(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether the rows of the second weight follow those of the first in memory.

    >>> whole = torch.zeros(4, 3)
    >>> are_side_by_side(whole[:2], whole[2:]), are_side_by_side(whole[2:], whole[:2])
    (True, False)
    """
    behind = first.data_ptr() + first.numel() * first.element_size()
    return (
        second.data_ptr() == behind
        and second.dtype == first.dtype
        and first.is_contiguous()
        and second.is_contiguous()
        and first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    )


def side_by_side(first: torch.nn.Parameter, second: torch.nn.Parameter) -> bool:
    """Move the elements of two weights next to each other; the parameters keep their identity.

    Nothing is moved if they are side by side already, if one is a part of larger memory or has none (another class of
    tensors, or the meta device), or if they differ in type, device, row length, or in being inference tensors.

    returns   whether they are side by side

    >>> gate, up = torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.zeros(2, 3))
    >>> side_by_side(gate, up), are_side_by_side(gate, up), gate.is_leaf
    (True, True, True)
    """
    if not all(_is_movable(weight) for weight in (first, second)):
        return False
    if are_side_by_side(first, second):
        return True
    if _kind(first) != _kind(second):
        return False
    if not all(_has_own_memory(weight) for weight in (first, second)):
        return False
    # Weights that were made under inference mode stay inference tensors; others can be trained after it.
    with torch.inference_mode(first.is_inference()), torch.no_grad():
        whole = torch.cat([first.detach(), second.detach()])
        rows = first.shape[0]
        first.data, second.data = whole[:rows], whole[rows:]
    return True


def _kind(weight: torch.Tensor) -> tuple[Any, ...]:
    """Return what two weights must have in common to share memory."""
    return weight.dtype, weight.device, weight.shape[1:], weight.is_inference()


def _is_movable(weight: torch.Tensor) -> bool:
    return (
        type(weight) is torch.nn.Parameter and weight.device.type != "meta" and weight.layout == torch.strided
    )


def _has_own_memory(weight: torch.Tensor) -> bool:
    """Whether all of its memory is its elements, twice at most: of a pair that was side by side, one half is left."""
    return weight.untyped_storage().nbytes() <= 2 * weight.numel() * weight.element_size()
