"""mbarrier objects: pending arrivals and bytes of a phase, as the PTX ISA counts them.

A phase is complete when its pending arrivals and its pending bytes (tx-count) are both zero. The next phase then begins
with the number of arrivals that the barrier was initialised with. A thread waits for the parity of a phase: 0 for the
phases 0, 2, ... and 1 for the others. The PTX ISA leaves the 64 bits of the object opaque, so the emulator keeps its
barriers in a dictionary by address.
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
    """State of one mbarrier, a barrier in shared memory that counts arrivals and bytes.

    address     address of its 8 bytes in the CTA's shared memory
    arrivals    number of arrivals that complete each phase
    pending     number of arrivals that the current phase still needs
    tx_bytes    bytes that the current phase still needs; negative if more bytes have come than were expected so far
    phase       number of complete phases
    published   True after a fence that makes the initialisation visible to the cluster and to the async proxy
    born        number of complete phases of the cluster barrier when this mbarrier was initialised
    number      index among all mbarriers that its CTA has initialised

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
            raise RuleViolation(f"{self} is initialised with {self.arrivals} arrivals; use 1 to {MAX_COUNT}.")
        self.pending = self.arrivals

    def __str__(self) -> str:
        return f"the mbarrier at shared address {self.address}"

    def status(self) -> str:
        """Describe what the current phase of this mbarrier still needs: how many arrivals and bytes, as text."""
        return (
            f"phase {self.phase} of {self} lacks {self.pending} of {self.arrivals} arrivals and {self.tx_bytes} bytes"
        )

    def arrive(self, count: int = 1, expected_bytes: int = 0, may_complete: bool = True) -> int:
        """Execute an arrival at this mbarrier: expect `expected_bytes` more bytes, then count `count` arrivals.

        may_complete   False for .noComplete, which must not complete the phase
        returns        the token of the phase before the arrival; `completed_state` tests it
        raises         RuleViolation if the current phase needs fewer arrivals than `count`
        """
        if not 1 <= count <= MAX_COUNT:
            raise RuleViolation(f"{count} arrivals at {self}; an instruction may make 1 to {MAX_COUNT}.")
        if count > self.pending:
            raise RuleViolation(
                f"{count} arrivals at {self}, but {self.status()}: there are too many arrivals, or mbarrier.init has "
                "too few.",
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
        """Make the current phase of this mbarrier wait for `size` more bytes, which TMA or st.async will write."""
        self._add_bytes(size)
        self._flip()

    def complete_tx(self, size: int) -> None:
        """Count `size` bytes that TMA or st.async has written, towards the current phase of this mbarrier."""
        self._add_bytes(-size)
        self._flip()

    def completed(self, parity: int) -> bool:
        """Return whether the phase of this mbarrier with the given parity is complete, as try_wait.parity does.

        The phase is the current one or the one before it, whichever has the parity.

        parity   0 or 1
        """
        if parity not in (0, 1):
            raise RuleViolation(f"a wait for parity {parity} of {self}; a parity is 0 or 1.")
        return self.phase & 1 != parity

    def completed_state(self, token: int) -> bool:
        """Return whether the phase of a token is complete, as try_wait with a state does.

        token    returned by `arrive` during that phase
        raises   RuleViolation if the phase is neither the current one nor the one before it
        """
        if token not in (self.phase, self.phase - 1):
            raise RuleViolation(
                f"a wait at {self} with the state {token:#x}, neither of its current phase nor of the one before.",
            )
        return token != self.phase

    def _add_bytes(self, size: int) -> None:
        """Add `size`, which may be negative, to the bytes that the current phase needs.

        raises   RuleViolation if the tx-count overflows
        """
        self.tx_bytes += size
        if not -MAX_TX_BYTES <= self.tx_bytes <= MAX_TX_BYTES:
            raise RuleViolation(
                f"the tx-count of {self} would be {self.tx_bytes} bytes; its range is +-{MAX_TX_BYTES}.",
            )

    def _flip(self) -> None:
        """Begin the next phase of this mbarrier if the current one needs no more arrivals and no more bytes."""
        if self.pending == 0 and self.tx_bytes == 0:
            self.phase += 1
            self.pending = self.arrivals


class MBarriers:
    """The mbarriers of one CTA, as a map from their addresses in shared memory.

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
        """Execute mbarrier.init at an address of this CTA's shared memory, and return the new mbarrier.

        arrivals   number of arrivals that complete each phase
        raises     RuleViolation for a misaligned address, a bad number of arrivals, or an address that has an mbarrier
        """
        _check_aligned(address)
        if address in self._at:
            raise RuleViolation(
                f"{self._at[address]} is initialised again; execute mbarrier.inval first.",
            )
        self._at[address] = MBarrier(address, arrivals, number=self._made)
        self._made += 1
        return self._at[address]

    def inval(self, address: int) -> None:
        """Execute mbarrier.inval: remove the mbarrier at an address, so that the memory can be used again."""
        self.at(address)
        del self._at[address]

    def at(self, address: int) -> MBarrier:
        """Return the mbarrier at an address of this CTA's shared memory.

        raises   RuleViolation if no mbarrier is initialised there
        """
        barrier = self._at.get(address)
        if barrier is None:
            _check_aligned(address)
            known = ", ".join(str(at) for at in sorted(self._at)) or "none"
            raise RuleViolation(f"no mbarrier is initialised at shared address {address}; mbarriers: {known}.")
        return barrier

    def get(self, address: int) -> MBarrier | None:
        """Return the mbarrier at an address, or None if no mbarrier is initialised there."""
        return self._at.get(address)


def _check_aligned(address: int) -> None:
    if address % MBARRIER_BYTES:
        raise RuleViolation(
            f"an mbarrier at shared address {address}, which is not a multiple of {MBARRIER_BYTES}.",
        )
