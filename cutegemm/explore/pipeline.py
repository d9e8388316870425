"""The view "pipeline": a timeline of the warp roles, and a stepper through their operations, barriers and stages."""

from __future__ import annotations

from collections.abc import Iterator

from cutegemm.draw.timeline import plan_timeline, timeline_svg
from cutegemm.errors import CutegemmError
from cutegemm.explore.chosen import Chosen
from cutegemm.explore.forms import card, form, link
from cutegemm.explore.html import Html, el, error, joined, scrolling, table
from cutegemm.explore.moments import Moment, Place, moments
from cutegemm.explore.state import DEFAULTS, State
from cutegemm.plan import GemmPlan
from cutegemm.plan.program.thread_schedule import Repeat, Step, ThreadSchedule, thread_schedule

_K_TILES = 3  # k-tiles of a thread schedule to show after those of the prologue


def pipeline(state: State, selected: Chosen) -> Html:
    """Return HTML for the explorer's view "pipeline": what each warp role of a plan does, event by event.

    For a plan with warp roles it has the timeline with the selected event, the programs with the line that each role is
    at, and the state of stages and barriers. For other plans it has the thread schedule with the selected step.

    state      the user's choices on the web page; "t" is the index of the event or step
    selected   the plan, which must not be None
    """
    plan = selected.plan
    assert plan is not None
    if not plan.body.has_roles:
        return _scheduled(state, plan, thread_schedule(plan))
    try:
        sequence = moments(plan)
        timeline = plan_timeline(plan)
    except CutegemmError as what:
        return card("", error(str(what)))
    number = state.number("t", len(sequence))
    now = sequence[number]
    drawn = scrolling(Html(timeline_svg(timeline, now.time)), f"timeline of {timeline.title}", "picture")
    return joined(
        card("Timeline", drawn, _stepper(state, number, len(sequence)), _event(number, now, sequence)),
        card("Programs, with the line of each role", _programs(plan, now)),
        el(
            "div",
            card("Stages", _stages(now), _accumulators(now)),
            card("Barriers", _barriers(plan, now)),
            class_="pair",
        ),
    )


def _stepper(state: State, number: int, count: int) -> Html:
    """Return HTML links to the first, previous, next and last event of a timeline, and a slider.

    state    the user's choices on the web page, which the links keep
    number   index of the current event
    count    number of events
    """
    last = count - 1
    steps = (("first", 0), ("back", max(0, number - 1)), ("next", min(last, number + 1)), ("last", last))
    links = [link(state.with_(t=to), name, class_="button", rel="nofollow") for name, to in steps]
    slider = el("input", type="range", id="f-t", name="t", min=0, max=last, value=number, aria_label="moment")
    keeps = [name for name in DEFAULTS if name != "t"]
    return el(
        "div", links, form(state, slider, label="moment", keeps=keeps), class_="stepper", role="group",
        aria_label="step through the moments",
    )  # fmt: skip


def _event(number: int, now: Moment, sequence: tuple[Moment, ...]) -> Html:
    """Return HTML that describes the selected event of a simulated CTA, and names the warp roles blocked at a barrier.

    number     index of the event in `sequence`
    now        the event, with the state of the CTA after it
    sequence   all events of the CTA
    """
    who = f"{now.role} " if now.role else ""
    text = f"{number + 1} of {len(sequence)}, at {now.time:g}: {who}{now.text}"
    waiting = ", ".join(sorted(now.waits))
    return joined(
        el("p", text, class_="result", aria_live="polite"),
        el("p", f"waiting: {waiting}" if waiting else "no role waits", class_="hint"),
    )


def _programs(plan: GemmPlan, now: Moment) -> Html:
    """Return HTML with a column for each distinct warp program of a plan; the current line of each role is marked.

    A program lists the operations of a warp role, such as producer or consumer.

    now   the selected event, which has the current line of each role
    """
    by_text: dict[str, list[str]] = {}
    for role, program in plan.programs.items():
        by_text.setdefault(str(program), []).append(role)
    return el("div", [_program(text, roles, now) for text, roles in by_text.items()], class_="programs")


def _program(text: str, roles: list[str], now: Moment) -> Html:
    """Return a warp program as HTML, with marks at the current lines of the roles that execute it.

    text    the program, one operation a line
    roles   names of the roles that execute it
    now     the selected event, which has the current line of each role
    """
    lines = []
    for number, line in enumerate(text.splitlines()):
        marks = [_mark(role, now) for role in roles if now.at.get(role) == number]
        lines.append(el("li", el("code", line), marks, class_="here" if marks else None))
    ended = [role for role in roles if now.at.get(role) is None]
    done = el("p", f"ended: {', '.join(ended)}", class_="hint") if ended else None
    title = ", ".join(roles[:4]) + (f" and {len(roles) - 4} more" if len(roles) > 4 else "")
    return el("div", el("h3", title), scrolling(el("ol", lines, class_="program"), f"program of {title}"), done)


def _mark(role: str, now: Moment) -> Html:
    """Return the HTML mark of a warp role at its current program line: "acts", "waits" or "runs".

    "acts" means that the event is its own, "waits" that it is blocked at a barrier, and "runs" anything else.

    now   the selected event
    """
    state = "acts" if role == now.role else "waits" if role in now.waits else "runs"
    return joined(" ", el("b", f"{role} {state}", class_=f"mark {'waits' if state == 'waits' else 'does'}"))


