"""`cutegemm tune`, `prepare` and `export`: what is done ahead of the calls, for shapes in a file."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer

from cutegemm.choice.names import recipe_named
from cutegemm.dtypes import DType
from cutegemm.errors import CutegemmError, PlanError, UnsupportedError
from cutegemm.parse.plan import described
from cutegemm.plan import GemmPlan, Operands
from cutegemm.run.tune import BEST, tuning, use_tuned

_COLUMNS = ("m", "n", "k", "l", "dtype", "layout", "out")
_NEEDED = _COLUMNS[:3]

_OF_SHAPES = (
    "A CSV file whose first line names its columns: m, n, k; and, where they are wanted, l, dtype (bf16 where left "
    "out), layout (nt) and out."
)
Shapes = Annotated[Path, typer.Argument(metavar="SHAPES.csv", help=_OF_SHAPES)]
DeviceName = Annotated[
    str | None, typer.Option(help="Choose plans for this device: h100, h200, ...; that of this machine.")
]
Processes = Annotated[int | None, typer.Option(min=1, help="Compile by so many; as many as processors.")]
Tuned = Annotated[Path | None, typer.Option(help="Take plans that `cutegemm tune` found on such a device.")]


@dataclass(frozen=True)
class Line:
    """A line of a file of shapes.

    rows      of A: one number, or those of a layer's inputs
    columns   N, K and, of a batch, L
    """

    rows: range
    columns: tuple[int, ...]
    operands: Operands

    @property
    def is_layer(self) -> bool:
        """Whether its rows vary."""
        return len(self.rows) > 1

    @property
    def shape(self) -> tuple[int, ...]:
        """M, N, K and, of a batch, L."""
        return (self.rows[0], *self.columns)


def read_shapes(path: Path, ranges: bool = True) -> list[Line]:
    """The shapes of a file.

    ranges   whether the rows of A may be said as 1-8192
    raises   UnsupportedError with each line that does not read

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     _ = file.write("m,n,k,dtype\\n64,4096,512,f16\\n1-8192,512,512,\\n")
    ...     file.flush()
    ...     [(line.rows, line.columns, str(line.operands.a.dtype)) for line in read_shapes(Path(file.name))]
    [(range(64, 65), (4096, 512), 'f16'), (range(1, 8193), (512, 512), 'bf16')]
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, skipinitialspace=True)
            named = [name.strip().lower() for name in next(reader, [])]
            lines = [(reader.line_num, line) for line in reader if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UnsupportedError(f"the shapes {path}: {error}.") from error
    wrong = [f"the column {name!r} is missing." for name in _NEEDED if name not in named]
    wrong += [f"{name!r} is no column; {', '.join(_COLUMNS)} are." for name in named if name not in _COLUMNS]
    wrong += [f"the column {name!r} is there twice." for name in dict.fromkeys(named) if named.count(name) > 1]
    found = []
    for number, fields in [] if wrong else lines:
        try:
            if len(fields) > len(named):
                raise ValueError(f"{len(fields)} fields; the {len(named)} of {', '.join(named)} are expected.")
            found.append(_line(dict(zip_longest(named, fields)), ranges))
        except (CutegemmError, ValueError, TypeError) as error:
            wrong.append(f"line {number}: {error}")
    if not wrong and not found:
        wrong = ["it has no lines behind its first one."]
    if wrong:
        raise UnsupportedError(f"the shapes {path}: " + "\n  ".join(wrong))
    return found


def _line(line: dict[str, Any], ranges: bool) -> Line:
    said = {name: str(value or "").strip() for name, value in line.items()}
    first, _, last = said["m"].partition("-")
    if last and not ranges:
        raise ValueError(f"m is {said['m']}; one number is expected.")
    rows = range(int(first), int(last or first) + 1)
    columns = (int(said["n"]), int(said["k"]), *([int(said["l"])] if said.get("l") else []))
    if not rows or min(rows[0], *columns) < 1:
        raise ValueError("extents are numbers from 1 on.")
    if len(rows) > 1 and len(columns) > 2:
        raise ValueError("a batch has one number of rows.")
    kind = DType.parse(said.get("dtype") or "bf16")
    operands = Operands.of(kind, layout=said.get("layout") or "nt", out=said.get("out") or None)
    return Line(rows, columns, replace(operands, batched=len(columns) > 2))


def tune(
    shapes: Shapes,
    cache: Annotated[
        Path, typer.Option("--cache", "-o", help="The file that keeps what was timed; it is added to.")
    ] = Path("tuned.json"),
    best: Annotated[int, typer.Option(min=1, help="How many plans of the ranking are timed for each shape.")] = BEST,
) -> None:
    """Times the best few plans for shapes on the GPU of this machine, and keeps which was the fastest.

    `cutegemm.use_tuned(FILE)` lets calls take them, here or on another machine with such a GPU.
    """
    lines = read_shapes(shapes, ranges=False)
    try:
        from cutegemm.run.on_gpu import need_gpu
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"tune: plans are timed on a GPU through torch, but {error.name} is not installed: "
            "pip install 'cutegemm[kernels,torch]'."
        ) from None
    from cutegemm.run.gemm import gemm
    from cutegemm.run.tuned import Table

    need_gpu()

    with tuning(cache=cache, best=best):
        for number, line in enumerate(lines, 1):
            print(f"[{number} of {len(lines)}]", end=" ", file=sys.stderr, flush=True)
            a, b, dtype = _matrices(line)
            gemm(a, b, out_dtype=dtype, allow_tf32=line.operands.a.dtype.name == "tf32")
    print(f"{len(Table.read(cache).records)} records in {cache}")


