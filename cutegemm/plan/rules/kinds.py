"""Rules for the types and bounds of a plan's fields.

The other rules compute with the fields. They are checked only if none of these rules is violated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cutegemm.layout.inttuple import product
from cutegemm.plan.access import Move
from cutegemm.plan.rules.bounds import count_rule, extents_rule
from cutegemm.plan.rules.boxes import layout_rule
from cutegemm.plan.typed import not_as_annotated
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tma import TmaBox

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

# First word of the names of each family's MMA atoms
_ATOMS = {"simt": "fma", "mma_sync": "mma", "sm90": "wgmma"}
# Bounds that hold on every architecture
_MOST_CLUSTERED = 16  # CTAs of a cluster; more than 8 are not portable
_MAX_ACCUMULATORS = 1 << 20  # accumulators of a CTA, more than the registers of an SM hold
_MOST_DEEP = 1 << 16  # bK, in elements


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
        yield from plan.store.needs(plan)
        yield from plan.body.needs(plan)


def _counts(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence for each extent or count of a plan that is less than 1, or larger than on any machine."""
    tile = [*extents_rule("cta_tile", plan.cta_tile)]
    yield from tile
    if plan.cta_tile[2] > _MOST_DEEP:
        yield f"cta_tile = {plan.cta_tile!r}; bK is larger than {_MOST_DEEP}. Take a smaller bK."
    cluster = [*extents_rule("cluster_mn", plan.cluster_mn)]
    yield from cluster
    if not cluster and product(plan.cluster_mn) > _MOST_CLUSTERED:
        yield f"cluster_mn = {plan.cluster_mn!r}; a cluster has at most {_MOST_CLUSTERED} CTAs."
    shared = [*count_rule("body.cluster_k", plan.body.cluster_k)]
    yield from shared
    if not tile and not cluster and not shared and product(plan.mma_tile[:2]) > _MAX_ACCUMULATORS:
        of = f"cta_tile = {plan.cta_tile!r}" + f" with a cluster split-K of {plan.cluster_k} CTAs" * (
            plan.cluster_k > 1
        )
        yield f"{of}; a CTA has more than {_MAX_ACCUMULATORS} accumulators. Take a smaller tile."
    yield from count_rule("ctas_per_sm", plan.ctas_per_sm)
    yield from plan.scheduler.bounds()
    yield from plan.body.bounds(plan)
    yield from plan.store.bounds()


def _parts(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence for missing or empty warp roles, and for unknown values of `mma_order` and `family`."""
    if not plan.roles:
        yield "roles = (); a plan has at least one role."
    for role in plan.roles:
        yield from count_rule(f"the warps of the role {role.name}", role.warps)
        if role.registers is not None:
            yield from count_rule(f"the registers of the role {role.name}", role.registers)
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
    for name, box in (*boxes, *plan.store.boxes):
        if isinstance(box, TmaBox) and len(box.box) != 2:
            yield f"{name} is copied by {box}, which has {len(box.box)} modes. Boxes of a tile have 2."


def _moves(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence for each copy atom whose element type, source memory or target memory does not fit its field."""
    ops, streams = plan.operands, plan.streams
    arrives = "shared" if plan.stages else "register"
    loads = [Move(f"{each.name}.load", each.load, ops.matrix(each.name).dtype, "global", arrives) for each in streams]
    reads = [Move(f"{each.name}.read", each.read, ops.matrix(each.name).dtype, "shared") for each in streams]
    for name, given, dtype, source, target in (*loads, *reads, *plan.store.moves(ops)):
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
        if atom.src not in ("any", source) or atom.dst not in ("any", target):
            yield (
                f"{name} is {atom}, which copies from {atom.src} to {atom.dst} memory; this copy is from {source} to "
                f"{target} memory."
            )
