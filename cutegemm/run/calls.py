"""The options of `gemm`, and caches of prepared calls, whose keys are the signatures of the arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

_MOST_SIGNATURES = 4096
BLAS_SCALARS = {"alpha": 1.0, "beta": 0.0}  # defaults of `gemm` without an epilogue


@dataclass(frozen=True)
class How:
    """The arguments of `gemm` that the choice of a plan depends on, apart from its tensors and its epilogue.

    The docstring of `gemm` describes each field.
    """

    plan: GemmPlan | str | None = None
    accumulate: str = "fast"
    allow_tf32: bool = False
    varying_rows: bool = False
    tune: bool = False

    @property
    def options(self) -> tuple[Any, ...]:
        """Return the values of all fields, in order. Dynamo cannot trace `dataclasses.astuple`."""
        return self.plan, self.accumulate, self.allow_tf32, self.varying_rows, self.tune


def shapes_of(a: Any, b: Any) -> str:
    """Return the shapes of a and b as error messages print them: "(4, 8) by (8, 16)"."""
    return f"{tuple(a.shape)} by {tuple(b.shape)}"


class Calls:
    """A cache of prepared calls: (signature of the arguments) -> (kernel that is compiled and ready to launch).

    The signature consists of everything that the choice of the kernel depends on, such as types, shapes and strides.

    found   the entries: signature -> prepared call. It is a plain dictionary, which `gemm` reads directly
    most    largest number of entries. If there are as many, a new one replaces all of them

    >>> calls = Calls()
    >>> calls.keep(("a signature",), "a prepared call")
    >>> calls.found
    {('a signature',): 'a prepared call'}
    """

    def __init__(self, most: int = _MOST_SIGNATURES) -> None:
        self.found: dict[Any, Any] = {}
        self.most = most
        _ALL.add(self)

    def keep(self, signature: Any, call: Any) -> None:
        """Add a prepared call under the signature of its arguments. A full cache is emptied first."""
        if len(self.found) >= self.most:
            self.found.clear()
        self.found[signature] = call


_ALL: WeakSet[Calls] = WeakSet()  # every cache of this process


def forget() -> None:
    """Empty all caches of prepared calls. This is needed when a signature would get another plan than before.

    >>> calls = Calls()
    >>> calls.keep("a signature", "a prepared call")
    >>> forget()
    >>> calls.found
    {}
    """
    for calls in list(_ALL):
        calls.found.clear()
