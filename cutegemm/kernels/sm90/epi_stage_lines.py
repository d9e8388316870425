"""Copy the lines of an epilogue stage to a D that TMA cannot store, in accesses of less than 16 bytes."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cutegemm.kernels.vectors import condition, copy_vector
from cutegemm.layout.modes import size
from cutegemm.tile.tiled_copy import TiledCopy

# Limits on the shared-memory reads of a thread in flight: number of accesses, and number of lines.
_READS, _LINES = 16, 4


class Lines:
    """The lines of an epilogue stage that one thread copies to D, and the division of a line among lanes.

    A line is a contiguous row of D in the stage (a column if D is M-major). A line that does not start at an aligned
    address is rotated among its lanes, so that their stores are aligned.

    run       number of neighbouring lanes that together access neighbouring vectors of a line
    pieces    number of pieces of a line; a run of lanes copies one piece with each access
    count     number of lines that a thread copies
    apart     distance between two lines of a thread, in lines
    at_once   number of lines that are read before the first of them is stored
    """

    def __init__(self, copy: TiledCopy, epi_tile: tuple[int, int], major: str, sD, gD, first) -> None:
        along = "mn".index(major)
        self.atom, self.along = copy.atom, along
        line, across = epi_tile[along], epi_tile[1 - along]
        self.run = size(copy.tiler_mn[along]) // self.atom.values
        self.pieces, self.apart = line // (self.run * self.atom.values), size(copy.tiler_mn[1 - along])
        self.count = across // self.apart
        most = max(1, min(self.count, _LINES, _READS // self.pieces))
        self.at_once = next(lines for lines in range(most, 0, -1) if self.count % lines == 0)
        vector = tuple([self.atom.values if mode == along else 1 for mode in range(2)])
        self.sV, self.gV = [cute.zipped_divide(tensor, vector) for tensor in (sD, gD)]
        self.line, self.lane = first[1 - along], first[along] >> _log2(self.atom.values)

    def inside(self, corner, extents) -> tuple[Any, Any]:
        """Return how much of an epilogue stage lies inside of D: numbers of (lines of the thread, vectors of a line).

        A line or vector counts if its first element is inside.

        corner    (m, n) of the first element of the epilogue tile in D
        extents   (M, N) of D
        """
        lines, elements = [extents[mode] - corner[mode] for mode in (1 - self.along, self.along)]
        left = cutlass.max(lines - self.line, 0) + self.apart - 1
        count = cutlass.min(self.count, left >> _log2(self.apart))
        return count, (elements + self.atom.values - 1) >> _log2(self.atom.values)

    def copy(self, first, count: int, left) -> None:
        """Copy `count` lines of an epilogue stage to D: this thread's lines from number `first` on.

        left   number of vectors of a line that are inside of D
        """
        moved, held = [], cute.make_rmem_tensor((self.atom.values, count * self.pieces), self.sV.element_type)
        for y in range(count):
            line = self.line + (first + y) * self.apart
            moved += self.of_line(line, self.lane - self.turned_by(line), left)
        for i, (source, _, _) in enumerate(moved):
            copy_vector(self.atom, source, held[None, i])
        for i, (_, target, inside) in enumerate(moved):
            copy_vector(self.atom, held[None, i], target, condition(inside))

    def of_line(self, line, place, left) -> list[tuple[Any, Any, Any]]:
        """Return for each piece of a line the vector that a thread copies: (place in the stage, in D, is it inside?).

        A vector is inside if its first element is inside of D.

        line    index of the line in the epilogue tile
        place   index in the line of the vector that the thread copies in the first piece. A negative index counts from
                the end of the line
        left    number of vectors of the line that are inside of D
        """
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
        """Return by how many vectors a line is rotated among its lanes, so that they store to aligned blocks of D.

        It is the distance, in vectors, from the last aligned address of D to the start of the line.

        line   index of the line in the epilogue tile
        """
        address = Int32(self.gV[None, self.at(line, 0)].iterator.toint())
        return (address >> _log2(self.atom.bits // 8)) & (self.run - 1)

    def at(self, line, place) -> tuple[Any, Any]:
        """Return the coordinates (m, n) of one vector of D in its epilogue tile, counted in vectors.

        A line is a row of the epilogue tile along D's contiguous mode; a vector is what one access copies.

        line    index of the line
        place   index of the vector in the line
        """
        return (place, line) if self.along == 0 else (line, place)


def _log2(power: int) -> int:
    """Return the exponent of a power of two."""
    return power.bit_length() - 1
