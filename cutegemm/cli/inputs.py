"""What a command was given: matrices from files or made up, and the plan for them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from cutegemm.choice.catalog import chosen
from cutegemm.choice.names import recipe_named
from cutegemm.choice.recipe import Recipe
from cutegemm.dtypes import DType, f32, round_to, tf32
from cutegemm.errors import PlanError
from cutegemm.machine.device import Device
from cutegemm.parse.epilogue import ParsedEpilogue
from cutegemm.parse.plan import as_multiplied
from cutegemm.plan import GemmPlan, Problem

# Elements of A, B and C together that are made up: more than any machine that this runs on holds.
_MOST_ELEMENTS = 1 << 36


def not_writable(option: str, path: Path | None, suffix: str) -> list[str]:
    """Why a file that an option names could not be written, before anything is computed."""
    if path is None:
        return []
    wrong = [] if path.suffix == suffix else [f"--{option} {path} does not end in {suffix}."]
    if not path.parent.is_dir():
        wrong.append(f"--{option} {path}: there is no folder {path.parent}.")
    elif path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        wrong.append(f"--{option} {path} cannot be written.")
    return wrong


def transposed_array(array: np.ndarray) -> np.ndarray:
    """The same memory with the last two axes exchanged: of a matrix, or of each of a batch."""
    return np.swapaxes(array, -1, -2)


@dataclass(frozen=True)
class Matrices:
    """A and B, and C where beta asks for it: (M, K), (K, N), (M, N), with L in front where batched."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray | None

    @property
    def transposed(self) -> Matrices:
        """Those of D^T = B^T A^T, on the same memory."""
        return Matrices(
            transposed_array(self.b), transposed_array(self.a), None if self.c is None else transposed_array(self.c)
        )


@dataclass(frozen=True)
class Extents:
    """Of D = A @ B; the batch is None where there is none. And the arrays from files, by "a", "b" and "c"."""

    m: int
    n: int
    k: int
    batch: int | None
    files: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def transposed(self) -> Extents:
        """Of D^T = B^T A^T.

        >>> Extents(2, 3, 5, None).transposed
        Extents(m=3, n=2, k=5, batch=None, files={})
        """
        names = {"a": "b", "b": "a", "c": "c"}
        files = {names[name]: transposed_array(array) for name, array in self.files.items()}
        return Extents(self.n, self.m, self.k, self.batch, files)

    def matrices(self, dtype: DType, out: DType, beta: float, seed: int) -> Matrices:
        """The arrays of files, rounded to what they are in memory, where tf32 is f32; what is not given is normally
        distributed, in the element type's values."""
        rng = np.random.default_rng(seed)
        front = () if self.batch is None else (self.batch,)

        def filled(name: str, rows: int, columns: int, kind: DType) -> np.ndarray:
            if name in self.files:
                return round_to(f32 if kind is tf32 else kind, self.files[name])
            return round_to(kind, rng.standard_normal((*front, rows, columns), dtype=np.float32))

        return Matrices(
            filled("a", self.m, self.k, dtype),
            filled("b", self.k, self.n, dtype),
            filled("c", self.m, self.n, out) if beta != 0 else None,
        )

    def rounded(self, given: Matrices) -> list[str]:
        """Of which matrices a file has values that `given` has not."""
        pairs = [(name, array, getattr(given, name)) for name, array in self.files.items()]
        return [
            name.upper()
            for name, array, seen in pairs
            if seen is not None and not np.array_equal(array, seen, equal_nan=True)
        ]


