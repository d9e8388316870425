"""Handlers: wgmma, whose operands and results are its own until its group is waited for.

A product is carried out when its group is waited for, by the shared memory of that moment. Meanwhile the
registers that it has must be left alone; and what touched them before must be fenced from it by `wgmma.fence`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cutegemm.emulator.hopper.faults import RuleViolation
from cutegemm.emulator.hopper.proxy import Request, proxy_of
from cutegemm.emulator.hopper.wgmma import Descriptor, Shape, a_of_registers, matrix_of_units
from cutegemm.emulator.machine import Action, Decoded, Group, Machine
from cutegemm.emulator.state import WARPGROUP, Immediate, Instruction, Negated, Register, Step, Vector, handles


@dataclass(frozen=True)
class _Product:
    """One wgmma of one warpgroup. a: a descriptor, or the registers that hold it."""

    instruction: Instruction
    shape: Shape
    accumulators: tuple[int, ...]
    a: Descriptor | np.ndarray
    b: Descriptor
    a_registers: tuple[int, ...]
    accumulates: bool
    signs: tuple[int, int]
    mn_major: tuple[bool, bool]


@dataclass
class _Warpgroup:
    """first: its first thread. touched: registers that were used since the last fence; None before the first."""

    first: int
    open: list[_Product] = field(default_factory=list)
    groups: list[list[_Product]] = field(default_factory=list)
    touched: set[int] | None = None

    @property
    def products(self) -> Iterator[_Product]:
        """The products under way."""
        for group in (*self.groups, self.open):
            yield from group

    def busy(self) -> frozenset[int]:
        """Registers of products under way."""
        return frozenset([r for p in self.products for r in (*p.accumulators, *p.a_registers)])


def _warpgroups(machine: Machine) -> dict[int, _Warpgroup]:
    if "warpgroups" not in machine.private:
        machine.private["warpgroups"] = {}
    return machine.private["warpgroups"]


def _each(step: Step) -> Iterator[tuple[int, _Warpgroup]]:
    """(which of step.threads, warpgroup) of those that stand here."""
    held = _warpgroups(step.machine)
    for i in range(0, len(step.threads), WARPGROUP):
        first = int(step.threads[i])
        yield i, held.setdefault(first, _Warpgroup(first))


# --- registers that are a product's own --------------------------------------------------------------------


def watch(program: list[Decoded]) -> list[Decoded]:
    """The program with a look at each instruction that uses registers which some wgmma has."""
    owned = {r for d in program if _is_product(d.instruction) for r in _registers(d.instruction)}
    if not owned:
        return program
    return [
        d if _is_product(d.instruction) or not owned.intersection((*d.reads, *d.writes)) else _watched(d, owned)
        for d in program
    ]


def _is_product(instruction: Instruction) -> bool:
    return instruction.opcode[:2] == ("wgmma", "mma_async")


def _registers(instruction: Instruction) -> list[int]:
    vectors = [operand for operand in instruction.operands if isinstance(operand, Vector)]
    return [r.index for v in vectors for r in v.items if isinstance(r, Register)]


def _watched(decoded: Decoded, owned: set[int]) -> Decoded:
    used = owned.intersection((*decoded.reads, *decoded.writes))
    action: Action = decoded.action

    def act(m: Machine, group: Group) -> bool | None:
        held = _warpgroups(m)
        for first in group.warpgroups if held else ():
            warpgroup = held.get(first)
            if warpgroup is None:
                continue
            if warpgroup.touched is not None:
                warpgroup.touched |= used
            clash = used & warpgroup.busy() if warpgroup.groups or warpgroup.open else ()
            if clash:
                name = m.kernel.registers[min(clash)].name
                product = next(p for p in warpgroup.products if min(clash) in (*p.accumulators, *p.a_registers))
                raise m.error(
                    decoded.instruction,
                    int(group.threads[group.threads >= first][0]),
                    f"it uses {name}, which the wgmma of line {product.instruction.line} still has: "
                    "wgmma.wait_group is missing before it.",
                )
        return action(m, group)

    return replace(decoded, action=act)


# --- instructions ------------------------------------------------------------------------------------------


@handles("wgmma.fence", scope="warpgroup")
def _fence(step: Step) -> None:
    for _, warpgroup in _each(step):
        warpgroup.touched = set()


@handles("wgmma.commit_group", scope="warpgroup")
def _commit(step: Step) -> None:
    for _, warpgroup in _each(step):
        warpgroup.groups.append(warpgroup.open)
        warpgroup.open = []


@handles("wgmma.wait_group", scope="warpgroup")
def _wait(step: Step) -> None:
    """Until all groups but the last so many are done."""
    (count,) = step.operands
    assert isinstance(count, Immediate)
    for _, warpgroup in _each(step):
        due = max(0, len(warpgroup.groups) - count.bits)
        products = [product for group in warpgroup.groups[:due] for product in group]
        del warpgroup.groups[:due]
        _carry_out(step.machine, warpgroup, products)


@handles("wgmma.mma_async", scope="warpgroup")
def _product(step: Step) -> None:
    """{sums}, a, b, whether to add{, signs of a and b{, whether a and b are MN-major}}."""
    accumulators, a, b, scale, *more = step.operands
    flags = [operand.bits for operand in more]
    signs = (flags[0], flags[1]) if len(flags) >= 2 else (1, 1)
    from_registers = isinstance(a, Vector)
    mn_major = (False, bool(flags[2])) if from_registers and len(flags) == 3 else (False, False)
    if len(flags) == 4:
        mn_major = (bool(flags[2]), bool(flags[3]))
    try:
        shape = Shape.of(step.instruction.opcode)
    except RuleViolation as violations:
        raise step.fail(str(violations)) from None
    registers = tuple([r.index for r in accumulators.items])
    a_registers = tuple([r.index for r in a.items]) if from_registers else ()
    if len(registers) != shape.registers:
        raise step.fail(f"{len(registers)} registers of sums; the shape has {shape.registers}.")
    adds = _predicate(step, scale)
    for i, warpgroup in _each(step):
        here = slice(i, i + WARPGROUP)
        _check_free(step, warpgroup, shape, registers, a_registers)
        of_a: Descriptor | np.ndarray
        if from_registers:
            of_a = np.stack([step.get(r, np.uint32)[here] for r in a.items], axis=1)
        else:
            of_a = Descriptor.of(_uniform(step, a, here, np.uint64, "descriptor of A"))
        warpgroup.open.append(
            _Product(
                step.instruction,
                shape,
                registers,
                of_a,
                Descriptor.of(_uniform(step, b, here, np.uint64, "descriptor of B")),
                a_registers,
                bool(_same(step, adds[here], here, "scale-d")),
                signs,
                mn_major,
            )
        )


def _predicate(step: Step, scale: Any) -> np.ndarray:
    if isinstance(scale, (Register, Negated)):
        return step.get(scale, bool)
    assert isinstance(scale, Immediate)
    return np.full(len(step.threads), scale.bits != 0)


def _uniform(step: Step, operand: Any, here: slice, kind: Any, name: str) -> int:
    return int(_same(step, step.get(operand, kind)[here], here, name))


def _same(step: Step, values: np.ndarray, here: slice, name: str) -> Any:
    """The value that all threads of a warpgroup must have."""
    differ = np.flatnonzero(values != values[0])
    if len(differ):
        raise step.fail(f"the {name} differs within the warpgroup.", int(step.threads[here][differ[0]]))
    return values[0]


def _check_free(
    step: Step, warpgroup: _Warpgroup, shape: Shape, accumulators: tuple[int, ...], a_registers: tuple[int, ...]
) -> None:
    """Whether a product may have its registers. raises EmulationError"""
    touched = warpgroup.touched
    if touched is None or touched.intersection((*accumulators, *a_registers)):
        what = "its first wgmma" if touched is None else "using the registers of this wgmma"
        raise step.fail(f"no wgmma.fence between {what} and what came before.", warpgroup.first)
    for other in warpgroup.products:
        shared = set(other.accumulators) & set(accumulators)
        alike = (other.accumulators, other.shape) == (accumulators, shape)
        if (
            (shared and not alike)
            or set(other.accumulators) & set(a_registers)
            or set(other.a_registers) & set(accumulators)
        ):
            raise step.fail(
                f"its registers are still those of the wgmma of line {other.instruction.line}.",
                warpgroup.first,
            )


# --- the product -------------------------------------------------------------------------------------------


def _carry_out(machine: Machine, warpgroup: _Warpgroup, products: list[_Product]) -> None:
    """Products in their order; sums stay out of the registers until the last of them."""
    here = slice(warpgroup.first, warpgroup.first + WARPGROUP)
    accumulators: dict[tuple[int, ...], tuple[Shape, np.ndarray]] = {}
    for product in products:
        shape, key = product.shape, product.accumulators
        before = None
        if product.accumulates:
            if key in accumulators:
                before = accumulators[key][1]
            else:
                _forbid_holes(machine, product, here)
                held = np.stack([machine.value(r, here) for r in key], axis=1)
                before = shape.accumulators(held)
        a, b = _operands(machine, warpgroup, product)
        accumulators[key] = shape, shape.multiply(a, b, before)
    for key, (shape, values) in accumulators.items():
        columns = np.ascontiguousarray(shape.held(values).T)
        threads = np.arange(here.start, here.stop)
        for register, column in zip(key, columns, strict=True):
            machine.value(register, None)[here] = column
            if register in machine.holes:
                machine.mark_holes(register, threads, 0)


def _forbid_holes(machine: Machine, product: _Product, here: slice) -> None:
    if machine.holes:
        machine.forbid_holes(product.accumulators, Group(np.arange(here.start, here.stop), machine.total), "a sum")


def _operands(machine: Machine, warpgroup: _Warpgroup, product: _Product) -> tuple[np.ndarray, np.ndarray]:
    shape = product.shape
    if isinstance(product.a, Descriptor):
        a = _matrix(machine, warpgroup, product, product.a, 64, shape.a, product.mn_major[0])
    else:
        a = a_of_registers(product.a, shape.a)
    b = _matrix(machine, warpgroup, product, product.b, shape.n, shape.b, product.mn_major[1])
    return (a if product.signs[0] == 1 else -a), (b if product.signs[1] == 1 else -b)


def _matrix(
    machine: Machine,
    warpgroup: _Warpgroup,
    product: _Product,
    descriptor: Descriptor,
    rows: int,
    dtype: Any,
    mn_major: bool,
) -> np.ndarray:
    """An operand (rows, K) out of shared memory, as all four warps read it. raises EmulationError"""
    first = warpgroup.first
    try:
        units = descriptor.units(rows, dtype.bits, mn_major)
    except RuleViolation as violations:
        raise machine.error(product.instruction, first, str(violations)) from None
    agents = tuple([int(machine.agent_of[first + lane]) for lane in range(0, WARPGROUP, 32)])
    slot = int(machine.block_of[first])
    request = Request(machine, product.instruction, first, slot, units.reshape(-1), warps=agents)
    raw = proxy_of(machine).read(request)
    return matrix_of_units(raw.reshape(*units.shape, -1), dtype, mn_major)
