"""The view of the algebra: what is typed, and every operation in it with its derivation and its picture."""

from __future__ import annotations

from typing import Any

from cutegemm.draw import composition_picture, layout_picture, slice_picture, swizzle_picture, tv_picture
from cutegemm.draw.grids import Picture
from cutegemm.draw.svg import svg
from cutegemm.errors import CutegemmError
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
    ("ldmatrix conflicts", "S<3,4,3> o 0 o (8,128):(128,1)\n(8,128):(128,1)"),
    ("refused", "composition((6,2):(1,7), (3,2):(2,3))"),
)
_STAYS = ("view", "plan", "dtype", "layout", "problem", "device", "epilogue", "operands")
_EXPLAINED_LINES = 60


_MOST_BITS = 1024  # of an element


def layouts(state: State) -> Html:
    """The whole view."""
    calls = evaluated(state["expr"])
    steps = [_step(number, call, state) for number, call in enumerate(calls, 1)]
    return joined(_asked(state), el("p", _status(calls), class_="unseen", role="status"), el("div", *steps, id="steps"))


def _status(calls: list[Call]) -> str:
    """What has become of what was typed, in a line that is read out."""
    if not calls:
        return "nothing is typed"
    last = calls[-1]
    return f"refused: {last.error.splitlines()[0]}" if last.error else f"{last.text} = {last.value}"


def _asked(state: State) -> Html:
    options = el(
        "div",
        choice("bits", "bits of an element", state["bits"], [(b, b) for b in ("4", "8", "16", "32", "64")]),
        choice("cells", "cells show", state["cells"], [(c, c) for c in ("offsets", "coordinates", "none")]),
        choice("color", "colours show", state["color"], [(c, c) for c in ("bank", "offset", "none")]),
        class_="fields",
    )
    hint = "Layouts in CuTe's notation and operations by CuTe's names; name = ... keeps a result."
    box = area("expr", "expression", state["expr"], rows=max(2, state["expr"].count("\n") + 1), hint=hint)
    examples = chips(
        [link(state.with_(expr=text), name, current=text == state["expr"]) for name, text in EXAMPLES],
        "examples",
    )
    return el("section", form(state, box, options, label="expression", keeps=_STAYS), examples, class_="card")


def _step(number: int, call: Call, state: State) -> Html:
    title: list[Html | str] = [el("span", f"{number}", class_="number", aria_hidden="true"), code(call.text)]
    if call.target:
        title += [" as ", code(call.target)]
    told: list[Html] = []
    if call.error:
        told.append(error(call.error))
    elif call.name or str(call.value) != call.text:
        told.append(el("p", "= ", code(str(call.value)), class_="result"))
    told.append(joined(_facts(call.value)))
    derived = _derivation(call)
    if derived:
        told.append(el("details", el("summary", "step by step"), said(derived), open=True))
    drawn = _drawn(call, state)
    heading = el("h2", *title) if call.text else None
    return el("section", heading, el("div", el("div", *told, class_="told"), drawn, class_="split"), class_="card")


def _facts(value: Any) -> list[Html | None]:
    """What a layout is, in numbers."""
    if isinstance(value, Swizzle):
        low, high = value.base, value.base + abs(value.shift)
        fields = [f"{at} .. {at + value.bits - 1}" for at in (low, high)]
        to, of = fields if value.shift >= 0 else fields[::-1]
        text = "the identity" if value.bits == 0 else f"bits {to} of an offset are XORed with its bits {of}"
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
    try:
        lines = _lines(call)
    except CutegemmError:
        return ""  # the operation has no steps of its own
    if call.error:
        lines = [line for line in lines if not line.startswith("refused")][:-1] or lines
    if len(lines) > _EXPLAINED_LINES:
        left = len(lines) - _EXPLAINED_LINES
        lines = [*lines[: _EXPLAINED_LINES - 1], f"  ... {left} lines more", lines[-1]]
    return "\n".join(lines)


def _lines(call: Call) -> list[str]:
    if call.name == "make_layout_tv" and not call.error:
        threads, values = call.args
        tile = raked_product(threads, values)  # (m, n) -> thread and value
        numbered = Layout((threads.size(), values.size()))
        steps = (("raked_product", threads, values), ("right_inverse", tile))
        told = [line for step in steps for line in explain(*step).splitlines()]
        return [*told, *explain("composition", right_inverse(tile), numbered).splitlines()]
    return explain(call.name, *call.args).splitlines() if call.name else []


def _drawn(call: Call, state: State) -> Html | None:
    if call.error or not isinstance(call.value, (Layout, ComposedLayout, Swizzle, HeldBy)):
        return None
    try:
        picture = _picture(call, state)
    except CutegemmError as what:
        return el("p", str(what), class_="hint")
    return scrolling(Html(svg(picture)), f"picture of {call.value}", "picture")


def _picture(call: Call, state: State) -> Picture:
    """What shows best what an operation did."""
    value, args = call.value, call.args
    bits = state.number("bits", _MOST_BITS + 1, 16) or 1
    if isinstance(value, HeldBy):
        return tv_picture(value.layout, value.tile)
    if isinstance(value, Swizzle):
        return swizzle_picture(value)
    title = f"{state['cells']}, coloured by {state['color']}"
    plain = {"cells": state["cells"], "color": state["color"], "element_bits": bits, "title": title}
    if call.name == "composition" and isinstance(args[0], Layout) and value.size() <= 1024:
        return composition_picture(*args, title="A, B and A o B: what is one colour is one place")
    if isinstance(value, ComposedLayout) and isinstance(value.inner, Swizzle) and state["color"] == "bank":
        return swizzle_picture(value, element_bits=bits, title="before and after the swizzle, by bank")
    if not call.name and len(args) > 1 and isinstance(args[0], Layout) and has_none(args[1:]):
        try:
            return slice_picture(args[0], args[1:], element_bits=bits)
        except CutegemmError:
            pass  # of another rank: the slice alone
    return layout_picture(value, **plain)  # type: ignore[arg-type]
