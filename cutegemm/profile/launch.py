"""The child that runs under ncu: launches each case, between the profiler's start and stop.

    python -m cutegemm.profile.launch CASES.pickle LOG.json [BETA]

Nothing else is launched in between, so the n-th kernel of ncu's report is the n-th case of the log.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cutegemm.profile.case import Launchable


def launch_all(cases: Sequence[Launchable], beta: float = 0.0) -> dict[str, Any]:
    """Launches each case; returns which were launched, in order, and what went wrong with the others.

    beta   of the plans that can read C, which is then D
    """
    import torch

    from cutegemm.run.torch_ops import device_arch

    runtime: Any = torch.cuda.cudart
    cudart = runtime()
    arch = device_arch(torch.cuda.current_device())
    os.environ.setdefault("CUTE_DSL_ARCH", arch)  # read when the DSL is first imported
    launched, failed = [], {}
    for number, case in enumerate(cases):
        try:
            call = case.prepared(arch, beta)
            for _ in range(case.launches):
                torch.cuda.synchronize()
                cudart.cudaProfilerStart()
                call()
                torch.cuda.synchronize()
                cudart.cudaProfilerStop()
                launched.append(number)
        except Exception as error:
            failed[number] = f"{type(error).__name__}: {error}"
            cudart.cudaProfilerStop()
    return {"device": torch.cuda.get_device_name(), "arch": arch, "launched": launched, "failed": failed}


def main() -> None:
    """The entry of the child."""
    cases = pickle.loads(Path(sys.argv[1]).read_bytes())
    beta = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    Path(sys.argv[2]).write_text(json.dumps(launch_all(cases, beta)))


if __name__ == "__main__":
    main()
