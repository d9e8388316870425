"""Machine code of SIMT plans, read back: what must be there, what must not, and what the disk cache does."""

from __future__ import annotations

import itertools
import json
import pickle
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.build import simt_plan
from cutegemm.choice.catalog import plan_named
from cutegemm.compile import cache, cubin
from cutegemm.compile import plans as compiler
from cutegemm.compile.plans import compile_plan, compile_plans
from cutegemm.errors import CompileError, PlanError, UnsupportedError
from cutegemm.layout import product
from cutegemm.plan import Operands
from cutegemm.plan.program.thread_schedule import Multiply, Read, Repeat
from tests.kernels.plans import check_each, in_groups
from tests.kernels.sm90_forms import on_few_ctas

SMALL = {"block": (64, 32, 8), "warp": (32, 16), "thread": (4, 4)}
# By layout; those of nn and tn are read by test_compile_ladder.py too.
LARGE = {"nn": "simt_128x256", "nt": "simt_128x256", "tn": "simt_256x128", "tt": "simt_128x128"}


def small(layout="nn", name="small", **options):
    return simt_plan(Operands.of("f32", layout=layout), name=name, **{**SMALL, **options})


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """An empty cache, and nothing loaded from another."""
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    compile_plan.cache_clear()
    yield tmp_path
    compile_plan.cache_clear()


