"""`Target`: what a tiled copy or MMA partitions, which is a layout, a composed layout or a tensor."""

from __future__ import annotations

from typing import Union

from cutegemm.layout.layout import Layout
from cutegemm.layout.swizzle import ComposedLayout
from cutegemm.layout.tensor import Tensor

Target = Union[Layout, ComposedLayout, Tensor]


def layout_of(target: Target) -> Layout | ComposedLayout:
    """Return the layout of `target`: a tensor's layout, or `target` itself if it is a layout.

    target   argument of a copy or an MMA
    """
    return target.layout if isinstance(target, Tensor) else target


def as_tensor(target: Target) -> Tensor:
    """Return `target`, the argument of a copy or an MMA, as a tensor.

    A tensor is returned as it is. A layout becomes the tensor whose element at each coordinate is the layout's offset
    there, or the layout's coordinate if the layout maps to coordinates.
    """
    return target if isinstance(target, Tensor) else Tensor(None, target)
