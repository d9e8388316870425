"""Change the epilogue of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cutegemm.build.epi_stages import line_columns, warpgroup_epi_stages
from cutegemm.build.mma_sync import lines_of_d
from cutegemm.build.mma_sync_tma import by_gated_warps
from cutegemm.errors import PlanError
from cutegemm.plan.epilogue import Epilogue, Function
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand, Operands
from cutegemm.plan.store import RegisterStore, SharedStore, StagedStore, Store, TmaStore

# Columns of lines that threads store, if the epilogue has auxiliary outputs; with 64, kernels spilled registers.
_COLUMNS_OF_SEVERAL = 32


def with_epilogue(epilogue: Epilogue, plan: GemmPlan, aux: Mapping[str, Operand] | None = None) -> GemmPlan:
    """Return a copy of a plan with another epilogue, i.e. another expression that computes D from the accumulators.

    The shared memory for D is laid out again if the epilogue is gated, which halves the columns of D's tile, or if
    threads store long rows and the epilogue needs their registers.

    epilogue   the new epilogue
    plan       the plan to copy
    aux        element type, majorness and alignment of the epilogue's operands and auxiliary outputs, by name; None:
               those of C and D
    raises     PlanError with every rule that the new plan breaks

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.plan.epilogue import Accumulator
    >>> from cutegemm.plan.epilogue.functions import swiglu
    >>> from cutegemm.plan.problem import Operands
    >>> plan = sm90_plan(Operands.of("bf16", layout="nt"), tile=(128, 192, 64))
    >>> gated = with_epilogue(Epilogue(swiglu(Accumulator())), plan)
    >>> gated.d_tile, plan.store.epi_tile, gated.store.epi_tile
    ((128, 96), (64, 64), (64, 32))
    """
    if epilogue.gated and plan.body.has_roles and plan.cluster_k > 1:
        rule = "a gated epilogue cannot be combined with cluster split-K. Use another plan."
        raise PlanError(f"plan {plan.name!r} for {epilogue}", [rule])
    operands = plan.operands.with_aux(**aux or {}).as_gated(epilogue.gated, epilogue.halved)
    if not epilogue.gated and not _takes_registers_of_lines(epilogue, plan):
        return plan.with_(operands=operands, epilogue=epilogue)
    if not plan.tiled_mma.atom.is_of_warpgroup and plan.body.has_roles:
        changes = by_gated_warps(f"plan {plan.name!r} for {epilogue}", plan, operands)
        return plan.with_(operands=operands, epilogue=epilogue, **changes)
    if isinstance(plan.store, StagedStore):
        return _through_epi_stages(epilogue, plan, plan.store, operands)
    if isinstance(plan.store, SharedStore):
        return _through_shared(epilogue, plan, plan.store, operands)
    return plan.with_(operands=operands, epilogue=epilogue)


def _takes_registers_of_lines(epilogue: Epilogue, plan: GemmPlan) -> bool:
    """Return True if a plan's epilogue tiles are so wide that a new epilogue would not find enough free registers.

    It matters only if threads store D in accesses of less than 16 bytes. Each thread then holds a piece of a row in
    registers, which grows with the width of the epilogue tile. A new epilogue needs registers too, for its functions,
    operands, auxiliary outputs and reductions. The caller then makes narrower epilogue tiles.

    epilogue   the new epilogue
    plan       the plan with its present epilogue tiles
    """
    store = plan.store
    if not isinstance(store, StagedStore) or not store.rotates_lines or plan.consumer_warps == 1:
        return False
    computes = any(isinstance(node, Function) for node in epilogue.expression.nodes())
    if not (computes or epilogue.tensors or epilogue.outputs[1:] or epilogue.reductions):
        return False
    columns, most = plan.consumer_tile[1], _most_columns(epilogue, store)
    return store.epi_tile[1] > line_columns(plan.operands.d, columns, most=most, with_operands=True)


def _most_columns(epilogue: Epilogue, store: StagedStore) -> int | None:
    """Return the largest width of an epilogue tile that threads store, in columns; None: no limit.

    Auxiliary outputs limit it, because all outputs of a row are computed together and need registers.

    epilogue   the new epilogue
    store      how the plan stores D now, through epilogue stages
    """
    return _COLUMNS_OF_SEVERAL if store.rotates_lines and epilogue.outputs[1:] else None


def _through_shared(epilogue: Epilogue, plan: GemmPlan, store: SharedStore, operands: Operands) -> GemmPlan:
    """Return a copy of a SIMT or mma.sync plan that has a gated epilogue; the plan stores D through shared memory.

    A gated epilogue combines each gate column of the accumulators with its up column, so D's tile has half as many
    columns. The new mma.sync plan stores this tile through shared memory with a new layout. The new SIMT plan stores it
    from registers.

    epilogue   the gated epilogue
    plan       the plan to copy
    store      how this plan stores D now
    operands   the plan's operands with those of the epilogue
    """
    changed: Store = RegisterStore(store.atom)
    if plan.family == "mma_sync":
        bm, bn, bk = plan.cta_tile
        subject = f"plan {plan.name!r} for {epilogue}"
        changed = lines_of_d(subject, operands, (bm, bn // 2, bk), plan.threads, store.atom)
    return plan.with_(operands=operands, epilogue=epilogue, store=changed)


def _through_epi_stages(epilogue: Epilogue, plan: GemmPlan, store: StagedStore, operands: Operands) -> GemmPlan:
    """Return a copy of a warp-specialized plan that has another epilogue, and new epilogue stages for it.

    Epilogue stages are shared-memory buffers for D on its way to global memory. Their width depends on the epilogue.

    epilogue   the new epilogue, i.e. an expression that computes D from the accumulators
    plan       the plan to copy
    store      how this plan stores D now
    operands   the plan's operands A to D, with those of the new epilogue
    """
    rows, columns = plan.consumer_tile
    d_tile = (rows, columns // 2 if epilogue.gated else columns)
    shared_d, stored = "padded", (store.epi_tile[0], "evict_normal")
    if isinstance(store, TmaStore):
        shared_d = "plain" if store.box.swizzle == "none" else "swizzled"
        stored = (store.box.box[1] if operands.d.major == "n" else store.epi_tile[0], store.box.l2_policy)
    first = next(iter(epilogue.tiles), "c")
    subject = f"plan {plan.name!r} for {epilogue}"
    with_first = replace(operands, c=operands.matrix(first))
    most = _most_columns(epilogue, store)
    builder = warpgroup_epi_stages(subject, with_first, d_tile[1], plan.tiled_mma.atom.a_source, most)
    consumers, with_c = plan.body.consumers, bool(epilogue.tiles)
    changed = builder.epi_stages(d_tile, consumers, stored, shared_d, None, None, with_c, True)
    return plan.with_(operands=operands, epilogue=epilogue, store=changed)
