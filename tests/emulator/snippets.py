"""Small kernels in PTX, written by hand, and the machine that runs them; faults planted in compiled ones."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable

import numpy as np

from cutegemm.emulator.decode import programs
from cutegemm.emulator.machine import Machine, launch_blocks
from cutegemm.emulator.state import EMPTY, FULL, GlobalMemory

_HEAD = """
.version 8.8
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 pool[];
.visible .entry snippet(.param .u64 inputs, .param .u64 outputs) {
  .reg .pred %p<16>; .reg .b16 %h<16>; .reg .b32 %r<64>; .reg .b64 %d<32>;
  ld.param.b64 %d0, [inputs]; ld.param.b64 %d1, [outputs];
  mov.u32 %r0, %tid.x;
"""


def edited(pattern: str, new: str, which: int | None = None) -> Callable[[str], str]:
    """PTX with all matches replaced, or one of them."""

    def edit(text: str) -> str:
        found = list(re.finditer(pattern, text))
        assert found, pattern
        for match in reversed(found if which is None else [found[which]]):
            text = text[: match.start()] + match.expand(new) + text[match.end() :]
        return text

    return edit


def kernel(body: str) -> str:
    """A module whose one kernel is `body`: %d0 and %d1 hold the addresses of the inputs and the outputs,
    %r0 the thread; predicates %p, registers %h, %r and %d of 16, 32 and 64 bits."""
    return _HEAD + textwrap.dedent(body) + "\n  ret;\n}\n"


def run(
    body: str,
    inputs: np.ndarray,
    outputs: int,
    *,
    threads: int = 32,
    blocks: int = 1,
    cluster: int = 1,
    shared_bytes: int = 0,
    seed: int | None = None,
    operand: bool = False,
    early: bool = False,
) -> np.ndarray:
    """The outputs, 32-bit words; those that are never written are all ones.

    operand   whether the inputs are one of a GEMM, to which nobody may write
    early     whether the launch may begin while the one before it runs
    """
    ((kernel_, program),) = programs(kernel(body)).values()
    memory = GlobalMemory()
    data = np.ascontiguousarray(inputs).view(np.uint8).reshape(-1)
    given = memory.add("inputs", data, np.full(len(data), FULL, np.uint8), given=operand)
    written = memory.add("outputs", np.full(4 * outputs, 0xFF, np.uint8), np.full(4 * outputs, EMPTY, np.uint8))
    params = np.array([given.base, written.base], np.uint64).view(np.uint8)
    machine = Machine(
        kernel_,
        program,
        launch_blocks((blocks, 1, 1), cluster, 0, blocks),
        threads,
        shared_bytes,
        params,
        memory,
        check_races=True,
        grain=2,
        seed=seed,
        early=early,
    )
    machine.run()
    return written.data[: 4 * outputs].view(np.uint32).copy()


def of_words(line: str, *words: int) -> int:
    """What `line` puts into %r9, where %r1, %r2, ... hold the words; as an unsigned number."""
    loads = "\n".join(f"ld.global.b32 %r{i + 1}, [%d0+{4 * i}];" for i in range(len(words)))
    store = "setp.eq.s32 %p15, %r0, 0;\n@%p15 st.global.b32 [%d1], %r9;"
    given = np.array([w & 0xFFFFFFFF for w in words] or [0], np.uint32)
    return int(run(f"{loads}\n{line}\n{store}", given, 1)[0])


def bits(value: float) -> int:
    """Of a float32."""
    return int(np.float32(value).view(np.uint32))


def value(word: int) -> float:
    """The float32 of a word."""
    return float(np.uint32(word).view(np.float32))
