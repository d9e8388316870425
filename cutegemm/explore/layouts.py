"""The view "layouts": a typed expression, and each of its operations with a derivation and a picture."""

from __future__ import annotations

from typing import Any

from cutegemm.draw import composition_picture, layout_picture, slice_picture, swizzle_picture, tv_picture
from cutegemm.draw.grids import Picture
from cutegemm.draw.svg import svg
from cutegemm.errors import CutegemmError
from cutegemm.explore.conflicts import conflicts
from cutegemm.explore.expression import Call, HeldBy, evaluated
from cutegemm.explore.forms import area, chips, choice, form, link
from cutegemm.explore.html import Html, code, el, error, joined, said, scrolling
from cutegemm.explore.state import State
from cutegemm.layout import ComposedLayout, Layout, Swizzle, explain, raked_product, right_inverse
from cutegemm.layout.layout import has_none

EXAMPLES = (
    ("a layout", "((2,4),8):((1,16),2)"),
    ("composition", "composition((6,2):(8,2), (4,3):(3,1))"),
    ("complement", "complement(4:2, 16)"),
    ("divide by tiles", "zipped_divide((8,12):(12,1), (4,3))"),
    ("product", "raked_product((2,2):(1,2), (3,4):(1,3))"),
    ("inverse", "right_inverse((4,8):(8,1))"),
    ("swizzle", "S<3,3,3> o 0 o (8,64):(64,1)"),
    ("thread and value", "make_layout_tv((4,8):(8,1), (2,2):(2,1))"),
    ("a warp's tile", "tiles = zipped_divide((16,16):(16,1), (8,4))\ntiles(_, (1,2))"),
    ("ldmatrix conflicts", "S<3,3,4> o 0 o (8,128):(128,1)\n(8,128):(128,1)"),
    ("refused", "composition((6,2):(1,7), (3,2):(2,3))"),
)
_STAYS = ("view", "plan", "dtype", "layout", "problem", "device", "epilogue", "operands")
_EXPLAINED_LINES = 60  # limit of the lines of a derivation
_DETAILED = (64, 128, 4096)  # maximum columns, rows and cells of a picture whose cells have text; it can be scrolled
_MOST_BITS = 1024  # limit of the bits of an element


def layouts(state: State) -> Html:
    """Return HTML for the explorer's view "layouts": a form for a layout expression, and the result of each operation.

    state   the user's choices on the web page, among them the expression
    """
    calls = evaluated(state["expr"])
    steps = [_step(number, call, state) for number, call in enumerate(calls, 1)]
    return joined(_form(state), el("p", _status(calls), class_="unseen", role="status"), el("div", *steps, id="steps"))


def _status(calls: list[Call]) -> str:
    """Return the result or error of a typed layout expression as one line for screen readers.

    calls   operations of the expression with their results, in order
    """
    if not calls:
        return "the expression is empty"
    last = calls[-1]
    return f"refused: {last.error.splitlines()[0]}" if last.error else f"{last.text} = {last.value}"


def _form(state: State) -> Html:
    """Return the HTML form for a layout expression and the options of its pictures, with links to examples.

    state   the user's choices on the web page, which are the values of the fields
    """
    options = el(
        "div",
        choice("bits", "bits of an element", state["bits"], [(b, b) for b in ("4", "8", "16", "32", "64")]),
        choice("cells", "cells show", state["cells"], [(c, c) for c in ("offsets", "coordinates", "none")]),
        choice("color", "colours show", state["color"], [(c, c) for c in ("bank", "offset", "none")]),
        class_="fields",
    )
    hint = "Layouts in CuTe's notation, C++ or Python, and operations by CuTe's names. NAME = ... names a result."
    box = area("expr", "expression", state["expr"], rows=max(2, state["expr"].count("\n") + 1), hint=hint)
    examples = chips(
        [link(state.with_(expr=text), name, current=text == state["expr"]) for name, text in EXAMPLES],
        "examples",
    )
    return el("section", form(state, box, options, label="expression", keeps=_STAYS), examples, class_="card")


def _step(number: int, call: Call, state: State) -> Html:
    """Return HTML for one operation of a typed layout expression: result or error, derivation and picture.

    number   index of the operation in the expression, which its heading shows
    call     the operation with its arguments and its result or error
    state    the user's choices on the web page, such as the colours of pictures
    """
    title: list[Html | str] = [el("span", f"{number}", class_="number", aria_hidden="true"), code(call.text)]
    if call.target:
        title += [" as ", code(call.target)]
    column: list[Html] = []
    if call.error:
        column.append(error(call.error))
    elif call.name or str(call.value) != call.text:
        column.append(el("p", "= ", code(str(call.value)), class_="result"))
    column.append(joined(_facts(call.value)))
    derived = _derivation(call)
    if derived:
        column.append(el("details", el("summary", "step by step"), said(derived), open=True))
    drawn = _drawn(call, state)
    heading = el("h2", *title) if call.text else None
    return el("section", heading, el("div", el("div", *column, class_="told"), drawn, class_="split"), class_="card")


