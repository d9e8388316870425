"""Timelines of pipelines: the operations of each role over time, and their shared-memory stages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from cutegemm.draw.canvas import PAD, Canvas, num, text_width
from cutegemm.draw.palette import HUES, SHADES
from cutegemm.draw.played import Durations, played
from cutegemm.errors import LayoutError
from cutegemm.layout import hooks
from cutegemm.plan.work.grid import grid_of
from cutegemm.simulator.protocol.machine import Machine
from cutegemm.simulator.protocol.protocol import protocol_of

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.simulator.protocol.protocol import Protocol

_LANE, _BAR = 34, 24
_WIDE = 1080


@dataclass(frozen=True)
class Event:
    """A bar of a timeline: an operation or a wait of one warp role, from its start to its end.

    role         name of the role, such as "producer"
    event        name of the operation; a name that starts with wait, acquire, blocked or idle is a wait
    stage        shared-memory stage that the event works on, or None
    start, end   times in the unit of the timeline; `end` is at least `start`
    """

    role: str
    event: str
    stage: int | None
    start: float
    end: float

    @property
    def is_wait(self) -> bool:
        """True if the event is a wait."""
        return self.event.lower().startswith(("wait", "acquire", "blocked", "idle"))


@dataclass(frozen=True)
class Timeline(hooks.Shown):
    """Describes a drawing of what each warp role does over time: one line per role, one bar per operation or wait.

    events   list of `Event`, or of tuples (role, name, stage or None, start, end)
    title    heading
    unit     name of the unit of the times
    number   name of what the field `stage` of the events counts, such as "rank"
    raises   LayoutError if an event has another form, or ends before it starts

    >>> Timeline([("load", "A", 0, 0, 4), ("mma", "wait", 0, 0, 4), ("mma", "A", 0, 4, 9)]).roles
    ('load', 'mma')
    """

    events: tuple[Event, ...]
    title: str = "timeline"
    unit: str = "steps"
    number: str = "stage"

    def __init__(
        self, events: Iterable[Any], title: str = "timeline", unit: str = "steps", number: str = "stage"
    ) -> None:
        checked = []
        for position, record in enumerate(events):
            try:
                event = record if isinstance(record, Event) else Event(*record)
            except TypeError:
                raise LayoutError(
                    f"Timeline: record {position} is {record!r}. Pass (role, event, stage, start, end)."
                ) from None
            if event.end < event.start:
                raise LayoutError(f"Timeline: record {position}, {event}, ends before it starts.")
            checked.append(event)
        object.__setattr__(self, "events", tuple(checked))
        object.__setattr__(self, "title", title)
        object.__setattr__(self, "unit", unit)
        object.__setattr__(self, "number", number)

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the warp roles of this timeline, in the order of their first events."""
        return tuple(dict.fromkeys(e.role for e in self.events))

    @property
    def span(self) -> tuple[float, float]:
        """Time range of this timeline: (first start, last end); (0, 0) without events."""
        return (min((e.start for e in self.events), default=0), max((e.end for e in self.events), default=0))


def plan_timeline(plan: GemmPlan) -> Timeline:
    """Simulate a plan's warp roles on a few tiles, and return the timeline of their operations and waits.

    Each tile has more k-tiles than the plan has stages, so that stages are reused.

    raises   UnsupportedError if the plan has no warp roles

    >>> from cutegemm.build import sm90_plan
    >>> plan_timeline(sm90_plan(stages=4)).title
    'sm90: 4 tiles of 5 k-tiles, 4 stages'
    """
    shown, k_tiles, tiles = shown_of(plan)
    size = f"{tiles} tile{'s' if tiles > 1 else ''} of {k_tiles} k-tiles"
    shared = (
        " in all"
        if plan.scheduler.split.is_split
        else f" shared by {plan.cluster_k} CTAs"
        if plan.cluster_k > 1
        else ""
    )
    protocol = protocol_of(shown, k_tiles=k_tiles, tiles=tiles)
    return protocol_timeline(protocol, title=f"{plan.name}: {size}{shared}, {plan.stages} stages")


