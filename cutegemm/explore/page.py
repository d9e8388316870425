"""The page: what a query shows, under the head that all views have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files

from cutegemm.draw.html import part
from cutegemm.explore.banks import banks
from cutegemm.explore.chosen import Chosen, asked, chosen, edited, verdict
from cutegemm.explore.forms import FORM, card, link
from cutegemm.explore.html import Html, el, joined
from cutegemm.explore.layouts import layouts
from cutegemm.explore.pipeline import pipeline
from cutegemm.explore.plans import report, rules
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
    el("main", el("p", "loading", id="progress", role="status"), id="main"),
)


@dataclass(frozen=True)
class Answer:
    """What a query shows.

    title   of the page
    html    of its whole content
    query   of the link to it, as short as may be
    """

    title: str
    html: str
    query: str


def answer(query: str) -> Answer:
    """The page of a query; whatever is wrong with it stands on the page.

    >>> answer("view=rules&plan=simt_64x64&dtype=f32").query
    '?view=rules&plan=simt_64x64&dtype=f32'
    """
    state = edited(State.of(query))
    if state.view not in _OF_PLAN:
        state = state.with_(view="layouts")
        title, shown = state["expr"].splitlines()[0] if state["expr"].strip() else "layouts", layouts(state)
    else:
        title, shown = state["plan"], _plan(state)
    content = joined(_head(state), el("main", shown, id="main", tabindex=-1))
    return Answer(title, content, state.query)


def _head(state: State) -> Html:
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
    found = chosen(state)
    view = _OF_PLAN[state.view][1]
    if state.view == "rules" or found.plan is None:
        shown = rules(state, found)
    else:
        warning = card("", verdict(found)) if found.violations else None
        shown = joined(warning, view(state, found))
    return el("div", asked(state, found), el("div", shown, class_="shown"), class_="plan")


def respond(query: str, restores: bool = False) -> tuple[str, dict[str, str]]:
    """What htmx is answered: HTML, and headers.

    restores   whether it goes back to a page, all of which it asks for

    >>> respond("form=1&view=layouts&expr=4:1&bits=16")[1]
    {'HX-Replace-Url': '?view=layouts&expr=4:1'}
    """
    found = answer(query)
    headers = {"HX-Replace-Url": found.query} if FORM in query.lstrip("?").split("&") else {}
    if restores:
        return document(found), headers
    return joined(el("title", f"{found.title}: cutegemm explorer"), Html(found.html)), headers


def asset(name: str) -> bytes:
    """A file that the page needs: of this package, or of the drawings'."""
    own = files(_ASSETS).joinpath(name)
    return own.read_bytes() if own.is_file() else part(name).encode()


def document(content: Answer | None, body: str = "") -> str:
    """The whole document: with its content, or where Python is to make that in the browser, without.

    body   attributes of the body
    """
    title = "cutegemm explorer" if content is None else f"{content.title}: cutegemm explorer"
    html = _LOADING if content is None else content.html
    parts = {"{{title}}": joined(title), "{{content}}": html, "{{body}}": body}
    text = asset("page.html").decode()
    for name, value in parts.items():
        text = text.replace(name, value, 1)
    return text
