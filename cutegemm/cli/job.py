"""The work of `cutegemm gemm`: run, simulate or emulate a plan, compile it, and compare D with a float64 reference."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from cutegemm.choice.recipe import Recipe
from cutegemm.cli.corner import Corner
from cutegemm.cli.inputs import Matrices
from cutegemm.dtypes import DType, round_to, tf32
from cutegemm.errors import CompileError, SimulationError, UnsupportedError, how_to_install
from cutegemm.plan import GemmPlan, Operands, Problem
from cutegemm.plan.epilogue import LINEAR, SCALED
from cutegemm.plan.memory.groups import ENDS
from cutegemm.plan.work.grid import grid_of

# Tolerances of |D - reference| / |reference| (Frobenius norm) by the type of D: a few roundings of its values.
_TOLERANCE = {
    "f64": 1e-13, "f32": 1e-5, "f16": 2e-3, "bf16": 1.6e-2, "e4m3": 5e-2, "e5m2": 1e-1, "s8": 0.0, "s32": 0.0,
}  # fmt: skip
_TOLERANCE_OF_FLOAT8 = 1e-2  # lower limit for float8 A and B: wgmma accumulates them with about 14 bits
_TOLERANCE_OF_TF32 = 2e-3  # lower limit if tf32 rounds or truncates A or B to 10 bits of mantissa
_KEY_INSTRUCTIONS = (
    "FFMA", "DFMA", "HMMA", "IMMA", "QMMA", "HGMMA", "IGMMA", "QGMMA",
    "LDS", "LDSM", "STS", "STSM", "LDG", "LDGSTS", "STG", "UTMALDG", "UTMASTG", "BAR",
)  # fmt: skip

_ORDERS = 6  # number of random interleavings of the roles to simulate
_ORDERS_ON_CLUSTERS = 2  # number of clusters in these interleavings if clusters wait for each other

# Takes a text that says what is being done, to show as progress.
Say = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """Computes one GEMM for `cutegemm gemm`, on the GPU or simulated on the CPU, and checks the result.

    It is D = alpha * A @ B + beta * C, or another epilogue. If the plan swaps A and B, all fields describe the
    transposed GEMM, D^T = alpha * B^T A^T + beta * C^T.

    problem    the problem that the plan solves
    matrices   A, B and C as arrays, of the problem or of `corner`
    corner     a smaller problem that is simulated instead, because the whole one takes too long; None to compute the
               whole problem
    values     arrays and scalars of the epilogue's operands by name; empty for alpha * acc + beta * c
    scales     block scales of float8 operands by name, empty without them; scale_a belongs to the A of the user, even
               if A and B are swapped
    ends       end of each group of a grouped GEMM; () for other GEMMs
    """

    recipe: Recipe
    plan: GemmPlan
    problem: Problem
    matrices: Matrices
    alpha: float
    beta: float
    corner: Corner | None = None
    values: dict[str, Any] = field(default_factory=dict)
    scales: dict[str, np.ndarray] = field(default_factory=dict)
    ends: tuple[int, ...] = ()

    def run(self, gpu: dict[str, Any], say: Say) -> tuple[dict[str, Any], np.ndarray]:
        """Run this GEMM on the GPU, compare D with float64, time it next to cuBLAS, and return (report, D).

        gpu       "name" and "arch" of the GPU
        say       function that shows a text as progress
        returns   the report holds fields by name, such as "correct", "compiled" and "speed"
        """
        from cutegemm.run.on_gpu import run_plan, time_plan
        from cutegemm.run.torch_ops import from_numpy

        report = self._head(f"ran on {gpu['name']}")
        say(f"compiling for {gpu['arch']}")
        report["compiled"] = _compiled(self.plan, gpu["arch"])
        say("running")
        tensors = from_numpy(self.matrices.a, self.matrices.b, self.matrices.c, self.plan.operands)
        d = run_plan(self.plan, tensors, self.alpha, self.beta)
        report.update(self._agreement({"d": d}))
        say("timing beside cuBLAS")
        report["speed"] = time_plan(self.plan, tensors, self.problem, swap_ab=self.recipe.swap_ab)
        return report, d

    def simulate(self, arch: str, emulated: bool, say: Say) -> tuple[dict[str, Any], np.ndarray]:
        """Simulate this GEMM on the CPU, or execute its PTX there, and return (report, D). The plan is also compiled.

        arch       architecture to compile for
        emulated   True to execute the compiled PTX; False to simulate the plan
        say        function that shows a text as progress
        returns    the report holds fields by name, such as "correct", "compiled" and "seconds"
        """
        verb = "emulat" if emulated else "simulat"
        report = self._head("emulated its PTX on the CPU" if emulated else "simulated on the CPU")
        if self.corner is not None:
            size, ctas = self.corner.extents, self.corner.ctas
            size = size.transposed if self.recipe.swap_ab else size
            on = "" if ctas is None else f", on a grid of {ctas} CTA{'s' if ctas > 1 else ''}"
            report[f"{verb}ed"] = f"{size.m}x{size.n}x{size.k} of it{on} (--whole {verb}es all of it)"
            report["exercised"] = list(self.corner.exercised)
            report["not_exercised"] = list(self.corner.not_exercised)
        say(f"{verb}ing")
        results, report["ctas"], report["seconds"] = self._execute(
            arch if emulated else None, lambda done: say(f"{verb}ing: {done:.0%}")
        )
        report.update(self._agreement(results))
        d = results["d"]
        if not emulated and self.plan.body.has_roles:
            say("playing other orders")
            report["orders"] = self._orders()
        say(f"compiling for {arch}")
        try:
            report["compiled"] = _compiled(self.plan, arch)
        except CompileError as error:  # the results of the simulation are still reported
            report["compiled"] = {"arch": arch, "skipped": str(error), "failed": True}
        return report, d

    def _head(self, did: str) -> dict[str, Any]:
        """Return the first entries of this GEMM's report, which describe problem and kernel plan, as a dict of texts.

        did   what was done with the plan, as text, such as "simulated on the CPU"
        """
        return {
            "did": did,
            "problem": str(self.problem.transposed if self.recipe.swap_ab else self.problem),
            "operands": str(self.plan.operands.transposed if self.recipe.swap_ab else self.plan.operands),
            "plan": str(self.recipe) if self.recipe.swap_ab else self.plan.name,
            "summary": self.plan.summary,
            "hierarchy": self.recipe.as_launched(self.plan).describe(self.problem),
        }

    def _execute(
        self, emulated: str | None, progress: Callable[[float], None]
    ) -> tuple[dict[str, np.ndarray], int, float]:
        """Simulate this GEMM's plan, or execute its PTX, on the CPU; return (results by name, number of CTAs, seconds).

        The results are D as "d", and the auxiliary outputs and reductions of the epilogue.

        emulated   architecture to compile the PTX for; None to simulate the plan
        progress   called with the completed fraction, 0 to 1
        """
        named = {"c": self.matrices.c, "alpha": self.alpha, "beta": self.beta, **self.values, **self.scales}
        if self.ends:
            named[ENDS] = self.ends
        plan = self.plan if self.corner is None else self.corner.plan
        if emulated is None:
            from cutegemm.simulator import simulate

            _check_names(simulate, self.values)
            simulated = simulate(plan, self.matrices.a, self.matrices.b, progress=progress, **named)
            results = {"d": simulated.d, **simulated.aux}
            return results, simulated.stats.ctas, simulated.stats.seconds
        from cutegemm.run.emulated import emulate

        _check_names(emulate, self.values)
        result = emulate(plan, self.matrices.a, self.matrices.b, arch=emulated, progress=progress, **named)
        return {"d": result.d, **result.aux}, result.ctas, result.seconds

    def _orders(self) -> int:
        """Simulate this GEMM's warp roles in several random interleavings, and return the number of interleavings.

        It finds errors in the use of barriers that only some timings show.

        raises   SimulationError with the faults that were found, such as a deadlock
        """
        from cutegemm.simulator import Fault, play_interleavings, protocol_of

        plan = self.plan if self.corner is None else self.corner.plan
        k_tiles, ctas = 2 * plan.stages + 1, _ORDERS_ON_CLUSTERS * plan.cluster_tile.size
        if plan.scheduler.split.is_split and plan.scheduler.grid.ctas > ctas:
            plan = plan.with_scheduler(grid=grid_of(ctas))
        tiles = 3 if plan.scheduler.grid.is_persistent else 1
        given = {"alpha": self.alpha, "beta": self.beta, **self.values}
        reads_c = any(tile in plan.epilogue.tensors_read(given) for tile in plan.epilogue.tiles)
        protocol = protocol_of(plan, k_tiles=k_tiles, tiles=tiles, reads_c=reads_c)
        played = play_interleavings(protocol, random_runs=_ORDERS, extremes=False)
        if played.faults:
            faults = tuple([Fault("protocol", 1, (str(fault),)) for fault in played.faults])
            raise SimulationError(f"the roles of {plan.name!r} in another order", faults)
        return played.interleavings

    def _agreement(self, results: dict[str, np.ndarray]) -> dict[str, Any]:
        """Compare D and the other outputs of this GEMM with float64 references; return the worst comparison.

        results   dict of output arrays: D as "d", auxiliary outputs and reductions of the epilogue by their names
        returns   a dict for the output with the largest error: "relative_error" (norm of the difference divided by the
                  norm of the reference), "tolerance" (largest error that counts as correct), "correct" (True or False)
        """
        expected = self._expected()
        of = self._written()
        comparisons = [self._compare(name, values[of], expected[name][of]) for name, values in results.items()]
        return min(comparisons, key=lambda one: (one["correct"], -one["relative_error"]))

    def _compare(self, name: str, d: np.ndarray, reference: np.ndarray) -> dict[str, Any]:
        """Compare one result of this GEMM with its float64 reference.

        name        name of the result, "d" for D
        d           the result
        reference   the expected result, in float64
        returns     "relative_error" (of the Frobenius norm), "tolerance" and "correct"; "not_finite" is added if the
                    infinities and NaN differ, or if no element of the reference is finite
        """
        if reference.size == 0:
            return {"relative_error": 0.0, "tolerance": 0.0, "correct": True}
        finite = np.isfinite(reference)
        same = np.array_equal(d[~finite].astype(np.float64), reference[~finite], equal_nan=True)
        scale = float(np.linalg.norm(reference[finite])) or 1.0
        error = float(np.linalg.norm(d[finite].astype(np.float64) - reference[finite])) / scale
        tolerance = _tolerance(self.plan.operands, self.matrices, self.plan.operands.matrix(name).dtype)
        comparison: dict[str, Any] = {
            "relative_error": error,
            "tolerance": tolerance,
            "correct": bool(error <= tolerance) and same and bool(finite.any()),
        }
        if not same:
            comparison["not_finite"] = "infinities and NaN are not those of float64"
        elif not finite.any():
            comparison["not_finite"] = "float64 has no finite values to compare with"
        return comparison

    def _expected(self) -> dict[str, np.ndarray]:
        """Return the float64 references of this GEMM's results, by name: D as "d", auxiliary outputs and reductions.

        Values are clipped to the range of the result's type if the type saturates.
        """
        if not self.values and self.plan.epilogue in (LINEAR, SCALED):
            return {"d": self._linear()}
        from cutegemm.simulator.values import results

        plan, accumulators = self.plan, self._products()
        values = {"alpha": self.alpha, "beta": self.beta, **self.values}
        tensors = {name: np.asarray(values[name]) for name in plan.epilogue.tensors_read(values)}
        if plan.epilogue.gated:
            accumulators = _gate_and_up(accumulators, plan.epilogue.gated)
            tensors |= {name: _gate_and_up(tensors[name], plan.epilogue.gated) for name in plan.epilogue.halved}
        unclipped = results(plan.epilogue, accumulators, values, tensors, plan.operands.d.dtype)
        out = {}
        for name, array in unclipped.items():
            kind = plan.operands.matrix(name).dtype
            out[name] = np.clip(array, -kind.largest, kind.largest) if kind.saturates else array
        for name, reduction in plan.epilogue.reductions:
            axes = tuple([{"m": -2, "n": -1}[mode] for mode in reduction.along])
            folded = np.add if reduction.operation == "sum" else np.maximum
            out[name] = folded.reduce(unclipped[name], axis=axes, initial=reduction.identity)
        return out

    def _factors(self) -> tuple[np.ndarray, np.ndarray]:
        """Return A and B of this GEMM in float64, each element multiplied by its block scale if it has one."""
        a, b = self.matrices.a.astype(np.float64), self.matrices.b.astype(np.float64)
        for name, scales in self.scales.items():
            modes, wide = self.plan.operands.modes(name), scales
            for axis, mode in zip((-2, -1), modes, strict=True):
                wide = np.repeat(wide, int(mode.partition("/")[2] or 1), axis)
            if modes[0].startswith("m"):
                a = a * wide[..., : a.shape[-2], : a.shape[-1]]
            else:
                b = b * np.swapaxes(wide, -1, -2)[..., : b.shape[-2], : b.shape[-1]]
        return a, b

    def _products(self) -> np.ndarray:
        """Return A @ B of this GEMM in float64; of a grouped GEMM, that of each group, and 0 after the last group."""
        a, b = self._factors()
        if not self.ends:
            return np.asarray(a @ b)
        groups, own = self.plan.operands.groups, [slice(*each) for each in pairwise((0, *self.ends))]
        if groups == "k":
            return np.stack([a[:, k] @ b[k] for k in own])
        out = np.zeros((a.shape[-2], b.shape[-1]))
        for group, each in enumerate(own):
            if groups == "m":
                out[each] = a[each] @ b[group]
            else:
                out[:, each] = a[group] @ b[:, each]
        return out

    def _written(self) -> Any:
        """Return the index of the elements of D that this GEMM computes: all, or those before the last group ends."""
        before = slice(self.ends[-1] if self.ends else None)
        return {"m": before, "n": (slice(None), before)}.get(self.plan.operands.groups, ...)

    def _linear(self) -> np.ndarray:
        """Return the float64 reference of this GEMM without an epilogue expression: alpha * A @ B + beta * C.

        If D has an integer type, alpha and beta are rounded to f32 and the result is rounded once to an integer.
        """
        c = self.matrices.c
        kind = self.plan.operands.d.dtype

        factors = np.array([self.alpha, self.beta], np.float64 if kind.is_float else np.float32)
        alpha, beta = factors.astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinities and NaN are compared with D element by element
            out = alpha * self._products()
            if beta != 0 and c is not None:
                out = out + beta * c.astype(np.float64)
        if not kind.is_float:
            return round_to(kind, out).astype(np.float64)
        return np.clip(out, -kind.largest, kind.largest) if kind.saturates else out


def _gate_and_up(columns: np.ndarray, order: str) -> np.ndarray:
    """Separate the gate and up columns of a gated (GLU) GEMM: return both in one array with a new first axis.

    Entry 0 of that axis has the N / 2 gate columns, entry 1 the N / 2 up columns.

    columns   array of shape (..., N)
    order     "pairs" if gate and up columns alternate, "halves" if all gate columns come first
    """
    if order == "pairs":
        return np.stack([columns[..., 0::2], columns[..., 1::2]])
    return np.stack(np.split(columns, 2, axis=-1))


def _tolerance(operands: Operands, matrices: Matrices, result: DType) -> float:
    """Return the largest relative error of a GEMM result that counts as correct.

    It follows from the types that the result, the accumulator and the operands are rounded to.

    operands   types of A, B and the accumulator
    matrices   the inputs A, B and C
    result     element type of the result
    """
    kind = operands.a.dtype
    rounded = (result, operands.acc) if operands.acc.is_float else (result,)
    tolerance = max(_TOLERANCE[dtype.name] for dtype in rounded)
    if kind.is_float and kind.bits == 8:
        tolerance = max(tolerance, _TOLERANCE_OF_FLOAT8)
    if kind is tf32 and any((round_to(tf32, x) != x).any() for x in (matrices.a, matrices.b)):
        tolerance = max(tolerance, _TOLERANCE_OF_TF32)
    return tolerance


def _compiled(plan: GemmPlan, arch: str) -> dict[str, Any]:
    """Compile a plan and return facts about its machine code by name: registers, spills, code size, instruction counts.

    "violations" lists the rules that the plan or its code breaks. If the CuTe DSL is not installed, "skipped" has the
    reason and the facts are missing.

    arch   architecture, such as "sm_90a"
    """
    if importlib.util.find_spec("tvm_ffi") is None:
        return {"arch": arch, "skipped": f"the CuTe DSL is not installed. {how_to_install('kernels')}"}
    from cutegemm.compile.plans import compile_plan

    kernel = compile_plan(plan, arch)
    resources = kernel.resources
    return {
        "arch": arch,
        "registers": resources.registers,
        "spills": resources.spills,
        "smem_bytes": sum(plan.smem_bytes().values()),
        "code_bytes": resources.code_bytes,
        "instructions": {name: resources.count(name) for name in _KEY_INSTRUCTIONS if resources.count(name)},
        "violations": [*plan.violations(arch), *kernel.violations()],
    }


def _check_names(function: Callable[..., Any], operands: Iterable[str]) -> None:
    """Raise UnsupportedError if an epilogue operand has the name of an option of a function.

    The operands are passed to that function as keyword arguments, so they would collide with its options.

    function   `simulate` or `emulate`
    operands   names of the operands
    """
    options = inspect.signature(function).parameters.keys() - {"c", "alpha", "beta"}
    for name in operands:
        if name in options:
            raise UnsupportedError(
                f"--operand {name}: {function.__name__} has an option of this name. Rename the operand. "
                f"Reserved names: {', '.join(sorted(options))}."
            )
