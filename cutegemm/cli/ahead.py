"""`cutegemm tune`, `prepare` and `export`: tune, compile and export kernels before they are called.

The shapes of the calls are read from a CSV file.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer

from cutegemm.choice.models import MODELS
from cutegemm.choice.names import recipe_named
from cutegemm.compile.exported import LIBRARY
from cutegemm.dtypes import DType
from cutegemm.errors import CutegemmError, PlanError, UnsupportedError, how_to_install
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.machine.device import Device
from cutegemm.parse.plan import described
from cutegemm.plan import GemmPlan, Operands
from cutegemm.run.tune import BEST, tuning, use_tuned

_COLUMNS = ("m", "n", "k", "l", "dtype", "layout", "out")
_NEEDED = _COLUMNS[:3]

_OF_SHAPES = (
    "A CSV file whose first line names its columns. m, n and k are required. l, dtype (default bf16), layout "
    "(default nt) and out are optional."
)
Shapes = Annotated[Path, typer.Argument(metavar="SHAPES.csv", help=_OF_SHAPES)]
DeviceName = Annotated[
    str | None,
    typer.Option(help="Choose plans for this device: h100, h200, ... The default is the GPU of this machine."),
]
Processes = Annotated[
    int | None, typer.Option(min=1, help="Number of processes that compile. The default is the number of processors.")
]
Tuned = Annotated[Path | None, typer.Option(help="A file of `cutegemm tune` for the same device. Its plans are used.")]


@dataclass(frozen=True)
class Line:
    """A GEMM, or a layer of a model, from one line of a CSV file; kernels are tuned or compiled for it.

    rows       M as an integer, or a range of M for a layer whose number of rows varies from call to call
    columns    (N, K), or (N, K, L) for a batch
    operands   A, B, C and D with their element types and majorness
    """

    rows: range
    columns: tuple[int, ...]
    operands: Operands

    @property
    def is_layer(self) -> bool:
        """True if the M column of the file gives a range: the calls of a layer have varying numbers of rows."""
        return len(self.rows) > 1

    @property
    def shape(self) -> tuple[int, ...]:
        """(M, N, K) of the GEMM, or (M, N, K, L) for a batch. If M is a range, its smallest value."""
        return (self.rows[0], *self.columns)


def read_shapes(path: Path, ranges: bool = True) -> list[Line]:
    """Read a CSV file with one GEMM shape per line, such as "64,4096,512,f16" under the header "m,n,k,dtype".

    path     the file; its first line names the columns: m, n, k and optionally l, dtype, layout, out
    ranges   True if m may be a range such as 1-8192, for a layer whose number of rows varies
    raises   UnsupportedError with every line and column that is wrong

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
            header = [name.strip().lower() for name in next(reader, [])]
            lines = [(reader.line_num, line) for line in reader if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UnsupportedError(f"the shapes {path}: {error}.") from error
    wrong = [f"the column {name!r} is missing." for name in _NEEDED if name not in header]
    wrong += [
        f"unknown column {name!r}. The columns are {', '.join(_COLUMNS)}." for name in header if name not in _COLUMNS
    ]
    wrong += [f"the column {name!r} is named twice." for name in dict.fromkeys(header) if header.count(name) > 1]
    shapes = []
    for number, fields in [] if wrong else lines:
        try:
            if len(fields) > len(header):
                raise ValueError(f"it has {len(fields)} fields for the {len(header)} columns {', '.join(header)}.")
            shapes.append(_line(dict(zip_longest(header, fields)), ranges))
        except (CutegemmError, ValueError, TypeError) as error:
            wrong.append(f"line {number}: {error}")
    if not wrong and not shapes:
        wrong = ["it has no lines after its header."]
    if wrong:
        raise UnsupportedError(f"the shapes {path}: " + "\n  ".join(wrong))
    return shapes


def _line(line: dict[str, Any], ranges: bool) -> Line:
    """Parse one line of a CSV file of GEMM shapes.

    line     text by column name, e.g. {"m": "64", "n": "4096", "k": "512"}; None for a field that the line lacks
    ranges   True if m may be a range such as 1-8192
    raises   ValueError or CutegemmError if a field is wrong
    """
    fields = {name: str(value or "").strip() for name, value in line.items()}
    first, _, last = fields["m"].partition("-")
    if last and not ranges:
        raise ValueError(f"m is the range {fields['m']}. Give one number.")
    rows = range(int(first), int(last or first) + 1)
    columns = (int(fields["n"]), int(fields["k"]), *([int(fields["l"])] if fields.get("l") else []))
    if not rows or min(rows[0], *columns) < 1:
        raise ValueError("every extent must be at least 1.")
    if len(rows) > 1 and len(columns) > 2:
        raise ValueError("m is a range and l is given. Give one number for m, or leave out l.")
    kind = DType.parse(fields.get("dtype") or "bf16")
    operands = Operands.of(kind, layout=fields.get("layout") or "nt", out=fields.get("out") or None)
    return Line(rows, columns, replace(operands, batched=len(columns) > 2))


def tune(
    shapes: Shapes,
    cache: Annotated[
        Path, typer.Option("--cache", "-o", help="File of measured times. New records are added to it.")
    ] = Path("tuned.json"),
    best: Annotated[
        int, typer.Option(min=1, help="Number of plans to time for each shape, those with the lowest predicted times.")
    ] = BEST,
) -> None:
    """Time the best few kernel plans for each GEMM shape on the GPU of this machine, and record the fastest.

    After `cutegemm.use_tuned(FILE)`, calls use the recorded plans, here or on another machine with the same GPU.
    """
    lines = read_shapes(shapes, ranges=False)
    try:
        from cutegemm.run.on_gpu import need_gpu
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"tune: plans are timed on a GPU through torch, but {error.name} is not installed. "
            f"{how_to_install('kernels', 'torch')}"
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
    """Return random A and B on the GPU for one line of a shapes file, and the torch dtype of D.

    Elements are normally distributed. A and B have the layout that the line states.

    line   extents and operand types of the GEMM
    """
    import torch

    from cutegemm.run.torch_ops import memory_of

    kind, (rows, columns, depth, *batch) = memory_of(line.operands.a.dtype), line.shape
    matrices = []
    for extents, is_transposed in (
        ((rows, depth), line.operands.a.major == "m"),
        ((depth, columns), line.operands.b.major == "k"),
    ):
        x = torch.randn(*batch, *(extents[::-1] if is_transposed else extents), device="cuda")
        x = (x * 16).to(kind) if kind == torch.int8 else x.to(kind)
        matrices.append(x.mT if is_transposed else x)
    return matrices[0], matrices[1], memory_of(line.operands.d.dtype)


def prepare(
    shapes: Annotated[
        Path,
        typer.Argument(
            metavar="SHAPES.csv", help=f"{_OF_SHAPES} m may be a range such as 1-8192: a layer whose rows vary."
        ),
    ],
    device: DeviceName = None,
    tuned: Tuned = None,
    processes: Processes = None,
) -> None:
    """Compile in advance the kernels for the GEMM shapes of a file, in parallel, into the cache. No GPU is needed."""
    from cutegemm.run.ahead import compiled

    started = time.perf_counter()
    report = compiled(_plans([str(shapes)], device, tuned), started, processes)
    if report.failed:
        raise typer.Exit(1)


def export(
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Shared library to write, such as kernels.so. With --models: a folder."),
    ],
    plans: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PLANS]", help=f"Plan names or shapes files. {_OF_SHAPES} m may be a range such as 1-8192."
        ),
    ] = None,
    models: Annotated[bool, typer.Option("--models", help="Export kernels for the layers of public models.")] = False,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Element type of A and B of named plans. The default is bf16 for wgmma, otherwise f32. With --models: "
            "bf16, f16 or fp8; all of them by default."
        ),
    ] = None,
    layout: Annotated[str, typer.Option(help="BLAS letters of A and B of named plans.")] = "nt",
    device: DeviceName = None,
    tuned: Tuned = None,
    processes: Processes = None,
) -> None:
    """Compile kernels into one shared library, which `cutegemm.load(FILE)` loads without the DSL or a compiler.

    The runtime library that the kernels call is copied next to it. This command needs a linker (cc, gcc or clang),
    but no GPU.

    With `--models`, the library is kernels.so in a folder. A process whose environment variable CUTEGEMM_LIBRARY names
    that folder uses it.
    """
    from cutegemm.compile.export import export as write
    from cutegemm.run.ahead import chip, progress

    if models == bool(plans):
        raise UnsupportedError("export: pass plan names or shapes files, or else --models.")
    started = time.perf_counter()
    if models:
        target = chip(device)
        kernels = [(plan, target.arch) for plan in _of_models(dtype, target)]
        out = out / LIBRARY
    else:
        kernels = _plans(plans or [], device, tuned, dtype, layout)
    archs = sorted({arch for _, arch in kernels})
    if len(archs) > 1:
        raise PlanError("export", [f"the plans are for {' and '.join(archs)}. A library has one architecture."])
    different = list(dict.fromkeys([plan for plan, _ in kernels]))
    with progress(len(different)) as done:
        written = write(different, out, archs[0], processes, done)
    size = sum(file.stat().st_size for file in (out, *out.parent.glob("libcute_dsl_runtime.so"))) / 1e6
    print(f"{written}\n{size:.1f} MB with the runtime library, {time.perf_counter() - started:.0f} s")


