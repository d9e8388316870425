"""From a plan to one that ends in another epilogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cutegemm.build.epi_stages import line_columns, warpgroup_epi_stages
from cutegemm.build.mma_sync import lines_of_d
from cutegemm.build.mma_sync_tma import by_gated_warps
from cutegemm.errors import PlanError
from cutegemm.plan.epilogue import Epilogue, Function
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand, Operands
from cutegemm.plan.warp_roles import EpiStages
from cutegemm.tile.tma import TmaBox

_COLUMNS_OF_SEVERAL = 32  # of lines that threads store: with 64, kernels of several results were seen to spill


def with_epilogue(epilogue: Epilogue, plan: GemmPlan, aux: Mapping[str, Operand] | None = None) -> GemmPlan:
    """A plan that ends in an epilogue.

    aux      what its operands and results are made of, where it is not what C and D are made of
    raises   PlanError with every rule that is then broken

    Where the epilogue is gated, D's tile has half the columns that are summed up: its way through shared memory is made
    anew for them. So it is where threads store long rows, and the epilogue takes the registers of that.

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.plan.epilogue import Accumulator
    >>> from cutegemm.plan.epilogue.functions import swiglu
    >>> from cutegemm.plan.problem import Operands
    >>> plan = sm90_plan(Operands.of("bf16", layout="nt"), tile=(128, 192, 64))
    >>> gated = with_epilogue(Epilogue(swiglu(Accumulator())), plan)
    >>> gated.d_tile, plan.epi_stages.epi_tile, gated.epi_stages.epi_tile
    ((128, 96), (64, 64), (64, 32))
    """
    if epilogue.gated and plan.body.has_roles and plan.cluster_k > 1:
        rule = "where the epilogue is gated, CTAs do not share K. Take another plan."
        raise PlanError(f"plan {plan.name!r} for {epilogue}", [rule])
    operands = plan.operands.with_aux(**aux or {}).as_gated(epilogue.gated, epilogue.halved)
    if not epilogue.gated and not _takes_registers_of_lines(epilogue, plan):
        return plan.with_(operands=operands, epilogue=epilogue)
    if not plan.tiled_mma.atom.is_of_warpgroup and plan.body.has_roles:
        changes = by_gated_warps(f"plan {plan.name!r} for {epilogue}", plan, operands)
        return plan.with_(operands=operands, epilogue=epilogue, **changes)
    if plan.epi_stages is not None:
        return _through_epi_stages(epilogue, plan, operands)
    if not plan.body.has_roles and plan.smem_d is not None:
        return _through_shared(epilogue, plan, operands)
    return plan.with_(operands=operands, epilogue=epilogue)


def _takes_registers_of_lines(epilogue: Epilogue, plan: GemmPlan) -> bool:
    """Whether a consumer's threads store by less than 16 bytes, and their epilogue tiles are wider than they are to be
    beside an epilogue that has functions, operands or several results."""
    epi_stages = plan.epi_stages
    if epi_stages is None or not epi_stages.rotates_lines or plan.consumer_warps == 1:
        return False
    computes = any(isinstance(node, Function) for node in epilogue.expression.nodes())
    if not (computes or epilogue.tensors or epilogue.outputs[1:] or epilogue.reductions):
        return False
    columns, most = plan.consumer_tile[1], _most_columns(epilogue, epi_stages)
    return epi_stages.epi_tile[1] > line_columns(plan.operands.d, columns, most=most, with_operands=True)


def _most_columns(epilogue: Epilogue, epi_stages: EpiStages) -> int | None:
    """Of lines of one of several results: those of the others are computed beside it."""
    return _COLUMNS_OF_SEVERAL if epi_stages.rotates_lines and epilogue.outputs[1:] else None


def _through_shared(epilogue: Epilogue, plan: GemmPlan, operands: Operands) -> GemmPlan:
    """A plan with a schedule, with shared memory for D's tile; of SIMT plans D leaves straight out of registers."""
    changes: dict[str, Any] = {"smem_d": None, "copy_d": None}
    if plan.family == "mma_sync":
        bm, bn, bk = plan.cta_tile
        subject = f"plan {plan.name!r} for {epilogue}"
        made = lines_of_d(subject, operands, (bm, bn // 2, bk), plan.threads, plan.store_d.values)
        changes = {"smem_d": made.smem, "copy_d": made.copy}
    return plan.with_(operands=operands, epilogue=epilogue, **changes)


def _through_epi_stages(epilogue: Epilogue, plan: GemmPlan, operands: Operands) -> GemmPlan:
    """A plan of a pipeline, with epilogue stages for D's tile."""
    epi_stages = plan.epi_stages
    assert epi_stages is not None
    rows, columns = plan.consumer_tile
    d_tile = (rows, columns // 2 if epilogue.gated else columns)
    shared_d, stored = "padded", (epi_stages.epi_tile[0], "evict_normal")
    if isinstance(epi_stages.store, TmaBox):
        shared_d = "plain" if epi_stages.store.swizzle == "none" else "swizzled"
        stored = (
            epi_stages.store.box[1] if operands.d.major == "n" else epi_stages.epi_tile[0],
            epi_stages.store.l2_policy,
        )
    first = next(iter(epilogue.tiles), "c")
    subject = f"plan {plan.name!r} for {epilogue}"
    with_first = replace(operands, c=operands.matrix(first))
    most = _most_columns(epilogue, epi_stages)
    builder = warpgroup_epi_stages(subject, with_first, d_tile[1], plan.tiled_mma.atom.a_source, most)
    made, smem_d = builder.epi_stages(
        d_tile, plan.body.consumers, stored, shared_d, None, None, bool(epilogue.tiles), True
    )
    return plan.with_(operands=operands, epilogue=epilogue, epi_stages=made, smem_d=smem_d, store_d=made.to_shared.atom)
