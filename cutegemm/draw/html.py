"""One page of a plan, to be opened in a browser: from the grid to a value, all on the one file.

The tables that the page looks things up in are made here, by the plan's own layouts, and embedded as
base64; the script does no arithmetic on layouts. The page loads nothing: a policy in it forbids that.
"""

from __future__ import annotations

import json
from base64 import b64encode
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from cutegemm.analysis.edges import sharers_mn
from cutegemm.draw.atoms import mma_table
from cutegemm.draw.owners import holders
from cutegemm.draw.palette import DARK, DARK_RAMP, LIGHT, LIGHT_RAMP, NAMED
from cutegemm.errors import UnsupportedError
from cutegemm.layout import Layout, size
from cutegemm.machine.arch import SMEM_BANK_BYTES, SMEM_BANKS, WARP_THREADS, WARPGROUP_THREADS
from cutegemm.tile.tiled_copy import TiledCopy

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Operand, Problem
    from cutegemm.plan.shared import SharedLayout

MAX_TILES = 1 << 20
_NOBODY = 0xFFFF
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def plan_page(plan: GemmPlan, problem: Problem | None = None, *, ctas_per_wave: int | None = None) -> str:
    """The page, as one HTML document.

    problem         with it the page shows the grid and its raster
    ctas_per_wave   that run at a time; colours the waves of the raster
    raises          UnsupportedError for a problem of more than 2**20 tiles
    """
    extents = "" if problem is None else f"; {problem}"
    parts = {
        "policy": _POLICY,
        "style": part("page.css") + part("tile.css"),
        "script": part("tile.js"),
        "tile": tile_html(plan, problem, ctas_per_wave=ctas_per_wave),
        "name": escape(plan.name),
        "summary": f"<p>{escape(plan.summary)}</p>" if plan.summary else "",
        "operands": escape(f"{plan.operands}{extents}"),
        "words": escape(plan.describe(problem)),
    }
    return Template(part("page.html")).substitute(parts)


def tile_html(
    plan: GemmPlan,
    problem: Problem | None = None,
    *,
    ctas_per_wave: int | None = None,
    name: str = "tile",
    attributes: str = "",
) -> str:
    """The tile of a CTA as a part of a page that has `tile.css` and `tile.js`; see `plan_page`.

    name         of the element
    attributes   of it: data-m and data-n are the element of D that is shown first
    """
    data = page_data(plan, problem, ctas_per_wave)
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    shown = {"id": name, "attributes": attributes, "data": text, **_body(plan, data)}
    return Template(part("tile.html")).substitute(shown)


def part(name: str) -> str:
    """A file that pages are made of: tile.css, tile.js and others."""
    return files("cutegemm.draw").joinpath(name).read_text("utf-8")


def page_data(plan: GemmPlan, problem: Problem | None, ctas_per_wave: int | None) -> dict[str, Any]:
    """What the script looks things up in. Tables are packed arrays; see `packed`.

    The tile is what a CTA multiplies: where CTAs share K, that of all of them, of which each stores its own columns.

    raises   UnsupportedError for a plan that keeps no operand in shared memory
    """
    if not plan.stages:
        raise UnsupportedError(
            f"the page of {plan.name}: A and B do not pass through shared memory, which a page shows. Draw its text "
            "or its SVG."
        )
    bm, bn, _ = plan.mma_tile
    mma, ops = plan.tiled_mma, plan.operands
    thread, value, _ = holders(mma_table(mma, "c", (bm, bn)), bm * bn)
    return {
        "tile": plan.mma_tile,
        "own": plan.cta_tile[:2],
        "holds": _what_is_held(plan),
        "threads": mma.threads,
        "ctaThreads": plan.threads,
        "firstThread": first_mma_thread(plan),
        "kBlock": mma.tile_mnk[2],
        "accBits": ops.acc.bits,
        "atom": mma.atom.name,
        "banks": SMEM_BANKS,
        "bankBytes": SMEM_BANK_BYTES,
        "cluster": plan.cluster_mn,
        "raster": str(plan.raster),
        "d": {"thread": packed(np.where(thread < 0, _NOBODY, thread), "u16"), "value": packed(value.clip(0))},
        "a": _operand(plan, "a", bm, plan.smem_a, plan.load_a, ops.a),
        "b": _operand(plan, "b", bn, plan.smem_b, plan.load_b, ops.b),
        "grid": None if problem is None else _grid(plan, problem, ctas_per_wave),
        "colors": {
            theme: {
                "hues": hues,
                "ramp": ramp,
                **{name: NAMED[name][index] for name in ("paper", "ink", "muted", "empty")},
            }
            for index, (theme, hues, ramp) in enumerate((("light", LIGHT, LIGHT_RAMP), ("dark", DARK, DARK_RAMP)))
        },
    }