def _matrices(line: Line) -> tuple[Any, Any, Any]:
    """A and B of normal numbers on the GPU, and the type of D in torch."""
    import torch

    from cutegemm.run.torch_ops import memory_of

    kind, (rows, columns, depth, *batch) = memory_of(line.operands.a.dtype), line.shape
    found = []
    for extents, is_turned in (
        ((rows, depth), line.operands.a.major == "m"),
        ((depth, columns), line.operands.b.major == "k"),
    ):
        x = torch.randn(*batch, *(extents[::-1] if is_turned else extents), device="cuda")
        x = (x * 16).to(kind) if kind == torch.int8 else x.to(kind)
        found.append(x.mT if is_turned else x)
    return found[0], found[1], memory_of(line.operands.d.dtype)


def prepare(
    shapes: Annotated[
        Path,
        typer.Argument(metavar="SHAPES.csv", help=f"{_OF_SHAPES} 1-8192 as m is a layer whose rows vary."),
    ],
    device: DeviceName = None,
    tuned: Tuned = None,
    processes: Processes = None,
) -> None:
    """Compiles the kernels that calls of these shapes take, in parallel, into the cache. It needs no GPU."""
    import time

    from cutegemm.run.ahead import compiled

    started = time.perf_counter()
    found = compiled(_plans([str(shapes)], device, tuned), started, processes)
    if found.failed:
        raise typer.Exit(1)


def export(
    plans: Annotated[
        list[str],
        typer.Argument(metavar="PLANS", help=f"Names of plans, or files of shapes. {_OF_SHAPES} m may be 1-8192."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Such as kernels.so.")],
    dtype: Annotated[
        str | None, typer.Option(help="Element type of A and B of named plans; bf16 for wgmma, else f32.")
    ] = None,
    layout: Annotated[str, typer.Option(help="BLAS letters of A and B of named plans.")] = "nt",
    device: DeviceName = None,
    tuned: Tuned = None,
) -> None:
    """Compiles kernels into one library, for where there is neither the DSL nor a compiler: `cutegemm.load(FILE)`.

    Its folder also gets the runtime library that the kernels call. It needs no GPU, but a linker: cc, gcc or clang.
    """
    from cutegemm.compile.export import export as write

    found = _plans(plans, device, tuned, dtype, layout)
    archs = {arch for _, arch in found}
    if len(archs) > 1:
        raise PlanError("export", [f"the plans are for {' and '.join(sorted(archs))}; one is expected."])
    print(write([plan for plan, _ in found], out, *archs))


def _plans(
    given: Sequence[str],
    device: str | None,
    tuned: Path | None,
    dtype: str | None = None,
    layout: str = "nt",
) -> list[tuple[GemmPlan, str]]:
    """The plans of names, and of shapes in files; each with its architecture."""
    from cutegemm.run.ahead import chip, plans_of

    if tuned is not None:
        use_tuned(tuned)
    of = chip(device)
    found: list[tuple[GemmPlan, str]] = []
    for each in given:
        if each.endswith(".csv"):
            for line in read_shapes(Path(each)):
                rows = line.rows if line.is_layer else None
                shape = line.columns if line.is_layer else line.shape
                found += plans_of([shape], rows, line.operands, of)
        else:
            plan, _ = described("export", each, dtype, layout, None, of.arch)
            found.append((recipe_named(each).as_launched(plan), of.arch))
    return found
