"""The timeline of a pipeline: what each role does when, and on which stage of shared memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any

from cutegemm.draw.canvas import PAD, Canvas, num, text_width
from cutegemm.draw.palette import HUES, SHADES
from cutegemm.draw.played import Durations, played
from cutegemm.errors import LayoutError
from cutegemm.layout import hooks
from cutegemm.layout.inttuple import product
from cutegemm.simulator.protocol.machine import Machine
from cutegemm.simulator.protocol.protocol import protocol_of

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.simulator.protocol.protocol import Protocol

_LANE, _BAR = 34, 24
_WIDE = 1080


@dataclass(frozen=True)
class Event:
    """One thing that a role does.

    stage        of shared memory, or None where the event has none
    start, end   in any one unit; end is not before start
    """

    role: str
    event: str
    stage: int | None
    start: float
    end: float

    @property
    def is_wait(self) -> bool:
        """Whether the role stands still: its event is a wait."""
        return self.event.lower().startswith(("wait", "acquire", "blocked", "idle"))


@dataclass(frozen=True)
class Timeline(hooks.Shown):
    """Events of roles.

    events   Event, or tuples (role, event, stage, start, end); roles are drawn in the order of their first
    unit     of the times
    raises   LayoutError for an event that is none of these, or that ends before it starts

    >>> Timeline([("load", "A", 0, 0, 4), ("mma", "wait", 0, 0, 4), ("mma", "A", 0, 4, 9)]).roles
    ('load', 'mma')
    """

    events: tuple[Event, ...]
    title: str = "timeline"
    unit: str = "steps"

    def __init__(self, events: Iterable[Any], title: str = "timeline", unit: str = "steps") -> None:
        checked = []
        for position, given in enumerate(events):
            try:
                event = given if isinstance(given, Event) else Event(*given)
            except TypeError:
                raise LayoutError(
                    f"Timeline: record {position} is {given!r}; (role, event, stage, start, end) is expected."
                ) from None
            if event.end < event.start:
                raise LayoutError(f"Timeline: record {position}, {event}, ends before it starts.")
            checked.append(event)
        object.__setattr__(self, "events", tuple(checked))
        object.__setattr__(self, "title", title)
        object.__setattr__(self, "unit", unit)

    @property
    def roles(self) -> tuple[str, ...]:
        """In the order of their first events."""
        return tuple(dict.fromkeys(e.role for e in self.events))

    @property
    def span(self) -> tuple[float, float]:
        """From the first start to the last end."""
        return (min((e.start for e in self.events), default=0), max((e.end for e in self.events), default=0))


def plan_timeline(plan: GemmPlan) -> Timeline:
    """The roles of a plan on a few tiles of more k-tiles than there are stages; see `protocol_timeline`.

    raises   UnsupportedError for a plan whose threads all follow one schedule

    >>> from cutegemm.build import sm90_plan
    >>> plan_timeline(sm90_plan(stages=4)).title
    'sm90: 4 tiles of 5 k-tiles, 4 stages'
    """
    shown, k_tiles, tiles = shown_of(plan)
    counted = f"{tiles} tile{'s' if tiles > 1 else ''} of {k_tiles} k-tiles"
    shared = " in all" if plan.split.is_split else f" shared by {plan.cluster_k} CTAs" if plan.cluster_k > 1 else ""
    protocol = protocol_of(shown, k_tiles=k_tiles, tiles=tiles)
    return protocol_timeline(protocol, title=f"{plan.name}: {counted}{shared}, {plan.stages} stages")


def shown_of(plan: GemmPlan) -> tuple[GemmPlan, int, int]:
    """What a timeline shows: the plan, on a small grid where K is split; k-tiles of a tile, and tiles. Where CTAs share
    K, each has more k-tiles of a tile than there are stages."""
    k_tiles, tiles, pipeline = (plan.stages + 1) * plan.cluster_k, 4, plan.pipeline
    if pipeline is not None and pipeline.ctas is None:
        tiles = 1
    if pipeline is not None and plan.split.is_split:
        clusters = min(3, (pipeline.ctas or 3) // product(plan.cluster_mn))
        few = None if pipeline.ctas is None else clusters * product(plan.cluster_mn)
        plan = plan.with_(pipeline=replace(pipeline, ctas=few))
        k_tiles *= 4  # enough to be divided
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
    """A protocol of roles and barriers played with durations, as early as its barriers allow.

    cta                     whose roles are drawn; all of them are played
    load, multiply, store   see `Durations`
    raises                  LayoutError where the roles wait for each other for ever

    A role does one thing at a time: what it does while its products run is drawn behind them.

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
    """A line a role, a character a slice of time: the stage that it works on, `.` a wait, a space nothing."""
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
    lines.append("A digit is the stage that is worked on, # work on none, . a wait.")
    return "\n".join(lines) + "\n"


def timeline_svg(timeline: Timeline, now: float | None = None) -> str:
    """A lane a role, a bar an event: its colour is the stage, a wait is hatched.

    now   a time that is marked by a line
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
    canvas.text(x, y + 12, "stage", "say ink", 11.5, mono=False)
    x += 48
    for stage in stages:
        canvas.rect(x, y, 17, 15, f"fill {_colour(stage)}")
        canvas.text(x + 22, y + 12, str(stage), "tick muted", 9.5)
        x += 46
    if any(e.is_wait for e in timeline.events):
        canvas.add(_hatched(x, y, 17, 15))
        canvas.text(x + 22, y + 12, "wait", "tick muted", 9.5)
    return canvas.finish(timeline.title, f"{len(timeline.roles)} roles, {len(timeline.events)} events")


def _bar(canvas: Canvas, event: Event, x: float, y: float, width: float) -> None:
    """One event, with its name where that fits, and always as a tooltip."""
    stage = "" if event.stage is None else f", stage {event.stage}"
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
    """A frame with slanting lines; no pattern element, so that no identifier can clash in a notebook."""
    lines = []
    start = -height
    while start < width:
        x0, x1 = max(0.0, start), min(width, start + height)
        lines.append(f"M{num(x + x0)} {num(y + height - (x0 - start))}L{num(x + x1)} {num(y + height - (x1 - start))}")
        start += 6
    frame = f"M{num(x)} {num(y)}h{num(width)}v{num(height)}h{num(-width)}z"
    return f'<path class="frame muted" style="stroke-width:.7;opacity:.6" d="{frame}{"".join(lines)}"/>'


def _colour(stage: int) -> str:
    return f"c{stage % HUES * SHADES + 1}"


def _nice(step: float) -> float:
    """1, 2 or 5 times a power of ten, at least `step`."""
    if step <= 0:
        return 1
    power = 1.0
    while power * 10 <= step:
        power *= 10
    while power > step:
        power /= 10
    return next(power * f for f in (1, 2, 5, 10) if power * f >= step)


def _plain(value: float) -> str:
    return f"{value:g}"
