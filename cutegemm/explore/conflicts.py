"""Bank conflicts of a tile in shared memory that is typed as a layout: ldmatrix, and loads of single elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cutegemm.analysis.shared import Wavefronts, bank_conflicts
from cutegemm.errors import LayoutError
from cutegemm.explore.html import Html, el, joined
from cutegemm.layout import ComposedLayout, Layout
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import WARP_THREADS

_MOST_ELEMENTS = 1 << 16  # a larger tile is not counted
_ROW_BITS = 128  # of ldmatrix


def conflicts(value: Any, bits: int) -> Html | None:
    """Return an HTML list of the wavefronts that typical accesses to a shared-memory tile take.

    value   layout of the tile with two modes and at most 2**16 elements; None is returned for anything else
    bits    bits of an element
    """
    counted = [
        (name, f"{found.wavefronts} wavefronts of {found.ideal}: {_ways(found)}")
        for name, found in counts(value, bits).items()
    ]
    if not counted:
        return None
    listed = [joined(el("dt", name), el("dd", text)) for name, text in counted]
    return el("dl", listed, class_="facts", aria_label="bank conflicts")


def counts(value: Any, bits: int) -> dict[str, Wavefronts]:
    """Count the wavefronts of typical accesses to a shared-memory tile; return a dict from access to counts.

    The keys are "ldmatrix.x4 of rows", "ldmatrix.x4 of columns", "lanes along a column" and "lanes along a row" (each
    lane loads one element). An access that the layout does not allow is left out. The counts have the number of
    instructions and of wavefronts, and `ways`, the degree of the bank conflict.

    value   layout of the tile with two modes and at most 2**16 elements; the dict is empty for anything else
    bits    bits of an element

    >>> {name: found.ways for name, found in counts(Layout((8, 128), (128, 1)), 16).items()}
    {'ldmatrix.x4 of rows': 8.0, 'lanes along a column': 8.0, 'lanes along a row': 1.0}
    """
    out: dict[str, Wavefronts] = {}
    if not isinstance(value, (Layout, ComposedLayout)) or not isinstance(value.shape, tuple) or len(value.shape) != 2:
        return out
    rows, columns = [product(mode) for mode in value.shape]
    if not 0 < rows * columns <= _MOST_ELEMENTS:
        return out
    for name, op, lanes in _accesses(np.arange(rows * columns).reshape(columns, rows).T, bits):
        whole = len(lanes) // WARP_THREADS * WARP_THREADS or len(lanes)
        try:
            found = bank_conflicts(value, lanes[:whole], element_bits=bits, op=op)
        except LayoutError:
            continue  # the rows of this mode are not contiguous, or an element has no whole bytes
        out[f"{found.form} of {name}" if op == "ldmatrix" else f"lanes along a {name}"] = found
    return out


def _accesses(index: np.ndarray, bits: int) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield the typical accesses to a tile whose bank conflicts are counted: (name, operation, elements).

    `elements` is an array of element indices, with a row for each lane and a column for each element of the lane. Each
    32 lanes are one warp.

    index   array (rows, columns) with the index of each element in the tile
    bits    bits of an element
    """
    vector = max(1, _ROW_BITS // bits)
    for name, tile in (("rows", index), ("columns", index.T)):
        if tile.shape[0] % 8 == 0 and tile.shape[1] % vector == 0:
            yield name, "ldmatrix", tile.reshape(len(tile), -1, vector).transpose(1, 0, 2).reshape(-1, vector)
    yield "column", "load", index.T.reshape(-1, 1)
    yield "row", "load", index.reshape(-1, 1)


def _ways(found: Wavefronts) -> str:
    """Return the degree of a bank conflict as text, such as "8-way conflict" or "no conflict".

    found   counts of the access: instructions, wavefronts and conflicts
    """
    return f"{found.ways:.3g}-way conflict" if found.conflicts else "no conflict"
