"""The options of `gemm`, and caches of prepared calls, whose keys are the signatures of the arguments."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from cutegemm.machine.device import Device
    from cutegemm.plan.memory.rows import RowKernel
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.run.question import Question

_MOST_SIGNATURES = 4096
BLAS_SCALARS = {"alpha": 1.0, "beta": 0.0}  # defaults of `gemm` without an epilogue


@dataclass(frozen=True)
class How:
    """The options of a `gemm` call that the choice of a plan depends on, other than its tensors and its epilogue.

    The fields have the names and the meaning of the arguments of `gemm`: plan, accumulate, allow_tf32, varying_rows,
    tune and batch_invariant.
    """

    plan: GemmPlan | str | None = None
    accumulate: str = "fast"
    allow_tf32: bool = False
    varying_rows: bool = False
    tune: bool = False
    batch_invariant: bool = False

    @property
    def options(self) -> tuple[Any, ...]:
        """Return the values of all fields of these options, in order, as part of a key.

        It replaces `dataclasses.astuple`, which Dynamo cannot trace.
        """
        return self.plan, self.accumulate, self.allow_tf32, self.varying_rows, self.tune, self.batch_invariant


ENTERED: list[None] = []  # one entry for each active `batch_invariant`. Appending and removing are atomic


@contextmanager
def batch_invariant() -> Iterator[None]:
    """Make the result of a row independent of the other rows of the batch, while the context is active.

    All numbers of rows then use plans that add the products of an element in the same order, so that a row of D has
    the same bits in every batch. This holds for `gemm`, for all functions and modules of `cutegemm.torch`, and for
    gradients by the input in backward passes of calls in the context. Gradients of weights and biases are sums over
    the rows.

    A call that no such plan can compute raises an error; so does one that torch would compute, such as one on the
    CPU. `gemm(..., batch_invariant=False)` exempts a single call.

    The context affects all threads of the process, among them those of autograd. Contexts may be nested.
    torch.compile compiles a function again when it is called in a context for the first time.

    >>> with cutegemm.batch_invariant():  # doctest: +SKIP
    ...     assert torch.equal(cutegemm.gemm(a, b)[:1], cutegemm.gemm(a[:1], b))
    """
    ENTERED.append(None)
    try:
        yield
    finally:
        ENTERED.pop()


def is_batch_invariant(wanted: bool | None = None) -> bool:
    """Return True if a call of `gemm` must be batch invariant: each row has the same bits whatever the other rows are.

    wanted   the argument `batch_invariant` of the call; None: True inside of the context `batch_invariant()`

    >>> is_batch_invariant(), is_batch_invariant(True)
    (False, True)
    """
    return bool(ENTERED) if wanted is None else wanted


class Asking(threading.local):
    """State of a thread while the context `prepare.asking` is active; `gemm` calls then only describe themselves.

    A call of `gemm` launches nothing in this context. It adds a `Question` (types, extents, epilogue) to a list.

    questions   the list of the calls so far; None: the context is not active
    kernels     (kernel, architecture) of each grouped GEMM, and of each kernel of the rows of experts, so far
    device      device that plans are chosen for; None: that of the tensors
    """

    questions: list[Question] | None = None
    kernels: list[tuple[GemmPlan | RowKernel, str]] | None = None
    device: Device | None = None

    def notes(self, kernel: GemmPlan | RowKernel, arch: str) -> bool:
        """Add a kernel to the list if the context is active. Return whether it is, so that nothing may be launched."""
        if self.kernels is None:
            return False
        self.kernels.append((kernel, arch))
        return True


ASKING = Asking()


def shapes_of(a: Any, b: Any) -> str:
    """Return the shapes of a and b as error messages print them: "(4, 8) by (8, 16)"."""
    return f"{tuple(a.shape)} by {tuple(b.shape)}"


class Calls:
    """Cache of prepared `gemm` calls: finds by a signature the functions that allocate the result and launch a kernel.

    The signature consists of everything that the choice of the kernel depends on, such as types, shapes and strides.

    found   the entries: signature -> prepared call; a plain dictionary, because that is the fastest to read
    most    largest number of entries. Adding one to a full cache empties it first

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
        """Add a prepared call to this cache; a full cache is emptied first.

        Nothing is added while the context `prepare.asking` is active, because calls then only describe themselves and
        have no kernel.

        signature   key of the call: types, shapes and strides of its tensors, and its options
        call        functions that allocate the result and launch the kernel
        """
        if ASKING.questions is not None:
            return
        if len(self.found) >= self.most:
            self.found.clear()
        self.found[signature] = call


_ALL: WeakSet[Calls] = WeakSet()  # every cache of this process


def forget() -> None:
    """Empty all caches of prepared `gemm` calls, so that the next call of each signature chooses its plan again.

    Call this when the same arguments should get another plan than before, for example after loading tuned plans.

    >>> calls = Calls()
    >>> calls.keep("a signature", "a prepared call")
    >>> forget()
    >>> calls.found
    {}
    """
    for calls in list(_ALL):
        calls.found.clear()
