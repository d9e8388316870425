"""docs/pingpong.md: the Hopper pingpong kernel from top to bottom, made from its plan and its machine code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from cutegemm.choice.catalog import plan_named
from cutegemm.compile.listing import Instruction, Listing, programs_of
from cutegemm.errors import CutegemmError
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands
from cutegemm.plan.program import steps
from docs.evidence.pages.markdown import table

FILE = "pingpong.md"
ARCH = "sm_90a"
_INITIAL = {"producer": "P", "consumer": "C"}

# Opcodes that the tables of the programs count: tensor cores, TMA, barriers, shared memory, conversion.
_NOTABLE = (
    "HGMMA", "WARPGROUP", "UTMALDG", "UTMASTG", "UTMACMDFLUSH", "SYNCS", "BAR", "STSM", "DEPBAR", "FENCE",
    "FMUL", "F2FP",
)  # fmt: skip
# Arithmetic instructions, whose long runs are shortened in the listing.
_PLAIN = (
    "FSEL", "FMUL", "F2FP", "LOP3", "VIADD", "SHF", "IMAD", "UIADD3", "ULOP3", "USHF", "UIMAD", "UMOV", "USEL", "ULEA",
    "UISETP", "ULDC", "LDC", "ISETP", "PLOP3", "UPLOP3", "S2R", "S2UR", "R2UR", "FSETP",
)  # fmt: skip
_LONGEST_RUN, _KEPT = 12, 2

_BARRIERS = {
    "full": "one for each stage: A and B have arrived. The producer arrives once and announces the bytes",
    "empty": "one for each stage: each of the four warps of the consumer that read it has arrived",
    "epi_tile": "one for each consumer: its four warps have written an epilogue stage",
    "order": "one for each consumer: it may issue MMAs. One consumer arrives, the other one waits",
}

_INTRODUCTION = """# The pingpong kernel, line by line

This page shows one complete kernel: the plan, the barriers, the program of each warp role with a reason for each
line, and the machine code that each line became. [Hopper plans](hopper.md) explains the ideas. A command makes the
page from the plan:

    python -m docs.evidence listing

The plan is `sm90_epi_stages` for bf16 operands, both K-major. `cutegemm show sm90_epi_stages --layout nt` prints
it, and the view *code* of `cutegemm explore` shows the same for any plan."""

_START = """Warps 0 to 3 are the producer's warpgroup, 4 to 7 consumer 0, 8 to 11 consumer 1. All of them start here:

- Warp 1 prefetches the three tensor maps (`UTMACCTL.PF`), initialises the mbarriers (`SYNCS.EXCH.64`): five `full`,
  five `empty`, and makes them visible to TMA (`FENCE.VIEW.ASYNC.S`).
- Warp 0 meanwhile computes the coordinates of the CTA's first tile.
- All threads meet (`BAR.SYNC 0`), and wait for the kernel before this one (`ACQBULK`, which is
  `griddepcontrol.wait`).
- The warpgroups part. The producer's gives registers away (`USETMAXREG.DEALLOC`), and its warps 1 to 3 exit. The
  consumers take them (`USETMAXREG.TRY_ALLOC`, until it succeeds)."""

_LISTING = """One line per instruction: its address, a label if a branch leads to it, the line of the program that it
belongs to (`P2`: producer, line 2; empty if ptxas cannot tell), and the instruction. Runs of plain
arithmetic are shortened. ptxas moves instructions, above all address arithmetic, away from their line.

What to look for:

- **The producer's loop** (`P2`, `P3`): one `SYNCS.PHASECHK` that usually succeeds at once, one arrival
  with the number of bytes, two `UTMALDG`.
- **The mainloop** (`C4` to `C9`): eight `HGMMA`, two for each of the four k-blocks. A tile has 128 rows
  and a wgmma 64, so accumulators R88 to R151 belong to the upper half and R24 to R87 to the lower half.
  After the first two a `WARPGROUP.DEPBAR` waits for the MMAs of the previous k-tile only, and its stage
  is released.
