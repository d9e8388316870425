"""Layouts of the CuTe Python DSL, `cutlass.cute`: they exist while a function is traced, so both calls belong there."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

from cutegemm.errors import LayoutError, UnsupportedError
from cutegemm.layout import ComposedLayout, Layout, ScaledBasis, Swizzle


def to_cute(layout: Layout | ComposedLayout | Swizzle) -> Any:
    """The DSL's layout or swizzle: the same function of the same coordinates, in the same units.

    raises   LayoutError for strides over F2, which the DSL has not: `to_swizzled` may find a swizzle;
             UnsupportedError where the DSL is not installed
    """
    _require("to_cute")
    from cutegemm.kernels import lower

    if isinstance(layout, Swizzle):
        return lower.swizzle(layout)
    outer = layout.outer if isinstance(layout, ComposedLayout) else layout
    if not isinstance(outer, Layout):
        raise LayoutError(f"to_cute: a Layout, a ComposedLayout or a Swizzle is expected, not {layout!r}.")
    if outer.is_xor:
        raise LayoutError(f"to_cute: {layout} has strides over F2, which the DSL has not. Try to_swizzled(layout).")
    return lower.layout(layout)


def from_cute(layout: Any) -> Any:
    """The layout, composed layout or swizzle that one of the DSL is.

    raises   LayoutError where an extent or a stride is known at run time alone; UnsupportedError where the DSL is not
             installed
    """
    _require("from_cute")
    import cutlass.cute as cute

    if isinstance(layout, cute.Swizzle):
        return Swizzle(*[int(number) for number in re.findall(r"-?\d+", str(layout))])
    if isinstance(layout, cute.ComposedLayout):
        inner, outer = from_cute(layout.inner), from_cute(layout.outer)
        return ComposedLayout(inner, _static(layout.offset, layout), outer)
    if not isinstance(layout, cute.Layout):
        raise LayoutError(f"from_cute: a layout of cutlass.cute is expected, not {layout!r}.")
    return Layout(_static(layout.shape, layout), _static(layout.stride, layout))


def _static(value: Any, layout: Any) -> Any:
    """Hierarchical integers and basis vectors of the DSL in this package's types."""
    import cutlass.cute as cute

    if isinstance(value, tuple):
        return tuple([_static(each, layout) for each in value])
    if isinstance(value, cute.ScaledBasis):
        return ScaledBasis(_static(value.value, layout), tuple(value.mode))
    if isinstance(value, int):
        return value
    raise LayoutError(f"from_cute: {layout} holds {value}, which is known at run time alone; static ones are expected.")


def _require(operation: str) -> None:
    if importlib.util.find_spec("cutlass") is None:
        raise UnsupportedError(f"{operation}: the CuTe DSL is not installed: pip install 'cutegemm[kernels]'.")
