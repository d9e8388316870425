"""Errors and instruction counts of the elementwise functions: their kernels, emulated or on a GPU, against float64."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cutegemm.compile import cubin
from cutegemm.emulator.decode import programs
from cutegemm.emulator.launch import Launch
from cutegemm.emulator.scalar import bf16_bits
from cutegemm.emulator.state import EMPTY, FULL, GlobalMemory
from cutegemm.machine.functions import COSTS, Cost
from cutegemm.run.emulated import execute
from cutegemm.simulator.functions import BINARY, FUNCTIONS
from docs.evidence.machine import cpu, this_machine
from docs.evidence.pages.markdown import table as markdown

NAMES = (*FUNCTIONS, *BINARY, "gelu:8", "gelu_tanh:8")
FLOATS: dict[str, np.dtype[Any]] = {"f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}
_LEAST = 2.0**-10  # smallest result whose error is given in units of the last place
_TINY = 2.0**-100  # smaller results do not count in the relative error
_STEPS = {False: 1 << 15, True: 499}  # emulated, on a GPU
_TYPICAL = 1 << 15  # inputs from a normal distribution, as sums in a network are
_FP32 = ("FADD", "FMUL", "FFMA", "FMNMX", "FSEL", "FSETP", "LOP3")
_THREADS = 256  # threads of a CTA


@dataclass(frozen=True)
class Errors:
    """Largest errors of a function over all inputs.

    units       in units in the last place, for exact results of at least 2**-10
    relative    relative to the exact result, for the same results
    absolute    for exact results below 1
    everywhere  relative, for exact results of at least 2**-100
    wrong       results that are NaN or infinite where the exact one is not, or the reverse
    bf16, f16   share of results that differ from the exact one rounded to that type, for normally distributed inputs
    """

    units: float
    relative: float
    absolute: float
    everywhere: float
    wrong: int
    bf16: float
    f16: float


# --- inputs and results ------------------------------------------------------------------------------------


def inputs(kind: str, step: int) -> np.ndarray:
    """Return every `step`-th bit pattern of a type, numbers around zero, and special values.

    step   step of the f32 patterns; f64 has as many, with the same upper half
    """
    dtype = FLOATS[kind]
    patterns = np.arange(0, 1 << 32, step, dtype=np.uint64)
    if kind == "f64":
        patterns = (patterns << np.uint64(32)) | (patterns * np.uint64(2654435761) & np.uint64(0xFFFFFFFF))
    every = patterns.astype(f"u{dtype.itemsize}").view(dtype)
    limits = np.finfo(dtype)
    special = [
        0.0,
        np.inf,
        np.nan,
        limits.max,
        limits.tiny,
        limits.smallest_subnormal,
        1.0,
        2.0,
        0.55,
        0.7,
        0.75,
    ]
    around = np.linspace(-20, 20, max(4001, (1 << 30) // step), dtype=dtype)
    at = np.array(special, dtype)
    with np.errstate(over="ignore"):
        both = np.concatenate([at, np.nextafter(at, dtype.type(np.inf)), np.nextafter(at, dtype.type(0))])
    return np.concatenate([every, around, both, -both])


def typical(kind: str) -> np.ndarray:
    """Return normally distributed numbers with standard deviations from 1/2 to 4."""
    random = np.random.default_rng(0)
    return (random.normal(size=_TYPICAL) * random.uniform(0.5, 4, _TYPICAL)).astype(FLOATS[kind])


def partners(x: np.ndarray) -> np.ndarray:
    """Return second operands for `x`: near ones, and arbitrary ones."""
    turned = np.roll(x[::-1], len(x) // 3)
    return np.where(np.arange(len(x)) % 2 == 0, turned, np.roll(x, 1))


def exact(name: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the values of a function in float64."""
    with np.errstate(invalid="ignore"):  # a NaN that signals
        wide = [v.astype(np.float64) for v in (x, y)]
    return BINARY[name](*wide) if name in BINARY else FUNCTIONS[name.split(":")[0]](wide[0])


@cache
def compiled(kind: str) -> tuple[str, Path]:
    """Return the PTX and the cubin of all kernels of a type, for sm_90a."""
    from docs.evidence.kernels.functions import AllFunctions

    folder = Path(tempfile.mkdtemp(prefix="functions_"))
    AllFunctions(NAMES, kind).compiled(folder)
    (ptx,), (binary,) = folder.glob("*.ptx"), folder.glob("*.cubin")
    return ptx.read_text(), binary


def in_order(names: Iterable[str]) -> dict[str, str]:
    """Return the kernel of each function; kernels are numbered in launch order."""
    numbered = sorted(names, key=lambda name: int(re.findall(r"\d+", name)[-1]))
    return dict(zip(NAMES, numbered, strict=True))


