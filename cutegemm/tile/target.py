"""`Target`: what a tiled copy or MMA partitions, which is a layout, a composed layout or a tensor."""

from __future__ import annotations

from typing import Union

from cutegemm.layout.layout import Layout
from cutegemm.layout.swizzle import ComposedLayout
from cutegemm.layout.tensor import Tensor

Target = Union[Layout, ComposedLayout, Tensor]


def layout_of(target: Target) -> Layout | ComposedLayout:
    """Return the layout of a copy's or MMA's argument: a tensor's layout, or the argument itself if it is a layout."""
    return target.layout if isinstance(target, Tensor) else target


def as_tensor(target: Target) -> Tensor:
    """Return a copy's or MMA's argument as a tensor; a layout becomes the tensor whose elements are its offsets.

    A layout of coordinates becomes the tensor of its coordinates. A tensor is returned as it is.
    """
    return target if isinstance(target, Tensor) else Tensor(None, target)
