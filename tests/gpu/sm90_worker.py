"""Runs Hopper forms on the GPU, in a process that may hang without anyone else: a line of JSON for each.

    python -m tests.gpu.sm90_worker pingpong cooperative ... gemm:bytes repeat:sm90_epi_stages

Each form is compared with float64 on ragged shapes, with D poisoned inside of a guard band, for a persistent
grid of 4 CTAs, which take many tiles each, and of one a multiprocessor. When a kernel has not come back for
`PATIENCE_SECONDS`, the line says where, and the process ends.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from tests.gpu import sm90_gemm, sm90_repacked
from tests.gpu.sm90_gemm import same_bits, saturated

PATIENCE_SECONDS = 40  # more than a slow host takes to compile a kernel
REPEATS = 20
_BARE_EXIT = 9


@dataclass
class Pulse:
    """When something was last heard of the device, and what it was at."""

    at: float
    what: str

    def watch(self) -> None:
        """Ends the process after a silence."""

        def look() -> None:
            while time.time() - self.at < PATIENCE_SECONDS:
                time.sleep(0.5)
            print(json.dumps({"name": self.what.split(": ")[0], "bad": [f"deadlock: {self.what}"]}), flush=True)
            os._exit(_BARE_EXIT)

        threading.Thread(target=look, daemon=True).start()

    def beat(self, what: str) -> None:
        self.at, self.what = time.time(), what


def grids(cluster_size: int) -> list[int]:
    """CTAs of the persistent grids that a form is run on: so few that each takes many tiles, and many."""
    return sorted({max(4, cluster_size), 132})


def shapes(plan: Any) -> list[tuple[int, int, int]]:
    """(M, N, K): less than a tile, whole tiles, ragged ones, no K at all, more k-tiles than stages."""
    bm, bn, bk = plan.cta_tile
    return [
        (64, 64, 64),
        (bm, bn, bk),
        (200, 136, 72),
        (1, 8, 8),
        (129, 257, 1),
        (300, 500, 0),
        (3 * bm - 8, 5 * bn + 24, 4 * bk + 8),
        (4 * bm + 1, 4 * bn + 1, bk * plan.stages),
        (777, 1000, bk * (plan.stages + 1)),
        (1024, 1536, 640),
        *([(3 * bm - 8, 2 * bn + 24, 40 * bk + 8)] if plan.scheduler.split.is_split else []),
    ]


def matrix(
    torch: Any,
    batch: int | None,
    rows: int,
    cols: int,
    rows_major: bool,
    kind: Any,
    align: int,
    guard: int = 0,
) -> tuple[Any, Any]:
    """(rows, cols), its leading stride padded to `align` bytes; and its storage, poisoned if guarded."""
    r, c = (cols, rows) if rows_major else (rows, cols)
    unit = max(1, align // kind.itemsize)
    leading = max(unit, -(-c // unit) * unit + guard * unit)
    shape = (*([batch] if batch else []), r + guard, leading)
    if guard:
        whole = torch.full(shape, poison(kind), device="cuda", dtype=torch.float32 if kind.is_floating_point else kind)
    elif kind.is_floating_point:
        whole = torch.randn(shape, device="cuda")
    else:
        whole = torch.randint(-9, 10, shape, device="cuda")
    whole = whole.to(kind)
    part = whole[..., :r, :c]
    return (part.transpose(-1, -2) if rows_major else part), whole


def poison(kind: Any) -> float | int:
    """What no kernel writes by chance."""
    return float("nan") if kind.is_floating_point else -123456789


def untouched(torch: Any, whole: Any) -> int:
    """Elements that still hold the poison."""
    if whole.dtype.is_floating_point:
        return int(torch.isnan(whole.float()).sum())
    return int((whole == poison(whole.dtype)).sum())


def launch(torch: Any, kernel: Any, tensors: tuple[Any, ...], scalars: tuple[float, ...]) -> list[str]:
    """A call; its workspace, if it has one, is poisoned, and counters must be zero again after."""
    from cutegemm.plan.memory.workspace import regions

    if not kernel.needs_workspace:
        kernel(*tensors, *scalars)
        return []
    a, b = tensors[:2]
    batch = a.shape[0] if a.ndim == 3 else 1
    found = regions(kernel.plan, a.shape[-2], b.shape[-1], a.shape[-1], batch)
    counters = [
        torch.zeros(region.size // 4, dtype=torch.int32, device="cuda") for region in found if region.name == "arrivals"
    ]
    others = sum(region.size for region in found if region.name != "arrivals")
    space = torch.full((max(1, others),), 0xFF, dtype=torch.uint8, device="cuda")
    kernel.function(*tensors, *counters, space, *scalars)
    torch.cuda.synchronize()
    return ["counters are left that are not zero" for one in counters if one.any()]


def check(name: str, pulse: Pulse) -> dict[str, Any]:
    """What is wrong with a form, and its worst error as part of the tolerance."""
    import torch

    from cutegemm.compile.plans import compile_plan
    from tests.kernels.sm90_forms import fitting, form

    kinds = {
        "bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "tf32": torch.float32,
        "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "s8": torch.int8, "s32": torch.int32,
    }  # fmt: skip
    bad: list[str] = []
    worst = 0.0
    for ctas in grids(math.prod(form(name).cluster_mn)):
        plan = form(name, ctas)
        pulse.beat(f"{name}: compiling")
        kernel = compile_plan(plan)
        ops = plan.operands
        aa, bb, cc, dd = (kinds[operand.dtype.name] for operand in (ops.a, ops.b, ops.c, ops.d))
        for index, shape in enumerate(shapes(plan)):
            m, n, k = fitting(plan, *shape)
            batch = [3, 1, 2][index % 3] if ops.batched else None
            alpha = [1.0, 1.5, -0.5][index % 3]
            beta = [0.75, 0.0][index % 4 == 3] if plan.has_c else 0.0
            at = f"{name}: {m}x{n}x{k} batch {batch} of {ctas} CTAs"
            pulse.beat(at)
            a, _ = matrix(torch, batch, m, k, ops.a.major == "m", aa, ops.a.align_bytes)
            b, _ = matrix(torch, batch, k, n, ops.b.major == "k", bb, ops.b.align_bytes)
            c, _ = matrix(torch, batch, m, n, ops.c.major == "m", cc, ops.c.align_bytes)
            d, whole = matrix(torch, batch, m, n, ops.d.major == "m", dd, ops.d.align_bytes, guard=1)
            given = c if beta else torch.full_like(c, poison(cc), dtype=torch.float32).to(cc)
            try:
                tensors = (a, b, given, d) if plan.has_c else (a, b, d)
                scalars = (alpha, beta) if plan.has_c else (alpha,)
                bad += [f"{at}: {what}" for what in launch(torch, kernel, tensors, scalars)]
                torch.cuda.synchronize()
                pulse.beat(at)
                x, y = a.float(), b.float()
                want = saturated(alpha * (x.double() @ y.double()) + beta * c.double(), ops.d.dtype)
                scale = max(1.0, abs(alpha)) * (x.abs() @ y.abs()).max().item() if k else 0.0
                library = saturated(alpha * (x @ y) + beta * c.float(), ops.d.dtype).to(
                    dd if dd.is_floating_point else torch.float32
                )
                error = (d.double() - want).abs().max().item()
                fp8 = ops.a.dtype.bits == 8 and ops.a.dtype.is_float
                # wgmma keeps about 14 bits of a sum of products of fp8, and cuts off the rest at each step; of tf32
                # it has 11 bits of each factor
                narrow = 2.0**-10 if fp8 or ops.a.dtype.name == "tf32" else 2e-6
                allowed = 2 * (library.double() - want).abs().max().item() + narrow * scale + 1e-6
                if not dd.is_floating_point:
                    allowed = 0 if alpha == 1 and not beta else 0.5  # the nearest whole number
                outside = whole.numel() - untouched(torch, whole) - d.numel()
                worst = max(worst, error / max(allowed, 0.5) if math.isfinite(error) else 1e9)
                if not error <= allowed or outside:
                    bad.append(f"{at}: error {error:.3g} of {allowed:.3g} allowed, {outside} written outside of D")
                if shape == (1024, 1536, 640):
                    first = d.clone()
                    for _ in range(REPEATS):
                        kernel(*tensors, *scalars)
                        if not same_bits(torch, first, d):
                            bad.append(f"{at}: two runs differ")
                            break
                    torch.cuda.synchronize()
            except Exception as error:
                bad.append(f"{at}: {type(error).__name__}: {str(error)[:300]}")
                if "CUDA" in str(error):
                    return {"name": name, "bad": bad, "worst": worst}
    return {"name": name, "bad": bad[:5], "worst": round(worst, 3)}


REPEAT = "repeat:"  # and the name of a plan: the same result many times over
MANY_REPEATS = 1000


def check_repeats(name: str, pulse: Pulse) -> dict[str, Any]:
    """One input, a thousand runs: each into a D that was poisoned, each the same bit by bit as the first."""
    import torch

    from cutegemm.choice.catalog import plan_named
    from cutegemm.compile.plans import compile_plan
    from cutegemm.plan import Operands

    operands = Operands.of("bf16", layout="nt")
    pulse.beat(f"{name}: compiling")
    plan = plan_named(name.removeprefix(REPEAT), operands)
    kernel = compile_plan(plan)
    bm, bn, bk = plan.cta_tile
    # Three tiles and more for each of 132 CTAs, ragged along M and K; a row of D ends at a multiple of 16 bytes
    m, n, k = 22 * bm - 5, 20 * bn + 8, (plan.stages + 2) * bk + 8
    a, _ = matrix(torch, None, m, k, False, torch.bfloat16, 16)
    b, _ = matrix(torch, None, k, n, True, torch.bfloat16, 16)
    d, whole = matrix(torch, None, m, n, False, torch.bfloat16, 16, guard=1)
    kernel(a, b, d, 1.0)
    torch.cuda.synchronize()
    first, bad = d.clone(), []
    error = (d.double() - a.double() @ b.double()).abs().max().item()
    if not error <= 2.0**-7 * first.float().abs().max().item():
        bad.append(f"{name}: error {error:.3g}")
    differ = torch.zeros((), dtype=torch.int64, device="cuda")
    for run in range(MANY_REPEATS):
        whole.fill_(poison(torch.bfloat16))
        kernel(a, b, d, 1.0)
        differ += (d.contiguous().view(torch.int16) != first.view(torch.int16)).any()
        if run % 50 == 49:
            torch.cuda.synchronize()
            pulse.beat(f"{name}: run {run + 1} of {m}x{n}x{k}")
    if differ.item():
        bad.append(f"{name}: {differ.item()} of {MANY_REPEATS} runs differ from the first")
    if whole.numel() - untouched(torch, whole) != d.numel():
        bad.append(f"{name}: D is not written as a whole, or something else is")
    return {"name": name, "bad": bad, "worst": 0.0}


GEMM = "gemm:"  # the public function, instead of a form: by operands that it packs, or another part of its tests
PACKED = "packed"
_PACKED = tuple([f"{PACKED}{part}" for part in range(sm90_repacked.PARTS)])
GEMMS = tuple([f"{GEMM}{part}" for part in (*_PACKED, *sm90_gemm.PARTS)])


def check_gemm(name: str, pulse: Pulse) -> dict[str, Any]:
    """What is wrong with results of `gemm`, in one part of its tests."""
    part = name.removeprefix(GEMM)

    def beat(what: str) -> None:
        pulse.beat(f"{name}: {what}")

    if part.startswith(PACKED):
        bad = sm90_repacked.check(int(part.removeprefix(PACKED)), beat)
    else:
        bad = sm90_gemm.check(part, beat)
    return {"name": name, "bad": bad[:8], "worst": 0.0}


def main(names: list[str]) -> None:
    """Checks forms one after the other."""
    import torch

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.zeros(1, device="cuda")
    pulse = Pulse(time.time(), "start")
    pulse.watch()
    for name in names:
        try:
            if name.startswith(REPEAT):
                found = check_repeats(name, pulse)
            else:
                found = check_gemm(name, pulse) if name.startswith(GEMM) else check(name, pulse)
            print(json.dumps(found), flush=True)
        except Exception as error:
            print(json.dumps({"name": name, "bad": [f"{type(error).__name__}: {str(error)[:500]}"]}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