def extents_of(
    extents: tuple[int | None, int | None, int | None, int | None], files: dict[str, Path | None]
) -> Extents:
    """The extents that are given, and those of the arrays in files.

    extents   (M, N, K, L); None for those that files say, and for no batch
    raises    PlanError where files cannot be read, or files and extents contradict each other
    """
    sizes = dict(zip(("M", "N", "K", "the batch"), extents, strict=True))
    violations = [
        f"{letter} is {extent}; 0 or more is expected."
        for letter, extent in sizes.items()
        if extent is not None and extent < 0
    ]
    arrays = {}
    for name, rows, columns in (("a", "M", "K"), ("b", "K", "N"), ("c", "M", "N")):
        path = files[name]
        array = None if path is None else _load(f"--{name} {path}", path, violations)
        if array is None:
            continue
        arrays[name] = array
        for letter, extent in zip(("the batch", rows, columns)[-array.ndim :], array.shape, strict=True):
            if sizes[letter] is not None and sizes[letter] != extent:
                violations.append(f"{letter} is {sizes[letter]} here and {extent} in --{name} {path}.")
            sizes[letter] = int(extent)
    batch = sizes.pop("the batch")
    violations += [
        f"--{name} {files[name]} is one matrix, where there is a batch of {batch}."
        for name, array in arrays.items()
        if batch is not None and array.ndim == 2
    ]
    if all(path is None or name in arrays for name, path in files.items()):
        violations += [f"{letter} is not given." for letter, extent in sizes.items() if extent is None]
    known = {letter: extent or 0 for letter, extent in sizes.items()}
    wanted = sum(known[x] * known[y] for x, y in ("MK", "KN", "MN")) * (1 if batch is None else batch)
    if wanted > _MOST_ELEMENTS:
        violations.append(f"A, B and D have {wanted} elements together; up to {_MOST_ELEMENTS} are made up.")
    if violations:
        raise PlanError("gemm", violations)
    return Extents(known["M"], known["N"], known["K"], batch, arrays)


def _load(what: str, path: Path, violations: list[str]) -> np.ndarray | None:
    """The array in a file, or None and why not."""
    try:
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        violations.append(f"{what}: {error.strerror or error}.")
        return None
    except (ValueError, EOFError) as error:
        violations.append(f"{what} is no .npy file of numbers: {error}")
        return None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        held = "several arrays" if not isinstance(array, np.ndarray) else f"elements of {array.dtype}"
        violations.append(f"{what} holds {held}; a .npy file of real numbers is expected.")
        return None
    if array.ndim not in (2, 3):
        violations.append(f"{what} holds an array of shape {array.shape}; 2 or 3 axes are expected.")
        return None
    return array


def plan_for(
    name: str | None,
    problem: Problem,
    arch: str,
    device: Device,
    with_c: bool,
    ending: ParsedEpilogue | None = None,
) -> tuple[Recipe, GemmPlan, Problem]:
    """The recipe of a name, or the one that is chosen for the problem; its plan; and the problem as that multiplies it,
    which is D^T = B^T A^T where the recipe is transposed.

    device   whose multiprocessors the plan fills
    with_c   whether it must be able to read C
    ending   what becomes of the sums, where it is said
    raises   PlanError where the plan does not serve the problem
    """
    operands = problem.operands
    if ending is not None:
        operands, with_c = ending.made_for(operands), ending.reads_tiles
    if name is None:
        # Rows of the transposed problem are no pairs, nor do plans whose CTAs share K have both sums of one.
        swap_ab, can_implement = None, None
        if ending is not None and ending.epilogue.gated:
            swap_ab, can_implement = False, ending.is_end_of
        recipe, plan = chosen(operands, problem, arch, device, with_c, swap_ab=swap_ab, can_implement=can_implement)
    else:
        recipe = recipe_named(name)
        plan = recipe.build(operands, with_c, arch, device)
    if ending is not None:
        plan, problem = ending.on(plan, recipe.swap_ab), replace(problem, operands=ending.ends(operands))
    problem = as_multiplied(problem.transposed if recipe.swap_ab else problem, plan)
    violations = plan.violations(problem=problem)
    if violations:
        raise PlanError(f"plan {str(recipe)!r} on {problem}", violations)
    return recipe, plan, problem
