"""To the CuTe DSL and back, while it traces: held against its own offsets and its own text."""

import importlib.util
from importlib.machinery import ModuleSpec

import pytest

from cutegemm.compile.cache import has_dsl
from cutegemm.errors import LayoutError, UnsupportedError
from cutegemm.interop import from_cpp, from_cute, to_cute
from cutegemm.layout import (
    F2,
    ComposedLayout,
    Layout,
    ScaledBasis,
    Swizzle,
    make_composed_layout,
    make_identity_layout,
)

HERE = importlib.util.find_spec("cutlass") is not None
needs_the_dsl = pytest.mark.skipif(not HERE, reason="the CuTe DSL is not installed")
LAYOUTS = (
    Layout((4, 8), (8, 1)),
    Layout(((2, 4), 8), ((1, 16), 2)),
    Layout(8),
    Layout((8,), (1,)),
    Layout((4, 8), (0, 1)),
    make_composed_layout(Swizzle(3, 4, 3), 0, Layout((8, 64), (64, 1))),
    make_composed_layout(Swizzle(2, 0, 3), 16, Layout((8, 8), (8, 1))),
)
BY_COORDINATES = (
    make_identity_layout((4, (2, 8))),
    Layout((4, (2, 8)), (ScaledBasis(1, 0), (ScaledBasis(3, (1, 0)), ScaledBasis(1, (1, 1))))),
)


@needs_the_dsl
def test_there_and_back() -> None:
    """The round trip returns an equal object.

    The DSL's layout has the same offsets, and its text reads as the same layout.
    """
    import cutlass.cute as cute

    seen = []

    @cute.jit
    def traced() -> None:
        for layout in (*LAYOUTS, *BY_COORDINATES):
            theirs = to_cute(layout)
            seen.append((layout, from_cute(theirs), from_cpp(str(theirs))))
        for layout in LAYOUTS:
            theirs = to_cute(layout)
            assert [int(theirs(i)) for i in range(layout.size())] == layout.offsets().tolist()
        swizzle = Swizzle(2, 1, 3)
        seen.append((swizzle, from_cute(to_cute(swizzle)), from_cpp(str(to_cute(swizzle)))))

    traced()
    assert len(seen) == len(LAYOUTS) + len(BY_COORDINATES) + 1
    for ours, back, read in seen:
        assert back == ours
        assert read == ours


@needs_the_dsl
def test_what_the_dsl_knows_at_run_time_alone() -> None:
    import cutlass
    import cutlass.cute as cute

    said = []

    @cute.jit
    def traced(rows: cutlass.Int32) -> None:
        with pytest.raises(LayoutError) as caught:
            from_cute(cute.make_layout((rows, 8)))
        said.append(str(caught.value))

    traced(3)
    assert "known only at run time" in said[0]


@needs_the_dsl
@pytest.mark.parametrize("thing", [3, (4, 8), "(4,8)"])
def test_what_is_no_layout(thing: object) -> None:
    with pytest.raises(LayoutError, match="Pass a Layout"):
        to_cute(thing)
    with pytest.raises(LayoutError, match=r"Pass a layout of cutlass\.cute"):
        from_cute(thing)


@needs_the_dsl
def test_strides_over_f2_are_refused() -> None:
    for thing in (
        Layout((8, 8), (F2(9), F2(1))),
        ComposedLayout(Layout(64), 0, Layout((8, 8), (F2(9), F2(1)))),
    ):
        with pytest.raises(LayoutError, match="over F2; the DSL does not have them"):
            to_cute(thing)


@pytest.mark.parametrize("found", [None, ModuleSpec("cutlass", None)], ids=["nothing", "a folder of other software"])
def test_without_the_dsl(found: ModuleSpec | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found)
    has_dsl.cache_clear()
    try:
        with pytest.raises(UnsupportedError, match="pip install"):
            to_cute(Layout(4))
    finally:
        has_dsl.cache_clear()
