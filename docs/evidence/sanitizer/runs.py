"""Small plans of every family under compute-sanitizer, and one table of its findings.

Each case runs in a process of its own under each tool, so that a message belongs to one plan, and a kernel that hangs
stops nothing else. Extents are ragged and grids small: a CTA of a persistent grid takes several tiles.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cutegemm.choice.catalog import plan_named
from cutegemm.errors import UnsupportedError
from cutegemm.plan import Operands, Problem
from cutegemm.profile import Case
from cutegemm.profile.case import Launchable
from cutegemm.profile.child import environment, launched, launcher, printed
from docs.evidence.files import write_record
from docs.evidence.sanitizer.output import TOOLS, Outcome, command, parse

_SECONDS = 900  # that one case may take under one tool
_BETA = "1"  # so that C is read as well
_TAIL = 400  # characters of what a process said that did not come to its end
_SM90 = "sm90:ctas=2"
Found = dict[str, dict[str, Outcome]]

# name: (plan, arguments of Operands.of, extents)
_PLANS: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "simt": ("simt_64x64", {"dtype": "f32"}, (200, 136, 72)),
    "simt_tn": ("simt:block=64x64x8,warp=32x32,thread=8x4,stages=4", {"dtype": "f32", "layout": "tn"}, (200, 136, 72)),
    "simt_split": ("simt:block=64x64x8,warp=32x32,thread=8x4,split_k=3", {"dtype": "f32"}, (136, 72, 512)),
    "simt_split_last": (
        "simt:block=64x64x8,warp=32x32,thread=8x4,split_k=3,reduction=last", {"dtype": "f32"}, (136, 72, 512),
    ),
    "simt_packed": ("simt_256x128+repack", {"dtype": "f32"}, (264, 136, 64)),
    "mma_bf16": ("mma_sync:block=64x64x32,warp=32x32,stages=3", {"dtype": "bf16", "layout": "nt"}, (200, 136, 72)),
    "mma_tf32": ("mma_sync:block=64x64x32,warp=32x32,stages=3", {"dtype": "tf32"}, (200, 136, 72)),
    "mma_tma_bf16": (
        "mma_tma:block=128x64x64,warp=32x32,stages=3,ctas=2", {"dtype": "bf16", "layout": "nt"}, (200, 136, 264),
    ),
    "mma_tma_tf32": ("mma_tma:block=64x64x32,warp=32x32,stages=3,ctas=3", {"dtype": "tf32"}, (200, 136, 136)),
    "sm90_pingpong": (f"{_SM90},tile=64x128x64,epi_stages=2", {"dtype": "bf16", "layout": "nt"}, (200, 520, 328)),
    "sm90_pingpong_of_columns": (
        f"{_SM90},tile=64x128x64,epi_stages=2", {"dtype": "bf16", "layout": "tn", "out_major": "m"}, (200, 520, 328),
    ),
    "sm90_cooperative_2x1": (
        f"{_SM90},tile=128x128x64,schedule=cooperative,cluster=2x1", {"dtype": "bf16", "layout": "nt"},
        (392, 264, 328),
    ),
    "sm90_single": ("sm90:tile=64x128x64,schedule=single", {"dtype": "bf16", "layout": "nt"}, (200, 264, 328)),
    "sm90_padded": (f"{_SM90},tile=64x128x64,shared_d=padded", {"dtype": "bf16", "layout": "nt"}, (200, 520, 328)),
    "sm90_warps_store": (
        f"{_SM90},tile=64x128x64,store=tma_warp,epi_stages=2", {"dtype": "bf16", "layout": "nt"}, (200, 520, 328),
    ),
    "sm90_split": (f"{_SM90},tile=64x128x64,split_k=2", {"dtype": "bf16", "layout": "nt"}, (200, 520, 328)),
    "sm90_stream": (f"{_SM90},tile=64x128x64,stream=1", {"dtype": "bf16", "layout": "nt"}, (200, 520, 328)),
    "sm90_direct": (f"{_SM90},tile=64x128x64,store=direct", {"dtype": "bf16", "layout": "nt"}, (200, 520, 328)),
    "sm90_bytes": (f"{_SM90},tile=64x128x128", {"dtype": "e4m3", "layout": "nt"}, (200, 528, 336)),
    "sm90_promoted": (
        f"{_SM90},tile=128x128x128,schedule=cooperative,promoted=1",
        {"dtype": "e4m3", "layout": "nt", "out": "bf16"}, (200, 528, 336),
    ),
    "sm90_packed": (
        f"{_SM90},tile=64x128x128,repack=ab", {"dtype": "e4m3", "layout": "tn", "out": "bf16"}, (200, 528, 339),
    ),
    "sm90_s8": (f"{_SM90},tile=64x128x128", {"dtype": "s8", "layout": "nt", "out": "s32"}, (200, 528, 336)),
}  # fmt: skip
_WITH_C = ("sm90_pingpong", "sm90_padded", "sm90_bytes")


def sanitize_cases() -> list[Case]:
    """Return plans of every family, on problems of a few tiles.

    >>> sorted({case.plan.family for case in sanitize_cases()})
    ['mma_sync', 'simt', 'sm90']
    """
    out = []
    for name, (text, of, (m, n, k)) in _PLANS.items():
        operands = Operands.of(**of)
        problem = Problem(m, n, k, operands=operands)
        out.append(Case(name, plan_named(text, operands.fitted(m, n, k)), problem))
        if name in _WITH_C:
            out.append(Case(f"{name}_c", plan_named(text, operands.fitted(m, n, k), True), problem))
    return out


def sanitize(
    cases: Sequence[Launchable],
    tools: Sequence[str] = TOOLS,
    *,
    sanitizer: str = "compute-sanitizer",
    jobs: int = 8,
    so_far: Callable[[Found], None] = lambda _: None,
) -> Found:
    """Run each case under each tool; return case -> tool -> outcome.

    jobs     number of concurrent processes
    so_far   called with all results after each of them
    raises   UnsupportedError without the sanitizer
    """
    if shutil.which(sanitizer) is None:
        raise UnsupportedError(
            f"sanitize: no {sanitizer} is found. It comes with the CUDA toolkit; name it with --sanitizer."
        )
    pairs = [(case, tool) for case in cases for tool in tools]
    found: Found = {case.name: {} for case in cases}
    with ThreadPoolExecutor(jobs) as pool:
        outcomes = pool.map(lambda pair: _run(pair[0], pair[1], sanitizer), pairs)
        for (case, tool), outcome in zip(pairs, outcomes, strict=True):
            found[case.name][tool] = outcome
            so_far(found)
    return found


def _run(case: Launchable, tool: str, sanitizer: str) -> Outcome:
    """Run one case in a process of its own, with every tensor in an allocation of its own."""
    within = {**environment(), "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    with tempfile.TemporaryDirectory(prefix="cutegemm-sanitize-") as name:
        target = launcher(Path(name), [case], _BETA)
        try:
            said = printed(command(target, tool, sanitizer=sanitizer), within, _SECONDS)
        except TimeoutError as error:
            return Outcome(str(error), False, 0, 0, ())
        return outcome_of(said, launched(Path(name)))


def outcome_of(said: str, logged: dict[str, Any] | None) -> Outcome:
    """Return the outcome of a process from its output and its log, which must list the case as launched.

    >>> outcome_of("========= ERROR SUMMARY: 0 errors", {"launched": [], "failed": {"0": "no GPU"}}).summary
    'not launched: no GPU'
    """
    found = parse(said)
    why = ""
    if logged is None:
        why = f"the process ended early: {said.strip()[-_TAIL:]}"
    elif logged["failed"]:
        why = f"not launched: {'; '.join(logged['failed'].values())}"
    return Outcome(why, False, found.errors, found.warnings, found.messages) if why else found


def table(found: Found) -> str:
    """Return a table, one line per case and one column per tool, and below it each message with its cases."""
    tools = list(dict.fromkeys(tool for outcomes in found.values() for tool in outcomes))
    rows = [["case", *tools]]
    rows += [[name, *(_cell(outcomes.get(tool)) for tool in tools)] for name, outcomes in found.items()]
    width = [max(len(row[i]) for row in rows) for i in range(len(tools) + 1)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, width, strict=True)).rstrip() for row in rows]
    said: dict[str, list[str]] = {}
    for name, outcomes in found.items():
        for tool, outcome in outcomes.items():
            texts = [str(m) for m in outcome.messages] + ([] if outcome.finished else [outcome.summary])
            for text in texts:
                said.setdefault(f"{tool}: {text}", []).append(name)
    lines += [f"{text}\n    {', '.join(names)}" for text, names in said.items()]
    return "\n".join(lines)


def _cell(outcome: Outcome | None) -> str:
    if outcome is None:
        return "-"
    if not outcome.finished:
        return "did not run"
    if outcome.is_clean:
        return "clean"
    if outcome.messages and all(message.is_of_the_host for message in outcome.messages):
        return f"{outcome.errors} of the host"
    warnings = f", {outcome.warnings} warnings" if outcome.warnings else ""
    return f"{outcome.errors} errors{warnings}"


def record(found: Found, machine: Mapping[str, str], path: Path) -> None:
    """Write the table as JSON, with the machine. An outcome without findings is "clean"."""
    cases = {
        name: {tool: "clean" if o.is_clean else o.to_dict() for tool, o in outcomes.items()}
        for name, outcomes in found.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_record(path, {"machine": dict(machine), "cases": cases})
