"""How a product is to be computed; and what calls were prepared as, by the signature of their arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

_MOST_SIGNATURES = 4096
BLAS_SCALARS = {"alpha": 1.0, "beta": 0.0}  # numbers of `gemm` without an epilogue, if they are not passed


@dataclass(frozen=True)
class How:
    """How a product is to be computed: the options of `gemm` that a plan is chosen by."""

    plan: GemmPlan | str | None = None
    accumulate: str = "fast"
    allow_tf32: bool = False
    varying_rows: bool = False
    tune: bool = False

    @property
    def options(self) -> tuple[Any, ...]:
        """The values of the fields, in their order. Dynamo does not follow `dataclasses.astuple`."""
        return self.plan, self.accumulate, self.allow_tf32, self.varying_rows, self.tune


def shapes_of(a: Any, b: Any) -> str:
    """How errors name a call."""
    return f"{tuple(a.shape)} by {tuple(b.shape)}"


class Calls:
    """Calls of one kind, by signature. `found` is a plain dictionary, which a warm call reads without this class.

    >>> calls = Calls()
    >>> calls.keep(("a signature",), "what carries it out")
    >>> calls.found
    {('a signature',): 'what carries it out'}
    """

    def __init__(self, most: int = _MOST_SIGNATURES) -> None:
        self.found: dict[Any, Any] = {}
        self.most = most
        _ALL.add(self)

    def keep(self, signature: Any, call: Any) -> None:
        """Remembers a call; of too many, all others are forgotten."""
        if len(self.found) >= self.most:
            self.found.clear()
        self.found[signature] = call


_ALL: WeakSet[Calls] = WeakSet()


def forget() -> None:
    """Lets every call be prepared anew: what it would be prepared as has changed.

    >>> calls = Calls()
    >>> calls.keep("a signature", "what carries it out")
    >>> forget()
    >>> calls.found
    {}
    """
    for calls in list(_ALL):
        calls.found.clear()
