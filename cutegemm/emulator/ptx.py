"""Parser of PTX text: modules that the CuTe DSL generates, and small kernels written by hand."""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass, field

from cutegemm.emulator.state import (
    SHARED_BASE,
    Immediate,
    Instruction,
    Memory,
    Negated,
    Operand,
    Pair,
    Register,
    Special,
    Vector,
)
from cutegemm.errors import UnsupportedError

_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8}
_SKIPPED = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)+", re.S)
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\((.*?)\)([^{]*)\{", re.S)
_PARAM = re.compile(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d+)\])?")
_SHARED = re.compile(r"\.shared\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)\s*\[(\d*)\]\s*;")
_MIN_BLOCKS = re.compile(r"\.minnctapersm\s+(\d+)")
_REG = re.compile(r"\.reg\s+\.(\w+)\s+(.+)", re.S)
_GUARD = re.compile(r"@(!?)([\w$%]+)\s+")
_SPECIALS = frozenset(
    [f"{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid",
                                   "cluster_ctaid", "cluster_nctaid") for axis in "xyz"]
    + ["laneid", "warpid", "nwarpid", "smid", "nsmid", "cluster_ctarank", "cluster_nctarank", "clock",
       "clock64", "globaltimer", "lanemask_eq", "lanemask_lt", "lanemask_le", "lanemask_gt", "lanemask_ge"]
)  # fmt: skip


@dataclass(frozen=True)
class Param:
    """A parameter of a PTX kernel, by its place in the bytes of all parameters.

    name     name of the parameter
    offset   number of bytes before it in the array of all parameters
    size     number of its bytes
    """

    name: str
    offset: int
    size: int


@dataclass
class Kernel:
    """A kernel (.entry function) of a PTX module, parsed.

    name            name of the kernel
    params          parameters, in order
    instructions    instructions, in the order of the text
    registers       all virtual registers; `Register.index` is the index in this list
    static_shared   bytes of shared memory that the module declares
    min_blocks      CTAs that must fit on an SM, .minnctapersm
    """

    name: str
    params: tuple[Param, ...]
    instructions: list[Instruction] = field(default_factory=list)
    registers: list[Register] = field(default_factory=list)
    static_shared: int = 0
    min_blocks: int = 1

    @property
    def param_bytes(self) -> int:
        """Return the number of bytes of all parameters of this kernel together."""
        return max((p.offset + p.size for p in self.params), default=0)


def parse(text: str) -> dict[str, Kernel]:
    """Parse all kernels of a PTX module: name -> kernel.

    raises   UnsupportedError, with the line, for text that is not understood

    >>> kernels = parse('''
    ... .visible .entry twice(.param .u64 at) {
    ...   .reg .b32 %r<3>; .reg .b64 %rd<2>;
    ...   ld.param.b64 %rd1, [at];
    ...   ld.global.b32 %r1, [%rd1+4];
    ...   add.s32 %r2, %r1, %r1;
    ...   ret;
    ... }''')
    >>> [i.name for i in kernels["twice"].instructions]
    ['ld.param.b64', 'ld.global.b32', 'add.s32', 'ret']
    """
    starts = [0, *(m.end() for m in re.finditer("\n", text))]
    symbols, used = _shared_symbols(text)
    kernels = {}
    for match in _ENTRY.finditer(text):
        bounds = _MIN_BLOCKS.search(match[3])
        kernel = Kernel(match[1], _params(match[2]), static_shared=used, min_blocks=int(bounds[1]) if bounds else 1)
        _Body(kernel, text, match.end(), starts, dict(symbols)).read()
        kernels[kernel.name] = kernel
    return kernels