- **The epilogue** (`C15` to `C21`), unrolled four times: `FMUL` by alpha, `F2FP` to bf16, four `STSM`
  of 16 rows each, a fence for TMA, a barrier of the consumer's 128 threads, and one `UTMASTG` by one
  thread."""


def page(listing: Listing, version: str) -> str:
    """Return the text of the page.

    listing   machine code of `plan()` for `ARCH`
    version   version of the DSL that compiled it
    """
    described = plan()
    parts = [
        _INTRODUCTION,
        "## The plan",
        f"```text\n{described.describe()}\n```",
        "## Barriers",
        _barriers(described),
        *_programs(described, listing.instructions),
        "## The machine code",
        f"{ARCH}, nvidia-cutlass-dsl {version}: {len(listing.instructions)} instructions, "
        f"{listing.resources.registers} registers per thread at launch, {listing.resources.spills} spills.",
        _START,
        _LISTING,
        "```text\n" + "\n".join(_code(listing.instructions)) + "\n```",
    ]
    return "\n\n".join(parts) + "\n"


def plan() -> GemmPlan:
    """Return the plan of the page."""
    return plan_named("sm90_epi_stages", Operands.of("bf16", layout="nt"))


def _barriers(described: GemmPlan) -> str:
    rows = [
        (f"`{one.name}`", str(one.count), str(one.arrivals), str(one.transaction_bytes or "-"), _BARRIERS[one.name])
        for one in described.barriers
    ]
    counted = "Arrivals and bytes are counted from the programs below: who signals a barrier, and who waits for it.\n\n"
    return counted + table(("barrier", "number", "arrivals", "bytes", "completes when"), rows)


def _programs(described: GemmPlan, code: Iterable[Instruction]) -> Iterator[str]:
    """Yield a heading and a table for each program: its lines, a note for each, and its notable machine code."""
    by_line: dict[tuple[str, int], Counter[str]] = {}
    for one in code:
        by_line.setdefault((one.program, one.line), Counter())[_opcode(one)] += 1
    for role, text in programs_of(described).items():
        program = described.program("consumer 0" if role == "consumer" else role)
        yield f"## The {role}" if role == "producer" else "## The consumers"
        yield table(
            ("", f"program of the {role}", "what and why", "machine code"),
            [
                (
                    f"{_INITIAL[role]}{i}",
                    f"`{line.replace(' ', chr(0xA0))}`",
                    note(step),
                    _counts(by_line.get((role, i))),
                )
                for i, (line, step) in enumerate(zip(text.splitlines(), program.walk(), strict=True))
            ],
        )


def note(step: steps.Step) -> str:
    """Return what a step does, and why.

    raises   CutegemmError for a step that the program of the page does not have
    """
    match step:
        case steps.ForTiles(every=1):
            return "the tile scheduler gives the CTA its first tile, then each 132nd: the grid is persistent"
        case steps.ForTiles():
            return "the same tiles; each of the two consumers takes every second one"
        case steps.ForKTiles():
            return "`k` is a pipeline state: a stage, and the parity of its phase. Both advance after each k-tile"
        case steps.Wait(barrier="empty"):
            return "waits until the consumer has read stage `k`; the first five pass at once"
        case steps.Load():
            return "one thread announces the bytes at `full[k]` and issues two TMA loads, which arrive there themselves"
        case steps.Skip(whose=steps.BEFORE):
            return "consumer 1 starts with the second tile, so its pipeline state is past the k-tiles of the first"
        case steps.Skip():
            return "moves the pipeline state to this consumer's next tile"
        case steps.OpenOrder():
            return "consumer 0 need not wait before its first tile: consumer 1 signals in its place"
        case steps.AwaitOrder():
            return "until the other consumer has issued the MMAs of its tile"
        case steps.PassOrder():
            return "the other consumer may issue MMAs. It does so while this one stores its tile"
        case steps.Wait():
            return "until all bytes of A and B are in stage `k`"
        case steps.Multiply(k_blocks=steps.FIRST_BLOCK):
            return "issues the wgmmas of the first 16 of 64 k. They run while the warps go on"
        case steps.Multiply():
            return "issues the wgmmas of the other 48 k"
        case steps.WaitMma(pending=0):
            return "the accumulators of the tile are complete and may be read"
        case steps.WaitMma():
            return "the MMAs of k-tile `k - 1` are done; those of `k` keep the tensor cores busy"
        case steps.Release(previous=True):
            return "one lane of each warp arrives: the stage of the previous k-tile is free"
        case steps.If(condition=steps.HAS_K_TILES):
            return "for K = 0 no stage is to be released"
        case steps.Evaluate(section=steps.HEAD):
            return "the part of the epilogue that needs no tile operand: `alpha * acc`"
        case steps.ForEpiTiles():
            return "four epilogue tiles of 64 x 64"
        case steps.Evaluate():
            return "the part that needs C, if there is one; and the conversion to the type of D"
        case steps.WriteEpiStage():
            return "`stmatrix` to the swizzled rows of an epilogue stage; a fence makes them visible to TMA"
        case steps.WaitStores(pending=0):
            return "shared memory must live until the last store has read it"
        case steps.WaitStores():
            return "the epilogue stage of the *next* epilogue tile is free. Warp 0 waits, since it issues all stores"
        case steps.SyncEpiTile():
            return "all four warps have written this stage, and know that the next one is free"
        case steps.StoreEpiStage():
            return "one thread issues the TMA store; it runs on by itself"
    raise CutegemmError(f"the page of the pingpong kernel has no note for the step {step}.")


def _opcode(instruction: Instruction) -> str:
    words = instruction.text.split()
    return words[1] if words[0].startswith("@") else words[0]


def _counts(opcodes: Counter[str] | None) -> str:
    """Return the notable opcodes of a line with their numbers, and the number of the others."""
    if opcodes is None:
        return ""
    shown = {name: count for name, count in opcodes.items() if name.startswith(_NOTABLE)}
    others = sum(opcodes.values()) - sum(shown.values())
    parts = [f"{count} {name}" for name, count in shown.items()]
    return ", ".join([*parts, f"{others} more" if shown else str(others)] if others else parts)


def _code(code: Sequence[Instruction]) -> Iterator[str]:
    """Yield the lines of the listing, with long runs of plain arithmetic shortened."""
    for plain, group in groupby(code, lambda one: not one.label and _opcode(one).startswith(_PLAIN)):
        run = [*group]
        if not plain or len(run) <= _LONGEST_RUN:
            yield from map(_line, run)
            continue
        kinds = Counter(_opcode(one).split(".")[0] for one in run[_KEPT:-_KEPT])
        yield from map(_line, run[:_KEPT])
        yield f"{'':22}... {', '.join(f'{count} {name}' for name, count in kinds.most_common())}"
        yield from map(_line, run[-_KEPT:])


def _line(one: Instruction) -> str:
    tag = f"{_INITIAL[one.program]}{one.line}" if one.program else ""
    return f"{one.address:04x}  {one.label.removeprefix('.'):8} {tag:4}  {one.text}"
