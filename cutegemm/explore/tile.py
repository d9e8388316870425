"""The tile of a CTA: D by who holds it, A and B by their banks, and what is known of each element."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

from cutegemm.analysis import plan_occupancy
from cutegemm.draw.html import tile_html
from cutegemm.errors import CutegemmError
from cutegemm.explore.chosen import Chosen
from cutegemm.explore.forms import card
from cutegemm.explore.html import Html, error
from cutegemm.explore.state import State
from cutegemm.machine.arch import arch_named
from cutegemm.machine.device import Device
from cutegemm.plan import GemmPlan, Problem


def tile(state: State, found: Chosen) -> Html:
    """The tile, which a script shows; where the problem has too many for a raster, without it."""
    plan, (bm, bn, _) = found.plan, found.plan.mma_tile if found.plan else (1, 1, 1)
    assert plan is not None
    try:
        return _shown(plan, found.problem, found.device, state.number("m", bm), state.number("n", bn))
    except CutegemmError as what:
        return card("", error(str(what)))


@lru_cache(maxsize=16)
def _shown(plan: GemmPlan, problem: Problem | None, device: Device | None, m: int, n: int) -> Html:
    wave = None
    if device is not None:
        wave = device.sms * plan_occupancy(plan, arch_named(device.arch)).ctas or None
    # Of another name than another plan's: an element of one name is left as it is.
    name = "tile-" + sha256(f"{plan.key()} {problem} {wave}".encode()).hexdigest()[:12]
    attributes = f' hx-morph-skip data-m="{m}" data-n="{n}"'
    return Html(tile_html(plan, problem, ctas_per_wave=wave, name=name, attributes=attributes))
