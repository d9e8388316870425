"""mbarrier objects: arrivals and bytes of a phase, as the PTX ISA counts them.

A phase is complete when its pending arrivals and its pending bytes (tx-count) are both zero; the next one begins
at once with the arrivals that the barrier was initialised with. A waiter asks for the parity of a phase: phase 0,
2, ... is even. The 64 bits in memory are opaque there, so the objects are kept beside memory, by address.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cutegemm.emulator.hopper.faults import RuleViolation

MBARRIER_BYTES = 8
# PTX ISA, "Contents of the mbarrier object".
MAX_COUNT = 2**20 - 1
MAX_TX_BYTES = 2**20 - 1


@dataclass
class MBarrier:
    """One barrier.

    address      of its 8 bytes in its CTA's shared memory, for messages
    number       of the barriers of its CTA before it
    arrivals     of a phase
    pending      arrivals that the current phase lacks
    tx_bytes     bytes that it lacks; below zero while more have come than were announced
    phase        how many phases are complete
    published    whether a fence has made the initialisation known to the cluster and to the async proxy
    born         how often the cluster's barrier had been passed when it was initialised

    >>> barrier = MBarrier(address=1024, arrivals=1)
    >>> barrier.expect_tx(64); _ = barrier.arrive(); barrier.completed(0)
    False
    >>> barrier.complete_tx(64); barrier.completed(0), barrier.completed(1)
    (True, False)
    """

    address: int
    arrivals: int
    pending: int = field(init=False)
    tx_bytes: int = 0
    phase: int = 0
    published: bool = False
    born: int = 0
    number: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.arrivals <= MAX_COUNT:
            raise RuleViolation(f"{self} is initialised with {self.arrivals} arrivals; 1 to {MAX_COUNT} may be.")
        self.pending = self.arrivals

    def __str__(self) -> str:
        return f"the mbarrier at shared address {self.address}"

    def status(self) -> str:
        """What the current phase lacks, in words."""
        return (
            f"phase {self.phase} of {self} lacks {self.pending} of {self.arrivals} arrivals and {self.tx_bytes} bytes"
        )

    def arrive(self, count: int = 1, expected_bytes: int = 0, may_complete: bool = True) -> int:
        """`count` arrivals, after `expected_bytes` more are expected; the state: a token of the phase before.

        may_complete   False for .noComplete, which must not complete the phase
        raises         RuleViolation where the phase has not so many arrivals left
        """
        if not 1 <= count <= MAX_COUNT:
            raise RuleViolation(f"{count} arrivals at {self}; an instruction has 1 to {MAX_COUNT}.")
        if count > self.pending:
            raise RuleViolation(
                f"{count} arrivals at {self}, but {self.status()}: one arrival too many, or too few at its init.",
            )
        if not may_complete and count == self.pending:
            raise RuleViolation(f"an arrival with .noComplete completes a phase: {self.status()}.")
        token = self.phase
        if expected_bytes:
            self._add_bytes(expected_bytes)
        self.pending -= count
        self._flip()
        return token

    def expect_tx(self, size: int) -> None:
        """The current phase is to wait for so many bytes more."""
        self._add_bytes(size)
        self._flip()

    def complete_tx(self, size: int) -> None:
        """So many bytes have come."""
        self._add_bytes(-size)
        self._flip()

    def completed(self, parity: int) -> bool:
        """Whether the phase of this parity that is the current one, or the one before it, is complete."""
        if parity not in (0, 1):
            raise RuleViolation(f"a wait for parity {parity} of {self}; 0 or 1 is expected.")
        return self.phase & 1 != parity

    def completed_state(self, token: int) -> bool:
        """Whether the phase that a token of `arrive` was given for is complete."""
        if token not in (self.phase, self.phase - 1):
            raise RuleViolation(
                f"a wait at {self} with the state {token:#x}, neither of its current phase nor of the one before.",
            )
        return token != self.phase

    def _add_bytes(self, size: int) -> None:
        self.tx_bytes += size
        if not -MAX_TX_BYTES <= self.tx_bytes <= MAX_TX_BYTES:
            raise RuleViolation(
                f"{self} would wait for {self.tx_bytes} bytes, out of +-{MAX_TX_BYTES}.",
            )

    def _flip(self) -> None:
        if self.pending == 0 and self.tx_bytes == 0:
            self.phase += 1
            self.pending = self.arrivals


class MBarriers:
    """The barriers of one CTA's shared memory.

    >>> barriers = MBarriers()
    >>> barriers.init(1024, 1) is barriers.at(1024)
    True
    """

    def __init__(self) -> None:
        self._at: dict[int, MBarrier] = {}
        self._made = 0

    def __iter__(self) -> Iterator[MBarrier]:
        return iter(self._at.values())

    def init(self, address: int, arrivals: int) -> MBarrier:
        """mbarrier.init: the new barrier."""
        _check_aligned(address)
        if address in self._at:
            raise RuleViolation(
                f"{self._at[address]} is initialised again; that is for memory that holds none: mbarrier.inval first.",
            )
        self._at[address] = MBarrier(address, arrivals, number=self._made)
        self._made += 1
        return self._at[address]

    def inval(self, address: int) -> None:
        """mbarrier.inval: the memory may be used again."""
        self.at(address)
        del self._at[address]

    def at(self, address: int) -> MBarrier:
        """The barrier of an address.

        raises   RuleViolation where none has been initialised there
        """
        found = self._at.get(address)
        if found is None:
            _check_aligned(address)
            known = ", ".join(str(at) for at in sorted(self._at)) or "none"
            raise RuleViolation(f"no mbarrier is initialised at shared address {address}; there is {known}.")
        return found

    def get(self, address: int) -> MBarrier | None:
        """The barrier of an address; None where none has been initialised there."""
        return self._at.get(address)


def _check_aligned(address: int) -> None:
    if address % MBARRIER_BYTES:
        raise RuleViolation(
            f"an mbarrier at shared address {address}, which is no multiple of {MBARRIER_BYTES}.",
        )
