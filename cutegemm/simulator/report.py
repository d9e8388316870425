"""Faults of a simulation, in words: at most so many examples of a kind, with counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_EXAMPLES = 20


@dataclass(frozen=True)
class Fault:
    """All faults of one kind.

    kind       copy: an element of a tile is moved never, twice, or to a wrong place
               shared: the shared memory's layout puts two elements in one place
               fragment: a thread reads another element than the one that it multiplies
               product: the products of a tile are not all there once
               stage: a stage is read too early or overwritten too early; see `ThreadSchedule.hazards`
               hole: a fragment holds memory that nothing was written to
               alignment: an access is not aligned to its width, or its elements are no neighbours
               raster: a tile of D is taken never or twice, or there is none such
               outside: an access reaches outside its matrix
               result: an element of D is written never or twice
    count      how many there are
    examples   the first of them, in words

    >>> print(Fault("raster", 2, ("no CTA takes the tile (0, 1, 0).",)))
    raster, 2 times:
        - no CTA takes the tile (0, 1, 0).
    """

    kind: str
    count: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        times = "once" if self.count == 1 else f"{self.count} times"
        return "\n".join([f"{self.kind}, {times}:", *(f"    - {text}" for text in self.examples)])


class Report:
    """Collects faults while a plan is carried out."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._examples: dict[str, list[str]] = {}

    def add(self, kind: str, text: str) -> None:
        """One fault; the same words are told once."""
        told = self._examples.setdefault(kind, [])
        if text in told:
            return
        self._counts[kind] = self._counts.get(kind, 0) + 1
        if len(told) < MAX_EXAMPLES:
            told.append(text)

    def add_each(self, kind: str, where: np.ndarray | Sequence[Any], describe: Callable[[Any], str]) -> None:
        """A fault for each entry of `where`; `describe` is asked for those that are told.

        An entry is the value itself, or for a two-dimensional array a row of it.
        """
        if len(where) == 0:
            return
        told = self._examples.setdefault(kind, [])
        self._counts[kind] = self._counts.get(kind, 0) + len(where)
        for entry in where[: MAX_EXAMPLES - len(told)]:
            told.append(describe(entry))

    def faults(self) -> tuple[Fault, ...]:
        """One for each kind, in the order in which they came up."""
        return tuple([Fault(kind, count, tuple(self._examples[kind])) for kind, count in self._counts.items()])


def tile_text(at: Any) -> str:
    """A tile's coordinates as messages have them.

    >>> tile_text((0, 1, 2))
    '(0, 1, 2)'
    """
    return "(" + ", ".join(str(int(x)) for x in at) + ")"
