"""C++ CuTe as text: what its compiler and its `print` write, and what it makes of what is written here.

The table is the output of CuTe's headers, compiled; where $CUTLASS_INCLUDE names their folders (and CUDA's), parted as
$PATH is, they are compiled again, with what `to_cpp` writes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutegemm.dtypes import f16, tf32
from cutegemm.errors import LayoutError
from cutegemm.interop import from_cpp, to_cpp
from cutegemm.layout import (
    F2,
    ComposedLayout,
    E,
    Layout,
    ScaledBasis,
    Swizzle,
    blocked_product,
    make_composed_layout,
    make_identity_layout,
    tile_to_shape,
)
from cutegemm.layout.inttuple import flatten
from cutegemm.tile import smem_atom

# (what `print` writes, the name that g++ 12.2 gives the type, the layout), CUTLASS 4.
WRITTEN = [
    (
        "(_4,_8):(_8,_1)",
        "cute::Layout<cute::tuple<cute::C<4>, cute::C<8> >, cute::tuple<cute::C<8>, cute::C<1> > >",
        Layout((4, 8), (8, 1)),
    ),
    (
        "((_2,_4),_8):((_1,_16),_2)",
        "cute::Layout<cute::tuple<cute::tuple<cute::C<2>, cute::C<4> >, cute::C<8> >, "
        "cute::tuple<cute::tuple<cute::C<1>, cute::C<16> >, cute::C<2> > >",
        Layout(((2, 4), 8), ((1, 16), 2)),
    ),
    ("_8:_1", "cute::Layout<cute::C<8>, cute::C<1> >", Layout(8, 1)),
    ("(_8):(_1)", "cute::Layout<cute::tuple<cute::C<8> >, cute::tuple<cute::C<1> > >", Layout((8,), (1,))),
    (
        "(_4,_8):(_0,_-1)",
        "cute::Layout<cute::tuple<cute::C<4>, cute::C<8> >, cute::tuple<cute::C<0>, cute::C<-1> > >",
        Layout((4, 8), (0, -1)),
    ),
    (
        "(_4,_8):(_1@0,_1@1)",
        "cute::Layout<cute::tuple<cute::C<4>, cute::C<8> >, "
        "cute::tuple<cute::ScaledBasis<cute::C<1>, 0>, cute::ScaledBasis<cute::C<1>, 1> > >",
        make_identity_layout((4, 8)),
    ),
    (
        "(_4,(_2,_8)):(_1@0,(_3@0@1,_1@1@1))",
        "cute::Layout<cute::tuple<cute::C<4>, cute::tuple<cute::C<2>, cute::C<8> > >, "
        "cute::tuple<cute::ScaledBasis<cute::C<1>, 0>, "
        "cute::tuple<cute::ScaledBasis<cute::C<3>, 1, 0>, cute::ScaledBasis<cute::C<1>, 1, 1> > > >",
        Layout((4, (2, 8)), (E(0), (ScaledBasis(3, (1, 0)), E((1, 1))))),
    ),
    (
        "Sw<3,4,3> o _0 o (_8,_64):(_64,_1)",
        "cute::ComposedLayout<cute::Swizzle<3, 4, 3>, cute::C<0>, "
        "cute::Layout<cute::tuple<cute::C<8>, cute::C<64> >, cute::tuple<cute::C<64>, cute::C<1> > > >",
        make_composed_layout(Swizzle(3, 4, 3), 0, Layout((8, 64), (64, 1))),
    ),
    (
        "Sw<2,0,3> o _16 o (_8,_8):(_8,_1)",
        "cute::ComposedLayout<cute::Swizzle<2, 0, 3>, cute::C<16>, "
        "cute::Layout<cute::tuple<cute::C<8>, cute::C<8> >, cute::tuple<cute::C<8>, cute::C<1> > > >",
        make_composed_layout(Swizzle(2, 0, 3), 16, Layout((8, 8), (8, 1))),
    ),
    (  # GMMA::Layout_K_SW128_Atom<half_t>
        "Sw<3,4,3> o smem_ptr[16b](unset) o (_8,_64):(_64,_1)",
        "cute::ComposedLayout<cute::Swizzle<3, 4, 3>, cute::smem_ptr_flag_bits<16>, "
        "cute::Layout<cute::tuple<cute::C<8>, cute::C<64> >, cute::tuple<cute::C<64>, cute::C<1> > > >",
        smem_atom(f16, "k", "128B"),
    ),
    (  # GMMA::Layout_K_SW64_Atom<float>
        "Sw<2,4,3> o smem_ptr[32b](unset) o (_8,_16):(_16,_1)",
        "cute::ComposedLayout<cute::Swizzle<2, 4, 3>, cute::smem_ptr_flag_bits<32>, "
        "cute::Layout<cute::tuple<cute::C<8>, cute::C<16> >, cute::tuple<cute::C<16>, cute::C<1> > > >",
        smem_atom(tf32, "k", "64B"),
    ),
    ("Sw<3,4,3>", "cute::Swizzle<3, 4, 3>", Swizzle(3, 4, 3)),
]  # fmt: skip
OWN = [layout for _, _, layout in WRITTEN]


@pytest.mark.parametrize(("printed", "name", "layout"), WRITTEN)
def test_what_cute_writes_is_read(printed: str, name: str, layout: object) -> None:
    assert from_cpp(printed) == layout
    assert from_cpp(name) == layout


@pytest.mark.parametrize("layout", OWN, ids=str)
def test_there_and_back(layout: object) -> None:
    assert from_cpp(to_cpp(layout)) == layout


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("Layout<Shape<_4,_8>,Stride<_8,_1>>{}", Layout((4, 8), (8, 1))),
        ("Layout<Shape<Int<4>,Shape<_2,_8>>>", Layout((4, (2, 8)))),
        ("make_layout(make_shape(Int<4>{}, _8{}), make_stride(8, 1))", Layout((4, 8), (8, 1))),
        ("make_layout(make_shape(4, 8), LayoutRight{});", Layout((4, 8), (8, 1))),
        ("make_layout(Shape<_4,_8>{}, GenColMajor{})", Layout((4, 8), (1, 4))),
        ("Layout<Shape<_2,Shape<_3,_4>>,LayoutRight>", Layout((2, (3, 4)), (12, (4, 1)))),
        ("Layout<Shape<Shape<_2,_3>,_1>,GenRowMajor>", Layout(((2, 3), 1), ((3, 1), 0))),
        ("make_layout(make_layout(_4{}, _2{}), make_layout(_8{}))", Layout((4, 8), (2, 1))),
        ("make_layout(Int<4>{}, Int<3>{} * E<1,0>{})", Layout(4, ScaledBasis(3, (1, 0)))),
        ("make_layout(_8{}, _m1{})", Layout(8, -1)),
        ("Layout<std::integral_constant<int, 8>, _1>", Layout(8, 1)),
        (
            "composition(Swizzle<1,0,2>{}, Layout<Shape<_4,_4>>{})",
            ComposedLayout(Swizzle(1, 0, 2), 0, Layout((4, 4))),
        ),
        ("composition(Layout<Shape<_4,_8>,Stride<_8,_1>>{}, Layout<_4,_4>{})", Layout(4, 1)),
        ("make_layout((4,8), stride=(8,1))", Layout((4, 8), (8, 1))),
        ("make_layout((4,8),(8,1))", Layout((4, 8), (8, 1))),
        ("auto x = make_layout(make_shape(_4{}, _8{}));", Layout((4, 8))),
        ("static constexpr auto x =\n  make_layout(make_shape(_4{}, _8{}));", Layout((4, 8))),
        ("using X = Layout<Shape<_4,_8>,\n                 Stride<_8,_1>>;", Layout((4, 8), (8, 1))),
        ("using X = Shape<_4,_8>;\nauto y = make_layout(X{}, LayoutRight{});  // rows", Layout((4, 8), (8, 1))),
        ("GMMA::Layout_K_SW128_Atom<half_t>", smem_atom(f16, "k", "128B")),
        ("SM90::GMMA::Layout_MN_SW64_Atom<cutlass::tfloat32_t>{}", smem_atom(tf32, "mn", "64B")),
        ("GMMA::Layout_K_INTER_Atom<half_t>", smem_atom(f16, "k", "interleave")),
        (
            "tile_to_shape(GMMA::Layout_K_SW128_Atom<half_t>{}, Shape<_16,_128>{})",
            tile_to_shape(smem_atom(f16, "k", "128B"), (16, 128), (0, 1)),
        ),
        (
            "tile_to_shape(GMMA::Layout_K_SW128_Atom<half_t>{}, make_shape(_16{}, _128{}, _3{}), Step<_2,_1,_3>{})",
            tile_to_shape(smem_atom(f16, "k", "128B"), (16, 128, 3), (1, 0, 2)),
        ),
        ("decltype(make_layout(Shape<_4,_8>{}))", Layout((4, 8))),
        ("Shape<_4,_8>", Layout((4, 8))),
        ("blocked_product((2,2):(1,2), (3,4))", blocked_product(Layout((2, 2)), Layout((3, 4)))),
        # what `print` writes of tensors
        ("smem_ptr[32b](0x7f1200000400) o (_64,_8):(_1,_64)", Layout((64, 8), (1, 64))),
        ("gmem_ptr[16b](0x7f1200000000) o (4096,64):(64,_1)", Layout((4096, 64), (64, 1))),
        ("ptr[32b](0x7ffe) o (_4,_8):(_8,_1)", Layout((4, 8), (8, 1))),
        ("Sw<3,4,3>_smem_ptr[16b](0x7f1200000400) o (_8,_64):(_64,_1)", smem_atom(f16, "k", "128B")),
    ],
)
def test_other_forms(text: str, layout: object) -> None:
    assert from_cpp(text) == layout


def written(shape: object) -> str:
    return f"Shape<{','.join(map(written, shape))}>" if isinstance(shape, tuple) else f"_{shape}"


SHAPES = st.recursive(st.integers(1, 4), lambda each: st.lists(each, min_size=1, max_size=3).map(tuple), max_leaves=5)


@given(SHAPES, st.sampled_from(["LayoutRight", "GenRowMajor"]))
def test_rows_of_any_shape(shape: object, name: str) -> None:
    """The last leaf is the fastest: in the order of numpy's rows, the elements are 0, 1, 2, ..."""
    layout = from_cpp(f"Layout<{written(shape)},{name}>")
    assert layout.shape == shape
    extents, strides = flatten(layout.shape), flatten(layout.stride)
    places = sum(np.multiply(at, by) for at, by in zip(np.indices(extents), strides, strict=True))
    assert places.reshape(-1).tolist() == [*range(layout.size())]
    assert all(by == 0 for extent, by in zip(extents, strides, strict=True) if extent == 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Layout<Shape<int,_8>>", "known only at run time"),
        ("make_layout(int{}, _1{})", "known only at run time"),
        ("Layout<Shape<_4,_8>,Stride<_8>>", "not congruent"),
        ("Layout<Shape<_4,_8>", "',' or '>'"),
        ("Layout<Shape<_4,_8>,LayoutRight,_1>", "3 arguments. Pass a shape and its strides"),
        ("Layout<>", "Layout has 0 arguments. Pass (shape, stride, *others)"),
        ("Layout<C<4,8>,_1>", "C has 2 arguments. Pass (value)"),
        ("Layout<C<>,_1>", "C has 0 arguments"),
        ("Swizzle<3>", "Swizzle has 1 argument. Pass (bits, base, shift)"),
        ("Layout<integral_constant<5,4>,_1>", "5 is not an integer type"),
        ("TiledMMA<_4>", "'TiledMMA' is not a known name"),
        ("Layout_K_SW128_Atom<char>", "'char' is not a known name"),
        ("Layout_K_SW128_Atom<LayoutLeft>", "'LayoutLeft' is not an element type"),
        ("size(Layout<_4>{})", "4 is not a layout"),
        ("make_layout(4, strides=2)", "make_layout has the unknown argument 'strides'. Pass (shape, stride, *others)"),
        ("Layout<_4> Layout<_4>", "the end of the text"),
        ("", "the text is empty"),
        ("(_4,_8:_1", "',' or ')' is expected at the end of the text"),
        ("(" * 2000, "nested more than"),
        (3, "Pass a string"),
    ],
)
def test_what_does_not_read(text: object, said: str) -> None:
    with pytest.raises(LayoutError) as caught:
        from_cpp(text)
    assert said in str(caught.value)


