"""Run small PTX kernels that are written by hand, and plant faults in the PTX of compiled ones."""

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
    """Return a function that replaces matches of `pattern` in a text; a text without a match is an error.

    new      replacement, with groups as in `re.sub`
    which    index of the match to replace; None: all of them
    """

    def edit(text: str) -> str:
        found = list(re.finditer(pattern, text))
        assert found, pattern
        for match in reversed(found if which is None else [found[which]]):
            text = text[: match.start()] + match.expand(new) + text[match.end() :]
        return text

    return edit


def kernel(body: str) -> str:
    """Return a PTX module with one kernel around `body`.

    %d0 and %d1 hold the addresses of the inputs and of the outputs, %r0 the thread. There are predicates %p, and
    registers %h, %r and %d of 16, 32 and 64 bits.
    """
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
    """Emulate a kernel with this body, and return its outputs: 32-bit words. A word that is never written is all ones.

    inputs    array that %d0 points to
    outputs   number of words that %d1 points to
    threads   threads of a CTA
    blocks    CTAs
    operand   whether the inputs count as an operand of a GEMM, which must not be written
    early     whether the launch has PDL, so that threads must execute griddepcontrol.wait
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
    """Return %r9 after `line` as an unsigned number. %r1, %r2, ... hold the words."""
    loads = "\n".join(f"ld.global.b32 %r{i + 1}, [%d0+{4 * i}];" for i in range(len(words)))
    store = "setp.eq.s32 %p15, %r0, 0;\n@%p15 st.global.b32 [%d1], %r9;"
    given = np.array([w & 0xFFFFFFFF for w in words] or [0], np.uint32)
    return int(run(f"{loads}\n{line}\n{store}", given, 1)[0])


def bits(value: float) -> int:
    """Return the bits of a float32."""
    return int(np.float32(value).view(np.uint32))


def value(word: int) -> float:
    """Return the float32 with these bits."""
    return float(np.uint32(word).view(np.float32))
