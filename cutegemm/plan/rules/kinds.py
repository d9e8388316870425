"""The rules of what the fields of a plan are: of which type, and within which bounds a plan can be computed with.

The other rules compute with the fields, so that these come first, and alone where one is broken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from cutegemm.dtypes import DType
from cutegemm.layout import ComposedLayout, Layout
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import MAX_THREADS_PER_BLOCK, WARP_THREADS
from cutegemm.plan.epilogue import Epilogue
from cutegemm.plan.memory.packing import Packing
from cutegemm.plan.pipeline import Pipeline, Slots
from cutegemm.plan.problem import Operands
from cutegemm.plan.program.schedule import (
    Commit,
    Fetch,
    Multiply,
    Read,
    Repeat,
    Schedule,
    Step,
    Store,
    Sync,
    Wait,
)
from cutegemm.plan.role import Role
from cutegemm.plan.rules.boxes import layout_rule
from cutegemm.plan.sums import SharedSums
from cutegemm.plan.typed import not_of_types
from cutegemm.plan.work.gpcs import GpcOrder
from cutegemm.plan.work.split import Split
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.raster import Raster
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tiled_mma import TiledMma
from cutegemm.tile.tma import TmaBox

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

_NONE = type(None)
_LAYOUTS: tuple[type, ...] = (Layout, ComposedLayout)
_COPIES: tuple[type, ...] = (TiledCopy, TmaBox)
_FIELDS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "summary": (str,),
    "operands": (Operands,),
    "cta_tile": (tuple,),
    "tiled_mma": (TiledMma,),
    "smem_a": _LAYOUTS,
    "smem_b": _LAYOUTS,
    "load_a": _COPIES,
    "load_b": _COPIES,
    "read_a": (CopyAtom, _NONE),
    "read_b": (CopyAtom, _NONE),
    "store_d": (CopyAtom,),
    "raster": (Raster,),
    "schedule": (Schedule, _NONE),
    "roles": (tuple,),
    "smem_d": (*_LAYOUTS, _NONE),
    "cluster_mn": (tuple,),
    "split": (Split,),
    "packs": (tuple,),
    "copy_d": (TiledCopy, _NONE),
    "pipeline": (Pipeline, _NONE),
    "slots": (Slots, _NONE),
    "epilogue": (Epilogue,),
    "overlaps": (bool,),
    "sums": (SharedSums, _NONE),
    "transposed": (bool,),
}
_PIPELINE: dict[str, tuple[type, ...]] = {
    "two_level": (bool,),
    "deferred": (bool,),
    "gpcs": (GpcOrder, _NONE),
}
_SUMS: dict[str, tuple[type, ...]] = {
    "added": (TiledMma,),
    "by_warp": (Layout,),
    "by_cta": (Layout, _NONE),
}
_SLOTS: dict[str, tuple[type, ...]] = {
    "subtile": (tuple,),
    "to_shared": (TiledCopy,),
    "store": _COPIES,
    "from_shared": (TiledCopy, _NONE),
    "load_c": (TmaBox, _NONE),
}
# What carries out a family: the first word of its MMA atoms
_ATOMS = {"simt": "fma", "mma_sync": "mma", "sm90": "wgmma"}
# Bounds beyond which no CTA goes, whatever the architecture: what is within them is computed with
_MOST_STAGES = 1024  # of 128 bytes at least, in 227 KiB
_MOST_CLUSTERED = 16  # CTAs, where a kernel asks for more than the portable size
_MOST_SUMS = 1 << 20  # of 8 bits at least, in the registers of a multiprocessor
_MOST_DEEP = 1 << 16  # elements of a k-tile
_MOST_RESIDENT = 1 << 16  # CTAs that a device holds at a time: 32 of a multiprocessor
_MOST_CYCLES = 1 << 26  # by which 32 consumers may wait for each other: a kernel's clock has 32 bits
_MOST_STEPS = 1 << 16  # of a schedule, those of its loops one by one


def kind_rules(plan: GemmPlan) -> Iterator[str]:
    """Bounds of the fields, beyond which the other rules could not compute."""
    wrong = [*_types("", plan, _FIELDS)]
    if plan.pipeline is not None and not wrong:
        wrong += _types("pipeline.", plan.pipeline, _PIPELINE)
    if plan.slots is not None and not wrong:
        wrong += _types("slots.", plan.slots, _SLOTS)
    if plan.sums is not None and not wrong:
        wrong += _types("sums.", plan.sums, _SUMS)
    if (plan.schedule is None) == (plan.pipeline is None):
        wrong.append("a plan has either a schedule, which all threads follow, or a pipeline of roles.")
    yield from wrong
    if not wrong:
        yield from _counts(plan)
        yield from _parts(plan)
        yield from _layouts(plan)
        yield from _moves(plan)
        if plan.schedule is not None:
            yield from _steps(plan.schedule)
            yield from _scheduled(plan)
        if plan.pipeline is not None:
            yield from _piped(plan, plan.pipeline)


def _types(prefix: str, value: Any, fields: dict[str, tuple[type, ...]]) -> Iterator[str]:
    for name, types in fields.items():
        yield from not_of_types({f"{prefix}{name}": (getattr(value, name), types)})


def _counts(plan: GemmPlan) -> Iterator[str]:
    tile = [*_tuple("cta_tile", plan.cta_tile, 3)]
    yield from tile
    if not tile and plan.cta_tile[2] > _MOST_DEEP:
        yield f"cta_tile = {plan.cta_tile!r}; bK of {_MOST_DEEP} at most is expected."
    cluster = [*_tuple("cluster_mn", plan.cluster_mn, 2)]
    yield from cluster
    if not cluster and product(plan.cluster_mn) > _MOST_CLUSTERED:
        yield f"cluster_mn = {plan.cluster_mn!r}; no cluster has more than {_MOST_CLUSTERED} CTAs."
    shared = [] if plan.pipeline is None else [*_count("pipeline.k_ctas", plan.pipeline.k_ctas)]
    yield from shared
    if not tile and not cluster and not shared and product(plan.product_tile[:2]) > _MOST_SUMS:
        of = f"cta_tile = {plan.cta_tile!r}" + f" of {plan.k_ctas} CTAs that share K" * (plan.k_ctas > 1)
        yield f"{of}; the registers of no CTA hold more than {_MOST_SUMS} sums."
    yield from _count("ctas_per_sm", plan.ctas_per_sm)
    if plan.persistent is not None:
        yield from _count("persistent", plan.persistent, most=_MOST_RESIDENT)
    if plan.pipeline is not None:
        pipeline = plan.pipeline
        own = [*_tuple("pipeline.consumer_tile", pipeline.consumer_tile, 2)]
        yield from own
        if (
            not own
            and not tile
            and any(e > t for e, t in zip(pipeline.consumer_tile, plan.cta_tile, strict=False))
        ):
            have = pipeline.consumer_tile
            yield f"pipeline.consumer_tile = {have!r}; the tile of a CTA, {plan.cta_tile!r}, has less."
        yield from _count("pipeline.stages", pipeline.stages, most=_MOST_STAGES)
        for name in ("consumers", "consumer_warps"):
            yield from _count(
                f"pipeline.{name}", getattr(pipeline, name), most=MAX_THREADS_PER_BLOCK // WARP_THREADS
            )
        yield from _count("pipeline.stagger_cycles", pipeline.stagger_cycles, 0, _MOST_CYCLES)
        if pipeline.ctas is not None:
            yield from _count("pipeline.ctas", pipeline.ctas, most=_MOST_RESIDENT)
        if pipeline.gpcs is not None:
            yield from pipeline.gpcs.violations()
    if plan.slots is not None:
        yield from _tuple("slots.subtile", plan.slots.subtile, 2)
        yield from _count("slots.count", plan.slots.count, most=_MOST_STAGES)


def _count(name: str, value: Any, least: int = 1, most: int | None = None) -> Iterator[str]:
    if not _is_integer(value):
        yield f"{name} = {value!r}; an integer is expected."
    elif value < least:
        yield f"{name} = {value}; at least {least} is expected."
    elif most is not None and value > most:
        yield f"{name} = {value}; at most {most} is expected."


def _tuple(name: str, value: tuple[Any, ...], modes: int) -> Iterator[str]:
    if len(value) != modes or any(not _is_integer(extent) or extent < 1 for extent in value):
        yield f"{name} = {value!r}; {modes} positive integers are expected."


def _parts(plan: GemmPlan) -> Iterator[str]:
    for name, parts, kind in (
        ("roles", plan.roles, Role),
        ("packs", plan.packs, Packing),
    ):
        if any(not isinstance(part, kind) for part in parts):
            yield f"{name} = {parts!r}; {kind.__name__} alone is expected in it."
            return
    if not plan.roles:
        yield "a plan has no roles; at least one is expected."
    for role in plan.roles:
        yield from _count(f"the warps of the role {role.name}", role.warps)
        if role.registers is not None:
            yield from _count(f"the registers of the role {role.name}", role.registers)
    if plan.mma_order not in ("m", "n"):
        yield f"mma_order = {plan.mma_order!r}; m or n is expected."
    family = plan.tiled_mma.atom.name.split(".")[0]
    if plan.family not in _ATOMS:
        yield f"the family is {plan.family!r}; {', '.join(_ATOMS)} are there."
    elif family != _ATOMS[plan.family]:
        yield (
            f"plans of the family {plan.family} multiply by {_ATOMS[plan.family]} atoms; {plan.tiled_mma.atom.name} is "
            "none."
        )


def _layouts(plan: GemmPlan) -> Iterator[str]:
    for name, layout in (("A", plan.smem_a), ("B", plan.smem_b), ("D", plan.smem_d)):
        rule = None if layout is None else layout_rule(layout)
        if rule is not None:
            yield f"the shared memory of {name}, {layout}, {rule}"
    boxes: list[tuple[str, TiledCopy | TmaBox | None]] = [("A", plan.load_a), ("B", plan.load_b)]
    if plan.slots is not None:
        boxes += [("D", plan.slots.store), ("C", plan.slots.load_c)]
    for name, box in boxes:
        if isinstance(box, TmaBox) and len(box.box) != 2:
            yield f"{name} moves by {box}, of {len(box.box)} modes; a tile is moved by boxes of 2."


def _moves(plan: GemmPlan) -> Iterator[str]:
    """Copy atoms that move other elements, or from and to elsewhere, than where they stand."""
    ops, slots = plan.operands, plan.slots
    arrives = "shared" if plan.stages else "register"
    leaves = "global" if plan.smem_d is None else "shared"
    parts: list[tuple[str, Any, DType, str, str]] = [
        ("load_a", plan.load_a, ops.a.dtype, "global", arrives),
        ("load_b", plan.load_b, ops.b.dtype, "global", arrives),
        ("read_a", plan.read_a, ops.a.dtype, "shared", "register"),
        ("read_b", plan.read_b, ops.b.dtype, "shared", "register"),
        ("store_d", plan.store_d, ops.d.dtype, "register", leaves),
        ("copy_d", plan.copy_d, ops.d.dtype, "shared", "global"),
    ]
    if slots is not None:
        parts += [
            ("slots.to_shared", slots.to_shared, ops.d.dtype, "register", "shared"),
            ("slots.store", slots.store, ops.d.dtype, "shared", "global"),
            ("slots.from_shared", slots.from_shared, ops.c.dtype, "shared", "register"),
        ]
        if slots.to_shared.atom != plan.store_d:
            yield f"store_d is {plan.store_d}, but the slots are written by {slots.to_shared.atom}; one is expected."
    for name, given, dtype, src, dst in parts:
        atom = given.atom if isinstance(given, TiledCopy) else given
        if not isinstance(atom, CopyAtom):
            continue  # None, or a box
        if isinstance(given, TiledCopy):
            if len(given.tiler_mn) != 2:
                yield f"{name} is {given}; a tile of 2 modes is expected."
            if any(stride < 0 for stride in given.layout_tv.flat()[1]):
                yield f"{name} is {given}; strides of 0 or more are expected."
        if atom.dtype != dtype:
            yield f"{name} is {atom}, of {atom.dtype}; elements of {dtype} are moved there."
        if atom.src not in ("any", src) or atom.dst not in ("any", dst):
            yield f"{name} is {atom}, from {atom.src} to {atom.dst} memory; from {src} to {dst} is expected."


def _scheduled(plan: GemmPlan) -> Iterator[str]:
    """The fields that a plan with a schedule has, and those that it has not."""
    if plan.cluster_mn != (1, 1) and plan.sums is None:
        yield f"the cluster is {plan.cluster_mn}; where all threads follow a schedule, a CTA is by itself."
    if plan.slots is not None:
        yield "D leaves through slots where a pipeline has consumers; all threads that follow a schedule copy it."
    for name in ("a", "b"):
        if plan.stages and getattr(plan, f"read_{name}") is None:
            yield f"read_{name} is None; how the fragments of {name.upper()} are read from shared memory is expected."


def _piped(plan: GemmPlan, pipeline: Pipeline) -> Iterator[str]:
    """The fields from which the programs of roles are made."""
    if plan.copy_d is not None:
        yield "copy_d is given; consumers of a pipeline store D by its slots, or out of registers."
    if pipeline.deferred and (plan.slots is None or not isinstance(plan.slots.store, TmaBox)):
        yield "a tile that is stored behind the products of the next leaves through slots, by TMA."
    if not _is_integer(pipeline.consumers):
        return
    names = [f"consumer {i}" for i in range(min(pipeline.consumers, len(plan.roles)))]
    expected = names if pipeline.kind == "single" else ["producer", *names]
    have = [role.name for role in plan.roles]
    if have != expected[: len(have)]:
        yield f"the roles are {', '.join(map(str, have))}; {', '.join(expected)} are expected."


def _steps(schedule: Schedule) -> Iterator[str]:
    yield from _count("schedule.stages", schedule.stages, 0, _MOST_STAGES)
    yield from _count("schedule.fragments", schedule.fragments, 1, _MOST_STAGES)
    count = 0
    for name in ("prologue", "body"):
        steps = getattr(schedule, name)
        if not isinstance(steps, tuple):
            yield f"schedule.{name} = {steps!r}; a tuple of steps is expected."
            continue
        for step in steps:
            yield from _step(f"{step} of schedule.{name}", step)
            times = step.times if isinstance(step, Repeat) and _is_integer(step.times) else 1
            count += times * (len(step.steps) if isinstance(step, Repeat) else 1)
    if count > _MOST_STEPS:
        yield f"the schedule has {count} steps; {_MOST_STEPS} at most are expected."


def _step(name: str, step: Step) -> Iterator[str]:
    if isinstance(step, Repeat):
        yield from _count(f"times in {name}", step.times)
        yield from _count(f"stride in {name}", step.stride, 0)
        for inner in step.steps:
            if not isinstance(inner, (Read, Multiply)):
                yield f"{name} has {inner!r}; Read and Multiply alone are expected in a Repeat."
            else:
                yield from _step(name, inner)
        return
    if not isinstance(step, (Fetch, Commit, Store, Wait, Sync, Read, Multiply)):
        yield f"{name} is no step."
        return
    for field in fields(step):
        yield from _count(f"{field.name} in {name}", getattr(step, field.name), int(field.name == "parts"))


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
