"""The program that runs under ncu: it launches each case between profiler start and stop.

    python -m cutegemm.profile.launch CASES.pickle LOG.json [BETA]

No other kernel is launched between start and stop, so kernel n of ncu's report is launch n of the log.
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
    """Launch the kernels of all cases between profiler start and stop, and return a log of the launches.

    beta      factor of C, for plans that read C; the buffer of D is passed as C
    returns   "device": name of the GPU. "arch": its architecture. "launched": for each launch in order, the index of
              its case. "failed": error message by index, for each case that failed
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
    """Launch the pickled kernels of the file argv[1] and write the log of launches as JSON to the file argv[2].

    argv[3], if present, is the value of beta (default 0).
    """
    cases = pickle.loads(Path(sys.argv[1]).read_bytes())
    beta = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    Path(sys.argv[2]).write_text(json.dumps(launch_all(cases, beta)))


if __name__ == "__main__":
    main()