@pytest.fixture(scope="module")
def compiled_once(tmp_path_factory):
    """The entry of `small()`, to be copied."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        compile_plan.cache_clear()
        folder = compile_plan(small()).folder
    compile_plan.cache_clear()
    return folder


@pytest.fixture
def seeded(fresh, compiled_once):
    """A cache that holds `small()`, as another process left it."""
    shutil.copytree(compiled_once, fresh / compiled_once.name)
    return fresh


@pytest.fixture
def rebuilt(compiled_once, monkeypatch):
    """The plans that are built from now on, each as `small()` was: no compiler runs."""
    built = []

    def build(plan, arch, folder):
        built.append(plan)
        for name in ("kernel.ptx", "kernel.cubin", "kernel.so", "kernel.o"):
            if (compiled_once / name).exists():
                shutil.copy(compiled_once / name, folder)
        return {"plan": plan.name, "symbol": compiler.symbol_of(small(), compiler.DEFAULT_ARCH)}

    monkeypatch.setattr(compiler, "_build", build)
    return built


# --- the machine code --------------------------------------------------------------------------------------


@pytest.mark.parametrize("layouts", [("nt",), pytest.param(("nn", "tn", "tt"), marks=pytest.mark.thorough)])
def test_the_large_plans_are_what_they_say(layouts):
    plans = [plan_named(LARGE[layout], Operands.of("f32", layout=layout)) for layout in layouts]
    check_each(plans, is_what_it_says, are_kept=True)


def is_what_it_says(kernel):
    plan, report = kernel.plan, kernel.resources
    assert kernel.violations() == []
    assert (report.count("LDL"), report.count("STL"), report.stack_bytes) == (0, 0, 0)
    assert f".target {kernel.arch}" in kernel.ptx
    assert report.registers * plan.threads * plan.ctas_per_sm <= 65536
    assert f".minnctapersm {plan.ctas_per_sm}" in kernel.ptx
    assert plan.ctas_per_sm == (2 if plan.name == "simt_128x128" else 1)
    # Every step of the schedule that is laid out in the code, and no other: the loop's, and the peeled ones.
    schedule = plan.body
    looped = [step for loop in schedule.k_tile if isinstance(loop, Repeat) for step in loop.steps]
    steps = [type(step) for step in (*schedule.prologue, *schedule.k_tile, *looped)]
    bm, bn, _ = plan.cta_tile
    of_thread = bm * bn // plan.threads
    in_epilogue = report.count("FFMA") - of_thread * steps.count(Multiply)
    assert 0 <= in_epilogue <= of_thread
    # Fragments are read by 128 bits. (The LDS without a width are dummies before a predicated LDGSTS.)
    m_values, n_values = (product(mode) for mode in plan.tiled_mma.partition_shape_C((bm, bn))[1:])
    assert report.count("LDS.128") == steps.count(Read) * (m_values + n_values) // 4
    assert {op for op in report.instructions if op.startswith("LDS")} <= {"LDS", "LDS.128"}
    asynchronous = [load.atom.is_async for load in (plan.a.load, plan.b.load)]
    wide = re.compile(r"LDGSTS\..*128$")
    assert any(wide.match(name) for name in report.instructions) == any(asynchronous)
    of_c = of_thread * plan.operands.c.dtype.bits // plan.access("c").bits
    assert (report.count("LDG.E.128") > of_c) == (not all(asynchronous))
    assert report.count("BAR") >= 1


# For each count of sums of a thread, and of warps of a CTA, the plan with the most registers for tiles on their way;
# the others of the same counts are its mirrors, or need fewer.
FITTING = (
    "simt_256x128", "simt_128x256", "simt_64x256", "simt_128x64", "simt_16x256", "simt_64x64", "simt_128x16",
)  # fmt: skip


@pytest.mark.slow
@in_groups("names", FITTING, 4)
def test_named_plans_fit_for_elements_on_their_own(names):
    """Operands that are aligned to an element alone: more instructions, and still no spills."""
    operands = Operands.of("f32", layout="nt", align_bytes=4)
    check_each([plan_named(name, operands) for name in names], fits_by_elements)


def fits_by_elements(kernel):
    assert kernel.violations() == []
    assert not any(".128" in op for op in kernel.resources.instructions if op.startswith(("LDG", "STG")))


@pytest.mark.slow
def test_elements_of_16_bits_on_their_own_do_not_spill():
    """With A by 4 bytes: more of them a thread, of a k-tile of 64, took twice as long (H100, 2026-11-22)."""
    operands = Operands.of("f16", layout="tn").fitted(846, 111, 8390)
    check_each([plan_named(name, operands) for name in ("mma_128x64/k8", "mma_64x64/k8")], keeps_registers)


def keeps_registers(kernel):
    assert (kernel.resources.count("LDL"), kernel.resources.stack_bytes) == (0, 0)


def test_other_types():
    opcodes = {"f64": "DFMA", "f16": "FFMA", "bf16": "FFMA"}

    def multiplies(kernel):
        assert kernel.resources.count(opcodes[kernel.plan.operands.a.dtype.name]) > 0
        assert kernel.violations() == []

    plans = [plan_named("simt_64x64", Operands.of(dtype)) for dtype in opcodes]
    check_each(plans, multiplies, are_kept=True)


def test_a_report_says_what_is_over():
    report = cubin.ResourceReport("k", 200, 16, 512, 0, {"LDL": 3, "STL.64": 1})
    found = report.violations(small(ctas_per_sm=4), "sm_90a")
    words = ("registers", "spill", "shared memory")
    assert [word in line for word, line in zip(words, found, strict=True)] == [True] * 3
    assert "4 instructions" in found[1]


def test_many_kernels_are_read_back_as_each_is():
    """Another one in addition to its repack passes."""
    kernels = [
        compile_plan(plan)
        for plan in (on_few_ctas("pack_f16_by_4_bytes"), plan_named("simt_64x64", Operands.of("f16")))
    ]
    codes = [(kernel.folder / "kernel.cubin").read_bytes() for kernel in kernels]
    each = [cubin.resources(code, kernel.sass) for code, kernel in zip(codes, kernels, strict=True)]
    assert cubin.resources_of_many(codes, "sm_90a") == each
    assert each[0].instructions != each[1].instructions


def test_what_is_no_cubin():
    with pytest.raises(CompileError, match="not a cubin"):
        cubin.resources(b"MZ" + bytes(100), "")


# --- the arguments -----------------------------------------------------------------------------------------


def test_an_architecture_that_cannot():
    with pytest.raises(UnsupportedError, match="sm_42"):
        compile_plan(small(), "sm_42")
    big = simt_plan(Operands.of("f32", layout="tn"), block=(128, 128, 32), warp=(64, 32), stages=4, unroll=4)
    with pytest.raises(PlanError, match="shared memory"):
        compile_plan(big, "sm_89")


# --- the disk cache ----------------------------------------------------------------------------------------


def entries(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_second_process_takes_it_from_the_disk(seeded):
    (name,) = entries(seeded)
    assert compile_plan(small()).folder.name == name
    code = """
import pickle, sys
from cutegemm.compile.plans import compile_plan
print(compile_plan(pickle.load(sys.stdin.buffer)).folder.name, "cutlass" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(small()), capture_output=True, check=True)
    assert done.stdout.decode().split()[:2] == [name, "False"]