def _stages(now: Moment) -> Html:
    """Return an HTML table of what each mainloop stage contains.

    now   the selected event, with the state of the CTA after it
    """
    operands = list(now.stages[0][0]) if now.stages else []
    columns = [("stage", "right"), *[(operand, "left") for operand in operands], ("readers", "right")]
    return table(columns, _rows(now.stages), label="content of the stages")


def _accumulators(now: Moment) -> Html | None:
    """Return an HTML table of the accumulators that each consumer received from other CTAs (cluster split-K).

    None without cluster split-K.

    now   the selected event, with the state of the CTA after it
    """
    if not now.accumulators:
        return None
    senders = list(now.accumulators[0][0])
    columns = [("consumer", "right"), *[(_sender(name), "left") for name in senders], ("readers", "right")]
    return table(columns, _rows(now.accumulators), label="accumulators received from the other CTAs of the cluster")


def _rows(places: tuple[Place, ...]) -> list[tuple[Html | str, ...]]:
    """Return the table rows for mainloop stages or accumulator buffers: number, contents, and number of readers.

    places   for each stage or buffer, its contents by operand or sending CTA, and the number of roles that read it
    """
    return [
        (str(number), *map(_content, contents.values()), str(readers) if readers else "")
        for number, (contents, readers) in enumerate(places)
    ]


def _sender(name: str) -> str:
    """Return the column heading for accumulators from another CTA: "sums 2.0" gives "accumulators of CTA 2".

    name   name of the buffer, with the number of the sending CTA
    """
    return f"accumulators of CTA {name.split()[1].split('.')[0]}"


def _content(text: str) -> Html | str:
    """Return the content of a stage or buffer as a table cell: "empty" for "", and "under way" in italics."""
    return el("i", text) if text == "under way" else text or "empty"


def _barriers(plan: GemmPlan, now: Moment) -> Html:
    """Return an HTML table of the barriers of a CTA: completed phases, and the arrivals and bytes that are missing.

    now   the selected event, with the state of the CTA after it
    """
    kinds = {barrier.name: barrier.kind for barrier in plan.barriers}
    rows = []
    for (name, index), (phases, missing, size) in now.barriers.items():
        threads = "threads" if kinds.get(name) == "named" else "arrivals"
        rows.append((f"{name}[{index}]", str(phases), f"{missing} {threads}", str(size) if size else ""))
    columns = (("barrier", "left"), ("phases completed", "right"), ("missing", "right"), ("bytes", "right"))
    return table(columns, rows, label="barriers")


def _scheduled(state: State, plan: GemmPlan, schedule: ThreadSchedule) -> Html:
    """Return HTML that lists the steps of each thread of a plan without warp roles, and marks the selected step.

    state      the user's choices on the web page; "t" is the index of the step
    schedule   the steps that every thread executes: a prologue, then the steps of each k-tile
    """
    count = len(schedule.prologue) and schedule.stages
    steps = list(_played(schedule, count + _K_TILES))
    number = state.number("t", len(steps))
    k_tile, line, step = steps[number]
    text = f"{number + 1} of {len(steps)}: k = {k_tile}, {_words(step)}"
    lines = [
        el("li", el("code", code), class_="here" if i == line else None)
        for i, code in enumerate(str(schedule).splitlines())
    ]
    note = (
        f"All {plan.threads} threads follow one schedule, through {schedule.stages} stages and "
        f"{schedule.fragments} buffers of fragments. The first {count + _K_TILES} k-tiles are shown."
    )
    return card(
        "Thread schedule, step by step",
        el("p", note, class_="hint"),
        _stepper(state, number, len(steps)),
        el("p", text, class_="result", aria_live="polite"),
        scrolling(el("ol", lines, class_="program"), "schedule"),
    )


def _played(schedule: ThreadSchedule, k_tiles: int) -> Iterator[tuple[int, int, Step]]:
    """Yield the steps of a thread schedule in the order of execution: the prologue, then each k-tile.

    Each item is (index of the k-tile, line number in the schedule's text, step).

    schedule   the steps that every thread executes
    k_tiles    number of k-tiles to step through
    """
    yield from ((0, line, step) for line, step in _expanded(schedule, schedule.prologue))
    for k_tile in range(k_tiles):
        yield from ((k_tile, line, step) for line, step in _expanded(schedule, schedule.k_tile))


def _expanded(schedule: ThreadSchedule, steps: tuple[Step, ...]) -> Iterator[tuple[int, Step]]:
    """Yield the steps of a part of a thread schedule as (line number in the schedule's text, step); loops are unrolled.

    steps   part of the schedule: its prologue, or the steps of a k-tile
    """
    for line, step in schedule.lined(steps):
        if isinstance(step, Repeat):
            yield from ((line + 1 + i % len(step.steps), inner) for i, inner in enumerate(step.expand()))
        else:
            yield line, step


def _words(step: Step) -> str:
    """Return a step of a thread schedule as text for the user: `Fetch(ahead=1)` is "fetch, ahead 1"."""
    fields = [f"{name.replace('_', '-')} {value}" for name, value in vars(step).items()]
    return ", ".join([type(step).__name__.lower(), *fields])