def _of_models(dtype: str | None, device: Device) -> list[GemmPlan]:
    """Choose the kernel plans for the layers of public language and vision models, which `export --models` compiles.

    Prints how many plans each kind of call has.

    dtype    "bf16", "f16" or "fp8"; None for all of them
    device   device that plans are chosen for
    raises   UnsupportedError for another type, for a device that is not Hopper, or without torch
    """
    if device.arch != DEFAULT_ARCH:
        raise UnsupportedError(
            f"export --models: {device.name} has the architecture {device.arch}. Pass --device with a Hopper GPU: "
            "h100, h200 or h100-pcie."
        )
    try:
        from cutegemm.torch.prebuilt import DTYPES, library_plans
    except ImportError as error:
        missing = error.name or "torch"
        raise UnsupportedError(
            f"export --models: the layers are described by torch, but {missing} is not installed. "
            f"{how_to_install('kernels', 'torch')}"
        ) from None
    if dtype is not None and dtype not in DTYPES:
        raise UnsupportedError(f"export --models: dtype = {dtype!r} is unknown. Use one of {', '.join(DTYPES)}.")
    plans: list[GemmPlan] = []
    for selection in library_plans(MODELS.values(), DTYPES if dtype is None else [dtype], device):
        plans += selection.plans
        kinds = f"{selection.dtype} {', '.join(selection.kinds)}"
        print(f"{kinds}: {len(selection.plans)} kernels, mean loss {selection.loss:.2%}", file=sys.stderr)
    return plans


def _plans(
    sources: Sequence[str],
    device: str | None,
    tuned: Path | None,
    dtype: str | None = None,
    layout: str = "nt",
) -> list[tuple[GemmPlan, str]]:
    """Return the (plan, architecture) pairs that `export` and `prepare` compile for plan names and shapes files.

    sources         plan names (one plan each), and paths of shapes files, which end in .csv
    device          name of the device to choose plans for; None for the GPU of this machine
    tuned           a file of `cutegemm tune` whose recorded plans are used; None for predictions only
    dtype, layout   element type and BLAS letters of A and B for plan names; dtype None for the default type
    """
    from cutegemm.run.ahead import chip, plans_of

    if tuned is not None:
        use_tuned(tuned)
    target = chip(device)
    plans: list[tuple[GemmPlan, str]] = []
    for source in sources:
        if source.endswith(".csv"):
            for line in read_shapes(Path(source)):
                rows = line.rows if line.is_layer else None
                shape = line.columns if line.is_layer else line.shape
                plans += plans_of([shape], rows, line.operands, target)
        else:
            plan, _ = described("export", source, dtype, layout, None, target.arch)
            plans.append((recipe_named(source).as_launched(plan), target.arch))
    return plans