def _facts(value: Any) -> list[Html | None]:
    """Return facts about an operation's result as HTML, such as rank, size and cosize of a layout.

    For a swizzle, the fact is which bits it changes.

    value   the result; the list is empty if it is neither a layout nor a swizzle
    """
    if isinstance(value, Swizzle):
        low, high = value.base, value.base + abs(value.shift)
        fields = [f"{at} .. {at + value.bits - 1}" for at in (low, high)]
        target, source = fields if value.shift >= 0 else fields[::-1]
        text = "the identity" if value.bits == 0 else f"bits {target} of an offset are XORed with its bits {source}"
        return [el("p", text)]
    shown = value.layout if isinstance(value, HeldBy) else value
    if not isinstance(shown, (Layout, ComposedLayout)):
        return []
    outer = shown.outer if isinstance(shown, ComposedLayout) else shown
    facts = [("rank", str(len(outer))), ("size", str(outer.size()))]
    if outer.is_integral:
        facts.append(("cosize", str(outer.cosize())))
    return [el("dl", [joined(el("dt", name), el("dd", text)) for name, text in facts], class_="facts")]


def _derivation(call: Call) -> str:
    """Return the step-by-step derivation of a layout operation's result as text; "" if it has none.

    A text of more than 60 lines is cut in the middle.

    call   the operation with its arguments and its result
    """
    try:
        lines = _lines(call)
    except CutegemmError:
        return ""  # the operation has no steps of its own
    if call.error:
        lines = [line for line in lines if not line.startswith("refused")][:-1] or lines
    if len(lines) > _EXPLAINED_LINES:
        left = len(lines) - _EXPLAINED_LINES
        lines = [*lines[: _EXPLAINED_LINES - 1], f"  ... {left} more lines", lines[-1]]
    return "\n".join(lines)


def _lines(call: Call) -> list[str]:
    """Return the lines of text that derive a layout operation's result; an empty list if it has no derivation.

    `make_layout_tv` is derived by the operations that it consists of.

    call   the operation with its arguments and its result
    """
    if call.name == "make_layout_tv" and not call.error:
        threads, values = call.args
        tile = raked_product(threads, values)  # (m, n) -> thread and value
        numbered = Layout((threads.size(), values.size()))
        steps = (("raked_product", threads, values), ("right_inverse", tile))
        lines = [line for step in steps for line in explain(*step).splitlines()]
        return [*lines, *explain("composition", right_inverse(tile), numbered).splitlines()]
    return explain(call.name, *call.args).splitlines() if call.name else []


def _drawn(call: Call, state: State) -> Html | None:
    """Return the picture of a layout operation's result as HTML, or the reason why it cannot be drawn.

    None if the result is not a layout, or the operation failed.

    call    the operation with its arguments and its result
    state   the user's choices on the web page, such as the colours of pictures
    """
    if call.error or not isinstance(call.value, (Layout, ComposedLayout, Swizzle, HeldBy)):
        return None
    try:
        picture = _picture(call, state)
    except CutegemmError as what:
        return el("p", str(what), class_="hint")
    drawn = scrolling(Html(svg(picture, _DETAILED)), f"picture of {call.value}", "picture")
    counted = conflicts(call.value, _bits(state)) if state["color"] == "bank" else None
    return el("div", drawn, counted)


def _bits(state: State) -> int:
    """Return the element width in bits that the user has selected; it decides the bank of each offset.

    state   the user's choices on the web page
    """
    return state.number("bits", _MOST_BITS + 1, 16) or 1


def _picture(call: Call, state: State) -> Picture:
    """Choose the kind of picture that suits a layout operation and its result, and draw it.

    call    the operation with its name, arguments and result
    state   the user's choices: what the cells show and how they are coloured
    """
    value, args = call.value, call.args
    bits = _bits(state)
    if isinstance(value, HeldBy):
        return tv_picture(value.layout, value.tile)
    if isinstance(value, Swizzle):
        return swizzle_picture(value)
    title = f"{state['cells']}, coloured by {state['color']}"
    plain = {"cells": state["cells"], "color": state["color"], "element_bits": bits, "title": title}
    if call.name == "composition" and isinstance(args[0], Layout) and value.size() <= 1024:
        return composition_picture(*args, title="A, B and A o B: the same colour is the same element")
    if isinstance(value, ComposedLayout) and isinstance(value.inner, Swizzle) and state["color"] == "bank":
        return swizzle_picture(value, element_bits=bits, title="before and after the swizzle, by bank")
    if not call.name and len(args) > 1 and isinstance(args[0], Layout) and has_none(args[1:]):
        try:
            return slice_picture(args[0], args[1:], element_bits=bits)
        except CutegemmError:
            pass  # the coordinate has another rank: draw only the result
    return layout_picture(value, **plain)  # type: ignore[arg-type]
