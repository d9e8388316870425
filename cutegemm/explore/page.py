"""The page of a query: the header with the tabs of all views, and the content of one view."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files

from cutegemm.draw.html import part
from cutegemm.explore.banks import banks
from cutegemm.explore.chosen import OF_PLAN, Chosen, asked, chosen, edited, verdict
from cutegemm.explore.forms import FORM, card, link
from cutegemm.explore.html import Html, el, joined
from cutegemm.explore.layouts import layouts
from cutegemm.explore.pipeline import pipeline
from cutegemm.explore.plans import hierarchy, report, rules
from cutegemm.explore.sass import sass
from cutegemm.explore.state import State
from cutegemm.explore.tile import tile

_OF_PLAN: dict[str, tuple[str, Callable[[State, Chosen], Html]]] = {
    "rules": ("rules", rules),
    "tile": ("tile", tile),
    "banks": ("banks", banks),
    "pipeline": ("pipeline", pipeline),
    "report": ("time", report),
    "code": ("code", sass),
}
_ASSETS = "cutegemm.explore.assets"
_LOADING = joined(
    el("header", el("h1", "cutegemm explorer")),
    el(
        "main",
        el("p", "loading", id="progress", role="status"),
        el("noscript", el("p", "This page needs JavaScript: it runs Python in the browser.", class_="error")),
        id="main",
    ),
)


@dataclass(frozen=True)
class Answer:
    """The page that answers the query of a link.

    title   title of the page
    html    HTML of its whole content
    query   shortest query that links to the page: values that equal their defaults are left out
    """

    title: str
    html: str
    query: str


def answer(query: str) -> Answer:
    """Return the explorer's page for the query of a link. An error in the query is shown on the page and is not raised.

    query   the query of a link, such as "view=banks&plan=simt_64x64"; missing values are the defaults

    >>> answer("view=rules&plan=simt_64x64&dtype=f32").query
    '?view=rules&plan=simt_64x64&dtype=f32'
    """
    state = edited(State.of(query))
    if state["last"] and chosen(state).plan is not None:
        state = replace(state, values={**state.values, "last": ""})
    if state.view not in _OF_PLAN:
        state = state.with_(view="layouts")
        title, shown = state["expr"].splitlines()[0] if state["expr"].strip() else "layouts", layouts(state)
    else:
        title, shown = state["plan"], _plan(state)
    content = joined(_head(state), el("main", shown, id="main", tabindex=-1))
    return Answer(title, content, state.query)


def _head(state: State) -> Html:
    """Return the header of the explorer's page: its name and the tabs of all views (the parts of the explorer)."""
    tabs = [link(state.with_(view="layouts"), "layouts", current=state.view == "layouts")]
    tabs += [link(state.with_(view=view), name, current=state.view == view) for view, (name, _) in _OF_PLAN.items()]
    items = [
        el("li", tabs[0]),
        el("li", "plan", class_="of", aria_hidden="true"),
        *[el("li", t) for t in tabs[1:]],
    ]
    return el(
        "header",
        el("h1", link(State.of(""), "cutegemm"), " explorer"),
        el("nav", el("ul", *items), aria_label="views"),
    )


def _plan(state: State) -> Html:
    """Return the content of a view that shows a plan, next to the forms that choose the plan.

    If the plan cannot be built, its broken rules are shown, and the view of the last plan that could be built.
    """
    selected = chosen(state)
    view = _OF_PLAN[state.view][1]
    if selected.plan is None:
        shown = joined(rules(state, selected), _last(state, hierarchy if view is rules else view))
    elif state.view == "rules":
        shown = rules(state, selected)
    else:
        warning = card("", verdict(selected)) if selected.violations else None
        shown = joined(warning, view(state, selected))
    typed = state if selected.plan is None else state.remembering(OF_PLAN)
    return el("div", asked(typed, selected), el("div", shown, class_="shown"), class_="plan")


def _last(state: State, view: Callable[[State, Chosen], Html]) -> Html | None:
    """Return a view of the last plan that could be built, or None if none could be built.

    state   the state of the page, which remembers that plan
    view    function that makes the view from a state and its plan
    """
    before = state.remembered
    kept = None if before is None else chosen(before)
    if before is None or kept is None or kept.plan is None:
        return None
    note = el("p", "Below is the last plan that keeps the rules: ", link(before, before["plan"]), ".", class_="hint")
    return el("div", note, view(before, kept), class_="last")


def respond(query: str, restores: bool = False) -> tuple[str, dict[str, str]]:
    """Return the HTML and the HTTP headers of the answer to a request of htmx, the script that updates the page.

    query      the query of the request
    restores   True if the browser goes back in its history: the answer is then a whole document

    >>> respond("form=1&view=layouts&expr=4:1&bits=16")[1]
    {'HX-Replace-Url': '?view=layouts&expr=4:1'}
    """
    page = answer(query)
    headers = {"HX-Replace-Url": page.query} if FORM in query.lstrip("?").split("&") else {}
    if restores:
        return document(page), headers
    return joined(el("title", f"{page.title}: cutegemm explorer"), Html(page.html)), headers


def asset(name: str) -> bytes:
    """Return the bytes of a file that the page loads, such as "explore.css", from this package or `cutegemm.draw`."""
    own = files(_ASSETS).joinpath(name)
    return own.read_bytes() if own.is_file() else part(name).encode()


def document(content: Answer | None, body: str = "") -> str:
    """Return a whole HTML document of the explorer.

    content   the page; None for a static document whose content is computed by Python in the browser
    body      attributes of the body element, with a leading space; "" for none
    """
    title = "cutegemm explorer" if content is None else f"{content.title}: cutegemm explorer"
    html = _LOADING if content is None else content.html
    parts = {"{{title}}": joined(title), "{{content}}": html, "{{body}}": body}
    text = asset("page.html").decode()
    for name, value in parts.items():
        text = text.replace(name, value, 1)
    return text
