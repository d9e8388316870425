"""Convert layouts from and to C++ CuTe as text.

These forms are read, and others of `cutegemm.parse.layout`:

Layout<Shape<_4,_8>,Stride<_8,_1>>                                   a type, also as a compiler writes it in messages
make_layout(make_shape(Int<4>{}, _8{}), make_stride(8, 1))           a call
auto x = ...;   using X = ...;                                       a declaration
GMMA::Layout_K_SW128_Atom<half_t>                                    a shared-memory layout of wgmma
tile_to_shape(atom, shape, Step<_2,_1>{})                            an operation of the layout algebra
(_4,_8):(_8,_1)                                                      output of cute::print
smem_ptr[32b](0x7f00) o (_64,_8):(_1,_64)                            the same for a tensor
Sw<3,4,3> o smem_ptr[16b](unset) o (_8,_64):(_64,_1)                 the same for a swizzle of byte addresses
"""

from __future__ import annotations

from typing import Any

from cutegemm.errors import LayoutError
from cutegemm.layout import ComposedLayout, Layout, ScaledBasis, Swizzle
from cutegemm.parse.layout import parse_layout


def to_cpp(layout: Layout | ComposedLayout | Swizzle) -> str:
    """Return the C++ CuTe type of the same layout, composed layout or swizzle, with every number as a static Int<>.

    raises   LayoutError if the layout has strides over F2 (offsets joined by XOR), which C++ CuTe does not have

    >>> to_cpp(Layout((4, (2, 3)), (6, (1, 2))))
    'Layout<Shape<Int<4>,Shape<Int<2>,Int<3>>>,Stride<Int<6>,Stride<Int<1>,Int<2>>>>'
    >>> to_cpp(ComposedLayout(Swizzle(3, 4, 3), 0, Layout((8, 64), (64, 1))))
    'ComposedLayout<Swizzle<3,4,3>,Int<0>,Layout<Shape<Int<8>,Int<64>>,Stride<Int<64>,Int<1>>>>'
    """
    if isinstance(layout, Swizzle):
        return f"Swizzle<{layout.bits},{layout.base},{layout.shift}>"
    if isinstance(layout, ComposedLayout):
        return f"ComposedLayout<{to_cpp(layout.inner)},{_type(layout.offset, 'Coord')},{to_cpp(layout.outer)}>"
    if not isinstance(layout, Layout):
        raise LayoutError(
            f"to_cpp: {layout!r} is a {type(layout).__name__}. Pass a Layout, a ComposedLayout or a Swizzle."
        )
    if layout.is_xor:
        raise LayoutError(f"to_cpp: {layout} has strides over F2; C++ does not have them. Try to_swizzled(layout).")
    return f"Layout<{_type(layout.shape, 'Shape')},{_type(layout.stride, 'Stride')}>"


def _type(value: Any, tuple_name: str) -> str:
    """Return the C++ CuTe type of an integer or nested tuple, such as `Shape<Int<4>,Int<8>>` for (4, 8).

    value        integer, scaled basis vector (such as E<0>), or nested tuple of these
    tuple_name   C++ template to write for a tuple, such as "Shape" or "Stride"
    """
    if isinstance(value, tuple):
        return f"{tuple_name}<{','.join([_type(entry, tuple_name) for entry in value])}>"
    if isinstance(value, ScaledBasis):
        return f"ScaledBasis<Int<{value.value}>,{','.join(map(str, value.mode))}>"
    return f"Int<{value}>"


def from_cpp(text: str) -> Layout | ComposedLayout | Swizzle:
    """Return the layout or swizzle that a piece of C++ CuTe source, or the output of `cute::print`, describes.

    A swizzle on a shared-memory pointer permutes byte addresses. It is converted to one that permutes element offsets.

    text     a type, a call that makes a layout, or declarations of these, with static numbers only. Of several
             statements, the last one is returned
    raises   LayoutError if the text has another form, with the position of the error, or if a number is known only at
             run time

    >>> from_cpp("cute::Layout<cute::tuple<cute::C<4>, cute::C<8> >, cute::tuple<cute::C<8>, cute::C<1> > >")
    Layout((4, 8), (8, 1))
    >>> print(from_cpp("Sw<3,4,3> o smem_ptr[16b](unset) o (_8,_64):(_64,_1)"))
    S<3,3,3> o 0 o (8,64):(64,1)
    >>> print(from_cpp("using X = decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<half_t>{}, Shape<_64,_64>{}));"))
    S<3,3,3> o 0 o ((8,8),(64,1)):((64,512),(1,0))
    """
    return parse_layout(text, "from_cpp")
