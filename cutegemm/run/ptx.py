"""Count the memory accesses of any PTX kernel by emulating it on the CPU."""

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
    """Emulate one launch of a kernel given as PTX, and return its memory accesses, counted by instruction.

    text           PTX module
    arguments      one text for each parameter: an integer, or a buffer of zeros such as "f32[4096]"
    kernel         name of the kernel, or the start of it; "" if the module has one kernel
    grid, block    up to three extents; the threads of a block must be a whole number of warps
    shared_bytes   bytes of dynamic shared memory
    cluster        CTAs of a cluster, along x
    rules          how accesses of a warp are divided into wavefronts
    raises         UnsupportedError if the arguments do not fit the parameters, or for an instruction that the
                   emulator does not implement; EmulationError for an access out of bounds or not aligned

    >>> counts = executed_ptx('''
    ... .version 8.0
    ... .target sm_80
    ... .visible .entry stride_two() {
    ...   .reg .b32 %r<5>; .shared .align 16 .b8 tile[256];
    ...   mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 3; mov.u32 %r3, tile; add.s32 %r4, %r3, %r2;
    ...   st.shared.b32 [%r4], %r1;
    ...   ret; }''', block=(32,))
    >>> counts.shared["store"].wavefronts, counts.shared["store"].ideal
    (2, 1)
    """
    decoded = programs(text)
    name = _full_name(kernel, [*decoded])
    entry, program = decoded[name]
    memory = GlobalMemory()
    dims = [(*extents, *[1] * (_GRID_DIMENSIONS - len(extents))) for extents in (grid, block)]
    launch = Launch(
        name, (dims[0][0], dims[0][1], dims[0][2]), (dims[1][0], dims[1][1], dims[1][2]), cluster, shared_bytes,
        _params(entry, arguments, memory),
    )  # fmt: skip
    accesses, opcodes = Executed(rules), Counter[str]()
    for _ in execute(entry, program, launch, memory, False, None, opcodes, accesses):
        pass
    return accesses


def _full_name(start: str, names: list[str]) -> str:
    """Return the only kernel name in a PTX module that starts with `start`.

    names    names of the kernels in the module
    raises   UnsupportedError if no name starts with it, or several do
    """
    matching = [name for name in names if name.startswith(start)]
    if not names:
        raise UnsupportedError("check: the PTX does not have a kernel. Pass a module with an .entry.")
    if len(matching) != 1:
        listed = ", ".join(name[:60] for name in names)
        raise UnsupportedError(
            f"check: {len(matching)} kernels of the PTX have a name that starts with {start!r}. Pass --kernel with the "
            f"start of one of these names: {listed}."
        )
    return matching[0]


def _params(kernel: Kernel, arguments: Sequence[str], memory: GlobalMemory) -> np.ndarray:
    """Return the bytes of all parameters of a kernel, after adding the buffers to the emulated memory.

    kernel      the kernel, which declares its parameters
    arguments   a text for each parameter: an integer, or a buffer of zeros such as "f32[4096]"
    memory      emulated global memory, which gets these buffers
    returns     uint8 array
    """
    if len(arguments) != len(kernel.params):
        shown = ", ".join(f"{p.name} ({p.size} bytes)" for p in kernel.params)
        raise UnsupportedError(
            f"check: the number of arguments is {len(arguments)}, but the parameters are {shown}. Pass a number, or a "
            "buffer such as f32[4096], for each."
        )
    out = np.zeros(kernel.param_bytes, np.uint8)
    for param, text in zip(kernel.params, arguments, strict=True):
        buffer = _BUFFER.fullmatch(text.strip())
        if buffer is not None:
            size = int(buffer[2]) * DType.parse(buffer[1]).bits // 8
            value = memory.add(param.name, np.zeros(size, np.uint8), np.full(size, FULL, np.uint8)).base
        elif _NUMBER.fullmatch(text.strip()):
            value = int(text)
        else:
            raise UnsupportedError(
                f"check: the argument {text!r} is not valid. Pass a whole number, or a buffer such as f32[4096]."
            )
        if param.size > 8:
            raise UnsupportedError(
                f"check: the parameter {param.name} has {param.size} bytes, but 8 is the most. Use a kernel with "
                "smaller parameters."
            )
        raw = (value & ((1 << 8 * param.size) - 1)).to_bytes(param.size, "little")
        out[param.offset : param.offset + param.size] = np.frombuffer(raw, np.uint8)
    return out
