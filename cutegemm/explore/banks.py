"""The view "banks": the lanes that access each bank of shared memory, and their conflicts."""

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
_ORDER = {"tma": 0, "wgmma": 1}  # these conflict never, or seldom: they are shown last
_SHOWN_LANES = 6  # lanes that are listed for a word
_NOTES = {
    "tma": "TMA writes whole rows in its own order, without conflicts. The rows that it writes are shown.",
    "wgmma": "The tensor cores read a core matrix (8 rows of 16 bytes) at a time. Each phase is one core matrix.",
    "st.async": "Each CTA sends to the others. The writes to the receiving CTA are shown.",
    "cp.async": "The writes to shared memory are shown. Conflicts of the global loads are counted in the table above.",
}


def banks(state: State, selected: Chosen) -> Html:
    """Return HTML for the explorer's view "banks": a plan's shared-memory accesses, and the banks of one of them.

    state      the user's choices on the web page; "access" (an access of the plan, such as the reads of A), "warp" and
               "request" (index of an instruction of the warp) select what is shown. By default it is the instruction
               with the most bank conflicts
    selected   the plan, which must not be None, and the problem
    """
    plan = selected.plan
    assert plan is not None
    try:
        accesses = shared_accesses(plan, selected.problem)
        costs = [access.cost(buffer_layout(plan, access.buffer)) for access in accesses]
    except CutegemmError as what:
        return card("", error(str(what)))
    if not accesses:
        return card("Shared memory", el("p", "This plan does not use shared memory."))
    most = max(range(len(costs)), key=lambda i: (costs[i].conflicts, _ORDER.get(accesses[i].op, len(_ORDER)), -i))
    number = state.number("access", len(accesses), most)
    return joined(
        card("Accesses of a CTA to shared memory", _overview(state, plan, accesses, costs, number)),
        _one(state, plan, accesses[number], costs[number]),
    )


def _overview(state: State, plan: GemmPlan, accesses: list[Access], costs: list[Wavefronts], picked: int) -> Html:
    """Return an HTML table with the wavefronts and bank conflicts of each shared-memory access of a plan.

    state      the user's choices on the web page, which the links of the table keep
    accesses   the plan's accesses, one per table row
    costs      wavefronts and conflicts of each access, in the same order
    picked     index of the selected access, whose row is highlighted
    """
    rows = []
    for i, (access, cost) in enumerate(zip(accesses, costs, strict=True)):
        worst = cost.worst
        name = link(state.with_(access=i, warp="", request=""), access.name, current=i == picked)
        conflicts = el("b", str(cost.conflicts), class_="red") if cost.conflicts else "none"
        where = str(worst) if worst else "in the global loads" if cost.conflicts else ""
        instruction = access.instruction(buffer_layout(plan, access.buffer))
        rows.append((name, instruction, access.per, str(cost.wavefronts), str(cost.ideal), conflicts, where))
    columns = (
        ("access", "left"), ("instruction", "left"), ("per", "left"), ("wavefronts", "right"),
        ("ideal", "right"), ("conflicts", "right"), ("worst", "left"),
    )  # fmt: skip
    return table(columns, rows, label="accesses to shared memory", marked=picked)


def _one(state: State, plan: GemmPlan, access: Access, cost: Wavefronts) -> Html:
    """Return HTML that shows which lanes use each bank of shared memory, for one instruction of a warp.

    state    the user's choices on the web page; "warp" and "request" (index of the instruction) select what is shown.
             By default it is the instruction with the most conflicts
    access   the plan's access to shared memory, such as the reads of A, whose instruction is shown
    cost     its wavefronts and conflicts
    """
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
            choice("request", "instruction", str(request), [(str(i), str(i)) for i in range(requests)]),
            class_="fields",
        ),
        label="which instruction",
        keeps=[name for name in DEFAULTS if name not in ("warp", "request")],
    )
    who = "lanes" if lanes == WARP_THREADS else "addresses"
    counts = f"{_plural(len(phases), 'phase')} as {_plural(_wavefronts(phases, access.op), 'wavefront')}"
    notes = [
        el("p", code(str(layout)), class_="hint"),
        el(
            "p",
            f"{lanes} {who} of {bits} bits, served in {counts}. Each bank lists the lanes that access its words.",
        ),
    ]
    if access.op in _NOTES:
        notes.append(el("p", _NOTES[access.op], class_="hint"))
    shown = [_phase(i, phase, len(phases)) for i, phase in enumerate(phases)]
    return card(f"{access.name}: lanes by bank", picker, notes, shown, _addresses(addresses[warp, request]))


