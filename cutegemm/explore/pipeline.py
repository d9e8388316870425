"""The pipeline as a timeline, and step by step: what each role does, where it waits, what barriers and stages say."""

from __future__ import annotations

from collections.abc import Iterator

from cutegemm.draw.timeline import plan_timeline, timeline_svg
from cutegemm.errors import CutegemmError
from cutegemm.explore.chosen import Chosen
from cutegemm.explore.forms import card, form, link
from cutegemm.explore.html import Html, el, error, joined, scrolling, table
from cutegemm.explore.moments import Moment, moments
from cutegemm.explore.state import DEFAULTS, State
from cutegemm.plan import GemmPlan
from cutegemm.plan.program.thread_schedule import Repeat, Step, ThreadSchedule

_K_TILES = 3  # of a schedule, beyond those of the prologue


def pipeline(state: State, found: Chosen) -> Html:
    """The timeline with a moment marked, the programs with the lines that roles are at, and the state of barriers."""
    plan = found.plan
    assert plan is not None
    if plan.schedule is not None:
        return _scheduled(state, plan, plan.schedule)
    try:
        every = moments(plan)
        timeline = plan_timeline(plan)
    except CutegemmError as what:
        return card("", error(str(what)))
    number = state.number("t", len(every))
    now = every[number]
    drawn = scrolling(Html(timeline_svg(timeline, now.time)), f"timeline of {timeline.title}", "picture")
    return joined(
        card("What each role does when", drawn, _stepper(state, number, len(every)), _said(number, now, every)),
        card("Programs, and where the roles are", _programs(plan, now)),
        el(
            "div",
            card("Stages", _stages(now), _sums(now)),
            card("Barriers", _barriers(plan, now)),
            class_="pair",
        ),
    )


def _stepper(state: State, number: int, count: int) -> Html:
    """To the first, the next and the last moment, and a slider to all of them."""
    last = count - 1
    steps = (("first", 0), ("back", max(0, number - 1)), ("next", min(last, number + 1)), ("last", last))
    links = [link(state.with_(t=to), name, class_="button", rel="nofollow") for name, to in steps]
    slider = el("input", type="range", id="f-t", name="t", min=0, max=last, value=number, aria_label="moment")
    keeps = [name for name in DEFAULTS if name != "t"]
    return el(
        "div", links, form(state, slider, label="moment", keeps=keeps), class_="stepper", role="group",
        aria_label="step through it",
    )  # fmt: skip


def _said(number: int, now: Moment, every: tuple[Moment, ...]) -> Html:
    who = f"{now.role} " if now.role else ""
    text = f"{number + 1} of {len(every)}, at {now.time:g}: {who}{now.text}"
    waiting = ", ".join(sorted(now.waits))
    return joined(
        el("p", text, class_="result", aria_live="polite"),
        el("p", f"waiting: {waiting}" if waiting else "nobody waits", class_="hint"),
    )


def _programs(plan: GemmPlan, now: Moment) -> Html:
    """A column for each program; the line of a role is marked, and told by its name."""
    by_text: dict[str, list[str]] = {}
    for role, program in plan.programs.items():
        by_text.setdefault(str(program), []).append(role)
    return el("div", [_program(text, roles, now) for text, roles in by_text.items()], class_="programs")


def _program(text: str, roles: list[str], now: Moment) -> Html:
    lines = []
    for number, line in enumerate(text.splitlines()):
        here = [role for role in roles if now.at.get(role) == number]
        marks = [_mark(role, now) for role in here]
        lines.append(el("li", el("code", line), marks, class_="here" if here else None))
    ended = [role for role in roles if now.at.get(role) is None]
    done = el("p", f"at its end: {', '.join(ended)}", class_="hint") if ended else None
    title = ", ".join(roles[:4]) + (f" and {len(roles) - 4} more" if len(roles) > 4 else "")
    return el("div", el("h3", title), scrolling(el("ol", lines, class_="program"), f"program of {title}"), done)


