"""Links and forms of the explorer: each leads to another state, and says so in its address.

A form is sent as it changes, by htmx; without a script by its button. htmx puts the answer into the page by changing
what is different, so that the focus and what is being typed stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cutegemm.explore.html import Child, Html, el, joined
from cutegemm.explore.state import State

_SWAP = {"hx_target": "#app", "hx_swap": "innerMorph"}
FORM = "form=1"  # in the query of a form, whose answer says how the address is written shortest
_TYPING = "input changed delay:250ms, change, submit"


def link(state: State, *content: Child, current: bool = False, **attributes: str | None) -> Html:
    """A link to a state.

    current   whether that is what is shown
    """
    to = state.query
    here = "page" if current else None
    return el("a", *content, href=to, aria_current=here, hx_get=to, hx_push_url="true", **_SWAP, **attributes)


def form(state: State, *content: Child, label: str, keeps: Iterable[str]) -> Html:
    """A form whose fields are values of the state.

    keeps   the other values that go with them
    """
    mark = el("input", type="hidden", name=FORM.partition("=")[0], value=FORM.partition("=")[2])
    hidden = [el("input", type="hidden", name=name, value=state[name]) for name in keeps]
    button = el("noscript", el("button", "show", type="submit"))
    return el(
        "form", mark, hidden, *content, button, method="get", action="?", aria_label=label, autocomplete="off",
        hx_get="?", hx_trigger=_TYPING, hx_replace_url="true", hx_sync="this:replace", **_SWAP,
    )  # fmt: skip


def field(name: str, label: str, value: str, *, hint: str = "", listed: str = "", **attributes: str) -> Html:
    """A line to type in, under its label.

    listed   the id of a list of suggestions
    """
    box = el(
        "input", id=f"f-{name}", name=name, value=value, type="text", spellcheck="false", list=listed or None,
        aria_describedby=f"h-{name}" if hint else None, **attributes,
    )  # fmt: skip
    return _labelled(name, label, box, hint)


def area(name: str, label: str, value: str, *, rows: int, hint: str = "") -> Html:
    """Several lines to type in."""
    box = el(
        "textarea", value, id=f"f-{name}", name=name, rows=rows, spellcheck="false", autocapitalize="off",
        aria_describedby=f"h-{name}" if hint else None,
    )  # fmt: skip
    return _labelled(name, label, box, hint)


def choice(name: str, label: str, value: str, options: Sequence[tuple[str, str]], hint: str = "") -> Html:
    """One of several (value, what is shown)."""
    told = [el("option", text, value=each, selected=each == value) for each, text in options]
    return _labelled(name, label, el("select", *told, id=f"f-{name}", name=name), hint)


def _labelled(name: str, label: str, box: Html, hint: str) -> Html:
    said = el("small", hint, id=f"h-{name}") if hint else None
    return el("div", el("label", label, for_=f"f-{name}"), box, said, class_="field")


def chips(links: Iterable[Html], label: str) -> Html:
    """Short links side by side."""
    return el("ul", [el("li", each) for each in links], class_="chips", aria_label=label)


def card(title: str, *content: Child, class_: str = "card", id_: str | None = None) -> Html:
    """A part of a view under its heading."""
    return el("section", el("h2", title) if title else None, joined(*content), class_=class_, id=id_)
