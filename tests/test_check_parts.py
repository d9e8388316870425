"""`cutegemm check` of PTX files and of layouts, and `cutegemm gemm` with factors that are not finite."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from cutegemm.cli import app
from cutegemm.errors import UnsupportedError
from cutegemm.run.executed import executed_ptx

PTX = """
.version 8.0
.target sm_80
.visible .entry columns(.param .u64 out, .param .u32 stride) {
  .reg .b32 %r<8>; .reg .b64 %rd<4>;
  .shared .align 16 .b8 tile[16384];
  ld.param.b64 %rd1, [out];
  ld.param.b32 %r1, [stride];
  mov.u32 %r2, %tid.x;
  mul.lo.s32 %r3, %r2, %r1;
  mov.u32 %r4, tile;
  add.s32 %r5, %r4, %r3;
  st.shared.b32 [%r5], %r2;
  bar.sync 0;
  ld.shared.b32 %r6, [%r5];
  mul.wide.u32 %rd2, %r2, 4;
  add.s64 %rd3, %rd1, %rd2;
  st.global.b32 [%rd3], %r6;
  ret;
}
"""


def said(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, arguments)
    return found.exit_code, found.output + (str(found.exception) if found.exception else "")


@pytest.mark.parametrize(("stride", "ways"), [(4, 1), (8, 2), (128, 32), (132, 1)])
def test_ptx_is_executed(stride, ways):
    """Two warps: each shared access takes one wavefront for each lane on the busiest bank; a warp touches 4 sectors."""
    found = executed_ptx(PTX, ["s32[64]", str(stride)], block=(64,), grid=(1,))
    assert {op: (w.requests, w.wavefronts) for op, w in found.shared.items()} == {
        "store": (2, 2 * ways),
        "load": (2, 2 * ways),
    }
    assert found.global_["store"].sectors == 8
    lines = {op: line for line, op, _ in found.lines}
    assert PTX.splitlines()[lines["load"] - 1].strip().startswith("ld.shared")


def test_ptx_on_the_command_line(tmp_path):
    path = tmp_path / "kernel.ptx"
    path.write_text(PTX)
    code, text = said("check", str(path), "--args", "s32[32], 128", "--block", "32", "--json")
    assert code == 0
    assert json.loads(text)["shared"]["store"]["wavefronts"] == 32
    code, text = said("check", str(path), "--args", "s32[32] 128", "--block", "32")
    assert "32-way" in " ".join(text.split())


@pytest.mark.parametrize(
    ("arguments", "block", "text"),
    [
        (["s32[64]"], (64,), "arguments is 1, but the parameters are out (8 bytes), stride (4 bytes)"),
        (["s32[64]", "four"], (64,), "'four' is not valid. Pass a whole number, or a buffer"),
    ],
)
def test_arguments_that_do_not_fit(arguments, block, text):
    with pytest.raises(UnsupportedError, match=re.escape(text)):
        executed_ptx(PTX, arguments, block=block)


def test_a_kernel_must_be_named_among_several():
    with pytest.raises(UnsupportedError, match="start of one of these names"):
        executed_ptx(PTX + PTX.replace("columns", "others"), ["s32[64]", "4"])


def test_a_thread_value_layout_on_the_command_line():
    given = ("check", "(32,32):(1,32)", "--dtype", "f32", "--access-bits", "32", "--shared")
    assert "1024 wavefronts, at least 32: 32-way" in said(*given, "(32,32):(32,1)")[1]
    assert "32 wavefronts, at least 32: no conflicts" in said(*given, "(32,32):(33,1)")[1]
    rows = ("check", "(32,8):(1,128)", "--shared", "(128,64):(64,1)", "--dtype", "bf16", "--op", "ldmatrix")
    assert said(*rows)[1].startswith("1 instructions of warps (ldmatrix.x4), 32 wavefronts, at least 4: 8-way")
    code, text = said("check", "(32,32):(1,32)", "--dtype", "f32")
    assert code != 0
    assert "--shared" in text


@pytest.mark.parametrize("name", ["alpha", "beta"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_factor_that_is_no_number_is_refused(name, value):
    code, text = said("gemm", "64", "64", "64", f"--{name}", value)
    assert code != 0
    assert "cannot be compared with a reference" in text
