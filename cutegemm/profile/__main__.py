"""`python -m cutegemm.profile`: the proof, or a part of it; and what can be done with a run without a GPU."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from cutegemm.errors import CutegemmError
from cutegemm.profile.cases import GROUPS, Case, ProbeCase
from cutegemm.profile.compare import Comparison, render
from cutegemm.profile.evidence import Evidence, replay, this_machine
from cutegemm.profile.run import profile
from cutegemm.profile.sanitize import Found, record, sanitize, sanitize_cases, table
from cutegemm.profile.sanitizer import TOOLS

_WHAT = """\
probes, plans, mma, hopper, traffic: run that group under ncu; all: every one
replay FILE ...: the predictions of today beside the counters that --out recorded
sanitize: runs small plans of every family under compute-sanitizer, and makes one table"""


def main(arguments: list[str] | None = None) -> int:
    """0 where every counter is within its tolerance, 1 where one is not, 2 where nothing was measured."""
    parser = argparse.ArgumentParser(
        prog="python -m cutegemm.profile",
        description="Predicted beside measured.",
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "what", choices=(*GROUPS, "all", "replay", "sanitize"), nargs="?", default="all", help=_WHAT
    )
    parser.add_argument("files", type=Path, nargs="*", help="of `replay`")
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--device", help="of the predictions, e.g. h200")
    parser.add_argument("--ncu", default="ncu", help="the command")
    parser.add_argument("--tool", action="append", choices=TOOLS, help="sanitize: of these alone")
    parser.add_argument("--sanitizer", default="compute-sanitizer", help="the command")
    parser.add_argument("--out", type=Path, help="a folder for analysis_GROUP.json or sanitize.json")
    parser.add_argument("--list", action="store_true", help="only name the cases")
    given = parser.parse_args(arguments)
    try:
        if given.what == "replay":
            return _replay(given.files, given.only)
        if given.what == "sanitize":
            return _sanitize(given)
        return _run(given)
    except (CutegemmError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def _run(given: argparse.Namespace) -> int:
    bad = 0
    for group, make in GROUPS.items():
        cases = [case for case in make() if given.only in case.name]
        if given.what not in (group, "all") or not cases:
            continue
        if given.list:
            print("\n".join(case.name for case in cases))
            continue
        said = f"python -m cutegemm.profile {group}" + (f" --device {given.device}" if given.device else "")
        found, evidence = profile(cases, device=given.device, ncu=given.ncu, said=said)
        if given.out is not None:
            given.out.mkdir(parents=True, exist_ok=True)
            evidence.save(given.out / f"analysis_{group}.json")
        print(render(found))
        for name, reason in evidence.failed.items():
            print(f"not launched: {name}: {reason}", file=sys.stderr)
        bad |= any(c.misses for c in found) or bool(evidence.failed)
    return int(bad)


def _replay(files: Sequence[Path], only: str) -> int:
    cases: list[Case | ProbeCase] = [case for make in GROUPS.values() for case in make() if only in case.name]
    every: list[Comparison] = []
    for file in files:
        found, stale = replay(Evidence.load(file), cases)
        every += found
        if stale and not only:
            print(f"{file}: these cases are others by now: {', '.join(stale)}", file=sys.stderr)
    print(render(every))
    return int(any(c.misses for c in every))


def _sanitize(given: argparse.Namespace) -> int:
    cases = [case for case in sanitize_cases() if given.only in case.name]
    if given.list:
        print("\n".join(case.name for case in cases))
        return 0
    machine = this_machine("python -m cutegemm.profile sanitize")

    def kept(found: Found) -> None:
        if given.out is not None:
            record(found, machine, given.out / "sanitize.json")

    found = sanitize(cases, given.tool or TOOLS, sanitizer=given.sanitizer, so_far=kept)
    print(table(found))
    return int(not all(outcome.is_clean for outcomes in found.values() for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
