"""`Target`: what a tiled copy or MMA partitions, which is a layout, a composed layout or a tensor."""

from __future__ import annotations

from typing import Union

from cutegemm.layout.layout import Layout
from cutegemm.layout.swizzle import ComposedLayout
from cutegemm.layout.tensor import Tensor

Target = Union[Layout, ComposedLayout, Tensor]


def layout_of(target: Target) -> Layout | ComposedLayout:
    """Return the layout of what a copy or MMA partitions: that of a tensor, or a layout as it is."""
    return target.layout if isinstance(target, Tensor) else target


def as_tensor(target: Target) -> Tensor:
    """Return what a copy or MMA partitions as a tensor: a layout becomes the tensor of its offsets or coordinates."""
    return target if isinstance(target, Tensor) else Tensor(None, target)
