"""An HTML page that explores a plan from the grid of tiles down to a single value, in one file.

This module evaluates the layouts of the plan and embeds the results as base64 tables. The script of the page only looks
values up. The page loads no other file, and its content security policy forbids it to.
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
from cutegemm.plan.work.grouped import with_equal_groups
from cutegemm.tile.tiled_copy import TiledCopy

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Operand, Problem
    from cutegemm.plan.shared import SharedLayout

MAX_TILES = 1 << 20
_NOBODY = 0xFFFF
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def plan_page(plan: GemmPlan, problem: Problem | None = None, *, ctas_per_wave: int | None = None) -> str:
    """Return an interactive page on a plan as one HTML document: who copies, holds and stores each element of a tile.

    problem         problem whose grid of tiles and raster the page shows; None for a page without a grid
    ctas_per_wave   number of CTAs that run at a time; the raster is coloured by wave. None: a single wave
    raises          UnsupportedError if the problem has more than 2**20 tiles, or if the plan does not keep A and B in
                    shared memory
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
    """Return the HTML element that shows a plan's CTA tile interactively, in a page with `tile.css` and `tile.js`.

    plan            the GEMM plan
    problem         problem whose grid of tiles and raster are shown; None for no grid
    ctas_per_wave   number of CTAs that run at a time; the raster is coloured by wave. None: a single wave
    name            `id` of the element
    attributes      more attributes of the element, with a leading space; data-m and data-n select the element of D
                    that is shown first
    """
    data = page_data(plan, problem, ctas_per_wave)
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    shown = {"id": name, "attributes": attributes, "data": text, **_body(plan, data)}
    return Template(part("tile.html")).substitute(shown)


def part(name: str) -> str:
    """Return the text of a file of this folder that pages include, by its name such as "tile.css" or "tile.js"."""
    return files("cutegemm.draw").joinpath(name).read_text("utf-8")


