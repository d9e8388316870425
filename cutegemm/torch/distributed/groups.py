"""Groups of ranks: how a caller names them, and whether their GPUs can access each other's memory."""

from __future__ import annotations

import socket
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from cutegemm.errors import UnsupportedError

# Collectives by the names of torch 2.13, and of earlier versions.
gather_into: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_into: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def group_of(group: Any) -> dist.ProcessGroup:
    """Return the process group that a caller names.

    group    a torch.distributed.ProcessGroup, its name, a DeviceMesh of one dimension, or None for all ranks
    raises   UnsupportedError if torch.distributed is not initialized, or if `group` names no group
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise UnsupportedError(
            "group: torch.distributed is not initialized in this process. Start it by torchrun, and call "
            "torch.distributed.init_process_group first."
        )
    if group is None:
        return c10d._get_default_group()
    if isinstance(group, dist.ProcessGroup):
        return group
    if isinstance(group, str):
        try:
            return c10d._resolve_process_group(group)
        except (RuntimeError, ValueError) as error:
            raise UnsupportedError(f"group = {group!r} is not the name of a process group: {error}") from error
    if isinstance(group, dist.DeviceMesh):
        if group.ndim != 1:
            raise UnsupportedError(
                f"group is a DeviceMesh of {group.ndim} dimensions {group.mesh_dim_names}. Pass one dimension of it, "
                "such as mesh['tp']."
            )
        return group.get_group()
    raise UnsupportedError(
        f"group is a {type(group).__name__}. Pass a ProcessGroup, its name, a DeviceMesh of one dimension, or None."
    )


def traced_name_of(group: Any) -> str:
    """Return the name of a group in a function that torch.compile traces; Dynamo knows a few types of groups.

    group   as in `group_of`
    """
    if isinstance(group, str):
        return group
    own = dist.group.WORLD if group is None else group
    name: str = (own.get_group() if isinstance(own, dist.DeviceMesh) else own).group_name
    return name


def without_peer_access(group: dist.ProcessGroup, device: torch.device) -> str:
    """Return why the ranks of a group cannot access each other's memory, as a phrase; "" if nothing is known.

    All ranks of the group must call it together, because they exchange the names of their hosts.

    device   device of this rank's tensors
    """
    if device.type != "cuda":
        return f"the tensors are on {device.type}"
    own = (socket.gethostname(), str(torch.cuda.get_device_properties(device).uuid))
    places: list[Any] = [None] * group.size()
    dist.all_gather_object(places, own, group=group)
    hosts = list(dict.fromkeys(host for host, _ in places))
    if len(hosts) > 1:
        return f"the ranks are on {len(hosts)} hosts, {hosts[0]} and {hosts[1]} among them"
    if len(set(places)) < len(places):
        return "several ranks use one GPU"
    return ""
