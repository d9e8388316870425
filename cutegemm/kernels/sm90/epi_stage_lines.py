"""The lines of an epilogue stage that threads copy to a D which TMA does not store."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cutegemm.kernels.vectors import condition, copy_vector
from cutegemm.layout.modes import size
from cutegemm.plan.warp_roles import EpiStages

# Where a thread reads less than 16 bytes of an epilogue stage at once: accesses, and lines, that are under way.
_READS, _LINES = 16, 4


class Lines:
    """The lines of an epilogue stage, which threads copy to D by vectors of less than 16 bytes; see `EpiStages.turned`.

    run       neighbouring lanes that take neighbours of a line at once
    pieces    of a line, each of which such lanes take at once
    count     of lines of a thread; `apart` lines lie between them
    at_once   lines that are read before the first of them is stored
    """

    def __init__(self, epi_stages: EpiStages, major: str, sD, gD, first) -> None:
        copy, along = epi_stages.store, "mn".index(major)
        self.atom, self.along = copy.atom, along
        line, across = epi_stages.epi_tile[along], epi_stages.epi_tile[1 - along]
        self.run = size(copy.tiler_mn[along]) // self.atom.values
        self.pieces, self.apart = line // (self.run * self.atom.values), size(copy.tiler_mn[1 - along])
        self.count = across // self.apart
        most = max(1, min(self.count, _LINES, _READS // self.pieces))
        self.at_once = next(lines for lines in range(most, 0, -1) if self.count % lines == 0)
        vector = tuple([self.atom.values if mode == along else 1 for mode in range(2)])
        self.sV, self.gV = [cute.zipped_divide(tensor, vector) for tensor in (sD, gD)]
        self.line, self.lane = first[1 - along], first[along] >> _log2(self.atom.values)

    def inside(self, corner, extents) -> tuple[Any, Any]:
        """How many lines of the thread are inside of D, and how many vectors of each: those whose first element is.

        corner   of the epilogue tile in D
        """
        lines, elements = [extents[mode] - corner[mode] for mode in (1 - self.along, self.along)]
        left = cutlass.max(lines - self.line, 0) + self.apart - 1
        count = cutlass.min(self.count, left >> _log2(self.apart))
        return count, (elements + self.atom.values - 1) >> _log2(self.atom.values)

    def copy(self, first, count: int, left) -> None:
        """So many lines from this one on."""
        moved, held = [], cute.make_rmem_tensor((self.atom.values, count * self.pieces), self.sV.element_type)
        for y in range(count):
            line = self.line + (first + y) * self.apart
            moved += self.of_line(line, self.lane - self.turned_by(line), left)
        for i, (source, _, _) in enumerate(moved):
            copy_vector(self.atom, source, held[None, i])
        for i, (_, target, inside) in enumerate(moved):
            copy_vector(self.atom, held[None, i], target, condition(inside))

    def of_line(self, line, place, left) -> list[tuple[Any, Any, Any]]:
        """(in the epilogue stage, in D, whether it is inside) of each piece: the vector at this place, or where that is
        before the line, one of its last; and those that follow."""
        values, length = self.atom.values, self.run * self.pieces
        wrapped = cutlass.select_(place < 0, place + length, place)
        found = [(*[vectors[None, self.at(line, wrapped)] for vectors in (self.sV, self.gV)], wrapped < left)]
        pieces = cute.make_layout((values, self.pieces), stride=(1, self.run * values))
        rows = [
            cute.make_tensor(vectors[None, self.at(line, place)].iterator, pieces) for vectors in (self.sV, self.gV)
        ]
        for piece in range(1, self.pieces):
            source, target = [row[None, piece] for row in rows]
            found.append((source, target, place < left - piece * self.run))
        return found

    def turned_by(self, line):
        """Vectors by which a line begins behind a place of D where a piece is aligned to its own bytes."""
        address = Int32(self.gV[None, self.at(line, 0)].iterator.toint())
        return (address >> _log2(self.atom.bits // 8)) & (self.run - 1)

    def at(self, line, place) -> tuple[Any, Any]:
        """(m, n) of a vector."""
        return (place, line) if self.along == 0 else (line, place)


def _log2(power: int) -> int:
    return power.bit_length() - 1