def emulated(kind: str, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Return the values of all functions by executing their PTX."""
    ptx, _ = compiled(kind)
    decoded = programs(ptx)
    memory = GlobalMemory()
    addresses = []
    for name, data in (("x", x), ("y", y)):
        raw = np.ascontiguousarray(data).view(np.uint8)
        addresses.append(memory.add(name, raw, np.full(len(raw), FULL, np.uint8), given=True).base)
    found = {}
    for name, kernel in in_order(decoded).items():
        out = memory.add(name, np.zeros(x.nbytes, np.uint8), np.full(x.nbytes, EMPTY, np.uint8))
        params = np.array([*addresses, out.base, len(x)], np.uint64).view(np.uint8)[:28]
        launch = Launch(kernel, (-(-len(x) // _THREADS), 1, 1), (_THREADS, 1, 1), 1, 0, params)
        for _ in execute(*decoded[kernel], launch, memory, False, None, Counter()):
            pass
        found[name] = out.data[: x.nbytes].view(x.dtype).copy()
    return found


def on_gpu(kind: str, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Return the values of all functions from the GPU of this machine."""
    import torch

    from docs.evidence.kernels.functions import AllFunctions

    given = [torch.from_numpy(v).cuda() for v in (x, y)]
    out = torch.full((len(NAMES), len(x)), 1e-3, dtype=given[0].dtype, device="cuda")
    AllFunctions(NAMES, kind).compiled()(*given, out)
    return dict(zip(NAMES, out.cpu().numpy(), strict=True))


# --- errors ------------------------------------------------------------------------------------------------


def errors(got: np.ndarray, want: np.ndarray, ordinary: slice) -> Errors:
    """Return the errors of computed values.

    want       exact values in float64
    ordinary   mask of the typical inputs
    """
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
        # At the end of the range a little error makes an infinity, or none.
        end = float(np.finfo(got.dtype).max)
        at_end = (np.abs(want) > end * (1 - 1e-5)) & (np.abs(want) < end * (1 + 1e-5)) & (np.abs(got) > end / 2)
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded)) | at_end
        counted = np.isfinite(got) & np.isfinite(rounded) & ~at_end
        off = np.where(counted, np.abs(got.astype(np.float64) - want), 0.0)
        size = np.where(counted, np.abs(want), 1.0)
        units = off / np.spacing(np.abs(np.where(counted, rounded, 1))).astype(np.float64)
        large = size >= _LEAST
        relative = np.where(size >= _TINY, off / size, 0.0)
    shares = []
    for narrow in (bf16_bits, lambda v: np.float32(v).astype(np.float16).view(np.uint16)):
        with np.errstate(all="ignore"):
            pair = [narrow(v[ordinary].astype(np.float32)) for v in (got, want)]
        numbers = ~np.isnan(want[ordinary])
        shares.append(float((pair[0] != pair[1])[numbers].mean()))
    return Errors(
        units=float(units[large].max()),
        relative=float(relative[large].max()),
        absolute=float(off[size < 1].max(initial=0.0)),
        everywhere=float(relative.max()),
        wrong=int((~same & ~counted).sum()),
        bf16=shares[0],
        f16=shares[1],
    )


def narrow_errors(name: str, x: np.ndarray, got: np.ndarray) -> np.ndarray:
    """Return the error of each value of a function, relative to the exact value or to 2**-7 if that is larger."""
    want = exact(name, x, x)
    found: np.ndarray = np.abs(got - want) / np.maximum(np.abs(want), 2.0**-7)
    return found


def measured(kind: str, gpu: bool, step: int) -> dict[str, Errors]:
    """Return the errors of all functions."""
    x, ordinary = inputs(kind, step), typical(kind)
    y = np.concatenate([partners(x), partners(ordinary)])
    x = np.concatenate([x, ordinary])
    values = (on_gpu if gpu else emulated)(kind, x, y)
    tail = slice(len(x) - len(ordinary), None)
    return {name: errors(got, exact(name, x, y), tail) for name, got in values.items()}


# --- machine code ------------------------------------------------------------------------------------------


@cache
def listings(kind: str) -> dict[str, dict[str, int]]:
    """Return the opcode counts of each function's kernel, for sm_90a."""
    ptx, binary = compiled(kind)
    sass = cubin.disassemble(binary)
    kernels = in_order(re.findall(r"\.entry\s+(\w+)", ptx))
    return {name: cubin.instructions(cubin.listing_of(sass, kernel)) for name, kernel in kernels.items()}


def counted(instructions: dict[str, int]) -> Cost:
    """Return a function's cost from its kernel's opcode counts, without constants, which a loop loads once."""
    fp32 = sum(count for opcode, count in instructions.items() if opcode.split(".")[0] in _FP32)
    special = sum(count for opcode, count in instructions.items() if opcode.split(".")[0] == "MUFU")
    return Cost(fp32, special)


# --- the command -------------------------------------------------------------------------------------------


def run(kind: str = "f32", gpu: bool = False, step: int | None = None) -> dict[str, Any]:
    """Return the machine, and a row for each function."""
    found = measured(kind, gpu, step or _STEPS[gpu])
    machine = this_machine("python -m docs.evidence functions") if gpu else cpu()
    return {"machine": machine, "kind": kind, "rows": [{"name": n, **vars(e)} for n, e in found.items()]}


def table(found: dict[str, Any]) -> str:
    """Return the rows as a Markdown table."""
    head = (
        "function",
        "instructions",
        "units",
        "relative",
        "absolute",
        "relative, all",
        "bf16",
        "f16",
        "wrong",
    )
    rows = []
    for row in found["rows"]:
        cost = COSTS[row["name"]]
        numbers = [f"{row[key]:.1e}" for key in ("relative", "absolute", "everywhere")]
        shares = [f"{row[key]:.2%}" for key in ("bf16", "f16")]
        of = f"{cost.fp32} + {cost.special}" if found["kind"] == "f32" else ""
        rows.append((f"`{row['name']}`", of, f"{row['units']:.1f}", *numbers, *shares, str(row["wrong"])))
    return markdown(head, rows)
