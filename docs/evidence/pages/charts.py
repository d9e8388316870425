"""Plots of measurements as SVG, for light and dark pages: bars for the steps of a ladder, curves over K."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cutegemm.draw.canvas import PAD, Canvas, num, text_width

_ROW, _BAR_WIDTH, _CHARACTER = 26, 560, 12.0
_PLOT_WIDTH, _PLOT_HEIGHT = 720, 360
_SERIES = ("accent", "c20", "c12", "c4")  # classes of the palette
_DASHES = ("", "", "2 3", "9 3")
_TICKS = 6

Values = Sequence["float | None"]


def bars(
    title: str,
    names: Sequence[str],
    series: Mapping[str, Values],
    marks: Mapping[str, float],
    notes: Sequence[str],
) -> str:
    """Return a bar chart with a row for each name, a bar for each series in it, and a labelled line at each mark.

    series   label -> one value per name, None if it is missing; at most four labels
    notes    text next to the bars of each name
    """
    canvas, left = Canvas(), PAD + max(text_width(name, _CHARACTER) for name in names) + 12
    known = [v for values in series.values() for v in values if v is not None]
    scale = _BAR_WIDTH / max([*known, *marks.values(), 1e-9])
    top = _heading(canvas, title, list(series), left)
    thick = (_ROW - 6) / max(1, len(series))
    for row, name in enumerate(names):
        y = top + _ROW * row
        canvas.text(left - 12, y + 16, name, "end ink mono", _CHARACTER)
        for number, values in enumerate(series.values()):
            value = values[row]
            if value is not None:
                canvas.rect(left, y + 2 + thick * number, value * scale, thick - 1, f"fill {_SERIES[number]}")
        canvas.text(left + _BAR_WIDTH + 12, y + 16, notes[row], "say muted", _CHARACTER, mono=False)
    bottom = top + _ROW * len(names) + 4
    for level, (label, value) in enumerate(marks.items()):
        x, under = left + value * scale, bottom + 14 * (level + 1)
        _line(canvas, [(x, top - 4), (x, under - 11)], "muted", "4 3", 1.2)
        canvas.text(x, under, label, "mid say muted", _CHARACTER, mono=False)
    return canvas.finish(title, ", ".join(series)) + "\n"


def curves(title: str, xs: Sequence[int], series: Mapping[str, Values], x_label: str, y_label: str) -> str:
    """Return a plot with a curve for each series; the axis of `xs` is logarithmic, the other one starts at 0."""
    canvas = Canvas()
    left, top = PAD + 52.0, _heading(canvas, f"{title}, {y_label}", list(series), PAD, curve=True) + 8
    highest = _round_up(max([v for values in series.values() for v in values if v is not None] + [1e-9]))
    low, high = math.log2(min(xs)), math.log2(max(xs))

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log2(x) - low) / (high - low or 1.0)
        return left + 16 + across * (_PLOT_WIDTH - 32), top + (1 - y / highest) * _PLOT_HEIGHT

    for tick in range(_TICKS + 1):
        value = highest * tick / _TICKS
        y = at(xs[0], value)[1]
        _line(canvas, [(left, y), (left + _PLOT_WIDTH, y)], "faint", "", 1)
        canvas.text(left - 8, y + 4, f"{value:g}", "end say muted", _CHARACTER, mono=False)
    for x in xs:
        canvas.text(at(x, 0)[0], top + _PLOT_HEIGHT + 18, str(x), "mid say muted", _CHARACTER, mono=False)
    under = top + _PLOT_HEIGHT + 36
    canvas.text(left + _PLOT_WIDTH / 2, under, x_label, "mid say ink", _CHARACTER, mono=False)
    for number, values in enumerate(series.values()):
        points = [at(x, v) for x, v in zip(xs, values, strict=True) if v is not None]
        _line(canvas, points, _colour(number), _DASHES[number], 2.2)
        for px, py in points:
            canvas.add(f'<circle cx="{num(px)}" cy="{num(py)}" r="3.2" class="fill {_colour(number)}"/>')
    return canvas.finish(title, ", ".join(series)) + "\n"


def _round_up(value: float) -> float:
    """Return the smallest number that is at least `value` and whose `_TICKS` parts are short.

    >>> _round_up(731.6), _round_up(0.93)
    (900.0, 1.2)
    """
    unit = 10.0 ** math.floor(math.log10(value / _TICKS))
    step = next(s for s in (1, 1.5, 2, 2.5, 3, 4, 5, 10) if s * unit * _TICKS >= value)
    return round(step * unit * _TICKS, 12)


def _heading(canvas: Canvas, title: str, labels: Sequence[str], left: float, curve: bool = False) -> float:
    """Draw title and legend; return where the plot starts."""
    canvas.text(PAD, PAD + 12, title, "title ink", 15.0, mono=False)
    x, y = left, PAD + 36.0
    for number, label in enumerate(labels):
        if curve:
            _line(canvas, [(x, y - 4), (x + 24, y - 4)], _colour(number), _DASHES[number], 2.2)
        else:
            canvas.rect(x, y - 10, 12, 12, f"fill {_SERIES[number]}")
        x += 30 if curve else 18
        canvas.text(x, y, label, "say ink", _CHARACTER, mono=False)
        x += text_width(label, _CHARACTER, mono=False) + 18
    return y + 16


def _colour(number: int) -> str:
    """Return the colour class of a curve, stronger than that of areas; dashes distinguish curves of one colour."""
    return ("ink", "accent", "accent", "muted")[number]


def _line(canvas: Canvas, points: Sequence[tuple[float, float]], style: str, dashes: str, width: float) -> None:
    for x, y in points:
        canvas.reach(x, y)
    path = "L".join(f"{num(x)} {num(y)}" for x, y in points)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    canvas.add(
        f'<path d="M{path}" class="{style}" fill="none" stroke="currentColor" stroke-width="{num(width)}"{dashed}/>'
    )
