"""The view "tile": the tile of a CTA with the thread of each element of D and the banks of A and B."""

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


def tile(state: State, selected: Chosen) -> Html:
    """Return HTML for the explorer's view "tile": an interactive picture of a CTA's tile of A, B and D.

    For the element of D that the user points at, it shows the thread, the register and the addresses that feed it.
    Errors, such as a problem with too many tiles, are shown in its place.

    state      the user's choices on the web page; "m" and "n" are the element that is shown first
    selected   the plan, which must not be None, the problem and the device
    """
    plan, (bm, bn, _) = selected.plan, selected.plan.mma_tile if selected.plan else (1, 1, 1)
    assert plan is not None
    try:
        return _drawn(plan, selected.problem, selected.device, state.number("m", bm), state.number("n", bn))
    except CutegemmError as what:
        return card("", error(str(what)))


@lru_cache(maxsize=16)
def _drawn(plan: GemmPlan, problem: Problem | None, device: Device | None, m: int, n: int) -> Html:
    """Return the interactive picture of a CTA's tile of A, B and D as HTML. Recent ones are cached.

    problem   problem whose grid of tiles is shown; None for none
    device    device whose number of SMs divides the grid into waves; None for a single wave
    m, n      element of D that is shown first
    """
    wave = None
    if device is not None:
        wave = device.sms * plan_occupancy(plan, arch_named(device.arch)).ctas or None
    # htmx keeps an element whose name does not change, so each plan and problem needs its own name.
    name = "tile-" + sha256(f"{plan.key()} {problem} {wave}".encode()).hexdigest()[:12]
    attributes = f' hx-morph-skip data-m="{m}" data-n="{n}"'
    return Html(tile_html(plan, problem, ctas_per_wave=wave, name=name, attributes=attributes))
