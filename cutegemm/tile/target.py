"""What is partitioned: a layout, a composed layout or a tensor."""

from __future__ import annotations

from typing import Any, Union

import numpy as np

from cutegemm.layout.layout import Layout
from cutegemm.layout.stride import ScaledBasis, add
from cutegemm.layout.swizzle import ComposedLayout
from cutegemm.layout.tensor import Tensor

Target = Union[Layout, ComposedLayout, Tensor]


def layout_of(target: Target) -> Layout | ComposedLayout:
    """The layout of a tensor; a layout itself."""
    return target.layout if isinstance(target, Tensor) else target


def as_tensor(target: Target) -> Tensor:
    """A tensor as it is; a layout as the tensor of its offsets or coordinates.

    A tensor of coordinates starts at one that names every mode, so that a mode of extent 1, along which no
    stride moves after a divide, is not lost.

    >>> from cutegemm.layout.layout import make_identity_layout
    >>> as_tensor(make_identity_layout((4, 1))).offset
    (0, 0)
    """
    tensor = target if isinstance(target, Tensor) else Tensor(None, target)
    layout = tensor.layout
    if isinstance(layout, Layout) and not layout.is_integral:
        return Tensor._of(tensor.array, layout, add(tensor.offset, layout.offset_of(0)))
    return tensor


def elements_of(tensor: Tensor) -> np.ndarray:
    """The offset of every element in colexicographic order; rows of coordinates for a tensor of these."""
    layout = tensor.layout
    if isinstance(layout, ComposedLayout) or not isinstance(tensor.offset, tuple):
        return tensor.offsets()
    extents, strides = layout.flat()
    columns = []
    for path, at in _leaves(tensor.offset, ()):
        along = [d.value if isinstance(d, ScaledBasis) and d.mode == path else 0 for d in strides]
        columns.append(Layout(extents, tuple(along)).offsets() + at)
    return np.stack(columns, axis=-1)


def _leaves(coord: Any, path: tuple[int, ...]) -> list[tuple[tuple[int, ...], int]]:
    """The leaves of a coordinate, each with its path of modes from the outside in."""
    if isinstance(coord, tuple):
        return [leaf for mode, part in enumerate(coord) for leaf in _leaves(part, (*path, mode))]
    return [(path, coord)]
