"""Carry out a call: by the engine if the ranks can access each other's memory, else by collectives and a GEMM."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist

from cutegemm.errors import UnsupportedError
from cutegemm.ranks import predictions
from cutegemm.run.calls import How
from cutegemm.run.torch_ops import DTYPES, FLOAT8, device_of
from cutegemm.torch.distributed.engine import Engine, Request
from cutegemm.torch.distributed.groups import gather_into, group_of, reduce_scatter_into, without_peer_access
from cutegemm.torch.distributed.memory import SymmetricMemory
from cutegemm.torch.distributed.work import Gathered, Reduced, new_results, new_sum
from cutegemm.torch.epilogue import OutDtype
from cutegemm.torch.launch import AS_CHOSEN


class PeerWarning(UserWarning):
    """Issued once for a group whose ranks cannot access each other's memory; the message gives the reason.

    The result is right, but communication does not overlap with GEMMs.
    """


@dataclass
class Ranks:
    """What this process keeps for a group: the group, and its engine, or None without peer access."""

    group: dist.ProcessGroup
    engine: Engine | None


_known: dict[tuple[str, torch.device], Ranks] = {}


def ranks_of(name: str, device: torch.device) -> Ranks:
    """Return what this process keeps for a group. All ranks make the first call for a group together.

    name     name of the group
    device   device of the tensors
    """
    group = group_of(name)
    found = _known.get((name, device))
    if found is None or found.group is not group:
        found = _known[name, device] = Ranks(group, _engine(group, device))
    return found


def _engine(group: dist.ProcessGroup, device: torch.device) -> Engine | None:
    """Return a new engine for a group; None, with a warning that gives the reason, if it has no peer access."""
    if group.size() == 1:
        return None
    reason, memory = without_peer_access(group, device), None
    if not reason:
        try:
            memory = SymmetricMemory(group, device)
        except RuntimeError as error:
            reason = f"torch's symmetric memory reports: {error}"
        reasons: list[Any] = [""] * group.size()
        dist.all_gather_object(reasons, reason, group=group)
        reason = next(filter(None, reasons), "")
    if memory is not None and not reason:
        return Engine(memory, device)
    if device.type == "cuda":
        warnings.warn(
            f"cutegemm.torch.distributed, group {group.group_name!r}: the ranks cannot access each other's memory, "
            f"because {reason}. Collectives of torch.distributed run before or after each GEMM instead.",
            PeerWarning,
            stacklevel=2,
        )
    return None


@lru_cache(maxsize=4096)
def request_of(
    operation: str,
    ranks: int,
    m: int,
    n: int,
    k: int,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    form: str | None = None,
    device_index: int = 0,
) -> Request:
    """Return the description of a call, in the form and number of chunks that have the lowest predicted time.

    ranks          number of ranks
    form           form that the caller wants; None: any
    device_index   index of the GPU of this rank, whose rates the prediction uses
    others         as for `engine.Request`
    raises         UnsupportedError if the operation does not have the form for this number of rows
    """
    options = predictions(operation, ranks, m, n, k, DTYPES[dtype], DTYPES[out_dtype], device=device_of(device_index))
    for option in options:
        if form in (None, option.schedule.form):
            way = option.schedule
            return Request(operation, m, n, k, dtype, out_dtype, way.form, way.chunks)
    raise UnsupportedError(f"{operation} of {m} rows on {ranks} ranks has no form {form!r}. Leave out form.")


def gathered(
    a: torch.Tensor,
    b: Sequence[torch.Tensor],
    text: str,
    operands: Sequence[torch.Tensor],
    scalars: Sequence[float],
    out_dtype: OutDtype,
    ranks: Ranks,
    form: str | None = None,
    how: How = AS_CHOSEN,
) -> list[torch.Tensor]:
    """Return the results of an epilogue of the rows of all ranks times this rank's weights.

    a           rows of this rank, M/R x K
    b           weights of this rank, each K x N_i. Several have a plain result each
    text        the epilogue as text, with `operands` and `scalars`
    out_dtype   torch dtype of all results, or a sequence with a dtype or None for each; None: the default of `gemm`
    ranks       the group
    form        form of the schedule; None: chosen
    """
    size = ranks.group.size()
    a = a.contiguous()
    work = Gathered(a, b, text, operands, scalars, new_results(a, size, b, text, out_dtype), how)
    if ranks.engine is not None:
        n, (rows, k) = sum(part.shape[1] for part in b), a.shape
        kinds = a.dtype, work.d.dtype
        request = request_of("all_gather", size, rows * size, n, k, *kinds, form, a.get_device())
        ranks.engine.run(request, work)
    else:
        work.multiply(all_rows(a, ranks.group), None, 0, (), True)
    return list(work.results)


def reduce_scattered(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, ranks: Ranks, form: str | None = None
) -> torch.Tensor:
    """Return this rank's rows of the sum over the ranks of a @ b, plus the bias.

    a, b   M x K and K x N: columns of A and rows of B of this rank
    bias   (N,), the same on all ranks; or None
    ranks  the group
    form   form of the schedule; None: chosen
    """
    size = ranks.group.size()
    work = Reduced(a, b, bias, new_sum(a, b, size))
    if ranks.engine is not None:
        _run_reduced(ranks.engine, "reduce_scatter", size, work, form)
    elif size == 1:
        work.multiply(a, None, 0, (), True)
    else:
        product = new_sum(a, b)
        Reduced(a, b, None, product).multiply(a, None, 0, (), False)
        reduce_scatter_into(work.d, product, group=ranks.group)
        _add_bias(work)
    return work.d


def all_reduced(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, ranks: Ranks, form: str | None = None
) -> torch.Tensor:
    """Return the sum over the ranks of a @ b, plus the bias. The arguments are those of `reduce_scattered`."""
    size = ranks.group.size()
    work = Reduced(a, b, bias, new_sum(a, b))
    if ranks.engine is not None:
        _run_reduced(ranks.engine, "all_reduce", size, work, form)
    elif size == 1:
        work.multiply(a, None, 0, (), True)
    else:
        work.multiply(a, None, 0, (), False)
        dist.all_reduce(work.d, group=ranks.group)
        _add_bias(work)
    return work.d


def _run_reduced(engine: Engine, operation: str, size: int, work: Reduced, form: str | None) -> None:
    """Execute the schedule of a reduction over `size` ranks."""
    (m, k), n = work.x.shape, work.b.shape[1]
    kinds = work.x.dtype, work.d.dtype
    engine.run(request_of(operation, size, m, n, k, *kinds, form, work.x.get_device()), work)


def _add_bias(work: Reduced) -> None:
    """Add the bias to a sum that a collective has computed."""
    if work.bias is not None:
        work.d.add_(work.bias)


def all_rows(a: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Return the rows of all ranks, by a collective.

    a   rows of this rank, contiguous
    """
    if group.size() == 1:
        return a
    rows = a.new_empty((a.shape[0] * group.size(), *a.shape[1:]))
    as_bytes = a.dtype in FLOAT8  # a type that collectives do not know
    gather_into(*[x.view(torch.uint8) if as_bytes else x for x in (rows, a)], group=group)
    return rows