def shown_of(plan: GemmPlan) -> tuple[GemmPlan, int, int]:
    """Return (plan, k-tiles per tile, tiles): a small case of a plan whose timeline shows how stages are reused.

    Each tile gets more k-tiles than the plan has pipeline stages. A plan that splits K is returned with a smaller grid
    of CTAs. With cluster split-K, each single CTA has more k-tiles of a tile than the plan has stages.
    """
    k_tiles, tiles = (plan.stages + 1) * plan.cluster_k, 4
    grid = plan.scheduler.grid
    if not grid.is_persistent:
        tiles = 1
    if plan.scheduler.split.is_split:
        if grid.is_persistent:
            clusters = min(3, plan.scheduler.resident(plan.cluster_tile))
            plan = plan.with_scheduler(grid=grid_of(clusters * plan.cluster_tile.size))
        k_tiles *= 4  # enough to divide among the CTAs
    return plan, k_tiles, tiles


def protocol_timeline(
    protocol: Protocol,
    *,
    cta: int = 0,
    load: float = Durations.load,
    multiply: float = Durations.multiply,
    store: float = Durations.store,
    title: str = "pipeline",
) -> Timeline:
    """Simulate warp roles that synchronise by barriers and return the timeline of their operations.

    A role does one thing at a time. An operation that overlaps the role's MMAs is drawn after them.

    protocol                the list of operations of each warp role, and the barriers; `protocol_of(plan)` makes it
    cta                     index of the CTA that is drawn; all CTAs are simulated
    load, multiply, store   time of a bulk copy, of the MMAs of a k-tile, and of the store of a tile, in one unit
    title                   heading of the timeline
    raises                  LayoutError if the roles deadlock

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.simulator import protocol_of
    >>> protocol_timeline(protocol_of(sm90_plan(stages=2), k_tiles=2, tiles=2)).roles
    ('producer', 'consumer 0', 'consumer 1')
    """
    events: list[Event] = []
    for did in played(Machine(protocol), Durations(load, multiply, store)):
        if did.number is None or protocol.processes[did.number].cta != cta:
            continue
        role = protocol.processes[did.number].role
        if did.since is not None:
            events.append(Event(role, "wait", None, did.since, did.start))
        if did.end > did.start:
            events.append(Event(role, did.name, did.stage, did.start, did.end))
    return Timeline(events, title)


def timeline_text(timeline: Timeline, *, width: int = 120) -> str:
    """Return a timeline as text: one line per role, one character per slice of time.

    A digit or letter is the stage that the role works on. "#" is work without a stage, "." is a wait, and a space
    means that the role has no event.

    width   maximum characters per line; decides how long a slice is
    """
    begin, end = timeline.span
    margin = max((len(r) for r in timeline.roles), default=0)
    places = max(8, min(width - margin - 3, round(end - begin) or 8))
    scale = (end - begin) / places or 1
    lines = [f"{timeline.title}: {_plain(begin)} .. {_plain(end)} {timeline.unit}"]
    for role in timeline.roles:
        row = [" "] * places
        for e in sorted((e for e in timeline.events if e.role == role), key=lambda e: not e.is_wait):
            first = min(places - 1, int((e.start - begin) / scale))
            last = max(first + 1, min(places, round((e.end - begin) / scale)))
            sign = (
                "." if e.is_wait else "#" if e.stage is None else "0123456789abcdefghijklmnopqrstuvwxyz"[e.stage % 36]
            )
            row[first:last] = sign * (last - first)
        lines.append(f"{role.rjust(margin)} │{''.join(row)}│")
    lines.append(f"A digit is the {timeline.number} that is worked on, # work on none, . a wait.")
    return "\n".join(lines) + "\n"


