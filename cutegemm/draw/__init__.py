"""Drawings: a layout, an atom, a tiled MMA or copy, a raster, a plan, as text, as SVG and as a page.

    draw(Layout((4, 8)), kind="text")            a grid for the terminal
    draw(mma_sync(f16, 16))                      A, B and C around each other, as SVG
    draw(plan, kind="html", problem=problem)     a page to explore the plan in a browser
    save(slice_picture(layout, (None, 2)), "slice.svg")

What is drawn of several objects at once is asked for by name: `composition_picture`, `slice_picture`,
`swizzle_picture`, `tv_picture`, `raster_picture`, `Timeline`.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from cutegemm.draw.atoms import atom_picture, copy_picture, tiled_mma_picture
from cutegemm.draw.grids import Grid, Legend, Picture
from cutegemm.draw.layouts import layout_picture, matrix_picture, tensor_picture
from cutegemm.draw.notebook import described
from cutegemm.draw.operations import composition_picture, slice_picture, swizzle_picture
from cutegemm.draw.owners import tv_picture
from cutegemm.draw.plans import plan_picture
from cutegemm.draw.rasters import raster_picture
from cutegemm.draw.timeline import Event, Timeline, plan_timeline, protocol_timeline
from cutegemm.errors import CutegemmError, UnsupportedError

KINDS = ("text", "svg", "html")
_SUFFIXES = {".txt": "text", ".svg": "svg", ".html": "html", ".htm": "html"}


def picture(thing: Any, **options: Any) -> Picture:
    """The picture of an object.

    options   of the picture function of its type: `layout_picture` and its neighbours
    raises    UnsupportedError for what cannot be drawn, and for options that its picture does not have
    """
    from cutegemm.layout import ComposedLayout, F2Matrix, Layout, Swizzle, Tensor
    from cutegemm.plan import GemmPlan
    from cutegemm.tile.atoms import CopyAtom, MmaAtom
    from cutegemm.tile.raster import Raster
    from cutegemm.tile.tiled_copy import TiledCopy
    from cutegemm.tile.tiled_mma import TiledMma

    if isinstance(thing, Picture):
        return thing
    if isinstance(thing, Layout) and "tile" in options:
        return _made(tv_picture, thing, options)
    makers: tuple[tuple[Any, Any], ...] = (
        ((Layout, ComposedLayout), layout_picture),
        (Tensor, tensor_picture),
        (F2Matrix, matrix_picture),
        (Swizzle, swizzle_picture),
        (MmaAtom, atom_picture),
        (TiledMma, tiled_mma_picture),
        ((TiledCopy, CopyAtom), copy_picture),
        (Raster, raster_picture),
        (GemmPlan, plan_picture),
    )
    for types, maker in makers:
        if isinstance(thing, types):
            return _made(maker, thing, options)
    raise UnsupportedError(
        f"draw: cannot draw {thing!r}, a {type(thing).__name__}; what can be drawn is a Layout, "
        "ComposedLayout, Tensor, F2Matrix, Swizzle, MmaAtom, CopyAtom, TiledMma, TiledCopy, Raster, GemmPlan, "
        "Timeline or Picture."
    )


def _made(maker: Any, thing: Any, options: dict[str, Any]) -> Picture:
    from inspect import signature

    known = [name for name in signature(maker).parameters][1:]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise UnsupportedError(
            f"draw: {unknown[0]!r} is no option for a {type(thing).__name__}; there is {', '.join(known)}."
        )
    drawn: Picture = maker(thing, **options)
    return drawn


def draw(thing: Any, *, kind: str = "svg", width: int = 120, **options: Any) -> str:
    """An object as a text.

    thing     a Layout, ComposedLayout, Tensor, F2Matrix, Swizzle, MmaAtom, CopyAtom, TiledMma, TiledCopy, Raster,
              GemmPlan, Timeline, or a Picture of several objects
    kind      svg; html, for a plan the page to explore it, for all else the SVG in a page; text, plain
              characters for a terminal
    width     characters of a line of text
    options   of the picture of that type. For a layout: cells, color, element_bits, and `tile` to see it as a
              thread-value layout; for a raster: grid, batch, cluster, ctas_per_wave; for a plan: problem
    raises    UnsupportedError, which says what is supported

    >>> from cutegemm.layout import Layout
    >>> print(draw(Layout((2, (2, 2))), kind="text"), end="")
    layout: (2,(2,2)):(1,(2,4))
        0 1   2 3
      ┌─────┬─────┐
    0 │ 0 2 │ 4 6 │
    1 │ 1 3 │ 5 7 │
      └─────┴─────┘
    """
    from cutegemm.draw.svg import svg
    from cutegemm.draw.text import text
    from cutegemm.draw.timeline import timeline_svg, timeline_text

    if kind not in KINDS:
        raise UnsupportedError(f"draw: kind = {kind!r}; {', '.join(KINDS[:-1])} or {KINDS[-1]} is expected.")
    if isinstance(thing, Timeline):
        if kind == "text":
            return timeline_text(thing, width=width)
        return timeline_svg(thing) if kind == "svg" else _page(thing.title, timeline_svg(thing))
    if kind == "html":
        from cutegemm.plan import GemmPlan

        if isinstance(thing, GemmPlan):
            from cutegemm.draw.html import plan_page

            return _checked_page(plan_page, thing, options)
    if kind == "text":
        return text(picture(thing, **_folded(thing, width, options)), width=width)
    drawn = picture(thing, **options)
    return svg(drawn) if kind == "svg" else _page(drawn.title, svg(drawn))


def _folded(thing: Any, width: int, options: dict[str, Any]) -> dict[str, Any]:
    """The options with rows of a layout of rank 1 that fit a line."""
    from cutegemm.layout import ComposedLayout, Layout
    from cutegemm.layout.inttuple import flatten as leaves

    if not isinstance(thing, (Layout, ComposedLayout)) or len(thing) > 1 or "tile" in options:
        return options
    outer = thing.outer if isinstance(thing, ComposedLayout) else thing
    reach = outer.cosize()
    if outer.size() == 0 or not isinstance(reach, int):
        return options
    if isinstance(thing, ComposedLayout):  # a swizzle stays below the next power of two
        reach = 1 << (reach + thing.offset).bit_length()
    extents = [e for e in leaves(outer.shape) if e > 1]
    between = 2 / extents[0] if len(extents) > 1 else 0  # characters of the lines at the hierarchy's boundaries
    digits = len(str(max(reach, outer.size())))
    return {"fold": max(1, min(32, int((width - digits - 5) / (digits + 1 + between)))), **options}


def _checked_page(maker: Any, thing: Any, options: dict[str, Any]) -> str:
    unknown = [name for name in options if name not in ("problem", "ctas_per_wave")]
    if unknown:
        raise UnsupportedError(
            f"draw: {unknown[0]!r} is no option for the page of a plan; there is problem, ctas_per_wave."
        )
    page: str = maker(thing, **options)
    return page


def save(thing: Any, path: str | Path, **options: Any) -> Path:
    """`draw(thing)` written to a file, as its name ends: .svg, .html or .txt.

    raises   UnsupportedError for another ending, and for what `draw` refuses
    """
    target = Path(path)
    kind = _SUFFIXES.get(target.suffix.lower())
    if kind is None:
        raise UnsupportedError(f"save: {target.name!r} ends in {target.suffix!r}; .svg, .html or .txt is expected.")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(draw(thing, kind=kind, **options), encoding="utf-8")
    return target


def notebook(thing: Any) -> str:
    """HTML for a notebook: the SVG, or the text of what has no picture. Never raises CutegemmError."""
    told = described(thing)
    if told is not None:
        return told
    try:
        return draw(thing, kind="svg")
    except CutegemmError:
        return f"<pre>{escape(str(thing))}</pre>"


def _page(title: str, svg_text: str) -> str:
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="color-scheme" '
        'content="light dark"><style>body{margin:16px;background:#e9ecef}@media(prefers-color-scheme:dark)'
        f"{{body{{background:#0b0d10}}}}</style></head><body>{svg_text}</body></html>\n"
    )


__all__ = [
    "Event",
    "Grid",
    "Legend",
    "Picture",
    "Timeline",
    "atom_picture",
    "composition_picture",
    "copy_picture",
    "draw",
    "layout_picture",
    "matrix_picture",
    "notebook",
    "picture",
    "plan_picture",
    "plan_timeline",
    "protocol_timeline",
    "raster_picture",
    "save",
    "slice_picture",
    "swizzle_picture",
    "tensor_picture",
    "tiled_mma_picture",
    "tv_picture",
]
