"""Convert layouts from and to the CuTe Python DSL, `cutlass.cute`, inside a function that the DSL traces."""

from __future__ import annotations

import re
from typing import Any

from cutegemm.compile.cache import has_dsl
from cutegemm.errors import LayoutError, UnsupportedError, how_to_install
from cutegemm.layout import ComposedLayout, Layout, ScaledBasis, Swizzle


def to_cute(layout: Layout | ComposedLayout | Swizzle) -> Any:
    """Return the same layout, composed layout or swizzle as an object of the CuTe DSL (`cutlass.cute`).

    Call it inside a function that the DSL traces. The result maps the same coordinates to the same offsets.

    raises   LayoutError if the layout has strides over F2 (offsets joined by XOR), which the DSL does not have;
             `to_swizzled` converts such a layout. UnsupportedError if the DSL is not installed
    """
    _require("to_cute")
    from cutegemm.kernels import lower

    if isinstance(layout, Swizzle):
        return lower.swizzle(layout)
    outer = layout.outer if isinstance(layout, ComposedLayout) else layout
    if not isinstance(outer, Layout):
        raise LayoutError(
            f"to_cute: {layout!r} is a {type(layout).__name__}. Pass a Layout, a ComposedLayout or a Swizzle."
        )
    if outer.is_xor:
        raise LayoutError(
            f"to_cute: {layout} has strides over F2; the DSL does not have them. Try to_swizzled(layout)."
        )
    return lower.layout(layout)


def from_cute(layout: Any) -> Any:
    """Return the same layout, composed layout or swizzle of the CuTe DSL (`cutlass.cute`) as an object of this package.

    layout   a static layout, composed layout or swizzle of the DSL
    raises   LayoutError if an extent or a stride is known only at run time. UnsupportedError if the DSL is not
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
        raise LayoutError(f"from_cute: {layout!r} is a {type(layout).__name__}. Pass a layout of cutlass.cute.")
    return Layout(_static(layout.shape, layout), _static(layout.stride, layout))


def _static(value: Any, layout: Any) -> Any:
    """Convert an extent or stride of the CuTe DSL (integer, basis vector, nested tuple) to this package's types.

    layout   layout that `value` was taken from, for the error message
    raises   LayoutError if a value is known only at run time
    """
    import cutlass.cute as cute

    if isinstance(value, tuple):
        return tuple([_static(entry, layout) for entry in value])
    if isinstance(value, cute.ScaledBasis):
        return ScaledBasis(_static(value.value, layout), tuple(value.mode))
    if isinstance(value, int):
        return value
    raise LayoutError(f"from_cute: {layout} contains {value}, which is known only at run time. Use static values.")


def _require(operation: str) -> None:
    """Raise UnsupportedError if the CuTe DSL (`cutlass.cute`) is not installed.

    operation   name of the function that needs the DSL, for the message
    """
    if not has_dsl():
        raise UnsupportedError(f"{operation}: the CuTe DSL is not installed. {how_to_install('kernels')}")
