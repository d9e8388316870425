"""The view "code": the machine code (SASS) of a plan, with the program line of each instruction.

It needs the compiler of the CuTe DSL and nvdisasm.
"""

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

_KEPT = 8  # limit of the cached listings
_SHOWN_OPCODES = 4  # limit of the opcodes that are listed for a program line


def sass(state: State, selected: Chosen) -> Html:
    """Return HTML for the explorer's view "code": instruction counts of each program line, and machine instructions.

    A program lists the operations of a warp role. If a line is selected, only its instructions are shown.

    state      the user's choices on the web page; "role" and "find" select the program and its line
    selected   the plan, which must not be None, and the device to compile for
    """
    plan = selected.plan
    assert plan is not None
    arch = "sm_90a" if selected.device is None else selected.device.arch
    try:
        compiled = _listed(plan, arch)
    except UnsupportedError as what:
        hint = "Machine code needs the CuTe DSL and nvdisasm: see docs/explorer.md."
        return card("Machine code", el("p", hint), el("p", str(what), class_="hint"))
    except CutegemmError as what:
        return card("Machine code", error(str(what)))
    return joined(_programs(state, plan, compiled), _code(state, plan, arch, compiled))


@lru_cache(maxsize=_KEPT)
def _listed(plan: GemmPlan, arch: str) -> Listing:
    """Compile a plan and return its machine instructions with their program lines. Recent results are cached.

    arch   architecture, such as "sm_90a"
    """
    return listing(plan, arch)


def _opcode(text: str) -> str:
    """Return the opcode of a machine instruction without predicate and modifiers: HGMMA for `@P0 HGMMA.64x128 ...`."""
    words = text.split()
    return words[1 if words[0].startswith("@") else 0].partition(".")[0]


def _programs(state: State, plan: GemmPlan, compiled: Listing) -> Html:
    """Return an HTML table for each warp program of a plan: the number and the opcodes of each line's instructions.

    A program lists the operations of a warp role, such as producer or consumer.

    state      the user's choices on the web page, which the links of the tables keep
    compiled   machine instructions, with the program line of each
    """
    of_line: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for instruction in compiled.instructions:
        of_line[instruction.program, instruction.line][_opcode(instruction.text)] += 1
    parts = []
    for program, text in programs_of(plan).items():
        rows, marked = [], None
        for number, line in enumerate(text.splitlines()):
            counts = of_line[program, number]
            is_picked = (program, str(number)) == (state["role"], state["find"])
            to = state.with_(role=program, find=number)
            shown = link(to, el("code", line, class_="asis"), current=is_picked) if counts else el("code", line)
            marked = number if is_picked else marked
            rows.append((shown, str(sum(counts.values()) or ""), _opcodes(counts)))
        columns = ((program, "left"), ("instructions", "right"), ("most frequent", "left"))
        parts.append(table(columns, rows, label=f"program of the {program}", marked=marked))
    note = "The compiler's line table gives one line for each instruction, also if several lines share it."
    return card(
        "Programs, with the instructions of each line", parts, el("p", note, class_="hint"), class_="card lines"
    )


def _opcodes(counts: Counter[str]) -> str:
    """List the four most frequent opcodes with their counts as text, such as "8 HGMMA, 4 MOV"."""
    return ", ".join([f"{count} {name}" for name, count in counts.most_common(_SHOWN_OPCODES)])


def _code(state: State, plan: GemmPlan, arch: str, compiled: Listing) -> Html:
    """Return HTML with the machine instructions of the selected program line, or all of them if none is selected.

    state      the user's choices on the web page; "role" and "find" select the program and its line
    arch       architecture that the plan was compiled for
    compiled   the instructions, with the program line of each
    """
    resources = compiled.resources
    picked = (state["role"], int(state["find"])) if state["find"].isdigit() else None
    shown = [one for one in compiled.instructions if picked in (None, (one.program, one.line))]
    sizes = (
        f"{plan.name} for {arch}: {len(compiled.instructions)} instructions, {resources.code_bytes} bytes; "
        f"{resources.registers} registers, {resources.spills} spills"
    )
    links = [
        link(state.with_(role="", find=""), "all instructions", current=picked is None),
        link(state.with_(role="", find=0), "instructions of no line", current=picked == ("", 0)),
    ]
    text = f"{len(shown)} instructions, in the order of the code"
    return card(
        "Machine code",
        el("p", sizes),
        chips(links, "which instructions"),
        el("p", text, class_="hint"),
        scrolling(el("ol", list(_grouped(plan, shown)), class_="sass"), "machine code"),
    )


def _grouped(plan: GemmPlan, instructions: list[Instruction]) -> Iterator[Html]:
    """Yield an HTML list item for each run of consecutive instructions of one program line, headed by that line.

    plan           the plan, for the text of its programs
    instructions   machine instructions in the order of the code
    """
    texts = {name: text.splitlines() for name, text in programs_of(plan).items()}
    for (program, line), group in groupby(instructions, key=lambda each: (each.program, each.line)):
        heading = f"{program}: {texts[program][line].strip()}" if program else "of no line"
        lines = [f"{f'{i.label}:' if i.label else '':<9} {i.address:04x}  {i.text}" for i in group]
        yield el("li", el("b", heading, class_=None if program else "hint"), el("pre", "\n".join(lines)))