def _plural(count: int, noun: str) -> str:
    """Return a count with its noun in singular or plural: "1 phase", "2 phases".

    noun   the singular form
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _wavefronts(phases: list[Phase], op: str) -> int:
    """Return the number of shared-memory wavefronts of one warp instruction, the sum over its phases.

    A phase is a group of lanes whose words are accessed together. It takes one wavefront for each distinct word of its
    busiest bank; a phase of TMA always takes one.

    phases   for each phase a nested dict: bank -> word -> lanes that access the word
    op       operation, such as "load" or "tma"
    """
    return sum(1 if op == "tma" else max(map(len, phase.values()), default=0) for phase in phases)


def _phase(number: int, phase: Phase, count: int) -> Html:
    """Return HTML with the 32 banks of one phase of an access, and the words that lanes access in each bank.

    A phase is a group of lanes of one instruction whose words shared memory accesses together. A bank with several
    words has a conflict: it is red, and listed as text below.

    number   index of the phase
    phase    nested dict: bank -> word (byte address) -> lanes that access the word
    count    number of phases of the instruction
    """
    ways = max(map(len, phase.values()), default=0)
    cells = []
    for bank in range(SMEM_BANKS):
        words = phase.get(bank, {})
        spans = [el("span", _lanes(lanes), title=f"byte {word:#06x}") for word, lanes in words.items()]
        kind = "bank idle" if not words else "bank meets" if len(words) > 1 else "bank"
        text = f"bank {bank}: " + (_words(words) or "idle")
        cells.append(el("li", el("b", bank), spans, class_=kind, aria_label=text))
    conflicts = {bank: words for bank, words in phase.items() if len(words) > 1}
    title = f"phase {number} of {count}: {_plural(ways, 'wavefront')}"
    lines = [el("li", f"bank {bank}: ", _words(words)) for bank, words in sorted(conflicts.items())]
    more = el(
        "details",
        el("summary", f"conflicts in {_plural(len(conflicts), 'bank')}"),
        el("ul", lines),
        open=number == 0,
    )
    return el(
        "div",
        el("h3", title),
        scrolling(el("ul", *cells, class_="banks"), title),
        more if conflicts else el("p", "No conflicts.", class_="kept"),
    )


def _lanes(lanes: list[int]) -> str:
    """Return the lanes that access a word as a short text: the first two, then "+" if there are more, e.g. "0 4+".

    lanes   indices of the lanes
    """
    shown = " ".join(map(str, lanes[:2]))
    return f"{shown}{'+' if len(lanes) > 2 else ''}"


def _words(words: dict[int, list[int]]) -> str:
    """List the words of a bank as text, with their lanes: "lanes 0, 8 at byte 0x0000; lane 1 at byte 0x0080".

    words   lanes by the byte address of the word
    """
    texts = []
    for word, lanes in words.items():
        names = ", ".join(map(str, lanes[:_SHOWN_LANES])) + (", ..." if len(lanes) > _SHOWN_LANES else "")
        texts.append(f"{'lane' if len(lanes) == 1 else 'lanes'} {names} at byte {word:#06x}")
    return "; ".join(texts)


def _addresses(addresses: np.ndarray) -> Html:
    """Return an HTML table of the byte address that each lane accesses, and the bank of its first byte.

    addresses   byte address in shared memory for each lane
    """
    rows = [
        (str(lane), f"{at:#06x}", str(at // SMEM_BANK_BYTES % SMEM_BANKS)) for lane, at in enumerate(addresses.tolist())
    ]
    columns = (("lane", "right"), ("byte", "right"), ("first bank", "right"))
    return el("details", el("summary", "address of each lane"), table(columns, rows, label="addresses"))
