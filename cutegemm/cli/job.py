"""What `cutegemm gemm` does: a plan is run, simulated or emulated, compiled, and D held against float64."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cutegemm.choice.recipe import Recipe
from cutegemm.cli.corner import Corner
from cutegemm.cli.inputs import Matrices
from cutegemm.dtypes import DType, round_to, tf32
from cutegemm.errors import CompileError, SimulationError, UnsupportedError
from cutegemm.plan import GemmPlan, Operands, Problem
from cutegemm.plan.epilogue import LINEAR, SCALED

# |D - reference| / |reference| in the Frobenius norm, by the type of D: a few roundings of its values.
_TOLERANCE = {
    "f64": 1e-13, "f32": 1e-5, "f16": 2e-3, "bf16": 1.6e-2, "e4m3": 5e-2, "e5m2": 1e-1, "s8": 0.0, "s32": 0.0,
}  # fmt: skip
_TOLERANCE_OF_FLOAT8 = 1e-2  # at least: wgmma keeps about 14 bits of a sum of their products
_TOLERANCE_OF_TF32 = 2e-3  # where A and B lose bits: each 10 bits of mantissa, rounded or cut off
_KEY_INSTRUCTIONS = (
    "FFMA", "DFMA", "HMMA", "IMMA", "QMMA", "HGMMA", "IGMMA", "QGMMA",
    "LDS", "LDSM", "STS", "STSM", "LDG", "LDGSTS", "STG", "UTMALDG", "UTMASTG", "BAR",
)  # fmt: skip

_ORDERS, _ORDERS_ON_CLUSTERS = (
    6,
    2,
)  # in which roles are played, of so many clusters where these wait for each other

Say = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """D = alpha * A @ B + beta * C by a plan; D^T = alpha * B^T A^T + beta * C^T by one whose recipe is transposed.

    problem as the plan multiplies it
    given   the matrices: those of the problem or, where a corner of it is simulated, of that
    corner  what is simulated in place of a large problem
    values  of the operands of the plan's epilogue, where it is not alpha * acc + beta * c
    """

    recipe: Recipe
    plan: GemmPlan
    problem: Problem
    given: Matrices
    alpha: float
    beta: float
    corner: Corner | None = None
    values: dict[str, Any] = field(default_factory=dict)

    def run(self, gpu: dict[str, Any], say: Say) -> tuple[dict[str, Any], np.ndarray]:
        """What is to be told, and D, of a run on the GPU.

        say   is told what is being done
        """
        from cutegemm.run.on_gpu import run_plan, time_plan
        from cutegemm.run.torch_ops import from_numpy

        report = self._head(f"ran on {gpu['name']}")
        say(f"compiling for {gpu['arch']}")
        report["compiled"] = _compiled(self.plan, gpu["arch"])
        say("running")
        tensors = from_numpy(self.given.a, self.given.b, self.given.c, self.plan.operands)
        d = run_plan(self.plan, tensors, self.alpha, self.beta)
        report.update(self._agreement({"d": d}))
        say("timing beside cuBLAS")
        report["speed"] = time_plan(self.plan, tensors, self.problem, swap_ab=self.recipe.swap_ab)
        return report, d

    def simulate(self, arch: str, emulated: bool, say: Say) -> tuple[dict[str, Any], np.ndarray]:
        """The same of the plan carried out on the CPU or, emulated, of the PTX that it is compiled to."""
        verb = "emulat" if emulated else "simulat"
        report = self._head("emulated its PTX on the CPU" if emulated else "simulated on the CPU")
        if self.corner is not None:
            of, ctas = self.corner.extents, self.corner.ctas
            of = of.transposed if self.recipe.swap_ab else of
            on = "" if ctas is None else f", on a grid of {ctas} CTA{'s' if ctas > 1 else ''}"
            report[f"{verb}ed"] = f"{of.m}x{of.n}x{of.k} of it{on} (--whole {verb}es all of it)"
            report["exercised"] = list(self.corner.exercised)
            report["not_exercised"] = list(self.corner.not_exercised)
        say(f"{verb}ing")
        results, report["ctas"], report["seconds"] = self._carried_out(
            arch if emulated else None, lambda done: say(f"{verb}ing: {done:.0%}")
        )
        report.update(self._agreement(results))
        d = results["d"]
        if not emulated and self.plan.pipeline is not None:
            say("playing other orders")
            report["orders"] = self._orders()
        say(f"compiling for {arch}")
        try:
            report["compiled"] = _compiled(self.plan, arch)
        except CompileError as error:  # what was carried out is told of
            report["compiled"] = {"arch": arch, "skipped": str(error), "failed": True}
        return report, d

    def _head(self, did: str) -> dict[str, Any]:
        return {
            "did": did,
            "problem": str(self.problem.transposed if self.recipe.swap_ab else self.problem),
            "operands": str(self.plan.operands),
            "plan": str(self.recipe) if self.recipe.swap_ab else self.plan.name,
            "summary": self.plan.summary,
            "hierarchy": self.plan.describe(self.problem),
        }

    def _carried_out(
        self, emulated: str | None, progress: Callable[[float], None]
    ) -> tuple[dict[str, np.ndarray], int, float]:
        """(D and what is stored beside it, CTAs that ran, seconds). emulated: the architecture that the PTX is compiled
        for; None: the plan"""
        named = {"c": self.given.c, "alpha": self.alpha, "beta": self.beta, **self.values}
        plan = self.plan if self.corner is None else self.corner.plan
        if emulated is None:
            from cutegemm.simulator import simulate

            _check_names(simulate, self.values)
            simulated = simulate(plan, self.given.a, self.given.b, progress=progress, **named)
            results = {"d": simulated.d, **simulated.aux}
            return results, simulated.stats.ctas, simulated.stats.seconds
        from cutegemm.run.emulated import emulate

        _check_names(emulate, self.values)
        result = emulate(plan, self.given.a, self.given.b, arch=emulated, progress=progress, **named)
        return {"d": result.d, **result.aux}, result.ctas, result.seconds

    def _orders(self) -> int:
        """Other orders in which the roles were played, as fast and slow against each other as may be: how many.

        raises   SimulationError with what goes wrong in one of them
        """
        from cutegemm.simulator import Fault, play_interleavings, protocol_of

        plan = self.plan if self.corner is None else self.corner.plan
        k_tiles, ctas = 2 * plan.stages + 1, _ORDERS_ON_CLUSTERS * plan.scheduler.cluster_size
        if plan.split.is_split and (plan.scheduler.persistent or 0) > ctas:
            assert plan.pipeline is not None
            plan = plan.with_(pipeline=replace(plan.pipeline, ctas=ctas))
        tiles = 3 if plan.scheduler.persistent else 1
        given = {"alpha": self.alpha, "beta": self.beta, **self.values}
        reads_c = any(tile in plan.epilogue.tensors_read(given) for tile in plan.epilogue.tiles)
        protocol = protocol_of(plan, k_tiles=k_tiles, tiles=tiles, reads_c=reads_c)
        played = play_interleavings(protocol, random_runs=_ORDERS, extremes=False)
        if played.faults:
            faults = tuple([Fault("protocol", 1, (str(fault),)) for fault in played.faults])
            raise SimulationError(f"the roles of {plan.name!r} in another order", faults)
        return played.interleavings

    def _agreement(self, results: dict[str, np.ndarray]) -> dict[str, Any]:
        """How far D, and what is stored beside it, are from float64: of all results the one that is least right."""
        expected = self._expected()
        found = [self._agrees(name, values, expected[name]) for name, values in results.items()]
        return min(found, key=lambda each: (each["correct"], -each["relative_error"]))

    def _agrees(self, name: str, d: np.ndarray, reference: np.ndarray) -> dict[str, Any]:
        if reference.size == 0:
            return {"relative_error": 0.0, "tolerance": 0.0, "correct": True}
        finite = np.isfinite(reference)
        same = np.array_equal(d[~finite].astype(np.float64), reference[~finite], equal_nan=True)
        scale = float(np.linalg.norm(reference[finite])) or 1.0
        error = float(np.linalg.norm(d[finite].astype(np.float64) - reference[finite])) / scale
        tolerance = _tolerance(self.plan.operands, self.given, self.plan.operands.matrix(name).dtype)
        found: dict[str, Any] = {
            "relative_error": error,
            "tolerance": tolerance,
            "correct": bool(error <= tolerance) and same and bool(finite.any()),
        }
        if not same:
            found["not_finite"] = "infinities and NaN are not those of float64"
        elif not finite.any():
            found["not_finite"] = "float64 has nothing finite to compare with"
        return found

    def _expected(self) -> dict[str, np.ndarray]:
        """All results in float64, with their types' largest values for what is past them."""
        if not self.values and self.plan.epilogue in (LINEAR, SCALED):
            return {"d": self._linear()}
        from cutegemm.simulator.values import results

        plan, accumulators = self.plan, self.given.a.astype(np.float64) @ self.given.b.astype(np.float64)
        given = {"alpha": self.alpha, "beta": self.beta, **self.values}
        tensors = {name: np.asarray(given[name]) for name in plan.epilogue.tensors_read(given)}
        if plan.epilogue.gated:
            accumulators = _parted(accumulators, plan.epilogue.gated)
            tensors |= {name: _parted(tensors[name], plan.epilogue.gated) for name in plan.epilogue.halved}
        found = results(plan.epilogue, accumulators, given, tensors, plan.operands.d.dtype)
        out = {}
        for name, values in found.items():
            kind = plan.operands.matrix(name).dtype
            out[name] = np.clip(values, -kind.largest, kind.largest) if kind.saturates else values
        for name, reduction in plan.epilogue.reductions:
            axes = tuple([{"m": -2, "n": -1}[mode] for mode in reduction.along])
            folded = np.add if reduction.operation == "sum" else np.maximum
            out[name] = folded.reduce(found[name], axis=axes, initial=reduction.identity)
        return out

    def _linear(self) -> np.ndarray:
        """alpha * A @ B + beta * C; whole numbers with factors of f32, rounded once."""
        a, b, c = self.given.a, self.given.b, self.given.c
        kind = self.plan.operands.d.dtype

        factors = np.array([self.alpha, self.beta], np.float64 if kind.is_float else np.float32)
        alpha, beta = factors.astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinities and NaN are held against D one by one
            out = alpha * (a.astype(np.float64) @ b.astype(np.float64))
            if beta != 0 and c is not None:
                out = out + beta * c.astype(np.float64)
        if not kind.is_float:
            return round_to(kind, out).astype(np.float64)
        return np.clip(out, -kind.largest, kind.largest) if kind.saturates else out


