"""The figures of the documentation.

figures("docs/figures")
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cutegemm.build import simt_plan, sm90_plan
from cutegemm.draw import (
    Timeline,
    atom_picture,
    composition_picture,
    groups_picture,
    layout_picture,
    plan_picture,
    protocol_timeline,
    raster_picture,
    save,
    slice_picture,
    swizzle_picture,
    tiled_mma_picture,
)
from cutegemm.draw.grids import Picture
from cutegemm.dtypes import bf16, f16
from cutegemm.layout import Layout, Swizzle, make_composed_layout
from cutegemm.machine.device import DEFAULT_DEVICE
from cutegemm.simulator.protocol.protocol import protocol_of
from cutegemm.tile.mma_atoms import mma_sync, wgmma
from cutegemm.tile.smem_atoms import smem_atom

_WAVE = DEFAULT_DEVICE.sms
_SIMT = simt_plan(block=(64, 64, 8))
_SIMT_TEXT = "simt_plan(block=(64, 64, 8))"

FIGURES: dict[str, Callable[[], Picture | Timeline]] = {
    "layout": lambda: layout_picture(Layout(((2, 4), (2, 2, 2)), ((1, 4), (2, 16, 32))), title="A hierarchical layout"),
    "swizzle": lambda: swizzle_picture(
        make_composed_layout(Swizzle(3, 2, 3), 0, Layout((8, 32), (32, 1))), title="A swizzle, by banks"
    ),
    "smem_atom_128B": lambda: swizzle_picture(
        smem_atom(bf16, "k", "128B"), element_bits=16, title="The 128-byte swizzle of wgmma and TMA"
    ),
    "composition": lambda: composition_picture(Layout((4, 8), (8, 1)), Layout((4, 2), (2, 16)), title="Composition"),
    "slice": lambda: slice_picture(Layout((4, (2, 4)), (8, (1, 2))), (None, (1, None)), title="A slice"),
    "mma_m16n8k16": lambda: atom_picture(mma_sync(f16, 16)),
    "wgmma_m64n8k16": lambda: atom_picture(wgmma(bf16, 8)),
    "simt_tiled_mma": lambda: tiled_mma_picture(_SIMT.tiled_mma, title=f"The tiled MMA of {_SIMT_TEXT}"),
    "simt_plan": lambda: plan_picture(_SIMT, title=f"The CTA tile of {_SIMT_TEXT}"),
    "pingpong": lambda: protocol_timeline(
        protocol_of(sm90_plan(stages=4), k_tiles=5, tiles=4),
        title="A pingpong pipeline: four tiles, four stages",
    ),
    "groups": lambda: groups_picture([5, 5, 13, 16], 18, title="Groups of 5, 0, 8 and 3 rows, and their boxes"),
    "raster_along_m": lambda: raster_picture("along_m", (11, 14), ctas_per_wave=_WAVE),
    "raster_grouped_m": lambda: raster_picture("grouped_m:4", (11, 14), ctas_per_wave=_WAVE),
}


def figures(out_dir: str | Path) -> list[Path]:
    """Write every figure of the documentation to `out_dir`/NAME.svg and return the paths."""
    return [save(make(), Path(out_dir) / f"{name}.svg") for name, make in FIGURES.items()]
