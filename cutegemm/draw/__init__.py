"""Draw layouts, atoms, tiled MMAs and copies, rasters and plans as text, SVG or an HTML page.

    draw(Layout((4, 8)), kind="text")            a grid for the terminal
    draw(mma_sync(f16, 16))                      A, B and C around each other, as SVG
    draw(plan, kind="html", problem=problem)     a page to explore the plan in a browser
    save(slice_picture(layout, (None, 2)), "slice.svg")

`draw` finds the picture function by the type of the object. Call these functions directly if a picture needs several
objects: `composition_picture`, `slice_picture`, `swizzle_picture`, `tv_picture`, `raster_picture`, `groups_picture`. A
`Timeline` shows the roles of a pipeline over time.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from cutegemm.draw.atoms import atom_picture, copy_picture, tiled_mma_picture
from cutegemm.draw.grids import Grid, Legend, Picture
from cutegemm.draw.groups import groups_picture
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
    """Return the `Picture` of an object: grids of cells with labels and colours, before an output format is chosen.

    thing     an object of any type that `draw` accepts, except a Timeline; a Picture is returned unchanged
    options   keyword arguments of the picture function for the type of `thing`, such as `layout_picture`
    raises    UnsupportedError if the type cannot be drawn, or if its picture function does not have an option

    >>> from cutegemm.layout import Layout
    >>> picture(Layout((2, 3))).subtitle
    '(2,3):(1,2)'
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
        f"draw: cannot draw {thing!r}, a {type(thing).__name__}. Pass a Layout, ComposedLayout, Tensor, F2Matrix, "
        "Swizzle, MmaAtom, CopyAtom, TiledMma, TiledCopy, Raster, GemmPlan, Timeline or Picture."
    )


def _made(maker: Any, thing: Any, options: dict[str, Any]) -> Picture:
    """Call the function that draws an object, and return its picture; raise UnsupportedError for an unknown option.

    maker     function of `thing` and keyword arguments that returns a Picture, such as `layout_picture`
    thing     the object to draw
    options   keyword arguments of `maker`, as the user of `draw` passed them
    """
    from inspect import signature

    known = [name for name in signature(maker).parameters][1:]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise UnsupportedError(
            f"draw: {unknown[0]!r} is not an option for a {type(thing).__name__}. Use {', '.join(known)}."
        )
    drawn: Picture = maker(thing, **options)
    return drawn


def draw(thing: Any, *, kind: str = "svg", width: int = 120, **options: Any) -> str:
    """Return the drawing of an object as a string of SVG, HTML or plain text.

    thing     a Layout, ComposedLayout, Tensor, F2Matrix, Swizzle, MmaAtom, CopyAtom, TiledMma, TiledCopy, Raster,
              GemmPlan, Timeline or Picture
    kind      "svg": an SVG document
              "html": a page; for a plan the page to explore it, for all other objects their SVG
              "text": plain characters for a terminal
    width     characters per line of text; "svg" and "html" do not use it
    options   keyword arguments of the picture function for the type of `thing`
              a layout: cells, color, element_bits, or `tile` to draw it as a thread-value layout
              a raster: grid, batch, cluster, ctas_per_wave
              a plan: problem
    raises    UnsupportedError if the type, the kind or an option is not supported; the message lists those that are

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
        raise UnsupportedError(f"draw: kind = {kind!r}. Use {', '.join(KINDS[:-1])} or {KINDS[-1]}.")
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
    """Return the options of `draw` for text output: for a layout with one mode, rows are folded to fit the width.

    thing     the object to draw; the options are returned unchanged if it is not a layout of rank 1
    width     maximum characters per line
    options   keyword arguments that the user passed to `draw`. The result adds `fold`, the number of elements per row
    """
    from cutegemm.layout import ComposedLayout, Layout
    from cutegemm.layout.inttuple import flatten as leaves

    if not isinstance(thing, (Layout, ComposedLayout)) or len(thing) > 1 or "tile" in options:
        return options
    outer = thing.outer if isinstance(thing, ComposedLayout) else thing
    reach = outer.cosize()
    if outer.size() == 0 or not isinstance(reach, int):
        return options
    if isinstance(thing, ComposedLayout):  # a swizzled offset stays below the next power of two
        reach = 1 << (reach + thing.offset).bit_length()
    extents = [e for e in leaves(outer.shape) if e > 1]
    between = 2 / extents[0] if len(extents) > 1 else 0  # mean characters per column for boundary lines
    digits = len(str(max(reach, outer.size())))
    return {"fold": max(1, min(32, int((width - digits - 5) / (digits + 1 + between)))), **options}


def _checked_page(maker: Any, thing: Any, options: dict[str, Any]) -> str:
    """Call the function that makes a plan's HTML page and return the page; raise UnsupportedError for a wrong option.

    maker     function that returns an HTML page, such as `plan_page`
    thing     the plan to draw
    options   keyword arguments of `maker`, as the user of `draw` passed them
    """
    unknown = [name for name in options if name not in ("problem", "ctas_per_wave")]
    if unknown:
        raise UnsupportedError(
            f"draw: {unknown[0]!r} is not an option for the page of a plan. Use problem or ctas_per_wave."
        )
    page: str = maker(thing, **options)
    return page


def save(thing: Any, path: str | Path, **options: Any) -> Path:
    """Write the drawing of an object to a file and return the file's path.

    thing     any object that `draw` accepts
    path      the file; its suffix (.svg, .html, .htm or .txt) chooses the format. Missing folders are created
    options   keyword arguments of `draw`
    raises    UnsupportedError if the suffix is not one of these, or if `draw` raises it
    """
    target = Path(path)
    kind = _SUFFIXES.get(target.suffix.lower())
    if kind is None:
        raise UnsupportedError(f"save: {target.name!r} ends in {target.suffix!r}. Use .svg, .html or .txt.")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(draw(thing, kind=kind, **options), encoding="utf-8")
    return target


def notebook(thing: Any) -> str:
    """Return the HTML that a notebook shows for `thing`: its SVG, or its text if it cannot be drawn.

    A notebook calls this for its output, so it never raises a CutegemmError.

    >>> notebook(3)
    '<pre>3</pre>'
    """
    description = described(thing)
    if description is not None:
        return description
    try:
        return draw(thing, kind="svg")
    except CutegemmError:
        return f"<pre>{escape(str(thing))}</pre>"


def _page(title: str, svg_text: str) -> str:
    """Return an HTML document with one SVG.

    title      title of the document
    svg_text   the SVG element as text
    """
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
    "groups_picture",
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
