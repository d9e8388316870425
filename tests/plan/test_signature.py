"""The tensors that a compiled function takes, by hand for plans of each kind."""

from __future__ import annotations

from cutegemm.build import simt_plan, sm90_plan, with_epilogue
from cutegemm.dtypes import bf16, f32
from cutegemm.plan import Operand, Operands
from cutegemm.plan.epilogue import LINEAR, SCALED, Column, Element, Row, Scalar, Tile, parse_epilogue
from cutegemm.plan.signature import Argument, signature_of


def modes(plan):
    return {each.name: each.modes for each in signature_of(plan)}


def test_a_function_takes_what_its_epilogue_reads_and_writes():
    """No C if it reads none, and operands in the order of the expression."""
    plan = simt_plan()
    assert list(modes(plan.with_(epilogue=LINEAR))) == ["a", "b", "c", "d"]
    assert list(modes(plan.with_(epilogue=SCALED))) == ["a", "b", "d"]
    ending = parse_epilogue("s * e + acc * bias, aux = acc", {"e": Tile, "bias": Row, "s": Scalar})
    aux = {"bias": Operand.of_kind(Row, f32), "e": plan.operands.d, "aux": plan.operands.d}
    assert list(modes(with_epilogue(ending, plan, aux))) == ["a", "b", "e", "bias", "d", "aux"]


def test_vectors_divide_rows_and_tma_does_not():
    """16 bytes are 8 elements of bf16: of the strides always, of the contiguous extent where threads load."""
    layout = {"a": ("m", "k"), "b": ("k", "n"), "d": ("m", "n")}
    by_threads = simt_plan(Operands.of("bf16", layout="nn")).with_(epilogue=SCALED)
    by_tma = sm90_plan(Operands.of("bf16", layout="nn"))
    for plan, unit in ((by_threads, 8), (by_tma, 1)):
        assert signature_of(plan) == tuple(
            [Argument(name, bf16, layout[name], (1, unit), (8, None), 16) for name in layout]
        )


def test_a_transposed_plan_takes_the_matrices_of_the_caller():
    """D^T = B^T A^T with B^T (N, K) as its A: the caller's b, whose columns are its rows. A row becomes its column."""
    operands = Operands.of("bf16", layout="nt", out="f32")
    plan = sm90_plan(operands.transposed).with_(swap_ab=True)
    ending = parse_epilogue("acc + bias + scale", {"bias": Column, "scale": Row})
    aux = {"bias": Operand.of_kind(Column, f32), "scale": Operand.of_kind(Row, f32)}
    a, b, bias, scale, d = signature_of(with_epilogue(ending, plan, aux))
    assert (a.modes, a.strides) == (("m", "k"), (8, None))
    assert (b.modes, b.strides) == (("k", "n"), (None, 8))
    assert (bias.name, bias.modes, scale.name, scale.modes) == ("bias", ("n",), "scale", ("m",))
    assert (d.dtype, d.modes, d.strides) == (f32, ("m", "n"), (4, None))


def test_a_batch_comes_first():
    plan = simt_plan(Operands.of("f32", batched=True))
    ending = parse_epilogue("acc * s + row", {"s": Element, "row": Row})
    aux = {"s": Operand.of_kind(Element, f32), "row": Operand.of_kind(Row, f32, align_bytes=16)}
    found = {each.name: each for each in signature_of(with_epilogue(ending, plan, aux))}
    assert found["a"].modes == ("l", "m", "k")
    assert (found["s"].modes, found["s"].strides) == (("l", "1"), (1, None))
    assert (found["row"].modes, found["row"].strides, found["row"].align_bytes) == (("l", "n"), (4, None), 16)


def test_a_gated_result_has_half_of_the_columns():
    """A row inside of the gates has a number for each column of B, one outside for each column of D."""
    plan = sm90_plan(Operands.of("bf16", layout="nt"))
    ending = parse_epilogue("silu(halves(acc + bias)[0]) * halves(acc + bias)[1] + row", {"bias": Row, "row": Row})
    aux = {name: Operand.of_kind(Row, f32) for name in ("bias", "row")}
    assert modes(with_epilogue(ending, plan, aux)) == {
        "a": ("m", "k"), "b": ("k", "n"), "bias": ("n",), "row": ("n/2",), "d": ("m", "n/2"),
    }  # fmt: skip


def test_a_sum_of_rows_is_a_column():
    plan = sm90_plan(Operands.of("bf16", layout="nt"))
    ending = parse_epilogue("acc, aux = row_sum(acc), aux2 = total_max(acc)", {})
    aux = {"aux": Operand.of_kind(Column, f32), "aux2": Operand.of_kind(Element, f32)}
    *_, rows, whole = signature_of(with_epilogue(ending, plan, aux))
    assert (rows.modes, rows.strides, whole.modes) == (("m",), (None,), ("1",))
