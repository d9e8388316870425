"""The inputs of a command: extents, matrices from files or random ones, and the plan that multiplies them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from cutegemm.choice.catalog import chosen
from cutegemm.choice.grouped import chosen_grouped
from cutegemm.choice.names import recipe_named
from cutegemm.choice.recipe import Recipe
from cutegemm.dtypes import DType, f32, round_to, tf32
from cutegemm.errors import PlanError
from cutegemm.machine.device import Device
from cutegemm.parse.epilogue import ParsedEpilogue
from cutegemm.parse.plan import as_multiplied
from cutegemm.plan import GemmPlan, Operands, Problem

# Limit of the elements of A, B and D together. More do not fit in the memory of any machine that this runs on.
_MOST_ELEMENTS = 1 << 36
HOW_TO_GIVE_EXTENTS = "Write `cutegemm gemm M N K`, such as `cutegemm gemm 512 512 512`, or give the files --a and --b."


def not_writable(option: str, path: Path | None, suffix: str) -> list[str]:
    """Return the reasons why the output file that an option names cannot be written; an empty list if it can.

    option   name of the option, without the dashes
    path     the file; None if the option is not given
    suffix   the suffix that the name must have, such as ".npy"
    """
    if path is None:
        return []
    wrong = [] if path.suffix == suffix else [f"--{option} {path} does not end in {suffix}."]
    if not path.parent.is_dir():
        wrong.append(f"--{option} {path}: the folder {path.parent} does not exist.")
    elif path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        wrong.append(f"--{option} {path} cannot be written.")
    return wrong


def transposed_array(array: np.ndarray) -> np.ndarray:
    """Return a view of an array with its last two axes exchanged: each matrix of a batch is transposed."""
    return np.swapaxes(array, -1, -2)


@dataclass(frozen=True)
class Matrices:
    """The input arrays of a GEMM, with a leading axis L if they are batched.

    a   array of shape (M, K)
    b   array of shape (K, N)
    c   array of shape (M, N); None if beta is 0
    """

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray | None

    @property
    def transposed(self) -> Matrices:
        """These inputs for the transposed GEMM D^T = B^T A^T: B^T, A^T and C^T, as views of the same memory."""
        return Matrices(
            transposed_array(self.b), transposed_array(self.a), None if self.c is None else transposed_array(self.c)
        )


@dataclass(frozen=True)
class Extents:
    """Holds the extents of a GEMM D = A @ B that a user stated, and the matrices that the user gave as files.

    m, n, k   A is (m, k), B is (k, n), D is (m, n)
    batch     number of matrices; None if the arrays have no batch axis
    files     arrays by "a", "b" and "c"; a matrix without a file is missing
    """

    m: int
    n: int
    k: int
    batch: int | None
    files: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def transposed(self) -> Extents:
        """These extents for the transposed GEMM D^T = B^T A^T: M and N are swapped.

        Arrays of files are transposed, and those of A and B are swapped.

        >>> Extents(2, 3, 5, None).transposed
        Extents(m=3, n=2, k=5, batch=None, files={})
        """
        names = {"a": "b", "b": "a", "c": "c"}
        files = {names[name]: transposed_array(array) for name, array in self.files.items()}
        return Extents(self.n, self.m, self.k, self.batch, files)

    def matrices(self, operands: Operands, beta: float, seed: int) -> Matrices:
        """Return A, B and C with these extents, rounded to their element types.

        A matrix that was read from a file is only rounded (tf32 to f32, because it is stored as f32). The others are
        filled with normally distributed elements.

        operands   types of A, B and C, and which of them have a batch axis; as the user states them
        beta       if 0, C is None
        seed       seed of the random matrices
        """
        rng = np.random.default_rng(seed)
        dtype, out = operands.a.dtype, operands.d.dtype

        def filled(name: str, rows: int, columns: int, kind: DType) -> np.ndarray:
            if name in self.files:
                return round_to(f32 if kind is tf32 else kind, self.files[name])
            front = (self.batch,) if self.batch is not None and operands.has_batch(name) else ()
            return round_to(kind, rng.standard_normal((*front, rows, columns), dtype=np.float32))

        return Matrices(
            filled("a", self.m, self.k, dtype),
            filled("b", self.k, self.n, dtype),
            filled("c", self.m, self.n, out) if beta != 0 else None,
        )

    def scales(self, operands: Operands, seed: int) -> dict[str, np.ndarray]:
        """Return random block scales from 1/4 to 4 for these extents, as a dict from operand name to array.

        operands   say which operands have block scales; as the user states them, before A and B are swapped
        seed       seed of the random numbers
        """
        if operands.groups:  # a grouped GEMM has no block scales
            return {}
        rng, front = np.random.default_rng([seed, 1]), () if self.batch is None else (self.batch,)
        whole = Problem(self.m, self.n, self.k, operands=replace(operands, batched=False))
        found = {}
        for name in operands.of_mainloop:
            shape = [whole.extent(name, mode) for mode in operands.modes(name)]
            found[name] = rng.uniform(0.25, 4, (*front, *shape)).astype(np.float32)
        return found

    def rounded(self, matrices: Matrices) -> list[str]:
        """Return which of "A", "B" and "C" were read from files and changed by rounding to their element type.

        matrices   A, B and C with these extents after rounding
        """
        pairs = [(name, array, getattr(matrices, name)) for name, array in self.files.items()]
        return [
            name.upper()
            for name, array, used in pairs
            if used is not None and not np.array_equal(array, used, equal_nan=True)
        ]


def extents_of(
    extents: tuple[int | None, int | None, int | None, int | None], files: dict[str, Path | None]
) -> Extents:
    """Read the matrices that a user gave as .npy files, and return them with the extents of the GEMM.

    extents   (M, N, K, L) of the command line; None for one that a file gives, and for L without a batch
    files     paths of A, B and C by "a", "b" and "c"; None for a random matrix
    raises    PlanError if a file cannot be read, an extent is missing, or files and extents contradict each other
    """
    sizes = dict(zip(("M", "N", "K", "the batch"), extents, strict=True))
    violations = [
        f"{letter} is {extent}. Give 0 or more."
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
        f"--{name} {files[name]} is one matrix, but the batch has {batch}."
        for name, array in arrays.items()
        if batch is not None and array.ndim == 2
    ]
    if all(path is None or name in arrays for name, path in files.items()):
        missing = [letter for letter, extent in sizes.items() if extent is None]
        if missing:
            named = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not given"
            violations.append(f"{named}. {HOW_TO_GIVE_EXTENTS}")
    known = {letter: extent or 0 for letter, extent in sizes.items()}
    count = sum(known[x] * known[y] for x, y in ("MK", "KN", "MN")) * (1 if batch is None else batch)
    if count > _MOST_ELEMENTS:
        violations.append(f"A, B and D have {count} elements together. The limit is {_MOST_ELEMENTS}.")
    if violations:
        raise PlanError("gemm", violations)
    return Extents(known["M"], known["N"], known["K"], batch, arrays)


def _load(what: str, path: Path, violations: list[str]) -> np.ndarray | None:
    """Read a .npy file and return its array; None if it cannot be used.

    what         the option and the path, for messages
    violations   list that receives the reason if the file cannot be used
    """
    try:
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        violations.append(f"{what}: {error.strerror or error}.")
        return None
    except (ValueError, EOFError) as error:
        violations.append(f"{what} is not a .npy file of numbers: {error}")
        return None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        content = "several arrays" if not isinstance(array, np.ndarray) else f"elements of {array.dtype}"
        violations.append(f"{what} has {content}. Give a .npy file of one array of real numbers.")
        return None
    if array.ndim not in (2, 3):
        violations.append(f"{what} has an array of shape {array.shape}. Give an array of 2 or 3 axes.")
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
    """Build the named plan, or the fastest one by prediction, for a GEMM.

    name      plan name; None to choose the plan with the lowest predicted time
    problem   the GEMM as the user stated it
    arch      architecture that the plan is built for, such as "sm_90a"
    device    device whose rates and number of SMs the choice uses
    with_c    True if the plan must be able to read C
    ending    the epilogue; None for alpha * acc + beta * c
    returns   (recipe, plan, problem): the named options that the plan is built from, the plan, and the problem that it
              solves, D^T = B^T A^T if the recipe swaps A and B
    raises    PlanError if the plan cannot compute the problem
    """
    operands = problem.operands
    if ending is not None:
        operands, with_c = ending.made_for(operands), ending.reads_tiles
    if name is None:
        # Gate and up are adjacent along N, as are the columns of a block that is quantized. A swap of A and B would
        # move them along M. With cluster split-K, the two accumulators of a pair can be in different CTAs.
        swap_ab, can_implement = None, None
        if ending is not None and (ending.epilogue.gated or ending.epilogue.quantized):
            swap_ab, can_implement = False, ending.is_end_of
        if operands.groups:
            recipe, _ = chosen_grouped(problem, arch, device, with_c=with_c)
            plan = recipe.build(operands, with_c, arch, device)
        else:
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
