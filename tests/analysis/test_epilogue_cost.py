"""What an epilogue costs, by hand: instructions, bytes, registers, and what of its time the mainloop hides."""

from __future__ import annotations

import json
import re

import pytest

from cutegemm.analysis import check, device_named, global_accesses
from cutegemm.analysis.epilogue_cost import clocks, overlapped_seconds
from cutegemm.build import simt_plan, sm90_plan
from cutegemm.dtypes import f32
from cutegemm.machine.functions import Cost
from cutegemm.plan import Operands, Problem
from cutegemm.plan.epilogue import (
    Column,
    Element,
    Row,
    Scalar,
    Tile,
    epilogue_of,
    functions,
    operations,
    parse_epilogue,
)
from cutegemm.plan.epilogue_access import elements_at_hand, registers_at_end
from cutegemm.plan.problem import Operand

KINDS = {"bias": Row, "by_row": Column, "one": Element, "x": Tile, "s": Scalar}
H200 = device_named("h200")


def parsed(text):
    words = re.findall(r"\w+", text)
    return parse_epilogue(text, {name: kind for name, kind in KINDS.items() if name in words})


def ending_with(plan, text):
    epilogue = parsed(text)
    aux = {name: Operand.of_kind(KINDS[name], f32) for name in epilogue.tensors if not issubclass(KINDS[name], Tile)}
    d = plan.operands.d
    aux |= dict.fromkeys((*epilogue.tiles, *epilogue.outputs[1:]), d)
    return plan.with_(epilogue=epilogue, operands=plan.operands.with_aux(**aux))


@pytest.mark.parametrize(
    ("text", "fp32", "special"),
    [
        ("acc", 0, 0),
        ("acc + bias", 1, 0),
        ("-acc * bias - x", 2, 0),  # a sign is part of the product
        ("gelu(acc + bias)", 1 + 10, 1),
        ("gelu(acc + bias), aux = acc + bias", 1 + 10, 1),  # the sum once
        ("silu(acc * by_row) * (acc * by_row)", 1 + 4 + 1, 2),
        ("acc * (s * 2 + 1)", 1, 0),  # the factor is one number for all elements
        ("where(acc > bias, exp(acc), tanh(acc))", 1 + 1 + 6 + 11, 1 + 2),
        ("acc / x + bf16(acc)", 7 + 1 + 2, 1),
        ("maximum(minimum(acc, 6), 0)", 2, 0),
    ],
)
def test_instructions_of_an_element(text, fp32, special):
    assert operations(parsed(text)) == Cost(fp32, special)


@pytest.mark.parametrize(
    ("text", "device", "of_128"),
    [
        ("relu(acc)", "h200", 1.0),  # one instruction of 128 threads a clock
        ("gelu(acc)", "h200", 11.0),  # 10 + 1 are issued; 1 of the special unit takes 8
        ("gelu_tanh(acc)", "h200", 16.0),  # 2 of the special unit, of 16 a clock
        ("gelu(acc)", "a100-80gb", 20.0),  # 10 of f32, of 64 a clock
    ],
)
def test_clocks_of_elements(text, device, of_128):
    assert clocks(ending_with(simt_plan(), text), device_named(device), 128) == of_128


def test_sums_of_f64_have_no_known_rate():
    plan = simt_plan(Operands.of("f64"), block=(32, 32, 8), warp=(32, 32), thread=(8, 4))
    assert clocks(ending_with(plan, "gelu(acc)"), H200, 128) is None
    found = check(ending_with(plan, "gelu(acc)"), Problem(64, 64, 64, operands=plan.operands), search=False)
    assert found.epilogue.added_seconds is None
    assert "a tile takes" not in str(found)


SMALL = {"block": (32, 32, 8), "warp": (32, 32), "thread": (8, 4)}


