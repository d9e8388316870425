"""Targets of a partition: layouts, composed layouts and tensors."""

from __future__ import annotations

from typing import Union

from cutegemm.layout.layout import Layout
from cutegemm.layout.swizzle import ComposedLayout
from cutegemm.layout.tensor import Tensor

Target = Union[Layout, ComposedLayout, Tensor]


def layout_of(target: Target) -> Layout | ComposedLayout:
    """The layout of a tensor; a layout itself."""
    return target.layout if isinstance(target, Tensor) else target


def as_tensor(target: Target) -> Tensor:
    """A tensor as it is; a layout as the tensor of its offsets or coordinates."""
    return target if isinstance(target, Tensor) else Tensor(None, target)
