"""Links and forms of the explorer. Each leads to another state, which is the query of its address.

htmx sends a form whenever a field changes. Without JavaScript, a button sends it. htmx changes only the elements of the
page that differ from the answer, so the focus and the text that is being typed are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cutegemm.explore.html import Child, Html, el, joined
from cutegemm.explore.state import State

_SWAP = {"hx_target": "#app", "hx_swap": "innerMorph"}
FORM = "form=1"  # marks the query of a form: its answer replaces the address by the shortest one
_TYPING = "input changed delay:250ms, change, submit"


def link(state: State, *content: Child, current: bool = False, **attributes: str | None) -> Html:
    """Return an HTML link to the explorer's web page with the given choices of plan, view etc.

    state        the choices that the linked page shows
    content      text or elements of the link
    current      True if the link leads to the page that is shown
    attributes   further attributes of the element
    """
    to = state.query
    marker = "page" if current else None
    return el("a", *content, href=to, aria_current=marker, hx_get=to, hx_push_url="true", **_SWAP, **attributes)


def form(state: State, *content: Child, label: str, keeps: Iterable[str]) -> Html:
    """Return an HTML form that updates the explorer's web page; its fields are choices such as the plan.

    state     the present choices
    content   the fields
    label     description of the form for screen readers
    keeps     names of the other choices in `state` that the form sends unchanged
    """
    mark = el("input", type="hidden", name=FORM.partition("=")[0], value=FORM.partition("=")[2])
    hidden = [el("input", type="hidden", name=name, value=state[name]) for name in keeps]
    button = el("noscript", el("button", "show", type="submit"))
    return el(
        "form", mark, hidden, *content, button, method="get", action="?", aria_label=label, autocomplete="off",
        hx_get="?", hx_trigger=_TYPING, hx_replace_url="true", hx_sync="this:replace", **_SWAP,
    )  # fmt: skip


def field(name: str, label: str, value: str, *, hint: str = "", listed: str = "", **attributes: str) -> Html:
    """Return a one-line text field with its label, as HTML for a form.

    name         name under which the form sends the field's text, such as "plan"; a key of `State`
    label        text above the field
    value        the current text
    hint         explanation below the field; "" for none
    listed       id of a datalist of suggestions; "" for none
    attributes   further attributes of the input element
    """
    box = el(
        "input", id=f"f-{name}", name=name, value=value, type="text", spellcheck="false", list=listed or None,
        aria_describedby=f"h-{name}" if hint else None, **attributes,
    )  # fmt: skip
    return _labelled(name, label, box, hint)


def area(name: str, label: str, value: str, *, rows: int, hint: str = "") -> Html:
    """Return a text field of `rows` lines with its label, as HTML for a form.

    name    name under which the form sends the text; a key of `State`
    label   text above the field
    value   the current text
    rows    height in lines
    hint    explanation below the field; "" for none
    """
    box = el(
        "textarea", value, id=f"f-{name}", name=name, rows=rows, spellcheck="false", autocapitalize="off",
        aria_describedby=f"h-{name}" if hint else None,
    )  # fmt: skip
    return _labelled(name, label, box, hint)


def choice(name: str, label: str, value: str, options: Sequence[tuple[str, str]], hint: str = "") -> Html:
    """Return a drop-down list with its label, as HTML for a form.

    name      name under which the form sends the selected value, such as "dtype"; a key of `State`
    label     text above the field
    value     the selected value
    options   (value, text) of each item
    hint      explanation below the field; "" for none
    """
    items = [el("option", text, value=option, selected=option == value) for option, text in options]
    return _labelled(name, label, el("select", *items, id=f"f-{name}", name=name), hint)


def _labelled(name: str, label: str, box: Html, hint: str) -> Html:
    """Return a form field as HTML, with its label above and its explanation below.

    name    name of the field; the ids in the HTML are made from it
    label   text above the field
    box     the input element
    hint    explanation; "" for none
    """
    small = el("small", hint, id=f"h-{name}") if hint else None
    return el("div", el("label", label, for_=f"f-{name}"), box, small, class_="field")


def chips(links: Iterable[Html], label: str) -> Html:
    """Return a row of short links as HTML, such as the examples below a form.

    links   the links
    label   description of the row for screen readers
    """
    return el("ul", [el("li", item) for item in links], class_="chips", aria_label=label)


def card(title: str, *content: Child, class_: str = "card", id_: str | None = None) -> Html:
    """Return a framed section of the web page as HTML, with its heading.

    title     heading; "" for a section without one
    content   what the section shows
    class_    CSS class of the section
    id_       `id` of the section; None for none
    """
    return el("section", el("h2", title) if title else None, joined(*content), class_=class_, id=id_)
