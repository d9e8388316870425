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
    """Launch the kernels of all cases and return a log of the launches.

    beta      value of beta for plans that read C; D is passed as C
    returns   "device"     name of the GPU
              "arch"       its architecture
              "launched"   index of the case of each launch, in order
              "failed"     error message by the index of each case that failed
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
    """Launch the cases of the file in argv[1] and write the log to the file in argv[2]."""
    cases = pickle.loads(Path(sys.argv[1]).read_bytes())
    beta = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    Path(sys.argv[2]).write_text(json.dumps(launch_all(cases, beta)))


if __name__ == "__main__":
    main()
