"""Anybody's PTX, executed on the CPU for what it does to shared memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from cutegemm.analysis.executed import Executed
from cutegemm.analysis.shared import DEFAULT_RULES, Rules
from cutegemm.dtypes import DType
from cutegemm.emulator.decode import programs
from cutegemm.emulator.launch import Launch
from cutegemm.emulator.ptx import Kernel
from cutegemm.emulator.state import FULL, GlobalMemory
from cutegemm.errors import UnsupportedError
from cutegemm.run.emulated import execute

_BUFFER = re.compile(r"(\w+)\[(\d+)\]")
_NUMBER = re.compile(r"-?\d+")
_GRID_DIMENSIONS = 3


def executed_ptx(
    text: str,
    arguments: Sequence[str] = (),
    *,
    kernel: str = "",
    grid: tuple[int, ...] = (1,),
    block: tuple[int, ...] = (128,),
    shared_bytes: int = 0,
    cluster: int = 1,
    rules: Rules = DEFAULT_RULES,
) -> Executed:
    """What a kernel does to memory in one launch.

    arguments     one for each parameter: f32[4096], a buffer of zeros, or a number
    kernel        its name, or how it begins; may be left out where there is one
    grid, block   up to three extents; block a whole number of warps
    shared_bytes  of dynamic shared memory
    cluster       CTAs along x
    raises        UnsupportedError where the arguments do not fit, or for an instruction that is not known;
                  EmulationError for an access that is out of bounds or not aligned

    >>> found = executed_ptx('''
    ... .version 8.0
    ... .target sm_80
    ... .visible .entry stride_two() {
    ...   .reg .b32 %r<5>; .shared .align 16 .b8 tile[256];
    ...   mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 3; mov.u32 %r3, tile; add.s32 %r4, %r3, %r2;
    ...   st.shared.b32 [%r4], %r1;
    ...   ret; }''', block=(32,))
    >>> found.shared["store"].wavefronts, found.shared["store"].ideal
    (2, 1)
    """
    decoded = programs(text)
    name = _named(kernel, [*decoded])
    found, program = decoded[name]
    memory = GlobalMemory()
    dims = [(*extents, *[1] * (_GRID_DIMENSIONS - len(extents))) for extents in (grid, block)]
    launch = Launch(
        name, (dims[0][0], dims[0][1], dims[0][2]), (dims[1][0], dims[1][1], dims[1][2]), cluster, shared_bytes,
        _params(found, arguments, memory),
    )  # fmt: skip
    heard, counts = Executed(rules), Counter[str]()
    for _ in execute(found, program, launch, memory, False, None, counts, heard):
        pass
    return heard


def _named(wanted: str, names: list[str]) -> str:
    known = [name for name in names if name.startswith(wanted)]
    if len(known) != 1:
        problem = "holds no kernel" if not names else f"has the kernels {', '.join(n[:60] for n in names)}"
        raise UnsupportedError(f"check: the PTX {problem}; name one of them by --kernel.")
    return known[0]


def _params(kernel: Kernel, arguments: Sequence[str], memory: GlobalMemory) -> np.ndarray:
    """The bytes of all parameters."""
    if len(arguments) != len(kernel.params):
        shown = ", ".join(f"{p.name} ({p.size} bytes)" for p in kernel.params)
        raise UnsupportedError(
            f"check: {len(arguments)} arguments for the parameters {shown}. Give f32[4096], a buffer, or a number for "
            "each."
        )
    out = np.zeros(kernel.param_bytes, np.uint8)
    for param, text in zip(kernel.params, arguments, strict=True):
        buffer = _BUFFER.fullmatch(text.strip())
        if buffer is not None:
            size = int(buffer[2]) * DType.parse(buffer[1]).bits // 8
            held = memory.add(param.name, np.zeros(size, np.uint8), np.full(size, FULL, np.uint8))
            value = held.base
        elif _NUMBER.fullmatch(text.strip()):
            value = int(text)
        else:
            raise UnsupportedError(
                f"check: the argument {text!r} is neither a buffer, such as f32[4096], nor a number."
            )
        if param.size > 8:
            raise UnsupportedError(f"check: the parameter {param.name} has {param.size} bytes; up to 8 can be given.")
        raw = (value & ((1 << 8 * param.size) - 1)).to_bytes(param.size, "little")
        out[param.offset : param.offset + param.size] = np.frombuffer(raw, np.uint8)
    return out