def _shared_symbols(text: str) -> tuple[dict[str, int], int]:
    """Place the shared-memory arrays that a PTX module declares: (name -> address, bytes of all declared arrays).

    Arrays are placed in the order of the text. Dynamic shared memory, an array without a size, begins after them.
    """
    symbols, used = {}, 0
    for align, kind, name, count in _SHARED.findall(text):
        size = int(count or 0) * _width(kind)
        used = -(-used // int(align or 1)) * int(align or 1)
        symbols[name] = SHARED_BASE + used
        used += size
    return symbols, used


def _width(kind: str) -> int:
    """Return the number of bytes of a PTX type such as "u32", which has 4."""
    return _BYTES[kind[1:]]


def _params(text: str) -> tuple[Param, ...]:
    """Parse the parameter list of a PTX kernel.

    Each parameter is placed at its natural alignment, or as .align says.
    """
    out, end = [], 0
    for align, kind, name, count in _PARAM.findall(text):
        size = _width(kind) * int(count or 1)
        at = -(-end // int(align or size)) * int(align or size)
        out.append(Param(name, at, size))
        end = at + size
    return tuple(out)


class _Body:
    """Parser of the text between the braces of a PTX kernel.

    kernel    the kernel that gets the instructions and registers
    at        position in the text after the opening brace
    starts    start of each line in the text, in characters
    symbols   address of each shared-memory symbol
    """

    def __init__(self, kernel: Kernel, text: str, at: int, starts: list[int], symbols: dict[str, int]) -> None:
        self.kernel, self.text, self.at, self.starts = kernel, text, at, starts
        self.symbols = symbols | {p.name: p.offset for p in kernel.params}
        self.scopes: list[dict[str, Register]] = [{}]
        self.labels: list[dict[str, int]] = [{}]  # labels of each scope that was ever opened
        self.open = [0]  # indices in `labels` of the scopes that are open
        self.jumps: list[tuple[int, str, tuple[int, ...]]] = []

    def read(self) -> None:
        """Parse all statements of the kernel's body, then resolve the label of each branch to an instruction."""
        text = self.text
        while True:
            skipped = _SKIPPED.match(text, self.at)
            if skipped:
                self.at = skipped.end()
            if text[self.at] == "{":
                self.scopes.append({})
                self.labels.append({})
                self.open.append(len(self.labels) - 1)
                self.at += 1
            elif text[self.at] == "}":
                self.scopes.pop()
                self.open.pop()
                self.at += 1
                if not self.scopes:
                    break
            elif label := _LABEL.match(text, self.at):
                self.labels[self.open[-1]][label[1]] = len(self.kernel.instructions)
                self.at = label.end()
            else:
                end = text.index(";", self.at)
                statement = text[self.at : end]
                if statement.startswith("."):
                    self._directive(statement)
                else:
                    self._instruction(statement)
                self.at = end + 1
        for place, name, scopes in self.jumps:
            target = next((self.labels[s][name] for s in reversed(scopes) if name in self.labels[s]), None)
            if target is None:
                raise self._error(self.kernel.instructions[place].text, f"unknown label {name}")
            object.__setattr__(self.kernel.instructions[place], "target", target)

    def _directive(self, statement: str) -> None:
        """Parse a PTX directive: declare the registers of a .reg statement, and ignore every other directive."""
        match = _REG.match(statement)
        if match is None:
            return  # .pragma, .loc; .shared is read by `_shared_symbols`
        kind = match[1] if match[1] == "pred" else f"b{match[1][1:]}"
        for name in match[2].split(","):
            stem, counted, count = name.strip().partition("<")
            names = [f"{stem}{i}" for i in range(int(count[:-1]))] if counted else [stem]
            for full_name in names:
                register = Register(full_name, kind, len(self.kernel.registers))
                self.kernel.registers.append(register)
                self.scopes[-1][full_name] = register

    def _instruction(self, statement: str) -> None:
        """Parse one PTX instruction statement, and append the instruction to the kernel."""
        text = " ".join(statement.split())
        rest, guard = text, None
        if match := _GUARD.match(rest):
            guard, rest = (self._register(match[2], text), bool(match[1])), rest[match.end() :]
        name, _, operands = rest.partition(" ")
        opcode = tuple(name.replace("::", "\0").split("."))
        opcode = tuple([part.replace("\0", "::") for part in opcode])
        parts = _split(operands)
        if opcode[0] in ("bra", "brx"):
            self.jumps.append((len(self.kernel.instructions), parts[0], tuple(self.open)))
            parts = []
        line = bisect.bisect_right(self.starts, self.at)
        read = tuple([self._operand(part, text) for part in parts])
        self.kernel.instructions.append(Instruction(line, text, opcode, read, guard))

    def _register(self, name: str, text: str) -> Register:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        raise self._error(text, f"{name} is not declared")

    def _operand(self, part: str, text: str) -> Operand:
        if part == "_":
            return None
        if part[0] == "{":
            return Vector(tuple([self._operand(p, text) for p in _split(part[1:-1])]))
        if part[0] == "[":
            return self._memory(part[1:-1], text)
        if part[0] == "!":
            return Negated(self._register(part[1:].strip(), text))
        if "|" in part:
            first, second = (self._operand(p.strip(), text) for p in part.split("|"))
            return Pair(first, second)  # type: ignore[arg-type]
        for scope in reversed(self.scopes):
            if part in scope:
                return scope[part]
        if part[0] == "%" and part[1:] in _SPECIALS:
            return Special(part[1:])
        if part in self.symbols:
            return Immediate(self.symbols[part])
        return _immediate(part) or self._unknown(part, text)

    def _memory(self, inner: str, text: str) -> Memory:
        parts = _split(inner)
        coordinates = self._operand(parts[1], text) if len(parts) > 1 else None
        base, _, offset = parts[0].partition("+")
        operand = self._operand(base.strip(), text)
        if not isinstance(operand, (Register, Immediate)) or not isinstance(coordinates, (Vector, type(None))):
            raise self._error(text, f"[{inner}] is not an address")
        return Memory(operand, int(offset or "0", 0), coordinates)

    def _unknown(self, part: str, text: str) -> Operand:
        raise self._error(text, f"unknown operand {part}")

    def _error(self, text: str, reason: str) -> UnsupportedError:
        line = bisect.bisect_right(self.starts, self.at)
        return UnsupportedError(f"emulate: kernel {self.kernel.name}, line {line} of the PTX: {reason}: {text}")


def _immediate(part: str) -> Immediate | None:
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}", part):
        return Immediate(int(part[2:], 16), True)
    try:
        return Immediate(int(part.rstrip("U"), 0))
    except ValueError:
        return None


def _split(text: str) -> list[str]:
    """Split a PTX list of operands at the commas outside of brackets: "%r1, [%r2, 4]" has two."""
    out, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "{[":
            depth += 1
        elif c in "}]":
            depth -= 1
        elif c == "," and depth == 0:
            out.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*out, last] if last else out