def test_what_a_thread_of_simt_reads():
    """A warp of 4 x 8 threads with 8 x 4 elements each: rows 0..3 and 16..19 of its four, columns 0..3 of its eight."""
    plan = ending_with(simt_plan(**SMALL), "acc * by_row + bias * one + x, aux = acc")
    assert elements_at_hand(plan).shape == (1, 32, 32)
    # 8 rows, 4 columns and one element of f32; of x and aux four vectors of four elements are under way
    assert registers_at_end(plan) == {"by_row": 8, "bias": 4, "one": 1, "x": 16, "aux": 16}
    found = {part.name: part for part in global_accesses(plan)}
    # A column takes 8 instructions of 4 rows each. The row takes 4, for 8 threads with columns 4 apart: 4 sectors
    assert (found["load BY_ROW"].requests, found["load BY_ROW"].instruction) == (8, "LDG.32")
    assert (found["load BIAS"].requests, found["load BIAS"].sectors) == (4, 4 * 4)
    assert (found["load ONE"].requests, found["load ONE"].sectors, found["load ONE"].ideal) == (1, 1, 1)
    # 32 x 32 of f32 are 128 sectors, by 8 instructions of 16 bytes a lane
    assert (found["load X"].requests, found["load X"].sectors) == (8, 128)
    assert (found["store AUX"].requests, found["store AUX"].sectors) == (8, 128)


def test_what_a_thread_of_hopper_reads():
    """An epilogue tile of 64 x 32 of bf16 for 128 threads: 16 elements each, of 2 rows and 8 columns."""
    base = sm90_plan(Operands.of("bf16", layout="nt"), tile=(128, 128, 64), epi_tile_n=32)
    plan = ending_with(base, "acc * by_row + bias + x, aux = acc")
    assert elements_at_hand(plan).shape == (8, 128, 16)
    # Rows and columns of the next epilogue tile are there too
    assert registers_at_end(plan) == {"by_row": 2 * 2, "bias": 2 * 8, "x": 8, "aux": 8}
    found = {part.name: part for part in global_accesses(plan)}
    # An epilogue tile's columns for each of its 4 warps, 8 epilogue tiles, an element at a time: f32 aligned to 4 bytes
    assert (found["load BIAS"].requests, found["load BIAS"].bits) == (8 * 4 * 8, 32)
    assert found["load BY_ROW"].requests == 8 * 4 * 2
    assert "store AUX" not in found  # by TMA, through an epilogue stage of its own
    epilogue = check(plan, search=False).epilogue
    parts = {part.name: part for part in epilogue.parts}
    assert (parts["AUX"].how, parts["AUX"].tile_bytes, parts["AUX"].what) == (
        "through epilogue stages",
        32768,
        "result",
    )
    assert (parts["BIAS"].how, parts["BIAS"].what, parts["BIAS"].total_bytes) == (
        "by threads",
        "row of N",
        None,
    )


def test_a_tile_by_tma():
    base = sm90_plan(Operands.of("bf16", layout="nt"), tile=(128, 128, 64), with_c=True)
    found = check(ending_with(base, "acc + x"), search=False)
    (part,) = found.epilogue.parts
    assert (part.name, part.how, part.tile_bytes) == ("X", "by TMA", 128 * 128 * 2)
    assert "read X" in [access.name for access in found.shared]


def test_what_scalars_may_leave_out_is_not_counted():
    plan = sm90_plan(Operands.of("bf16", layout="nt"), with_c=True)
    assert check(plan, search=False).epilogue is None
    assert check(ending_with(plan, "relu(s * acc + x)"), search=False).epilogue.expression == "relu(acc + x)"


def test_bytes_of_a_problem():
    """1024 x 512 of bf16: 1 MiB for each tile; 512 and 1024 of f32."""
    base = sm90_plan(Operands.of("bf16", layout="nt"), tile=(128, 128, 64))
    plan = ending_with(base, "acc * by_row + bias + x, aux = acc")
    plain = check(base, Problem(1024, 512, 256, operands=base.operands), search=False)
    found = check(plan, Problem(1024, 512, 256, operands=plan.operands), search=False)
    assert found.traffic.dram_write_bytes == 2 * plain.traffic.dram_write_bytes == 2 << 20
    assert found.traffic.epilogue_bytes == (1 << 20) + 512 * 4 + 1024 * 4
    more = found.roofline.level("DRAM").amount - plain.roofline.level("DRAM").amount
    assert more == (1 << 20) + found.traffic.epilogue_bytes
    l2 = found.roofline.level("L2").amount - plain.roofline.level("L2").amount
    assert l2 == 32 * sum(part.tile_bytes for part in found.epilogue.parts if part.what != "result")