def _mark(role: str, now: Moment) -> Html:
    state = "does" if role == now.role else "waits" if role in now.waits else "goes on"
    return joined(" ", el("b", f"{role} {state}", class_=f"mark {'waits' if state == 'waits' else 'does'}"))


def _stages(now: Moment) -> Html:
    parts = list(now.stages[0][0]) if now.stages else []
    rows = [
        (str(number), *[_content(held[part]) for part in parts], str(readers) if readers else "")
        for number, (held, readers) in enumerate(now.stages)
    ]
    columns = [("stage", "right"), *[(part, "left") for part in parts], ("readers", "right")]
    return table(columns, rows, label="what the stages of shared memory hold")


def _sums(now: Moment) -> Html | None:
    """Where CTAs share K: what has come from each of them, for each consumer."""
    if not now.accumulators:
        return None
    parts = list(now.accumulators[0][0])
    rows = [
        (str(number), *[_content(held[part]) for part in parts], str(readers) if readers else "")
        for number, (held, readers) in enumerate(now.accumulators)
    ]
    columns = [("consumer", "right"), *[(_sender(part), "left") for part in parts], ("readers", "right")]
    return table(columns, rows, label="sums that come from the CTAs that share K")


def _sender(part: str) -> str:
    """sums of CTA 2, of the part sums 2.0"""
    return f"sums of CTA {part.split()[1].split('.')[0]}"


def _content(text: str) -> Html | str:
    return el("i", text) if text == "under way" else text or "empty"


def _barriers(plan: GemmPlan, now: Moment) -> Html:
    kinds = {barrier.name: barrier.kind for barrier in plan.barriers}
    rows = []
    for (name, index), (phases, missing, size) in now.barriers.items():
        threads = "threads" if kinds.get(name) == "named" else "arrivals"
        rows.append((f"{name}[{index}]", str(phases), f"{missing} {threads}", str(size) if size else ""))
    columns = (("barrier", "left"), ("phases ended", "right"), ("missing", "right"), ("bytes", "right"))
    return table(columns, rows, label="barriers")


def _scheduled(state: State, plan: GemmPlan, schedule: ThreadSchedule) -> Html:
    """A schedule that all threads follow, step by step: nobody waits for another role."""
    count = len(schedule.prologue) and schedule.stages
    steps = list(_played(schedule, count + _K_TILES))
    number = state.number("t", len(steps))
    k_tile, line, step = steps[number]
    told = f"{number + 1} of {len(steps)}: k = {k_tile}, {_words(step)}"
    lines = [
        el("li", el("code", text), class_="here" if i == line else None)
        for i, text in enumerate(str(schedule).splitlines())
    ]
    note = (
        f"All {plan.threads} threads follow one schedule, through {schedule.stages} stages and "
        f"{schedule.fragments} buffers of fragments; shown are the first {count + _K_TILES} k-tiles."
    )
    return card(
        "What all threads do, step by step",
        el("p", note, class_="hint"),
        _stepper(state, number, len(steps)),
        el("p", told, class_="result", aria_live="polite"),
        scrolling(el("ol", lines, class_="program"), "schedule"),
    )


def _played(schedule: ThreadSchedule, k_tiles: int) -> Iterator[tuple[int, int, Step]]:
    """(k-tile, line of the schedule's text, step), in the order in which they are carried out."""
    yield from ((0, line, step) for line, step in _expanded(schedule, schedule.prologue))
    for k_tile in range(k_tiles):
        yield from ((k_tile, line, step) for line, step in _expanded(schedule, schedule.body))


def _expanded(schedule: ThreadSchedule, steps: tuple[Step, ...]) -> Iterator[tuple[int, Step]]:
    for line, step in schedule.lined(steps):
        if isinstance(step, Repeat):
            yield from ((line + 1 + i % len(step.steps), inner) for i, inner in enumerate(step.expand()))
        else:
            yield line, step


def _words(step: Step) -> str:
    """Fetch(ahead=1) as fetch, ahead 1."""
    named = [f"{name.replace('_', '-')} {value}" for name, value in vars(step).items()]
    return ", ".join([type(step).__name__.lower(), *named])