def page_data(plan: GemmPlan, problem: Problem | None, ctas_per_wave: int | None) -> dict[str, Any]:
    """Return the data of a plan's interactive page, a dictionary for JSON: which thread copies, holds and stores what.

    Each array (by tile element or by thread) is a dictionary of its type and its bytes as base64. The data is about the
    tile that a CTA multiplies. With cluster split-K, all CTAs that share K multiply the same tile, and each stores its
    own part.

    problem, ctas_per_wave   problem whose grid is shown, or None; number of CTAs that run at a time, or None for a
                             single wave
    raises                   UnsupportedError if the plan does not keep A and B in shared memory
    """
    if not plan.stages:
        raise UnsupportedError(
            f"the page of {plan.name}: A and B do not pass through shared memory, which a page needs. Draw the plan "
            "as text or SVG."
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
        "raster": str(plan.scheduler.raster),
        "d": {"thread": packed(np.where(thread < 0, _NOBODY, thread), "u16"), "value": packed(value.clip(0))},
        "a": _operand(plan, "a", bm, plan.a.smem, plan.a.load, ops.a),
        "b": _operand(plan, "b", bn, plan.b.smem, plan.b.load, ops.b),
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
    """Return the tables of operand A or B for the page of a plan: where each element lies, and who copies it.

    operand   the operand, whose element type is shown
    name      "a" or "b"
    extent    extent of the tile along M or N
    smem      shared-memory layout of all stages
    load      TiledCopy that loads the operand; other loads have no thread per element
    returns   bits      width of an element
              smem      shared-memory offset of each element, in the first stage or in all stages
              shifts    offset of each stage from the first one; None if `smem` has all stages
              copier    thread that copies each element, or None
              access    index of the thread's access that copies each element, or None
              held      element that each (thread, value) holds in registers, or None if MMAs read shared memory
    """
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
    """Return an operand's shared-memory offsets in all pipeline stages in a short form for the page: (offsets, shifts).

    If every stage has the offsets of the first one plus a constant, the result has the first stage's offsets and these
    constants. Otherwise it has the offsets of all stages, and None.

    offsets   array (elements, stages) of shared-memory offsets, counted in elements
    returns   (dictionary with type and base64 text of the offsets; list with one constant per stage, in elements, or
              None)
    """
    shift = offsets[0] - offsets[0, 0]
    if (offsets == offsets[:, :1] + shift).all():
        return packed(offsets[:, 0]), shift.tolist()
    return packed(offsets.reshape(-1, order="F")), None


def _grid(plan: GemmPlan, problem: Problem, ctas_per_wave: int | None) -> dict[str, Any] | None:
    """Return the tile grid of a problem for a plan's page, as a dictionary; None if the problem has no tiles.

    The dictionary has the numbers of tiles along M, N and the batch (keys m, n, l), the position of each tile in the
    order of execution, and the number of CTAs that run at a time.

    ctas_per_wave   number of CTAs that run at a time; None: all of them
    raises          UnsupportedError if the problem has too many tiles
    """
    plan, problem = with_equal_groups(plan, problem)
    m, n, l = plan.grid(problem)  # noqa: E741 - the batch, as in CuTe
    if m * n * l > MAX_TILES:
        raise UnsupportedError(
            f"the page of {plan.name}: {problem} has {m} x {n} x {l} tiles; a page shows up to {MAX_TILES}."
        )
    if m * n * l == 0:
        return None
    order = plan.work(problem).tiles.order()
    if plan.cluster_k > 1:  # one tile for all CTAs that share K
        m, n, l = plan.mma_grid(problem)  # noqa: E741
        down, across = sharers_mn(plan)
        order = order[(order[:, :, :2] % (down, across) == 0).all(axis=2)] // (down, across, 1)
        ctas_per_wave = None if ctas_per_wave is None else max(1, ctas_per_wave // plan.cluster_k)
    order = order.reshape(-1, 3)
    order = order[(order < (m, n, l)).all(axis=1)]  # CTAs of an edge cluster may be outside the grid
    position = np.empty(m * n * l, np.int64)
    position[order[:, 0] + m * (order[:, 1] + n * order[:, 2])] = np.arange(m * n * l)
    return {"m": m, "n": n, "l": l, "position": packed(position), "wave": ctas_per_wave}


def first_mma_thread(plan: GemmPlan) -> int:
    """Return the index in the CTA of the thread that is thread 0 of the tiled MMA.

    This is the first thread of the first consumer if warps have roles, else 0.

    >>> from cutegemm.build import simt_plan, sm90_plan
    >>> first_mma_thread(simt_plan()), first_mma_thread(sm90_plan())
    (0, 128)
    """
    if not plan.body.has_roles:
        return 0
    before = plan.roles[: len(plan.roles) - plan.body.consumers]
    return WARP_THREADS * sum([role.warps for role in before])


def packed(values: np.ndarray, kind: str = "") -> dict[str, str]:
    """Return an array of non-negative integers as a dictionary for a page's script: its type, and its bytes as base64.

    kind   "u8", "u16" or "u32"; "" for the smallest type that holds all values

    >>> packed(np.array([1, 2, 255]))
    {'type': 'u8', 'data': 'AQL/'}
    """
    most = int(values.max()) if values.size else 0
    kind = kind or ("u8" if most < 1 << 8 else "u16" if most < 1 << 16 else "u32")
    array = np.ascontiguousarray(values, dtype={"u8": "<u1", "u16": "<u2", "u32": "<u4"}[kind])
    return {"type": kind, "data": b64encode(array.tobytes()).decode("ascii")}


def _body(plan: GemmPlan, data: dict[str, Any]) -> dict[str, str]:
    """Return the HTML texts that fill the page of a plan: name of a placeholder in tile.html -> HTML.

    data   tables of the page, as `page_data` returns them: which thread copies, holds and stores which element
    """
    return {
        "path": _path(plan, data),
        "stages": "".join(f'<option value="{s}">{s}</option>' for s in range(plan.stages)),
        "held_by": _held_by(plan),
        "raster": escape(str(plan.scheduler.raster)),
        "without_grid": "" if data["grid"] else "hidden",
    }


def _held_by(plan: GemmPlan) -> str:
    """Return the text that explains the "held by" columns of the page's table: which thread holds an element."""
    atom, k = plan.tiled_mma.atom, plan.tiled_mma.tile_mnk[2]
    if atom.a_source == atom.b_source == "shared":
        return "no thread: the instruction reads shared memory"
    return f"the thread itself (own), or a lane L of its warp; V is the value in a k-block of {k}"


def _what_is_held(plan: GemmPlan) -> str:
    """Return "of D" or "accumulators", which complete the phrase "64 ... each" about the values that a thread holds.

    The phrase is on a plan's page. It is "64 accumulators each" if the CTAs of a cluster split K, because then no
    thread holds finished values of D.
    """
    return "of D" if plan.cluster_k == 1 else "accumulators"


def _path(plan: GemmPlan, data: dict[str, Any]) -> str:
    """Return the HTML list of a plan's levels, from the grid over CTA, warp and thread to a value of a thread.

    Each level has a name, the position of the selected element of D, and a description.

    data   tables of the page, as `page_data` returns them
    """
    bm, bn, bk = plan.mma_tile
    cm, cn = plan.cluster_mn
    shares, stores = "", ""
    if plan.cluster_k > 1:
        own = " &times; ".join(str(extent) for extent in plan.cta_tile[:2])
        shares, stores = f"; {plan.cluster_k} CTAs split K", f", stores {own}"
    mma = plan.tiled_mma
    grid = data["grid"]
    held = size(mma.tv_layout_C_tiled, mode=[1]) * (bm * bn) // (mma.tile_mnk[0] * mma.tile_mnk[1])
    levels = [
        ("grid", "", "" if grid else f"M/{bm} &times; N/{bn} &times; L tiles; {escape(str(plan.scheduler.raster))}"),
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
