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
    """The content of the explorer's web page for one set of choices.

    title   title of the page
    html    HTML of its whole content
    query   shortest query (the part of a URL after the path) that links to the page; values that equal their defaults
            are left out
    """

    title: str
    html: str
    query: str


def answer(query: str) -> Answer:
    """Return the explorer's web page for the query of a URL.

    An error in the query, such as an unknown plan, is shown on the page and not raised.

    query   such as "view=banks&plan=simt_64x64"; missing values are the defaults

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
    """Return the header of the explorer's web page as HTML: its name, and a tab for each view.

    state   the user's choices on the web page, which the tabs keep
    """
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
    """Return HTML for a view of a kernel plan on the explorer's web page, next to the forms that choose the plan.

    If the plan cannot be built, its broken rules are shown, and the view of the last plan that could be built.

    state   the user's choices on the web page
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
    """Return HTML for a view of the last plan that could be built; None if no plan could be built yet.

    state   the user's choices on the web page, which include that plan's name
    view    function that makes the view from choices and the plan that they select
    """
    before = state.remembered
    kept = None if before is None else chosen(before)
    if before is None or kept is None or kept.plan is None:
        return None
    note = el("p", "Below is the last plan that keeps the rules: ", link(before, before["plan"]), ".", class_="hint")
    return el("div", note, view(before, kept), class_="last")


def respond(query: str, restores: bool = False) -> tuple[str, dict[str, str]]:
    """Return the HTML and the HTTP headers that answer a request of htmx, the script that updates the web page.

    query      query of the requested URL, such as "view=banks&plan=simt_64x64"
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
    """Return the bytes of a file that the web page loads, such as "explore.css".

    name   name of a file in the assets of this package or of `cutegemm.draw`
    """
    own = files(_ASSETS).joinpath(name)
    return own.read_bytes() if own.is_file() else part(name).encode()


def document(content: Answer | None, body: str = "") -> str:
    """Return a whole HTML document of the explorer.

    content   what the page shows; None for a static document whose content is computed by Python in the browser
    body      attributes of the body element, with a leading space; "" for none
    """
    title = "cutegemm explorer" if content is None else f"{content.title}: cutegemm explorer"
    html = _LOADING if content is None else content.html
    parts = {"{{title}}": joined(title), "{{content}}": html, "{{body}}": body}
    text = asset("page.html").decode()
    for name, value in parts.items():
        text = text.replace(name, value, 1)
    return text
