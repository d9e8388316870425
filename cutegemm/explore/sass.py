"""The machine code, with the lines of the program that it comes from; where a compiler is at hand."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby

from cutegemm.compile.listing import Instruction, Listing, listing, programs_of
from cutegemm.errors import CutegemmError, UnsupportedError
from cutegemm.explore.chosen import Chosen
from cutegemm.explore.forms import card, chips, link
from cutegemm.explore.html import Html, el, error, joined, scrolling, table
from cutegemm.explore.state import State
from cutegemm.plan import GemmPlan

_KEPT = 8  # listings
_TOLD = 4  # opcodes of a line


def sass(state: State, found: Chosen) -> Html:
    """The programs, each line with what it became; and the instructions, of one line or of all."""
    plan = found.plan
    assert plan is not None
    arch = "sm_90a" if found.device is None else found.device.arch
    try:
        compiled = _listed(plan, arch)
    except UnsupportedError as what:
        hint = "Machine code is shown where the CuTe DSL and nvdisasm are installed: see docs/explorer.md."
        return card("Machine code", el("p", hint), el("p", str(what), class_="hint"))
    except CutegemmError as what:
        return card("Machine code", error(str(what)))
    return joined(_programs(state, plan, compiled), _code(state, plan, arch, compiled))


@lru_cache(maxsize=_KEPT)
def _listed(plan: GemmPlan, arch: str) -> Listing:
    return listing(plan, arch)


def _opcode(text: str) -> str:
    """HGMMA of `@P0 HGMMA.64x128x16.F32 R24, ...`."""
    words = text.split()
    return words[1 if words[0].startswith("@") else 0].partition(".")[0]


def _programs(state: State, plan: GemmPlan, compiled: Listing) -> Html:
    of_line: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for each in compiled.instructions:
        of_line[each.program, each.line][_opcode(each.text)] += 1
    parts = []
    for program, text in programs_of(plan).items():
        rows, marked = [], None
        for number, line in enumerate(text.splitlines()):
            counts = of_line[program, number]
            is_picked = (program, str(number)) == (state["role"], state["find"])
            to = state.with_(role=program, find=number)
            shown = link(to, el("code", line, class_="asis"), current=is_picked) if counts else el("code", line)
            marked = number if is_picked else marked
            rows.append((shown, str(sum(counts.values()) or ""), _told(counts)))
        columns = ((program, "left"), ("instructions", "right"), ("most of them", "left"))
        parts.append(table(columns, rows, label=f"program of the {program}", marked=marked))
    note = "A line is where the compiler's line table puts an instruction; what it shares stands at one place only."
    return card("Programs, and what became of each line", parts, el("p", note, class_="hint"), class_="card lines")


def _told(counts: Counter[str]) -> str:
    return ", ".join([f"{count} {name}" for name, count in counts.most_common(_TOLD)])


def _code(state: State, plan: GemmPlan, arch: str, compiled: Listing) -> Html:
    took = compiled.resources
    picked = (state["role"], int(state["find"])) if state["find"].isdigit() else None
    shown = [each for each in compiled.instructions if picked in (None, (each.program, each.line))]
    sizes = (
        f"{plan.name} for {arch}: {len(compiled.instructions)} instructions, {took.code_bytes} bytes; "
        f"{took.registers} registers, {took.spills} spills"
    )
    links = [
        link(state.with_(role="", find=""), "all instructions", current=picked is None),
        link(state.with_(role="", find=0), "those of no step", current=picked == ("", 0)),
    ]
    text = f"{len(shown)} of them, in the order of the code"
    return card(
        "Machine code",
        el("p", sizes),
        chips(links, "which instructions"),
        el("p", text, class_="hint"),
        scrolling(el("ol", list(_grouped(plan, shown)), class_="sass"), "machine code"),
    )


def _grouped(plan: GemmPlan, instructions: list[Instruction]) -> Iterator[Html]:
    """Instructions that follow each other and come from one line, under it."""
    texts = {name: text.splitlines() for name, text in programs_of(plan).items()}
    for (program, line), group in groupby(instructions, key=lambda each: (each.program, each.line)):
        told = f"{program}: {texts[program][line].strip()}" if program else "between the steps"
        lines = [f"{f'{i.label}:' if i.label else '':<9} {i.address:04x}  {i.text}" for i in group]
        yield el("li", el("b", told, class_=None if program else "hint"), el("pre", "\n".join(lines)))
