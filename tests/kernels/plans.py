"""Seeded random SIMT plans, and the DSL traced on the CPU."""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cutegemm.build import Shared, simt_plan
from cutegemm.compile import cache
from cutegemm.compile.cubin import GEMM_KERNELS, resources_of_many
from cutegemm.compile.plans import CompiledKernel, compile_plan, compiled_into
from cutegemm.errors import PlanError
from cutegemm.layout import Swizzle
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.plan import GemmPlan, Operands
from cutegemm.run.emulated import Emulation

Named = TypeVar("Named")


def in_groups(argument: str, given: Sequence[Named], size: int = 8) -> pytest.MarkDecorator:
    """Parametrizes a test by groups: to disassemble one kernel takes as long as to disassemble them all."""
    groups = [given[first : first + size] for first in range(0, len(given), size)]

    def name(each: Any) -> str:
        return " ".join(each) if isinstance(each, tuple) else str(getattr(each, "name", each))

    ids = [f"{name(group[0])}..{name(group[-1])}" for group in groups]
    return pytest.mark.parametrize(argument, groups, ids=ids)


def check_each(
    plans: Sequence[GemmPlan],
    check: Callable[[CompiledKernel], Any],
    arch: str = DEFAULT_ARCH,
    are_kept: bool = False,
) -> None:
    """Checks the machine code of several plans, which are disassembled at once.

    are_kept   in the cache, for other tests that take some of them
    """
    with tempfile.TemporaryDirectory() as folder:
        kernels = [compile_plan(plan, arch) if are_kept else machine_code(plan, arch, Path(folder)) for plan in plans]
        codes = [(kernel.folder / "kernel.cubin").read_bytes() for kernel in kernels]
        for kernel, report in zip(kernels, resources_of_many(codes, arch), strict=True):
            kernel.resources = report
            try:
                check(kernel)
            except AssertionError as error:
                raise AssertionError(f"{kernel.plan.name}, {kernel.plan.operands}: {error}") from error


def machine_code(plan: GemmPlan, arch: str, folder: Path) -> CompiledKernel:
    """The kernel of a plan to be read, not called.

    If it is not compiled yet, its host function, a seventh of the time, is left out.
    """
    if cache.intact(cache.entry(plan, arch)) is not None:
        return compile_plan(plan, arch)
    own = Path(tempfile.mkdtemp(dir=folder))
    compiled_into(own, plan, arch)
    return CompiledKernel(plan, arch, own, None)


def random_plans(count: int, seed: int) -> Iterator[GemmPlan]:
    """Plans that keep the rules, over tiles, majorness, types, alignment, stages, paddings and swizzles."""
    rng, found = random.Random(seed), 0
    while found < count:
        try:
            yield _random_plan(rng, f"random_{seed}_{found}")
        except PlanError:
            continue
        found += 1


def _random_plan(rng: random.Random, name: str) -> GemmPlan:
    thread = (rng.choice([4, 8, 16]), rng.choice([4, 8, 16]))
    lanes = rng.choice([(8, 4), (4, 8), (16, 2), (2, 16)])
    warp = (thread[0] * lanes[0], thread[1] * lanes[1])
    bk = rng.choice([4, 8, 16, 32])
    dtype = rng.choice(["f32", "f32", "f64", "f16", "bf16"])
    operands = Operands.of(
        dtype,
        layout=rng.choice(["nn", "nt", "tn", "tt"]),
        out_major=rng.choice("mn"),
        align_bytes=rng.choice([16, 16, {"f32": 4, "f64": 8}.get(dtype, 2)]),
        batched=rng.random() < 0.3,
    )
    shared = [
        rng.choice(
            [
                None,
                Shared(),
                Shared(pad=4),
                Shared(major="k", pad=rng.choice([0, 4])),
                Shared(swizzle=Swizzle(2, 2, 4)),
            ]
        )
        for _ in "ab"
    ]
    return simt_plan(
        operands,
        name=name,
        block=(warp[0] * rng.choice([1, 2, 4]), warp[1] * rng.choice([1, 2, 4]), bk),
        warp=warp,
        thread=thread,
        quad=(rng.choice([1, 2, 4]), rng.choice([1, 2, 4])),
        stages=rng.choice([1, 2, 3, 4]),
        unroll=rng.choice([None, 2, 4]) if bk >= 4 else None,
        load_a=rng.choice([None, "register", "cp.async"]),
        load_b=rng.choice([None, "register", "cp.async"]),
        shared_a=shared[0],
        shared_b=shared[1],
        lanes_along=rng.choice("mn"),
        raster=rng.choice(["along_m", "along_n", "grouped_m:4", "grouped_n:8"]),
        mma_order=rng.choice("mn"),
        ctas_per_sm=rng.choice([1, 2]),
    )


class _Enough(Exception):
    """All answers are recorded; nothing is compiled."""


def traced(question: Callable[[], Any]) -> Any:
    """What `question` returns inside of a kernel that is being traced."""
    import cutlass.cute as cute

    answers = []

    @cute.kernel
    def kernel():
        answers.append(question())
        raise _Enough

    @cute.jit
    def host():
        kernel().launch(grid=(1, 1, 1), block=(32, 1, 1))

    try:
        host()
    except Exception:
        if not answers:
            raise
    return answers[0]


def asks_for_the_shared_memory_of(plan: GemmPlan, found: Emulation) -> bool:
    """Whether the launch of the GEMM asked for the bytes that the plan counts: paddings and barriers included."""
    (asked,) = [launch.shared_bytes for launch in found.launches if re.match(GEMM_KERNELS, launch.kernel)]
    return asked == sum(plan.smem_bytes().values())
