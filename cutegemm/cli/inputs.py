"""What a command was given: matrices from files or made up, the operands they ask for, the plan by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cutegemm.dtypes import DType, round_to
from cutegemm.errors import PlanError
from cutegemm.plan import GemmPlan, Problem
from cutegemm.plan.catalog import choose, plan_named


@dataclass(frozen=True)
class Matrices:
    """A and B, and C where beta asks for it: (M, K), (K, N), (M, N), with L in front where batched."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray | None

    @property
    def extents(self) -> tuple[int, int, int, int]:
        """(M, N, K, L)."""
        batch = self.a.shape[0] if self.a.ndim == 3 else 1
        return self.a.shape[-2], self.b.shape[-1], self.a.shape[-1], batch


def matrices(
    extents: tuple[int, int, int, int | None],
    dtype: DType,
    out: DType,
    files: tuple[Path | None, Path | None, Path | None],
    beta: float,
    seed: int,
) -> Matrices:
    """Matrices from `.npy` files; those not given are normally distributed, in the element type's values.

    extents   (M, N, K, L); 0 for M, N and K that files say, None for no batch
    raises    PlanError where files and extents contradict each other
    """
    m, n, k, batch = extents
    rng = np.random.default_rng(seed)
    a, b, c = [None if path is None else _load(path) for path in files]
    sizes = {"M": m or None, "N": n or None, "K": k or None}
    broken: list[str] = []
    for matrix, letters in ((a, "MK"), (b, "KN"), (c, "MN")):
        if matrix is not None:
            for letter, extent in zip(letters, matrix.shape[-2:], strict=True):
                if sizes[letter] is not None and sizes[letter] != extent:
                    broken.append(f"{letter} is {sizes[letter]} here and {extent} there.")
                sizes[letter] = int(extent)
    broken += [f"{letter} is not given." for letter, extent in sizes.items() if extent is None]
    if broken:
        raise PlanError("gemm", broken)
    front = () if batch is None else (batch,)

    def filled(given: np.ndarray | None, rows: str, columns: str, kind: DType) -> np.ndarray:
        if given is not None:
            return given
        shape = (*front, sizes[rows], sizes[columns])
        return round_to(kind, rng.standard_normal(shape, dtype=np.float32))

    return Matrices(
        filled(a, "M", "K", dtype),
        filled(b, "K", "N", dtype),
        filled(c, "M", "N", out) if beta != 0 else None,
    )


def _load(path: Path) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except ValueError as error:
        raise PlanError("gemm", [f"{path} is no .npy file of numbers: {error}"]) from error
    if array.ndim not in (2, 3):
        raise PlanError("gemm", [f"{path} holds an array of shape {array.shape}; 2 or 3 axes are expected."])
    return np.asarray(array)


def plan_for(name: str | None, problem: Problem, arch: str, with_c: bool) -> GemmPlan:
    """The plan of a name, or the one that is chosen for the problem.

    with_c   whether it must be able to read C
    """
    if name is None:
        return choose(problem.operands, problem, arch, with_c=with_c)
    return plan_named(name, problem.operands, with_c)
