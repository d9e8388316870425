"""The line of a program that code comes from: it stands in the machine code's line table where that is asked for.

    with noted():
        cute.compile(..., options="--generate-line-info ...")

The table then has the name of a program in the place of a file, and its lines: see `read`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from cutlass._mlir import ir
from cutlass._mlir_helpers.op import loc_transform

# In the place of a program's name: for what no step of one is, and for the schedule that all threads follow.
ELSEWHERE, ALL_THREADS = "kernel", "all threads"
_APART = 1000  # lines of the table for one of a program: those of assembly that stands in it are counted on
_here: ContextVar[tuple[str, int]] = ContextVar("here", default=(ELSEWHERE, 0))


@contextmanager
def noted() -> Iterator[None]:
    """Whatever is traced inside says which line it comes from."""
    with loc_transform(lambda _: ir.Location.file(_here.get()[0], (_here.get()[1] + 1) * _APART, 1)):
        yield


@contextmanager
def from_line(program: str, line: int) -> Iterator[None]:
    """What is traced inside comes from a line of a program, counted from 0."""
    token = _here.set((program, line))
    try:
        yield
    finally:
        _here.reset(token)


def read(file: str, line: int, programs: tuple[str, ...]) -> tuple[str, int] | None:
    """The program and its line, counted from 0, of an entry of the table; None of what no step of one is."""
    return (file, line // _APART - 1) if file in programs and line >= _APART else None
