"""`python -m cutegemm.profile`: the proof, or a part of it."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import datetime, timezone
from pathlib import Path

from cutegemm.errors import CutegemmError
from cutegemm.profile.cases import Case, ProbeCase, hopper_cases, proof_cases, proof_probes
from cutegemm.profile.compare import render, to_dict
from cutegemm.profile.run import profile


def main(arguments: list[str] | None = None) -> int:
    """0 where every counter is within its tolerance, 1 where one is not, 2 where nothing was measured."""
    parser = argparse.ArgumentParser(
        prog="python -m cutegemm.profile", description="Predicted beside measured."
    )
    parser.add_argument("what", choices=("plans", "hopper", "probes", "all"), nargs="?", default="all")
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--device", help="of the predictions, e.g. h200")
    parser.add_argument("--ncu", default="ncu", help="the command")
    parser.add_argument("--out", type=Path, help="a file for all of it as JSON")
    parser.add_argument("--list", action="store_true", help="only name the cases")
    given = parser.parse_args(arguments)
    cases: list[Case | ProbeCase] = []
    if given.what in ("plans", "all"):
        cases += proof_cases()
    if given.what == "hopper":
        cases += hopper_cases()
    if given.what in ("probes", "all"):
        cases += proof_probes()
    cases = [case for case in cases if given.only in case.name]
    if given.list:
        print("\n".join(case.name for case in cases))
        return 0
    try:
        found, run = profile(cases, device=given.device, ncu=given.ncu)
    except CutegemmError as error:
        print(error, file=sys.stderr)
        return 2
    if given.out is not None:
        when = datetime.now(timezone.utc).isoformat(timespec="seconds")
        given.out.write_text(json.dumps({"date": when, **run, "comparisons": to_dict(found)}, indent=1))
    print(render(found))
    for number, reason in run["failed"].items():
        print(f"not launched: {cases[int(number)].name}: {reason}", file=sys.stderr)
    return 1 if any(c.misses for c in found) or run["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
