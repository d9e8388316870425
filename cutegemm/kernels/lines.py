"""Note in the machine code's line table which line of a program an instruction comes from.

    with noted():
        cute.compile(..., options="--generate-line-info ...")

Entries of the table then have the name of a program instead of a file, and a line of that program: see `read`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from cutlass._mlir import ir
from cutlass._mlir_helpers.op import loc_transform

# Names instead of a program's name: for code outside of all steps, and for the schedule of all threads.
ELSEWHERE, ALL_THREADS = "kernel", "all threads"
_APART = 1000  # lines of the table for one line of a program, because lines of inline assembly are counted as well
_here: ContextVar[tuple[str, int]] = ContextVar("here", default=(ELSEWHERE, 0))


@contextmanager
def noted() -> Iterator[None]:
    """Context manager that records in the kernel's line table which step of a plan's program its code comes from.

    It holds for all code that is traced in the `with` body. A profile of the kernel can then be read by steps of the
    plan.
    """
    with loc_transform(lambda _: ir.Location.file(_here.get()[0], (_here.get()[1] + 1) * _APART, 1)):
        yield


@contextmanager
def from_line(program: str, line: int) -> Iterator[None]:
    """Context manager that attributes traced code to one line of a plan's program, in the kernel's line table.

    program   name of the program, such as "producer"
    line      line of the printed program, counted from 0
    """
    token = _here.set((program, line))
    try:
        yield
    finally:
        _here.reset(token)


def read(file: str, line: int, programs: tuple[str, ...]) -> tuple[str, int] | None:
    """Return the (program, line) of a plan that an entry of the kernel's line table stands for; None if for none.

    Lines of a program are counted from 0.

    file, line   file name and line number of the entry
    programs     names of the programs that may occur
    """
    return (file, line // _APART - 1) if file in programs and line >= _APART else None