def _operand(plan: GemmPlan, name: str, extent: int, smem: SharedLayout, load: Any, operand: Operand) -> dict[str, Any]:
    """Where an operand lies, who copies each element of it there, and who holds it in registers."""
    mma, bk = plan.tiled_mma, plan.cta_tile[2]
    source = mma.atom.a_source if name == "a" else mma.atom.b_source
    copier = access = held = None
    if isinstance(load, TiledCopy):
        split = load.offsets_d(Layout((extent, bk)))
        thread, value, _ = holders(split.reshape(split.shape[0], -1, order="F"), extent * bk)
        copier, access = packed(thread.clip(0)), packed(value.clip(0) // max(1, load.atom.values))
    if source == "register":
        held = packed(mma_table(mma, name, (extent, mma.tile_mnk[2])).reshape(-1))
    offsets = smem.offsets().reshape(size(smem, mode=[0]), bk, -1, order="F")[:extent]
    places, shifts = _stages(offsets.reshape(extent * bk, -1, order="F"))
    return {
        "bits": operand.dtype.bits,
        "smem": places,
        "shifts": shifts,
        "copier": copier,
        "access": access,
        "held": held,
    }


def _stages(offsets: np.ndarray) -> tuple[dict[str, str], list[int] | None]:
    """The table of the first stage and what each one is shifted by; all tables where that is not so.

    offsets   (elements, stages)
    """
    shift = offsets[0] - offsets[0, 0]
    if (offsets == offsets[:, :1] + shift).all():
        return packed(offsets[:, 0]), shift.tolist()
    return packed(offsets.reshape(-1, order="F")), None


def _grid(plan: GemmPlan, problem: Problem, ctas_per_wave: int | None) -> dict[str, Any] | None:
    m, n, l = plan.grid(problem)  # noqa: E741 - the batch, as in CuTe
    if m * n * l > MAX_TILES:
        raise UnsupportedError(
            f"the page of {plan.name}: {problem} has {m} x {n} x {l} tiles; a page shows up to {MAX_TILES}."
        )
    if m * n * l == 0:
        return None
    order = plan.scheduler.of(problem).tiles.order()
    if plan.cluster_k > 1:  # a tile of all CTAs that share it, which have places side by side
        m, n, l = plan.mma_grid(problem)  # noqa: E741
        down, across = sharers_mn(plan)
        order = order[(order[:, :, :2] % (down, across) == 0).all(axis=2)] // (down, across, 1)
        ctas_per_wave = None if ctas_per_wave is None else max(1, ctas_per_wave // plan.cluster_k)
    order = order.reshape(-1, 3)
    order = order[(order < (m, n, l)).all(axis=1)]  # of a cluster some CTAs may lie past the edge
    position = np.empty(m * n * l, np.int64)
    position[order[:, 0] + m * (order[:, 1] + n * order[:, 2])] = np.arange(m * n * l)
    return {"m": m, "n": n, "l": l, "position": packed(position), "wave": ctas_per_wave}


def first_mma_thread(plan: GemmPlan) -> int:
    """The thread of the CTA that is thread 0 of the tiled MMA: of the first consumer, where warps have roles.

    >>> from cutegemm.build import simt_plan, sm90_plan
    >>> first_mma_thread(simt_plan()), first_mma_thread(sm90_plan())
    (0, 128)
    """
    pipeline = plan.pipeline
    if pipeline is None:
        return 0
    before = plan.roles[: len(plan.roles) - pipeline.consumers]
    return WARP_THREADS * sum([role.warps for role in before])


def packed(values: np.ndarray, kind: str = "") -> dict[str, str]:
    """An array of non-negative integers in the least type that holds it, as base64.

    >>> packed(np.array([1, 2, 255]))
    {'type': 'u8', 'data': 'AQL/'}
    """
    most = int(values.max()) if values.size else 0
    kind = kind or ("u8" if most < 1 << 8 else "u16" if most < 1 << 16 else "u32")
    array = np.ascontiguousarray(values, dtype={"u8": "<u1", "u16": "<u2", "u32": "<u4"}[kind])
    return {"type": kind, "data": b64encode(array.tobytes()).decode("ascii")}


def _body(plan: GemmPlan, data: dict[str, Any]) -> dict[str, str]:
    """The parts of the tile that depend on the plan, by their names in tile.html."""
    return {
        "path": _path(plan, data),
        "stages": "".join(f'<option value="{s}">{s}</option>' for s in range(plan.stages)),
        "held_by": _held_by(plan),
        "raster": escape(str(plan.raster)),
        "without_grid": "" if data["grid"] else "hidden",
    }


def _held_by(plan: GemmPlan) -> str:
    atom, k = plan.tiled_mma.atom, plan.tiled_mma.tile_mnk[2]
    if atom.a_source == atom.b_source == "shared":
        return "nobody, as the instruction reads shared memory"
    return f"the thread itself (own), or a lane L of its warp; V is the value in a k-block of {k}"


def _what_is_held(plan: GemmPlan) -> str:
    """What a thread has of the tile: elements of D, or sums of a part of K, of which it stores some."""
    return "of D" if plan.cluster_k == 1 else "accumulators"


def _path(plan: GemmPlan, data: dict[str, Any]) -> str:
    """The levels: name, where the selected element is, what there is."""
    bm, bn, bk = plan.mma_tile
    cm, cn = plan.cluster_mn
    shares, stores = "", ""
    if plan.cluster_k > 1:
        own = " &times; ".join(str(extent) for extent in plan.cta_tile[:2])
        shares, stores = f", {plan.cluster_k} of which share K", f", stores {own}"
    mma = plan.tiled_mma
    grid = data["grid"]
    held = size(mma.tv_layout_C_tiled, mode=[1]) * (bm * bn) // (mma.tile_mnk[0] * mma.tile_mnk[1])
    levels = [
        ("grid", "", "" if grid else f"M/{bm} &times; N/{bn} &times; L tiles; {escape(str(plan.raster))}"),
        ("cluster", "", f"{cm} &times; {cn} {'CTA' if cm * cn == 1 else 'CTAs'}{shares}"),
        ("cta", "", f"{bm} &times; {bn} &times; {bk}{stores}, {plan.threads} threads"),
    ]
    if plan.threads >= WARPGROUP_THREADS:
        levels.append(("warpgroup", "0", f"{plan.threads // WARPGROUP_THREADS} groups of {WARPGROUP_THREADS} threads"))
    levels += [
        ("warp", "0", f"{plan.threads // WARP_THREADS} warps of {WARP_THREADS} lanes"),
        ("thread", "0", f"{held} {_what_is_held(plan)} each"),
        ("value", "0", escape(mma.atom.name)),
    ]
    return "".join(
        f'<li><span>{"CTA" if name == "cta" else name}</span><b id="p-{name}">{value or "any"}</b>'
        f'<small id="s-{name}">{detail}</small></li>'
        for name, value, detail in levels
    )