def _parted(columns: np.ndarray, by: str) -> np.ndarray:
    """(2, ...) of gates and ups."""
    if by == "pairs":
        return np.stack([columns[..., 0::2], columns[..., 1::2]])
    return np.stack(np.split(columns, 2, axis=-1))


def _tolerance(operands: Operands, given: Matrices, result: DType) -> float:
    """Of the relative error: by what a result, the sums and the products are rounded to."""
    kind = operands.a.dtype
    rounded = (result, operands.acc) if operands.acc.is_float else (result,)
    tolerance = max(_TOLERANCE[each.name] for each in rounded)
    if kind.is_float and kind.bits == 8:
        tolerance = max(tolerance, _TOLERANCE_OF_FLOAT8)
    if kind is tf32 and any((round_to(tf32, x) != x).any() for x in (given.a, given.b)):
        tolerance = max(tolerance, _TOLERANCE_OF_TF32)
    return tolerance


def _compiled(plan: GemmPlan, arch: str) -> dict[str, Any]:
    if importlib.util.find_spec("tvm_ffi") is None:
        return {"arch": arch, "skipped": "the CuTe DSL is not installed: pip install 'cutegemm[kernels]'"}
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
    """Raises UnsupportedError for operands that are called as an option of the function that takes them is."""
    options = inspect.signature(function).parameters.keys() - {"c", "alpha", "beta"}
    for name in operands:
        if name in options:
            raise UnsupportedError(
                f"--operand {name}: {function.__name__} has an option of this name. Call the operand otherwise; "
                f"{', '.join(sorted(options))} are taken."
            )