def test_what_tells_entries_apart(fresh):
    assert cache.entry(small(), "sm_80") != cache.entry(small(), "sm_90a")
    assert cache.entry(small(), "sm_80") != cache.entry(small(stages=3), "sm_80")
    assert cache.entry(small(name="one"), "sm_80") == cache.entry(small(name="another"), "sm_80")


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "manifest", "empty"])
def test_a_damaged_entry_is_rebuilt(seeded, rebuilt, damage):
    folder = compile_plan(small()).folder
    assert rebuilt == []
    before = (folder / "kernel.cubin").read_bytes()
    target = folder / ("manifest.json" if damage == "manifest" else "kernel.cubin")
    if damage == "flip":
        target.write_bytes(before[:100] + bytes([before[100] ^ 1]) + before[101:])
    elif damage == "truncate":
        target.write_bytes(before[:-1])
    elif damage == "remove":
        target.unlink()
    elif damage == "manifest":
        target.write_text("{")
    else:
        for file in folder.iterdir():
            file.unlink()
    assert cache.intact(folder) is None
    compile_plan.cache_clear()
    again = compile_plan(small())
    assert rebuilt == [small()]
    assert cache.intact(again.folder) is not None
    assert (again.folder / "kernel.cubin").read_bytes() == before
    assert entries(seeded) == [folder.name]


def test_threads_at_once(fresh, rebuilt, monkeypatch):
    """One of them builds; the others wait for it."""
    build = compiler._build
    monkeypatch.setattr(compiler, "_build", lambda *given: time.sleep(0.2) or build(*given))
    with ThreadPoolExecutor(3) as pool:
        kernels = list(pool.map(compile_plan, [small()] * 3))
    assert len({kernel.folder for kernel in kernels}) == 1
    assert rebuilt == [small()]


@pytest.mark.thorough
def test_processes_at_once(seeded):
    """Of two with one plan either may win; what is there stays; an error comes back from where it was raised."""
    violations = simt_plan(Operands.of("f32", layout="tn"), block=(128, 128, 32), warp=(64, 32), stages=4, unroll=4)
    found = compile_plans([small(stages=3), small(stages=3), violations], "sm_89", processes=2)
    assert found[:2] == [None, None]
    assert isinstance(found[2], PlanError)
    assert "shared memory" in str(found[2])
    assert len(entries(seeded)) == 2
    assert all(cache.intact(seeded / name) for name in entries(seeded))


def test_without_a_linker_the_object_is_loaded(fresh, monkeypatch):
    monkeypatch.setattr(compiler, "link", lambda *given: False)
    kernel = compile_plan(small())
    manifest = json.loads((kernel.folder / "manifest.json").read_text())
    assert "kernel.o" in manifest["files"]
    assert "kernel.so" not in manifest["files"]
    with pytest.raises(TypeError, match="expected Tensor"):
        kernel(1, 2, 3, 4, 1.0, 0.0)


def test_a_folder_that_cannot_be_written(monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(file / "cache"))
    compile_plan.cache_clear()
    with pytest.raises(CompileError, match="cannot be written"):
        compile_plan(small())


def test_reads_of_shared_memory_are_spread_over_the_products():
    """ptxas joins them where code outside of the loop tips its balance, which cost 2.5% of a large problem's speed."""
    sass = compile_plan(plan_named("simt_256x128", Operands.of("f32", layout="tn"))).sass
    names = re.findall(r"\*/\s+(?:@!?U?P\d+ )?(LDS\.128|FFMA)\b", sass)
    between = names[names.index("FFMA") :]
    together = max(len(list(run)) for name, run in itertools.groupby(between) if name == "LDS.128")
    assert names.count("FFMA") > 1000
    assert together <= 4


@pytest.mark.parametrize(
    ("name", "operands"),
    [
        ("sm90_64x64", Operands.of("bf16", layout="tt", batched=True)),
        pytest.param("simt_16x16", Operands.of("f32", layout="nt"), marks=pytest.mark.thorough),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_transposed_plan_is_the_same_kernel_launched_otherwise(name, operands):
    """Its function takes the matrices of the problem before: B^T as A, with rows for columns; its machine code is the
    same."""
    from cutegemm.kernels.arguments import fake_arguments

    plan = plan_named(name, operands, with_c=True)
    turned = plan.with_(swap_ab=True)

    def strides(of, batch):
        """Modes with a stride of 1, after the batch mode."""
        return [[stride == 1 for stride in tensor.stride[batch:]] for tensor in fake_arguments(of)[:4]]

    batch = int(operands.batched)
    a, b, c, d = strides(plan, batch)
    assert strides(turned, batch) == [b[::-1], a[::-1], c[::-1], d[::-1]]
    both = [(compile_plan(each).folder / "kernel.cubin").read_bytes() for each in (plan, turned)]
    assert both[0] == both[1]
