"""Which properties of an MMA instruction change the bits of an element of D, apart from its kind, K and types.

python -m docs.evidence instructions --json docs/evidence/data/instructions.json

It is not documented how tensor cores order the additions of an element. Each plan here multiplies the same
matrices and differs from the reference in one property: the instruction's N, whether A comes from registers or from
shared memory, the majorness of A and B there, and swap A/B. Then the same rows and columns are multiplied at other
places. D is f32, and its bits are compared. `cutegemm.plan.accumulation.DEPENDS_ON` holds the properties that count.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutegemm.choice.names import recipe_named
from cutegemm.choice.recipe import SWAP_AB
from cutegemm.dtypes import DType, tf32
from cutegemm.errors import CutegemmError
from cutegemm.plan.accumulation import DEPENDS_ON, PROPERTIES
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands
from docs.evidence.files import write_record
from docs.evidence.measure import DEVICE, machine, need_gpu

DTYPES = ("bf16", "f16", "tf32", "e4m3", "e5m2")
SHAPES = ((192, 512, 128), (192, 512, 4096))  # M, N, K
_WIDE = 256  # N of the reference instruction of wgmma
_EXPONENTS = {8: 3, 16: 8, 32: 8}  # bits of an element -> its numbers are scaled by powers of 2 up to this exponent


@dataclass(frozen=True)
class Probe:
    """A plan that differs from the reference of its kind in one property of the instruction.

    kind       "wgmma" or "mma"
    dtype      type of A and B
    property   "n", "a_source", "a_major", "b_major", "swap_ab"; "reference" for the plan that others are compared with
    value      value of the property
    name       name of the plan
    layout     BLAS letters of the layouts that the kernel gets the same A and B in
    """

    kind: str
    dtype: str
    property: str
    value: Any
    name: str
    layout: str = "nt"

    def plan(self) -> GemmPlan:
        """Return the plan.

        raises   CutegemmError if no plan has the name
        """
        recipe = recipe_named(self.name)
        return recipe.as_launched(recipe.build(Operands.of(self.dtype, layout=self.layout, out="f32")))


def probes(dtype: str) -> Iterator[Probe]:
    """Yield the plans that are compared for a type, the reference of each kind before its others.

    >>> [(probe.property, probe.value) for probe in probes("tf32") if probe.kind == "wgmma" and probe.property != "n"]
    [('reference', 256), ('swap_ab', True), ('a_source', 'register')]
    """
    bits = DType.parse(dtype).bits
    k_tile = 1024 // bits

    def wgmma(n: int) -> str:
        return f"sm90:tile=64x{n}x{k_tile},store=direct"

    yield Probe("wgmma", dtype, "reference", _WIDE, wgmma(_WIDE))
    for n in range(8, _WIDE, 8):
        yield Probe("wgmma", dtype, "n", n, wgmma(n))
    yield Probe("wgmma", dtype, "swap_ab", True, f"{SWAP_AB}{wgmma(_WIDE)}")
    if bits == 16:
        yield Probe("wgmma", dtype, "a_major", "mn", wgmma(_WIDE), "tt")
        yield Probe("wgmma", dtype, "b_major", "mn", wgmma(_WIDE), "nn")
    if bits == 32:  # only such an A is read into registers
        reading = f"sm90:tile=128x128x{k_tile},schedule=cooperative,store=direct"
        yield Probe("wgmma", dtype, "a_source", "register", reading, "tt")
    mma = f"mma_sync:block=64x64x{512 // bits}"
    yield Probe("mma", dtype, "reference", 8, mma)
    yield Probe("mma", dtype, "swap_ab", True, f"{SWAP_AB}{mma}")


def _matrices(m: int, n: int, k: int, dtype: DType) -> tuple[Any, Any]:
    """Return a (M, K) and b (N, K) whose numbers differ by many powers of 2, so that the order of additions shows."""
    import torch

    from cutegemm.run.torch_ops import memory_of

    most = _EXPONENTS[dtype.bits]

    def numbers(rows: int) -> Any:
        powers = torch.randint(-most, most + 1, (rows, k), device=DEVICE)
        values = (torch.randn(rows, k, device=DEVICE) * 2.0**powers).to(memory_of(dtype))
        if dtype is not tf32:
            return values
        return (values.view(torch.int32) & -(1 << 13)).view(torch.float32)  # no plan rounds such numbers

    torch.manual_seed(0)
    return numbers(m), numbers(n)


def _product(a: Any, b: Any, probe: Probe) -> Any:
    """Return a @ b.T in f32 by the plan of a probe.

    a, b   row-major, M x K and N x K
    """
    import torch

    from cutegemm.run.gemm import gemm

    a = a.t().contiguous().t() if probe.layout[0] == "t" else a
    columns = b.t().contiguous() if probe.layout[1] == "n" else b.t()
    return gemm(a, columns, plan=probe.plan(), out_dtype=torch.float32)


def compared(dtype: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each probe and shape: the property, its value, and how many elements of D have other bits."""
    import torch

    for m, n, k in SHAPES:
        a, b = _matrices(m, n, k, DType.parse(dtype))
        expected: dict[str, Any] = {}
        for probe in probes(dtype):
            row = {"kind": probe.kind, "dtype": dtype, "property": probe.property, "value": probe.value, "k": k}
            try:
                source = probe.plan().tiled_mma.atom.a_source
                if probe.property == "a_source" and source != probe.value:
                    raise CutegemmError(f"A of plan {probe.name} comes from {source} memory")
                d = _product(a, b, probe)
            except CutegemmError as error:
                yield {**row, "error": str(error)[:300]}
                continue
            if probe.property == "reference":
                expected[probe.kind] = d
                rows, columns = torch.randperm(m, device=DEVICE), torch.randperm(n, device=DEVICE)
                moved = _product(a[rows].contiguous(), b[columns].contiguous(), probe)
                yield {**row, "property": "place", "differ": int((moved != d[rows][:, columns]).sum())}
            elif probe.kind in expected:
                yield {**row, "differ": int((d != expected[probe.kind]).sum())}
        if len(expected) == 2:  # for information: the two kinds are never mixed
            differ = int((expected["wgmma"] != expected["mma"]).sum())
            yield {"kind": "both", "dtype": dtype, "property": "kind", "value": "mma", "k": k, "differ": differ}


