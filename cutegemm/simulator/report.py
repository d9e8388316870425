"""Faults of a simulation: counts, and up to `MAX_EXAMPLES` examples of each kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_EXAMPLES = 20


@dataclass(frozen=True)
class Fault:
    """All faults of one kind that a simulation has found: how many, with descriptions of the first ones.

    kind       copy: an element of a tile is copied never, twice, or to a wrong offset
               shared: two elements have the same offset in shared memory
               fragment: a thread reads another element than it multiplies
               product: products are not added exactly once
               stage: a stage is read or overwritten too early (no warp roles)
               hole: an element is read that was never written
               alignment: an access is not aligned or not contiguous
               raster: a tile of D is taken never or twice
               split: a k-tile of a tile is multiplied never or twice
               outside: an access reaches outside of its matrix
               result: an element of D is written never or twice
               protocol: a barrier is used wrongly, or a stage too early (warp roles)
    count      number of faults
    examples   descriptions of the first faults

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
    """Collector of the faults that a simulation finds.

    For each kind it has their number, and descriptions of the first 20.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._examples: dict[str, list[str]] = {}

    def add(self, kind: str, text: str) -> None:
        """Add one fault of the simulation. A fault with the same text as an earlier example of its kind is not added.

        kind   kind of the fault, such as "hole" (an element is read that was never written)
        text   description for the user
        """
        examples = self._examples.setdefault(kind, [])
        if text in examples:
            return
        self._counts[kind] = self._counts.get(kind, 0) + 1
        if len(examples) < MAX_EXAMPLES:
            examples.append(text)

    def add_each(self, kind: str, where: np.ndarray | Sequence[Any], describe: Callable[[Any], str]) -> None:
        """Add a fault of the simulation for each entry of `where`, with a description of the first 20 entries.

        kind       kind of the faults, such as "hole" (an element is read that was never written)
        where      what is at fault: a sequence of values, or an array with two modes whose rows are the entries.
                   Nothing is added if it is empty
        describe   function from an entry to a text; it is called for the first ones only
        """
        if len(where) == 0:
            return
        examples = self._examples.setdefault(kind, [])
        self._counts[kind] = self._counts.get(kind, 0) + len(where)
        for entry in where[: MAX_EXAMPLES - len(examples)]:
            examples.append(describe(entry))

    def faults(self) -> tuple[Fault, ...]:
        """Return all faults that were added: one `Fault` for each kind, in the order of their first occurrence."""
        return tuple([Fault(kind, count, tuple(self._examples[kind])) for kind, count in self._counts.items()])


def tile_text(at: Any) -> str:
    """Return the coordinates (m_tile, n_tile, batch) of a tile as text for messages, such as "(0, 1, 2)".

    >>> tile_text((0, 1, 2))
    '(0, 1, 2)'
    """
    return "(" + ", ".join(str(int(x)) for x in at) + ")"
