"""Read operands from shared memory to the fragments of mma.sync, by ldmatrix or by plain loads.

Swizzled tiles need cheap addresses. A swizzle is linear over XOR. A thread reads from T + s before swizzling: T depends
on the thread, s is known while tracing, and no bit is set in both. So the swizzled address is swizzle(T) ^ swizzle(s).
Only the few bits that the swizzle changes are XORed with an address of the stage. The other bits of swizzle(s) are an
immediate offset of the instruction. A swizzled pointer would compute the swizzle of T + s for each access. That takes
250 instructions for a k-tile of tf32 read by plain loads, and 12 to 34 for bf16 read by ldmatrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
import numpy as np
from cutlass import Uint16, Uint32

from cutegemm.kernels import lower
from cutegemm.kernels.vectors import flat
from cutegemm.layout import ComposedLayout, Swizzle
from cutegemm.machine.arch import REGISTER_BITS, WARP_THREADS
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.shared import smem_align_bytes
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.tiled_copy import make_tiled_copy_A, make_tiled_copy_B
from cutegemm.tile.tiled_mma import TiledMma

_WORDS = {16: Uint16, 32: Uint32}
_WIDEST_BYTES = 16


@dataclass
class Reader:
    """Reads a thread's fragments of A or B from shared memory to registers: `reader(buffer, k_block, stage)`.

    Registers have buffers for several k-blocks; a call fills the one with index `buffer` from the stage `stage` of
    shared memory. A read can be divided into steps, to be issued between MMAs.

    parts       number of steps of a read
    read_part   function that carries out one step: (step, buffer, k_block, stage) -> None
    """

    parts: int
    read_part: Callable[[int, int, int, Any], None]

    def __call__(self, buffer: int, k_block: int, stage: Any) -> None:
        for part in range(self.parts):
            self.read_part(part, buffer, k_block, stage)


def reader(plan: GemmPlan, operand: str, tile: cute.Tensor, held: cute.Tensor, tid) -> Reader:
    """Return a function object that reads a thread's fragments of A or B from shared memory by ldmatrix or loads.

    plan      the plan, which says how fragments are read
    operand   "a" or "b"
    tile      the stages in shared memory: (bM or bN, bK, stages)
    held      registers to fill. Its modes are: elements of an MMA atom, MMA atoms along M or N, buffers for k-blocks
    tid       index of the thread
    """
    atom, given = plan.stream(operand).read, plan.stream(operand).smem
    tiled_mma, mma = lower.tiled_mma(plan.tiled_mma), plan.tiled_mma
    make = cute.make_tiled_copy_A if operand == "a" else cute.make_tiled_copy_B
    copy = make(lower.copy_atom(atom), tiled_mma)
    thr = copy.get_slice(tid)
    source, target = thr.partition_S(tile), thr.retile(held)
    if isinstance(given, ComposedLayout) and lies_apart(mma, operand, atom, given):
        plain = cute.make_tensor(cute.recast_ptr(tile.iterator, dtype=tile.element_type), tile.layout)
        if atom.threads == 1:
            own = tiled_mma.get_slice(tid)
            part = own.partition_A(plain) if operand == "a" else own.partition_B(plain)
            return _by_words(atom, Addresses(part, given.inner, _WORDS[atom.bits]), held)
        if not plan.by_registers:  # such plans lack registers for addresses, so ldmatrix swizzles each one anew
            return _by_matrices(atom, Addresses(thr.partition_S(plain), given.inner, tile.element_type), target)

    def read(_: int, buffer: int, k_block: int, stage: Any) -> None:
        cute.copy(copy, source[None, None, k_block, stage], target[None, None, buffer])

    return Reader(1, read)


def lies_apart(mma: TiledMma, operand: str, atom: CopyAtom, given: ComposedLayout) -> bool:
    """Return whether addresses in a swizzled tile can be computed once per thread, plus constants per element.

    A thread reads at offset T + s: T depends on the thread, s is a constant of the element. The condition is that
    swizzle(T + s) equals swizzle(T) ^ swizzle(s) for every element, for offsets in bytes as well as in elements.

    mma       tiled MMA, which says which fragments a thread reads
    operand   "a" or "b"
    atom      copy atom that reads the fragments
    given     layout of the tile in shared memory, with the swizzle
    """
    swizzle = given.inner
    kind = mma.atom.a_dtype if operand == "a" else mma.atom.b_dtype
    if not isinstance(swizzle, Swizzle) or swizzle.shift < 0:
        return False
    period = 1 << (swizzle.base + swizzle.shift + swizzle.bits)
    stages = given.outer[2].offsets()
    if period * kind.bits > 8 * smem_align_bytes(kind, given) or (stages % period).any():
        return False
    if atom.threads == WARP_THREADS:
        offsets = (make_tiled_copy_A if operand == "a" else make_tiled_copy_B)(atom, mma).offsets_s(given.outer)
    elif atom.bits in _WORDS:
        offsets = mma.offsets_a(given.outer) if operand == "a" else mma.offsets_b(given.outer)
    else:
        return False
    flat = offsets.reshape(offsets.shape[0], -1)
    own, known = flat[:, :1], flat[:1] - flat[:1, :1]
    turned = _turned(swizzle)
    split = (swizzle(own) ^ (swizzle(known) & turned)) + (swizzle(known) & ~turned)
    return bool(np.array_equal(swizzle(flat), split))


def _turned(swizzle: Swizzle) -> int:
    """Return a mask of the offset bits that a swizzle changes: `bits` ones from bit `base` on."""
    return ((1 << swizzle.bits) - 1) << swizzle.base


class Addresses:
    """Computes the shared-memory addresses of the elements of a swizzled tile that one thread reads.

    part      the thread's elements, at their offsets before the swizzle. Its four modes are: elements of an MMA atom,
              MMA atoms along M or N, k-blocks, stages
    swizzle   swizzle that permutes offsets, counted in elements
    kind      type that is read at an address, e.g. a 32-bit word with two f16
    """

    def __init__(self, part: cute.Tensor, swizzle: Swizzle, kind: Any) -> None:
        self.part, self.swizzle, self.kind = part, swizzle, kind
        self.bytes, self.in_bytes = part.element_type.width // 8, swizzle.recast(part.element_type.width, 8)
        start = part.iterator.toint()
        self.start = start ^ ((start >> self.in_bytes.shift) & _turned(self.in_bytes))
        self.align_bytes = min(_WIDEST_BYTES, part.iterator.alignment)

    def of(self, v: int, mn: int, k_block: int, stage: Any) -> cute.Pointer:
        """Return a pointer to one of this thread's elements in shared memory.

        The stage is added first, so that the compiler does not preserve addresses of one stage for another.

        v         index of the element in its MMA atom
        mn        index of the MMA atom along M or N
        k_block   index of the k-block
        stage     index of the stage
        """
        layout = self.part.layout
        known = self.swizzle(cute.crd2idx((v, mn, k_block, 0), layout))
        turned = known & _turned(self.swizzle)
        in_stage = self.start + cute.crd2idx((0, 0, 0, stage), layout) * self.bytes
        address = (in_stage ^ (turned * self.bytes)) + (known - turned) * self.bytes
        return cute.make_ptr(self.kind, address, self.part.iterator.memspace, assumed_align=self.align_bytes)


def _by_matrices(atom: CopyAtom, at: Addresses, held: cute.Tensor) -> Reader:
    """Return a function object that reads a thread's fragments of A or B from shared memory by ldmatrix.

    A read is divided into steps: one ldmatrix each.

    atom   the ldmatrix instruction
    at     computes the address of each of the thread's elements in shared memory
    held   registers to fill. Its modes are: elements of an MMA atom, as (elements of one ldmatrix, number of ldmatrix);
           MMA atoms along M or N; buffers for k-blocks
    """
    copy = lower.copy_atom(atom)
    row, rows = (cute.size(held, mode=[0, mode]) for mode in (0, 1))

    def read(part: int, buffer: int, k_block: int, stage: Any) -> None:
        mn, i = part // rows, part % rows
        source = cute.make_tensor(at.of(i * row, mn, k_block, stage), cute.make_layout((row,)))
        cute.copy_atom_call(copy, source, flat(held[(None, i), mn, buffer]))

    return Reader(rows * cute.size(held, mode=[1]), read)


def _by_words(atom: CopyAtom, at: Addresses, held: cute.Tensor) -> Reader:
    """Return a function object that reads a thread's fragments of A or B from shared memory by loads of 32 or 16 bits.

    A register is read as one 32-bit word, or as two 16-bit halves. A read is divided into steps: one for each MMA atom.

    atom   the load instruction, which says how many elements one load reads
    at     computes the address of each of the thread's elements in shared memory
    held   registers to fill. Its modes are: elements of an MMA atom, MMA atoms along M or N, buffers for k-blocks
    """
    line = cute.make_layout(1)

    def load(fragments: cute.Tensor, i: int, k_block: int, stage: Any) -> Any:
        values = cute.size(fragments, mode=[0])
        return cute.make_tensor(at.of(i % values, i // values, k_block, stage), line)[0]

    def read(part: int, buffer: int, k_block: int, stage: Any) -> None:
        fragments = held[None, None, buffer]
        registers = cute.recast_tensor(fragments, Uint32)
        values = REGISTER_BITS // fragments.element_type.width
        of_atom = cute.size(registers, mode=[0])
        for i in range(part * of_atom, (part + 1) * of_atom):
            bits = Uint32(0)
            for v in range(0, values, atom.values):
                loaded = Uint32(load(fragments, i * values + v, k_block, stage))
                bits = bits | loaded << (v * fragments.element_type.width)
            registers[i] = bits

    return Reader(cute.size(held, mode=[1]), read)
