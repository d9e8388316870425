"""Many kernels in one CUDA graph, and the time of its replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

Launch = Callable[[int], Any]  # the work of a number


def graph_of(launch: Launch, count: int) -> Any:
    """Return a CUDA graph of `count` launches in a row, after one replay."""
    import torch

    for number in range(count):
        launch(number)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(count):
            launch(number)
    graph.replay()
    torch.cuda.synchronize()
    return graph


def alternating(graphs: Mapping[str, Any], count: int, replays: int) -> dict[str, float]:
    """Return the microseconds of one launch of each graph by name: the median of replays in alternating order."""
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(replays):
        for name, graph in graphs.items():
            times[name].append(_microseconds(graph, count))
    return {name: median(found) for name, found in times.items()}


def _microseconds(graph: Any, count: int) -> float:
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / count
