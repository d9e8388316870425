"""The child that runs under ncu: launches each case, between the profiler's start and stop.

    python -m cutegemm.profile.launch CASES.pickle LOG.json [BETA]

Nothing else is launched in between, so the n-th kernel of ncu's report is the n-th case of the log.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cutegemm.profile.cases import Case, ProbeCase

_PROBE_DATA_BYTES = 1 << 20


def launch_all(cases: list[Case | ProbeCase], beta: float = 0.0) -> dict[str, Any]:
    """Launches each case; returns which were launched, in order, and what went wrong with the others.

    beta   of the plans that can read C, which is then D
    """
    import torch

    from cutegemm.run.torch_ops import device_arch

    cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    arch = device_arch(torch.cuda.current_device())
    os.environ.setdefault("CUTE_DSL_ARCH", arch)  # read when the DSL is first imported
    probes: dict[str, Any] = {}
    launched, failed = [], {}
    for number, case in enumerate(cases):
        try:
            call = _gemm(torch, case, arch, beta) if isinstance(case, Case) else _probe(torch, case, probes)
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


def _gemm(torch: Any, case: Case, arch: str, beta: float) -> Callable[[], None]:
    from cutegemm.run.compile import compile_plan

    kernel = compile_plan(case.plan, arch)
    a, b, d = (_operand(torch, case, name) for name in ("a", "b", "d"))
    return lambda: kernel(a, b, d, d, 1.0, beta if case.plan.has_c else 0.0)


def _operand(torch: Any, case: Case, name: str) -> Any:
    """Zeros, as the caller of a kernel has them: M x K, K x N, M x N, L in front of a batch."""
    from cutegemm.run.torch_ops import memory_of

    layout, operand = case.problem.layout(name), getattr(case.problem.operands, name)
    order = (1, 0) if name == "b" else (0, 1)
    batch = (2,) if case.problem.operands.batched else ()
    shape = tuple(layout.shape[i] for i in (*batch, *order))
    stride = tuple(layout.stride[i] for i in (*batch, *order))
    out = torch.empty_strided(shape, stride, dtype=memory_of(operand.dtype), device="cuda")
    (out.view(torch.uint8) if operand.dtype.bits == 8 else out).zero_()
    return out


def _probe(torch: Any, case: ProbeCase, compiled: dict[str, Any]) -> Callable[[], None]:
    from cutegemm.kernels.probe import asm_of, compile_probe

    text = asm_of(case.op, case.bits, case.matrices, case.transpose)
    if text not in compiled:
        compiled[text] = compile_probe(text)
    kernel = compiled[text]
    zeros = (0,) * 32
    offsets, sources = (
        torch.tensor(given, dtype=torch.int32).cuda() for given in (case.offsets, case.sources or zeros)
    )
    data = torch.empty(_PROBE_DATA_BYTES // 4, dtype=torch.int32, device="cuda")
    out = torch.empty(32, dtype=torch.int32, device="cuda")
    return lambda: kernel(offsets, sources, data, out)


def main() -> None:
    """The entry of the child."""
    cases = pickle.loads(Path(sys.argv[1]).read_bytes())
    beta = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    Path(sys.argv[2]).write_text(json.dumps(launch_all(cases, beta)))


if __name__ == "__main__":
    main()
