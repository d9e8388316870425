"""Run `gemm` on CPU tensors: the kernels that it launches are emulated on the memory of the tensors."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections import Counter

import numpy as np

from cutegemm.compile import cuda as devices
from cutegemm.compile.plans import compile_plan
from cutegemm.emulator.decode import programs
from cutegemm.emulator.launch import TensorArgument, host_function
from cutegemm.emulator.state import EMPTY, FULL, POISON_BYTE, GlobalMemory
from cutegemm.run import prepare, torch_ops
from cutegemm.run.emulated import execute
from tests.noted import note_launches

KINDS = {**torch_ops.DTYPES, torch_ops.torch.uint8: "u8"}  # u8: a workspace


def emulate_launches(monkeypatch, multiprocessors):
    """Let `gemm` take the CPU for a Hopper GPU and emulate its launches. Return a list that collects their plans."""
    note_launches(monkeypatch, multiprocessors)
    plans = []

    def take(plan, arch):
        kernel = compile_plan(plan, arch)
        monkeypatch.setattr(kernel, "function", functools.partial(run, kernel, plans))
        return kernel

    monkeypatch.setattr(prepare, "compile_plan", take)
    cuda = torch_ops.torch.cuda
    monkeypatch.setattr(cuda, "device", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(devices, "current_stream", lambda index: 0)
    monkeypatch.setattr(cuda, "is_current_stream_capturing", lambda: False)
    return plans


def run(kernel, plans, a, b, *rest):
    """Emulate one call of a compiled kernel, and append its plan to `plans`.

    rest    tensors of the epilogue; D and auxiliary outputs; semaphores and workspace, if the kernel has them; scalars
    """
    epilogue = kernel.plan.epilogue
    tensors, rest = rest[: len(epilogue.tensors)], rest[len(epilogue.tensors) :]
    results, rest = rest[: 1 + len(epilogue.beside)], rest[1 + len(epilogue.beside) :]
    count = len(rest) - len(epilogue.scalars)
    spaces, scalars = rest[:count], rest[count:]
    plans.append(kernel.plan)
    counted = kernel.plan.body.has_roles and kernel.plan.scheduler.split.is_split
    counters = spaces[:1] if counted else []  # semaphores are zero; the rest of a workspace is poison
    used = epilogue.tensors_read(dict(zip(epilogue.scalars, scalars, strict=True)))
    operands = [tensor for name, tensor in zip(epilogue.tensors, tensors, strict=True) if name in used]
    read, written = [a, b, *counters, *operands], [*results, *spaces]
    memory, places, given = GlobalMemory(), {}, []
    for tensor in (a, b, *tensors, *results, *spaces):
        start = tensor.untyped_storage().data_ptr()
        if start not in places:
            held, shift = bytes_of(tensor), start % 256  # keeps the alignment of the tensor's address
            is_read, is_written = inside(read, start, len(held)), inside(written, start, len(held))
            state = np.where(is_read, FULL, np.where(is_written, EMPTY, GlobalMemory.OUTSIDE))
            data = np.where(is_read, held, POISON_BYTE)
            buffer = memory.add(
                "a tensor",
                np.pad(data, (shift, 0)),
                np.pad(state, (shift, 0), constant_values=GlobalMemory.OUTSIDE),
            )
            places[start] = buffer, shift, held, is_written
        address = places[start][0].base + start % 256 + tensor.data_ptr() - start
        given.append(TensorArgument(address, KINDS[tensor.dtype], tuple(tensor.shape), tuple(tensor.stride())))
    decoded = programs(kernel.ptx)
    host = host_function(kernel.folder / "kernel.so")
    for one in host.launches({name: of for name, (of, _) in decoded.items()}, given, scalars):
        for _ in execute(*decoded[one.kernel], one, memory, True, None, Counter()):
            pass
    for buffer, shift, held, is_written in places.values():
        held[is_written] = buffer.data[shift : shift + len(held)][is_written]


def bytes_of(tensor):
    """Return all bytes of the storage that a tensor is a view of."""
    storage = tensor.untyped_storage()
    whole = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
    return np.frombuffer(whole, np.uint8) if storage.nbytes() else np.zeros(0, np.uint8)


def inside(tensors, start, count):
    """Return which bytes of a storage are elements of some tensors: bool (count,).

    start    address of the storage
    count    bytes of the storage
    """
    marks = np.zeros(count, bool)
    for tensor in tensors:
        if tensor.untyped_storage().data_ptr() == start:
            size = tensor.element_size()
            strides = (*(stride * size for stride in tensor.stride()), 1)
            first = marks[tensor.storage_offset() * size :]
            np.lib.stride_tricks.as_strided(first, (*tensor.shape, size), strides)[...] = True
    return marks
