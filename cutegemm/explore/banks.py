"""The banks of each access to shared memory: which lanes ask which bank for what, and where they meet."""

from __future__ import annotations

import numpy as np

from cutegemm.analysis import Access, Wavefronts, shared_accesses
from cutegemm.analysis.accesses import buffer_layout
from cutegemm.analysis.shared import Phase, served
from cutegemm.errors import CutegemmError
from cutegemm.explore.chosen import Chosen
from cutegemm.explore.forms import card, choice, form, link
from cutegemm.explore.html import Html, code, el, error, joined, scrolling, table
from cutegemm.explore.state import DEFAULTS, State
from cutegemm.machine.arch import SMEM_BANK_BYTES, SMEM_BANKS, WARP_THREADS
from cutegemm.plan import GemmPlan

_PICKED = ("access", "warp", "request")
_SHOWN_LANES = 6
_NEVER = {
    "tma": "TMA writes whole rows in an order of its own: it never conflicts. Shown are the rows that it writes.",
    "wgmma": "The tensor cores read a core matrix, 8 rows of 16 bytes, at a time: a phase is one.",
    "st.async": "Each CTA sends to the others: shown is what is written in the one that it comes to.",
    "cp.async": "Shown is what is written. What the copy reads in global memory may collide too, and is counted above.",
}


def banks(state: State, found: Chosen) -> Html:
    """All accesses, and one request of one of them bank by bank."""
    plan = found.plan
    assert plan is not None
    try:
        accesses = shared_accesses(plan, found.problem)
        costs = [access.cost(buffer_layout(plan, access.buffer)) for access in accesses]
    except CutegemmError as what:
        return card("", error(str(what)))
    if not accesses:
        return card("Shared memory", el("p", "Nothing passes through shared memory in this plan."))
    most = max(range(len(costs)), key=lambda i: (costs[i].conflicts, -i))
    number = state.number("access", len(accesses), most)
    return joined(
        card("Accesses to shared memory, of a CTA", _overview(state, plan, accesses, costs, number)),
        _one(state, plan, accesses[number], costs[number]),
    )


def _overview(state: State, plan: GemmPlan, accesses: list[Access], costs: list[Wavefronts], picked: int) -> Html:
    rows = []
    for i, (access, cost) in enumerate(zip(accesses, costs, strict=True)):
        worst = cost.worst
        name = link(state.with_(access=i, warp="", request=""), access.name, current=i == picked)
        conflicts = el("b", f"{cost.conflicts} more", class_="red") if cost.conflicts else "none"
        where = str(worst) if worst else "at the source" if cost.conflicts else ""
        instruction = access.instruction(buffer_layout(plan, access.buffer))
        rows.append((name, instruction, access.per, str(cost.wavefronts), str(cost.ideal), conflicts, where))
    columns = (
        ("access", "left"), ("instruction", "left"), ("per", "left"), ("wavefronts", "right"),
        ("ideal", "right"), ("conflicts", "right"), ("worst", "left"),
    )  # fmt: skip
    return table(columns, rows, label="accesses to shared memory", marked=picked)


def _one(state: State, plan: GemmPlan, access: Access, cost: Wavefronts) -> Html:
    layout = buffer_layout(plan, access.buffer)
    addresses, bits = access.addresses(layout)
    warps, requests, lanes = addresses.shape
    worst = (cost.worst.warp, cost.worst.request) if cost.worst else (0, 0)
    warp, request = state.number("warp", warps, worst[0]), state.number("request", requests, worst[1])
    phases = served(addresses[warp, request], bits, op=access.op)
    groups = "group of rows" if access.op in ("tma", "wgmma") else "warp"
    picker = form(
        state,
        el(
            "div",
            choice("warp", groups, str(warp), [(str(i), str(i)) for i in range(warps)]),
            choice("request", "instruction of it", str(request), [(str(i), str(i)) for i in range(requests)]),
            class_="fields",
        ),
        label="which instruction",
        keeps=[name for name in DEFAULTS if name not in ("warp", "request")],
    )
    who = "lanes" if lanes == WARP_THREADS else "addresses"
    counts = f"{_times(len(phases), 'phase')} as {_times(_wavefronts(phases, access.op), 'wavefront')}"
    said = [
        el("p", code(str(layout)), class_="hint"),
        el(
            "p",
            f"{lanes} {who} of {bits} bits, served in {counts}. A bank shows who asks for each of its words.",
        ),
    ]
    if access.op in _NEVER:
        said.append(el("p", _NEVER[access.op], class_="hint"))
    shown = [_phase(i, phase, len(phases)) for i, phase in enumerate(phases)]
    return card(f"{access.name}: who meets whom", picker, said, shown, _addresses(addresses[warp, request]))


def _times(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _wavefronts(phases: list[Phase], op: str) -> int:
    return sum(1 if op == "tma" else max(map(len, phase.values()), default=0) for phase in phases)


def _phase(number: int, phase: Phase, count: int) -> Html:
    """The 32 banks side by side, a word of each below the other; where lanes meet in a bank, in red and in words."""
    ways = max(map(len, phase.values()), default=0)
    cells = []
    for bank in range(SMEM_BANKS):
        words = phase.get(bank, {})
        asked = [el("span", _lanes(lanes), title=f"byte {word:#06x}") for word, lanes in words.items()]
        kind = "bank idle" if not words else "bank meets" if len(words) > 1 else "bank"
        text = f"bank {bank}: " + ("; ".join([_told(w, lanes) for w, lanes in words.items()]) or "idle")
        cells.append(el("li", el("b", bank), asked, class_=kind, aria_label=text))
    met = {bank: words for bank, words in phase.items() if len(words) > 1}
    title = f"phase {number} of {count}: {_times(ways, 'wavefront')}"
    lines = [
        el("li", f"bank {bank}: ", "; ".join([_told(w, lanes) for w, lanes in words.items()]))
        for bank, words in sorted(met.items())
    ]
    more = el(
        "details",
        el("summary", f"lanes meet in {_times(len(met), 'bank')}"),
        el("ul", lines),
        open=number == 0,
    )
    return el(
        "div",
        el("h3", title),
        scrolling(el("ul", *cells, class_="banks"), title),
        more if met else el("p", "No two words of one bank.", class_="kept"),
    )


def _lanes(lanes: list[int]) -> str:
    """L0 L4, as short as may be."""
    shown = " ".join(map(str, lanes[:2]))
    return f"{shown}{'+' if len(lanes) > 2 else ''}"


def _told(word: int, lanes: list[int]) -> str:
    names = ", ".join(map(str, lanes[:_SHOWN_LANES])) + (", ..." if len(lanes) > _SHOWN_LANES else "")
    return f"{'lane' if len(lanes) == 1 else 'lanes'} {names} at byte {word:#06x}"


def _addresses(addresses: np.ndarray) -> Html:
    """The address of every lane."""
    rows = [
        (str(lane), f"{at:#06x}", str(at // SMEM_BANK_BYTES % SMEM_BANKS)) for lane, at in enumerate(addresses.tolist())
    ]
    columns = (("lane", "right"), ("byte", "right"), ("first bank", "right"))
    return el("details", el("summary", "address of each lane"), table(columns, rows, label="addresses"))