@pytest.mark.parametrize(
    ("tiles", "alternating", "least"),
    [
        (1, 1, 14), (6, 1, 84),  # one tile after the other
        (1, 2, 14), (2, 2, 24), (6, 2, 64),  # the last tile's alone shows
        (6, 3, 64), (0, 2, 0),
    ],
)  # fmt: skip
def test_mainloops_of_10_hide_epilogues_of_4(tiles, alternating, least):
    assert overlapped_seconds(10.0, 4.0, tiles, alternating) == least


def test_epilogues_that_are_longer_than_mainloops_do_not_hide():
    assert overlapped_seconds(4.0, 10.0, 6, 2) == 64.0
    assert overlapped_seconds(10.0, 10.0, 5, 2) == 60.0  # three rounds of two, the last of one: 3 * 20


def test_pingpong_hides_what_a_cooperative_plan_adds():
    operands = Operands.of("bf16", layout="nt")
    of = {"tile": (128, 128, 64), "operands": operands}
    pingpong = ending_with(sm90_plan(**of), "gelu_tanh(acc + bias)")
    cooperative = ending_with(sm90_plan(schedule="cooperative", **of), "gelu_tanh(acc + bias)")
    problem = Problem(128 * 12 * 4, 128 * 11, 4096, operands=pingpong.operands)  # 4 tiles for each of 132
    found, shown = (check(plan, problem, device="h200", search=False) for plan in (pingpong, cooperative))
    tile_seconds = 128 * 128 / 128 * 16 / 1.98e9  # two special functions of an element take 16 clocks of 128
    assert found.roofline.level("epilogue").seconds == pytest.approx(4 * tile_seconds)
    assert found.epilogue.added_seconds == pytest.approx(tile_seconds)  # the last tile's
    assert found.epilogue.hidden == pytest.approx(0.75)
    assert shown.epilogue.added_seconds == pytest.approx(4 * tile_seconds)
    assert shown.epilogue.hidden == pytest.approx(0.0)
    assert shown.roofline.seconds - found.roofline.seconds == pytest.approx(3 * tile_seconds)


def test_it_is_printed():
    plan = ending_with(sm90_plan(Operands.of("bf16", layout="nt"), tile=(128, 128, 64)), "gelu(acc + bias)")
    problem = Problem(4096, 4096, 4096, operands=plan.operands)
    text = str(check(plan, problem, device="h200", search=False))
    for line in (
        "Epilogue gelu(acc + bias)",
        "11 f32 and 1 special-function instructions per element; a tile takes at least 1536 clocks",
        "a multiprocessor works on 2 tiles at once: mainloops hide",
        "BIAS     row of N  f32   by threads",
    ):
        assert line in text
    words = plan.describe()
    assert re.search(r"epilogue +11  instructions, 1 special +gelu\(acc \+ bias\)", words)
    assert "load bias" in words
    report = check(plan, problem, search=False).to_dict()
    assert json.loads(json.dumps(report))["epilogue"]["special"] == 1


def test_bytes_of_partial_results():
    """Each of 1024 rows has one f32 for each of 4 tiles, because a warp has all columns of a tile. The rest is D."""
    base = sm90_plan(Operands.of("bf16", layout="nt"), tile=(128, 128, 64))
    ending = epilogue_of(lambda acc: (acc, functions.row_sum(functions.square(acc))), {})
    ops = base.operands.with_aux(aux=Operand.of_kind(Column, f32))
    plan = base.with_(epilogue=ending, operands=ops)
    found = check(plan, Problem(1024, 512, 256, operands=ops), search=False)
    assert found.traffic.dram_write_bytes == 1024 * 512 * 2 + 1024 * 4 * 4
