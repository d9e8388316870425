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


def side_by_side(first: torch.nn.Parameter, second: torch.nn.Parameter, is_given: bool = False) -> bool:
    """Move the elements of two weights next to each other; the parameters keep their identity.

    Nothing is moved if they are side by side already, if one is a part of larger memory or has none (another class of
    tensors, or the meta device), if other tensors or processes see its memory, or if they differ in type, device, row
    length, or in being inference tensors.

    is_given   whether the memory was given to the parameters, as by `load_state_dict(assign=True)`: others that still
               see it do not count
    returns    whether they are side by side

    >>> gate, up = torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.zeros(2, 3))
    >>> side_by_side(gate, up), are_side_by_side(gate, up), gate.is_leaf
    (True, True, True)
    """
    if not all(_is_movable(weight) for weight in (first, second)):
        return False
    if are_side_by_side(first, second):
        return True
    if first is second or _kind(first) != _kind(second):
        return False
    if not (_has_own_memory(first, second, is_given) and _has_own_memory(second, first, is_given)):
        return False
    # Weights that were made under inference mode stay inference tensors; others can be trained after it.
    with torch.inference_mode(first.is_inference()), torch.no_grad():
        whole = torch.cat([first.detach(), second.detach()])
        rows = first.shape[0]
        first.data, second.data = whole[:rows], whole[rows:]
    return True


def apart(first: Any, second: Any) -> None:
    """Give two weights memory of their own if they are side by side.

    >>> gate, up = torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.zeros(2, 3))
    >>> side_by_side(gate, up), apart(gate, up), are_side_by_side(gate, up)
    (True, None, False)
    """
    if all(_is_movable(weight) for weight in (first, second)) and are_side_by_side(first, second):
        for weight in (first, second):
            with torch.inference_mode(weight.is_inference()), torch.no_grad():
                weight.data = weight.detach().clone()


def stored_alone(tensor: Any) -> Any:
    """Return one of two tensors that are side by side with a storage of its own, over the same memory.

    Libraries that save tensors refuse those that share a storage, as `safetensors.torch.save_model` does, or take them
    for one, as accelerate does. Anything else is returned as it is.

    >>> whole = torch.arange(6.0).view(2, 3)
    >>> second = stored_alone(whole[1:])
    >>> second.untyped_storage().nbytes(), second.data_ptr() == whole[1:].data_ptr()
    (12, True)
    """
    if type(tensor) is not torch.Tensor or tensor.device.type == "meta" or tensor.layout != torch.strided:
        return tensor
    storage, size = tensor.untyped_storage(), tensor.numel() * tensor.element_size()
    if storage.nbytes() != 2 * size or not tensor.is_contiguous():
        return tensor
    begin = tensor.storage_offset() * tensor.element_size()
    own = storage[begin : begin + size]
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(own, 0, tensor.shape)


def _kind(weight: torch.Tensor) -> tuple[Any, ...]:
    """Return what two weights must have in common to share memory."""
    return weight.dtype, weight.device, weight.shape[1:], weight.is_inference()


def _is_movable(weight: Any) -> bool:
    return (
        type(weight) is torch.nn.Parameter and weight.device.type != "meta" and weight.layout == torch.strided
    )


def _has_own_memory(weight: torch.Tensor, other: torch.Tensor, is_given: bool) -> bool:
    """Whether the memory of a weight holds nothing else, and nobody but the two weights sees it.

    It may be twice as large as the weight: one half of a pair that was side by side is left.
    """
    storage = weight.untyped_storage()
    if storage.nbytes() > 2 * weight.numel() * weight.element_size() or (
        weight.is_cpu and storage.is_shared()
    ):
        return False
    if is_given or not hasattr(torch._C, "_storage_Use_Count"):
        return True
    weights = 1 + (other.untyped_storage().data_ptr() == storage.data_ptr())
    return bool(torch._C._storage_Use_Count(storage._cdata) == weights + 1)  # one more is `storage` itself