def timeline_svg(timeline: Timeline, now: float | None = None) -> str:
    """Return a timeline as SVG: one lane per role, one bar per event.

    The colour of a bar is its stage. A wait is hatched.

    now   time that a vertical line marks; None for no line
    """
    canvas = Canvas()
    begin, end = timeline.span
    y = PAD + 12.0
    canvas.text(PAD, y, timeline.title, "title ink", 15, mono=False)
    left = PAD + max((text_width(r, 12) for r in timeline.roles), default=40) + 14
    scale = _WIDE / ((end - begin) or 1)
    top = y + 34
    height = _LANE * len(timeline.roles)
    step = _nice((end - begin) / 10)
    ticks = [begin + i * step for i in range(int((end - begin) / step) + 1)] if timeline.events else []
    for tick in ticks:
        x = left + (tick - begin) * scale
        canvas.add(f'<path class="frame faint" d="M{num(x)} {num(top)}v{num(height)}"/>')
        canvas.text(x, top - 6, _plain(tick), "tick muted mid", 9.5)
    canvas.text(left, top - 20, timeline.unit, "tick muted", 9.5)
    canvas.reach(left + _WIDE, top + height)
    stages = sorted({e.stage for e in timeline.events if e.stage is not None})
    for lane, role in enumerate(timeline.roles):
        at = top + lane * _LANE
        canvas.text(left - 10, at + _LANE / 2 + 4, role, "head ink end", 12)
        for e in timeline.events:
            if e.role == role:
                _bar(
                    canvas,
                    e,
                    timeline.number,
                    left + (e.start - begin) * scale,
                    at + (_LANE - _BAR) / 2,
                    (e.end - e.start) * scale,
                )
    if now is not None:
        x = left + (now - begin) * scale
        line = f"M{num(x)} {num(top - 4)}v{num(height + 8)}"
        canvas.add(f'<path class="frame accent" style="stroke-width:2" d="{line}"/>')
    y = top + height + 14
    x = float(PAD)
    canvas.text(x, y + 12, timeline.number, "say ink", 11.5, mono=False)
    x += 48
    for stage in stages:
        canvas.rect(x, y, 17, 15, f"fill {_colour(stage)}")
        canvas.text(x + 22, y + 12, str(stage), "tick muted", 9.5)
        x += 46
    if any(e.is_wait for e in timeline.events):
        canvas.add(_hatched(x, y, 17, 15))
        canvas.text(x + 22, y + 12, "wait", "tick muted", 9.5)
    return canvas.finish(timeline.title, f"{len(timeline.roles)} roles, {len(timeline.events)} events")


def _bar(canvas: Canvas, event: Event, number: str, x: float, y: float, width: float) -> None:
    """Draw the bar of one timeline event, with a tooltip, and with its name or stage if that fits the bar.

    number  name of what the stage of the event counts
    x, y    top left corner in pixels
    width   width of the bar in pixels
    """
    stage = "" if event.stage is None else f", {number} {event.stage}"
    tip = f"{event.role}: {event.event}{stage}, {_plain(event.start)} .. {_plain(event.end)}"
    wide = max(1.0, width - 1)
    canvas.add(f'<g class="event"><title>{escape(tip)}</title>')
    if event.is_wait:
        canvas.add(_hatched(x, y, wide, _BAR))
    else:
        canvas.rect(x, y, wide, _BAR, f"fill {'empty' if event.stage is None else _colour(event.stage)}", ' rx="2.5"')
    for label in (event.event, "" if event.stage is None else str(event.stage)):
        if label and not event.is_wait and text_width(label, 9.5) + 4 <= wide:
            canvas.text(x + wide / 2, y + _BAR / 2 + 3.3, label, "tick ink mid", 9.5)
            break
    canvas.add("</g>")


def _hatched(x: float, y: float, width: float, height: float) -> str:
    """Return the SVG of a hatched rectangle, which marks a wait; the arguments are in pixels.

    The result is a path, not a pattern element: a pattern needs an identifier, which could clash in a notebook.

    x, y            top left corner
    width, height   extents of the rectangle
    """
    lines = []
    start = -height
    while start < width:
        x0, x1 = max(0.0, start), min(width, start + height)
        lines.append(f"M{num(x + x0)} {num(y + height - (x0 - start))}L{num(x + x1)} {num(y + height - (x1 - start))}")
        start += 6
    frame = f"M{num(x)} {num(y)}h{num(width)}v{num(height)}h{num(-width)}z"
    return f'<path class="frame muted" style="stroke-width:.7;opacity:.6" d="{frame}{"".join(lines)}"/>'


def _colour(stage: int) -> str:
    """Return the CSS class of the colour that a timeline gives a shared-memory stage."""
    return f"c{stage % HUES * SHADES + 1}"


def _nice(step: float) -> float:
    """Return a round distance between the ticks of a time axis, at least `step`: 1, 2 or 5 times a power of ten."""
    if step <= 0:
        return 1
    power = 1.0
    while power * 10 <= step:
        power *= 10
    while power > step:
        power /= 10
    return next(power * f for f in (1, 2, 5, 10) if power * f >= step)


def _plain(value: float) -> str:
    """Return a time as text without trailing zeros: 2.50 becomes "2.5"."""
    return f"{value:g}"