def test_strides_over_f2_are_refused() -> None:
    with pytest.raises(LayoutError, match=r"over F2; C\+\+ does not have them"):
        to_cpp(Layout((8, 8), (F2(9), F2(1))))


@pytest.mark.skipif("CUTLASS_INCLUDE" not in os.environ, reason="$CUTLASS_INCLUDE names no headers of CuTe")
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_the_compiler_takes_what_is_written(tmp_path: Path) -> None:
    """It prints each type's layout as it reads here, and every offset of the layouts with integer strides."""
    of_offsets = [x for x in OWN if not isinstance(x, Swizzle) and not getattr(x, "is_coordinates", False)]
    lines = [f'print({to_cpp(layout)}{{}}); puts("");' for layout in OWN]
    lines += [
        f'{{ {to_cpp(layout)} x; for (int i = 0; i < size(x); ++i) printf("%d ", int(x(i))); puts(""); }}'
        for layout in of_offsets
    ]
    source = tmp_path / "layouts.cpp"
    source.write_text(
        "#include <cute/layout.hpp>\n#include <cute/swizzle_layout.hpp>\n#include <cute/util/print.hpp>\n"
        "using namespace cute;\nint main() {\n" + "\n".join(lines) + "\n}\n"
    )
    folders = [f"-I{folder}" for folder in os.environ["CUTLASS_INCLUDE"].split(os.pathsep)]
    command = ["g++", "-std=c++17", *folders, str(source), "-o", str(tmp_path / "layouts")]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-2000:]
    said = subprocess.run([tmp_path / "layouts"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert [from_cpp(line) for line in said[: len(OWN)]] == OWN
    offsets = [[int(number) for number in line.split()] for line in said[len(OWN) :]]
    assert offsets == [layout.offsets().tolist() for layout in of_offsets]
