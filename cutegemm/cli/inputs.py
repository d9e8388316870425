"""What a command was given: matrices from files or made up, the operands they ask for, the plan by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cutegemm.dtypes import DType, round_to
from cutegemm.errors import PlanError
from cutegemm.plan import GemmPlan, Problem
from cutegemm.plan.catalog import TRANSPOSED, choose, plan_named

# Elements of A, B and C together that are made up: more than any machine that this runs on holds.
_MOST_ELEMENTS = 1 << 36


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
    extents: tuple[int | None, int | None, int | None, int | None],
    dtype: DType,
    out: DType,
    files: tuple[Path | None, Path | None, Path | None],
    beta: float,
    seed: int,
) -> Matrices:
    """Matrices from `.npy` files; those not given are normally distributed, in the element type's values.

    extents   (M, N, K, L); None for M, N and K that files say, and for no batch
    raises    PlanError where files and extents contradict each other, or there can be no such matrices
    """
    m, n, k, batch = extents
    a, b, c = [None if path is None else _load(path) for path in files]
    sizes = {"M": m, "N": n, "K": k}
    broken = [
        f"{letter} is {extent}; 0 or more is expected."
        for letter, extent in (*sizes.items(), ("the batch", batch), ("the seed", seed))
        if extent is not None and extent < 0
    ]
    for matrix, letters in ((a, "MK"), (b, "KN"), (c, "MN")):
        if matrix is not None:
            for letter, extent in zip(letters, matrix.shape[-2:], strict=True):
                if sizes[letter] is not None and sizes[letter] != extent:
                    broken.append(f"{letter} is {sizes[letter]} here and {extent} there.")
                sizes[letter] = int(extent)
    broken += [f"{letter} is not given." for letter, extent in sizes.items() if extent is None]
    known = {letter: extent or 0 for letter, extent in sizes.items()}
    wanted = sum(known[x] * known[y] for x, y in ("MK", "KN", "MN")) * (1 if batch is None else batch)
    if wanted > _MOST_ELEMENTS:
        broken.append(f"A, B and D have {wanted} elements together; up to {_MOST_ELEMENTS} are made up.")
    if broken:
        raise PlanError("gemm", broken)
    rng = np.random.default_rng(seed)
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
    except (ValueError, EOFError) as error:
        raise PlanError("gemm", [f"{path} is no .npy file of numbers: {error}"]) from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        held = "several arrays" if not isinstance(array, np.ndarray) else f"elements of {array.dtype}"
        raise PlanError("gemm", [f"{path} holds {held}; a .npy file of real numbers is expected."])
    if array.ndim not in (2, 3):
        raise PlanError("gemm", [f"{path} holds an array of shape {array.shape}; 2 or 3 axes are expected."])
    return array


def plan_for(name: str | None, problem: Problem, arch: str, with_c: bool) -> GemmPlan:
    """The plan of a name, or the one that is chosen for the problem.

    with_c   whether it must be able to read C
    """
    if name is None:
        return choose(problem.operands, problem, arch, with_c=with_c)
    if name.startswith(TRANSPOSED):
        there = f"{problem.n} {problem.m} {problem.k} --plan {name.removeprefix(TRANSPOSED)}"
        raise PlanError("gemm", [f"{name!r} is for D^T = B^T A^T; give the command that problem: {there}."])
    return plan_named(name, problem.operands, with_c, arch)