def depends_on(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the properties, among those of `PROPERTIES`, that changed the bits of some element.

    >>> depends_on([{"property": "n", "differ": 0}, {"property": "swap_ab", "differ": 3}])
    ['swap_ab']
    """
    return sorted({row["property"] for row in rows if row.get("differ") and row["property"] in PROPERTIES})


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare the instructions on the GPU, print what differs, and write the rows as JSON.

    raises   UnsupportedError without a GPU
    """
    parser = argparse.ArgumentParser("python -m docs.evidence instructions", description=__doc__)
    parser.add_argument("--dtype", nargs="+", default=DTYPES, choices=DTYPES, help="types to test; all by default")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    args = parser.parse_args(arguments)
    need_gpu()
    from cutegemm.compile.plans import compile_missing

    plans = []
    for dtype in args.dtype:
        for probe in probes(dtype):
            with suppress(CutegemmError):
                plans.append(probe.plan())
    compile_missing(plans)
    rows = [row for dtype in args.dtype for row in compared(dtype)]
    for row in rows:
        if row.get("differ") or "error" in row:
            print(*[f"{name} {value}" for name, value in row.items()], sep=", ")
    found = depends_on(rows)
    print(f"{len(rows)} comparisons. Bits depend on: {', '.join(found) or 'none of ' + ', '.join(PROPERTIES)}.")
    if set(found) != DEPENDS_ON:
        print(f"Set cutegemm.plan.accumulation.DEPENDS_ON to {found}: it is {sorted(DEPENDS_ON)}.")
    if args.json:
        write_record(args.json, {"machine": machine(), "depends_on": found, "rows": rows})
