"""Rules for the types and bounds of a plan's fields.

The other rules compute with the fields. They are checked only if none of these rules is violated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from operator import gt
from typing import TYPE_CHECKING, Any

from cutegemm.dtypes import DType
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import MAX_THREADS_PER_BLOCK, WARP_THREADS
from cutegemm.plan.program.thread_schedule import Repeat, ThreadSchedule
from cutegemm.plan.rules.boxes import layout_rule
from cutegemm.plan.store import LineStore, SharedStore, StagedStore, TmaStore
from cutegemm.plan.typed import not_as_annotated
from cutegemm.plan.warp_roles import WarpRoles
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tma import TmaBox

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

# First word of the names of each family's MMA atoms
_ATOMS = {"simt": "fma", "mma_sync": "mma", "sm90": "wgmma"}
# Bounds that hold on every architecture
_MOST_STAGES = 1024  # a stage has at least 128 bytes; shared memory has 227 KiB
_MOST_CLUSTERED = 16  # CTAs of a cluster; more than 8 are not portable
_MAX_ACCUMULATORS = 1 << 20  # accumulators of a CTA, more than the registers of an SM hold
_MOST_DEEP = 1 << 16  # bK, in elements
_MOST_CYCLES = 1 << 26  # stagger_cycles; with 32 consumers the sum fits the 32-bit clock
_MOST_STEPS = 1 << 16  # steps of a schedule, with loops unrolled


def kind_rules(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence for each field of a plan that has a wrong type or is out of bounds.

    Types are compared with the annotations of the classes. Bounds are checked only if all types are right.
    """
    wrong = list(not_as_annotated(plan))
    names = [stream.name for stream in plan.streams] if not wrong else []
    if not wrong and (names[:2] != ["a", "b"] or len(set(names)) != len(names)):
        wrong.append(f"the streams are {', '.join(names) or 'none'}; the first two are a and b, and names differ.")
    if names[2:] and not plan.body.has_roles:
        wrong.append(f"the stream {names[2]} needs warp roles; a thread schedule loads A and B only.")
    if not wrong:
        for each in plan.streams:
            first, second = plan.operands.modes(each.name)
            if each.mode != first or second[0] != "k":
                wrong.append(
                    f"the stream {each.name} has the mode {each.mode}; its operand has {first} and {second}. The "
                    "modes of a stream are that of its operand and K."
                )
    yield from wrong
    if not wrong:
        yield from _counts(plan)
        yield from _parts(plan)
        yield from _layouts(plan)
        yield from _moves(plan)
        if isinstance(plan.body, WarpRoles):
            yield from _piped(plan, plan.body)
        else:
            yield from _steps(plan.body)
            yield from _scheduled(plan)


