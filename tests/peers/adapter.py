"""A pytest plugin that runs a peer's own tests on this package's operations.

The peer's types stay: each operation converts its arguments to ours and the result back. It is put in the place of the
peer's own before the tests are imported, so that `from pycute import *` finds ours.

    CUTEGEMM_PEER=pycute python -m pytest -p tests.peers.adapter FOLDER_OF_THE_PEERS_TESTS
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import cutegemm.layout as ours
from cutegemm.layout import ComposedLayout, Layout, Swizzle

SAME = (
    "coalesce", "complement", "right_inverse", "left_inverse", "logical_divide", "logical_product", "zipped_divide",
    "tiled_divide", "flat_divide", "zipped_product", "tiled_product", "flat_product", "blocked_product",
    "raked_product", "max_common_vector", "max_common_layout", "size", "cosize",
)  # fmt: skip
# The peer's name of an operation -> ours.
OPERATIONS: dict[str, dict[str, Callable[..., Any]]] = {
    "pycute": {
        **{name: getattr(ours, name) for name in SAME},
        "composition": ours.composition,
        "filter": ours.filter,
        "complement": lambda layout, cotarget=1: ours.complement(layout, cotarget),
    },
    "tensor_layouts": {
        **{name: getattr(ours, name) for name in SAME},
        "compose": ours.composition,
        "complement": lambda layout, bound=None: ours.complement(layout, layout.cosize() if bound is None else bound),
        "upcast": lambda layout, n: ours.recast_layout(n, 1, layout),
        "downcast": lambda layout, n: ours.recast_layout(1, n, layout),
    },
}


OWN: dict[str, Callable[..., Any]] = {}  # the peer's operations that ours replace


def converted(value: Any, theirs: Any) -> Any:
    """A peer's layout as ours; a tuple entry by entry."""
    if isinstance(value, (tuple, list)):
        return tuple([converted(v, theirs) for v in value])
    if isinstance(value, theirs.Layout):
        plain = Layout(value.shape, value.stride)
        swizzle = getattr(value, "swizzle", None)
        return plain if swizzle is None else ComposedLayout(converted(swizzle, theirs), 0, plain)
    if hasattr(theirs, "Swizzle") and isinstance(value, theirs.Swizzle):
        return Swizzle(value.bits, value.base, value.shift)
    return value


def returned(value: Any, theirs: Any) -> Any:
    """Our layout as the peer's."""
    if isinstance(value, Layout):
        return theirs.Layout(value.shape, value.stride)
    if isinstance(value, ComposedLayout):
        assert isinstance(value.inner, Swizzle)
        inner = theirs.Swizzle(value.inner.bits, value.inner.base, value.inner.shift)
        return OWN["compose"](inner, theirs.Layout(value.outer.shape, value.outer.stride))
    return tuple([returned(v, theirs) for v in value]) if isinstance(value, tuple) else value


def replaced(own: Callable[..., Any], operation: Callable[..., Any], theirs: Any) -> Callable[..., Any]:
    """Our operation with the peer's types; the peer's own for types that it has alone."""

    def call(*args: Any, **options: Any) -> Any:
        given = [converted(a, theirs) for a in args]
        if not all(isinstance(g, (Layout, ComposedLayout, Swizzle, int, tuple, type(None))) for g in given):
            return own(*args, **options)
        if not isinstance(given[0], (Layout, ComposedLayout, Swizzle)):
            return own(*args, **options)
        named = [converted(v, theirs) for v in options.values()]
        return returned(operation(*given, *named), theirs)

    return call


def pytest_configure() -> None:
    """Puts our operations in the places of the peer's."""
    peer = os.environ["CUTEGEMM_PEER"]
    theirs = importlib.import_module(peer)
    for name, operation in OPERATIONS[peer].items():
        if hasattr(theirs, name):
            OWN[name] = getattr(theirs, name)
            setattr(theirs, name, replaced(OWN[name], operation, theirs))
