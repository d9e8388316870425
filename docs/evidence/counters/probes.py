"""Single instructions at addresses with and without conflicts, whose counters are predicted exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from cutegemm.analysis import wavefronts
from cutegemm.profile.compare import SASS_WAVEFRONTS, WAVEFRONTS, Comparison, Row

_LANES = np.arange(32)
_MATRIX_ROWS = 8
_DATA_BYTES = 1 << 20
_COUNTERS = {
    "load": WAVEFRONTS.format("ld"),
    "ldmatrix": WAVEFRONTS.format("ld"),
    "store": WAVEFRONTS.format("st"),
    "stmatrix": WAVEFRONTS.format("st"),
    "cp.async": SASS_WAVEFRONTS.format("ldgsts"),
}


@dataclass(frozen=True)
class ProbeCase:
    """One instruction of one warp.

    op, bits              see `analysis.wavefronts`
    offsets               byte addresses in shared memory of the 32 lanes
    sources               byte addresses in global memory, for cp.async
    matrices, transpose   arguments of ldmatrix and stmatrix
    """

    name: str
    op: str
    bits: int
    offsets: tuple[int, ...]
    sources: tuple[int, ...] | None = None
    matrices: int = 4
    transpose: bool = False

    @property
    def launches(self) -> int:
        """Number of launches: 1, because a single instruction counts the same each time."""
        return 1

    @property
    def lanes(self) -> int:
        """Number of lanes whose addresses are used."""
        return _MATRIX_ROWS * self.matrices if self.op.endswith("matrix") else 32

    @property
    def instruction(self) -> str:
        """The instruction as text."""
        if self.op.endswith("matrix"):
            return f"{self.op}.x{self.matrices}{'.trans' if self.transpose else ''}"
        return f"{self.op} {self.bits} bits"

    @property
    def metrics(self) -> tuple[str, ...]:
        """Counters of all kinds of instructions, so that different probes can share one run of ncu."""
        return tuple(dict.fromkeys(_COUNTERS.values()))

    def prepared(self, arch: str, beta: float) -> Callable[[], None]:
        """Return a function that launches the probe; the arguments do not matter."""
        import torch

        from docs.evidence.kernels.probe import asm_of

        kernel = _compiled(asm_of(self.op, self.bits, self.matrices, self.transpose))
        offsets, sources = (
            torch.tensor(given, dtype=torch.int32).cuda() for given in (self.offsets, self.sources or (0,) * 32)
        )
        data = torch.empty(_DATA_BYTES // 4, dtype=torch.int32, device="cuda")
        out = torch.empty(32, dtype=torch.int32, device="cuda")
        return lambda: kernel(offsets, sources, data, out)

    def compared(self, counters: Mapping[str, float]) -> Comparison:
        """Return the predicted wavefronts next to the counted ones."""
        sources = [list(self.sources)] if self.sources is not None else None
        total, _ = wavefronts([list(self.offsets[: self.lanes])], self.bits, op=self.op, sources=sources)
        measured = counters.get(_COUNTERS[self.op])
        return Comparison(self.name, self.instruction, (Row("wavefronts", float(total[0]), measured, 0.0),))


@cache
def _compiled(text: str) -> Any:
    from docs.evidence.kernels.probe import compile_probe

    return compile_probe(text)


def _patterns(size: int) -> dict[str, np.ndarray]:
    """Return access patterns by name: for each, the index of the `size`-byte slot that each lane accesses."""
    random = np.random.default_rng(7)
    patterns = {"in a row": _LANES, "all alike": _LANES * 0, "reversed": 31 - _LANES}
    patterns |= {f"stride {s}": _LANES * s for s in (2, 3, 4, 8, 16, 32, 33)}
    patterns |= {f"{n} neighbours alike": _LANES // n for n in (2, 4, 8, 16)}
    patterns |= {f"alike modulo {n}": _LANES % n for n in (2, 4, 8, 16)}
    patterns |= {
        "pairs t ^ 2": _LANES // 4 * 2 + _LANES % 2,
        "pairs t ^ 4": _LANES // 8 * 4 + _LANES % 4,
        "pairs t ^ 3": np.minimum(_LANES, _LANES ^ 3),
        "8 alike, 128 bytes apart": _LANES // 8 * (128 // size),
        "2 alike, 128 bytes apart": _LANES // 2 * (128 // size),
        "lanes 8 x 4, A of a warp": _LANES % 8,
        "lanes 4 x 8, B of a warp": _LANES // 8,
        "zigzag A": _LANES // 2 % 8,
        "zigzag B": _LANES // 16 * 2 + _LANES % 2,
    }
    most = 1 << 16
    for i in range(4):
        patterns[f"random {i}"] = random.integers(0, 64 if i % 2 else 512, 32)
    for i in range(2):
        patterns[f"random pairs {i}"] = np.repeat(random.integers(0, 64, 16), 2)
    return {name: epi_stages for name, epi_stages in patterns.items() if int(epi_stages.max() + 1) * size <= most}


def proof_probes() -> list[ProbeCase]:
    """Return probes of every kind of access, at addresses with and without conflicts."""
    out = []
    for op in ("load", "store"):
        for bits in (32, 64, 128):
            size = bits // 8
            for name, epi_stages in _patterns(size).items():
                out.append(ProbeCase(f"{op}{bits} {name}", op, bits, _bytes(epi_stages, size)))
    for op in ("ldmatrix", "stmatrix"):
        for matrices, transpose in ((1, False), (2, False), (4, False), (4, True)):
            for pitch in (16, 32, 64, 80, 128, 144, 160, 256, 272):
                name = f"{op}.x{matrices}{'.t' if transpose else ''} rows of {pitch} bytes"
                out.append(ProbeCase(name, op, 128, _bytes(_LANES, pitch), None, matrices, transpose))
        swizzled = _LANES * 128 + 16 * ((_LANES // 8) ^ (_LANES % 8))
        out.append(ProbeCase(f"{op}.x4 swizzled", op, 128, tuple(int(b) for b in swizzled)))
    for bits in (32, 64, 128):
        size = bits // 8
        row = _bytes(_LANES, size)
        for name, epi_stages in _patterns(size).items():
            if len(set(epi_stages.tolist())) == 32:
                out.append(ProbeCase(f"cp.async{bits} to {name}", "cp.async", bits, _bytes(epi_stages, size), row))
            out.append(ProbeCase(f"cp.async{bits} from {name}", "cp.async", bits, row, _bytes(epi_stages, size)))
        rows = _LANES // 8 * 4096 + _LANES % 8 * size
        out.append(ProbeCase(f"cp.async{bits} from 4 rows", "cp.async", bits, row, tuple(int(b) for b in rows)))
    return out


def _bytes(epi_stages: np.ndarray, size: int) -> tuple[int, ...]:
    return tuple(int(s) * size for s in epi_stages)