def _counts(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence for each extent or count of a plan that is less than 1, or larger than on any machine."""
    tile = [*_extents("cta_tile", plan.cta_tile)]
    yield from tile
    if plan.cta_tile[2] > _MOST_DEEP:
        yield f"cta_tile = {plan.cta_tile!r}; bK is larger than {_MOST_DEEP}. Take a smaller bK."
    cluster = [*_extents("cluster_mn", plan.cluster_mn)]
    yield from cluster
    if not cluster and product(plan.cluster_mn) > _MOST_CLUSTERED:
        yield f"cluster_mn = {plan.cluster_mn!r}; a cluster has at most {_MOST_CLUSTERED} CTAs."
    shared = [*_count("body.cluster_k", plan.body.cluster_k)]
    yield from shared
    if not tile and not cluster and not shared and product(plan.mma_tile[:2]) > _MAX_ACCUMULATORS:
        of = f"cta_tile = {plan.cta_tile!r}" + f" with a cluster split-K of {plan.cluster_k} CTAs" * (
            plan.cluster_k > 1
        )
        yield f"{of}; a CTA has more than {_MAX_ACCUMULATORS} accumulators. Take a smaller tile."
    yield from _count("ctas_per_sm", plan.ctas_per_sm)
    yield from plan.scheduler.bounds()
    if isinstance(plan.body, WarpRoles):
        pipeline = plan.body
        own = [*_extents("body.consumer_tile", pipeline.consumer_tile)]
        yield from own
        if not own and not tile and any(map(gt, pipeline.consumer_tile, plan.cta_tile)):
            yield (
                f"body.consumer_tile = {pipeline.consumer_tile!r}; it is larger than the CTA tile, {plan.cta_tile!r}."
            )
        yield from _count("body.stages", pipeline.stages, most=_MOST_STAGES)
        for name in ("consumers", "consumer_warps"):
            yield from _count(f"body.{name}", getattr(pipeline, name), most=MAX_THREADS_PER_BLOCK // WARP_THREADS)
        yield from _count("body.stagger_cycles", pipeline.stagger_cycles, 0, _MOST_CYCLES)
    if isinstance(plan.store, StagedStore):
        yield from _extents("store.epi_tile", plan.store.epi_tile)
        yield from _count("store.count", plan.store.count, most=_MOST_STAGES)


def _count(name: str, value: int, least: int = 1, most: int | None = None) -> Iterator[str]:
    """Yield a sentence if a count is not in [least, most].

    name    name of the field, for the message
    most    largest valid value; None: any
    """
    if value < least:
        yield f"{name} = {value}; at least {least} is expected."
    elif most is not None and value > most:
        yield f"{name} = {value}; at most {most} is expected."


def _extents(name: str, value: tuple[int, ...]) -> Iterator[str]:
    """Yield a sentence if one of the extents of a field is less than 1.

    name   name of the field, for the message
    """
    if min(value) < 1:
        yield f"{name} = {value!r}; {len(value)} positive integers are expected."


def _parts(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence for missing or empty roles, and for unknown values of `mma_order` and `family`."""
    if not plan.roles:
        yield "roles = (); a plan has at least one role."
    for role in plan.roles:
        yield from _count(f"the warps of the role {role.name}", role.warps)
        if role.registers is not None:
            yield from _count(f"the registers of the role {role.name}", role.registers)
    if plan.mma_order not in ("m", "n"):
        yield f"mma_order = {plan.mma_order!r}; expected 'm' or 'n'."
    family = plan.tiled_mma.atom.name.split(".")[0]
    if plan.family not in _ATOMS:
        yield f"family = {plan.family!r}; the families are {', '.join(_ATOMS)}."
    elif family != _ATOMS[plan.family]:
        yield (
            f"tiled_mma has the atom {plan.tiled_mma.atom.name}; plans of the family {plan.family} multiply "
            f"with {_ATOMS[plan.family]} atoms."
        )


def _layouts(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence for each layout that shared memory cannot have, and each TMA box that is not two-dimensional."""
    layouts = [(stream.name.upper(), stream.smem) for stream in plan.streams]
    for name, layout in (*layouts, ("D", plan.store.layout)):
        rule = None if layout is None else layout_rule(layout)
        if rule is not None:
            yield f"the shared memory of {name}, {layout}, {rule}"
    boxes: list[tuple[str, TiledCopy | TmaBox | None]] = [(each.name.upper(), each.load) for each in plan.streams]
    if isinstance(plan.store, TmaStore):
        boxes += [("D", plan.store.box), ("C", plan.store.load_c)]
    for name, box in boxes:
        if isinstance(box, TmaBox) and len(box.box) != 2:
            yield f"{name} is copied by {box}, which has {len(box.box)} modes. Boxes of a tile have 2."


def _moves(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence for each copy atom whose element type, source memory or target memory does not fit its field."""
    ops, store = plan.operands, plan.store
    arrives = "shared" if plan.stages else "register"
    chunks: list[tuple[str, Any, DType, str, str]] = [
        *[(f"{each.name}.load", each.load, ops.matrix(each.name).dtype, "global", arrives) for each in plan.streams],
        *[(f"{each.name}.read", each.read, ops.matrix(each.name).dtype, "shared", "register") for each in plan.streams],
    ]
    if isinstance(store, StagedStore):
        chunks.append(("store.to_shared", store.to_shared, ops.d.dtype, "register", "shared"))
    else:
        chunks.append(
            ("store.atom", store.atom, ops.d.dtype, "register", "shared" if store.reuses_stages else "global")
        )
    if isinstance(store, (SharedStore, LineStore)):
        chunks.append(("store.copy", store.copy, ops.d.dtype, "shared", "global"))
    if isinstance(store, TmaStore):
        chunks.append(("store.from_shared", store.from_shared, ops.c.dtype, "shared", "register"))
    for name, given, dtype, src, dst in chunks:
        atom = given.atom if isinstance(given, TiledCopy) else given
        if not isinstance(atom, CopyAtom):
            continue  # None, or a TMA box
        if isinstance(given, TiledCopy):
            if len(given.tiler_mn) != 2:
                yield f"{name} is {given}; its tile has {len(given.tiler_mn)} modes, not 2."
            if any(stride < 0 for stride in given.layout_tv.flat()[1]):
                yield f"{name} is {given}; it has a negative stride."
        if atom.dtype != dtype:
            yield f"{name} is {atom}, a copy of {atom.dtype}; the elements are {dtype}."
        if atom.src not in ("any", src) or atom.dst not in ("any", dst):
            yield (
                f"{name} is {atom}, which copies from {atom.src} to {atom.dst} memory; this copy is from {src} to "
                f"{dst} memory."
            )


def _scheduled(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence for each field that a plan with a thread schedule needs or must not have."""
    if plan.cluster_mn != (1, 1) and not plan.body.slices_k:
        yield (
            f"the cluster is {plan.cluster_mn}; a thread schedule has no clusters. Use cluster_mn = (1, 1), or "
            "warp roles."
        )
    if isinstance(plan.store, StagedStore):
        yield (
            "the store has epilogue stages; they need warp roles. Use another store: in a thread schedule all "
            "threads copy D."
        )
    for stream in plan.streams:
        if plan.stages and stream.read is None:
            name = stream.name
            yield (
                f"{name}.read is None; it is needed, because threads read the fragments of {name.upper()} from "
                "shared memory."
            )


def _piped(plan: GemmPlan, pipeline: WarpRoles) -> Iterator[str]:
    """Yield a sentence for each field that a plan with warp roles needs or must not have."""
    if isinstance(plan.store, SharedStore):
        yield (
            "the store is a SharedStore; with warp roles D is stored through epilogue stages or from registers. "
            "Use another store."
        )
    if pipeline.overlapped and not plan.store.stored_by_tma:
        yield (
            "an overlapped epilogue stores D through epilogue stages by TMA. Use store = 'tma', or leave "
            "overlapped out."
        )
    names = [f"consumer {i}" for i in range(min(pipeline.consumers, len(plan.roles)))]
    expected = names if pipeline.kind == "single" else ["producer", *names]
    have = [role.name for role in plan.roles]
    if have != expected[: len(have)]:
        yield f"the roles are {', '.join(map(str, have))}; they must be {', '.join(expected)}."


def _steps(schedule: ThreadSchedule) -> Iterator[str]:
    """Yield a sentence for each count of a thread schedule that is too small, and for too many steps."""
    yield from _count("body.stages", schedule.stages, 0, _MOST_STAGES)
    yield from _count("body.fragments", schedule.fragments, 1, _MOST_STAGES)
    count = 0
    for name in ("prologue", "k_tile"):
        for step in getattr(schedule, name):
            inner = step.steps if isinstance(step, Repeat) else ()
            count += step.times * len(inner) if inner else 1
            for part in (step, *inner):
                for field in fields(part):
                    least = int(field.name in ("chunks", "times"))
                    if field.name != "steps" and getattr(part, field.name) < least:
                        yield f"{part} of body.{name}: {field.name} is below {least}."
    if count > _MOST_STEPS:
        yield f"the schedule has {count} steps; at most {_MOST_STEPS} are allowed."
