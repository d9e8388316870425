"""Instructions one by one, in kernels written by hand. The comments derive the expected results."""

import numpy as np
import pytest

from cutegemm.emulator.ptx import parse
from cutegemm.errors import EmulationError, UnsupportedError
from tests.emulator.snippets import bits, kernel, of_words, run, value

MINUS_7 = -7 & 0xFFFFFFFF

INTEGERS = [
    ("add.s32 %r9, %r1, %r2;", (0xFFFFFFFF, 2), 1),  # wraps
    ("sub.s32 %r9, %r1, 5;", (3,), 0xFFFFFFFE),
    ("mul.lo.s32 %r9, %r1, %r2;", (0x10001, 0x10001), 0x20001),  # 2**32 + 2**17 + 1
    ("mul.hi.u32 %r9, %r1, %r2;", (0x80000000, 6), 3),  # 6 * 2**31 = 3 * 2**32
    ("mul.hi.s32 %r9, %r1, %r2;", (-1, 6), 0xFFFFFFFF),  # -6 is all ones above its low word
    ("mul.wide.s32 %d9, %r1, %r2; shr.s64 %d9, %d9, 1; cvt.u32.u64 %r9, %d9;", (MINUS_7, 4), -14 & 0xFFFFFFFF),
    ("mad.lo.s32 %r9, %r1, 10, %r2;", (4, 2), 42),
    ("div.s32 %r9, %r1, 2;", (MINUS_7,), -3 & 0xFFFFFFFF),  # towards zero
    ("rem.s32 %r9, %r1, 2;", (MINUS_7,), 0xFFFFFFFF),  # the sign of the dividend
    ("div.s32 %r9, %r1, %r2;", (7, -2), -3 & 0xFFFFFFFF),
    ("min.s32 %r9, %r1, 3;", (-1,), 0xFFFFFFFF),
    ("min.u32 %r9, %r1, 3;", (-1,), 3),
    ("max.s32 %r9, %r1, 3;", (-1,), 3),
    ("neg.s32 %r9, %r1;", (7,), MINUS_7),
    ("abs.s32 %r9, %r1;", (MINUS_7,), 7),
    ("shl.b32 %r9, %r1, %r2;", (1, 31), 0x80000000),
    ("shl.b32 %r9, %r1, %r2;", (1, 32), 0),  # amounts past the width clamp
    ("shr.u32 %r9, %r1, %r2;", (0x80000000, 40), 0),
    ("shr.s32 %r9, %r1, %r2;", (0x80000000, 40), 0xFFFFFFFF),
    ("not.b32 %r9, %r1;", (0xF0F0F0F0,), 0x0F0F0F0F),
    ("xor.b32 %r9, %r1, -1;", (1,), 0xFFFFFFFE),
    ("lop3.b32 %r9, %r1, %r2, %r3, 0xE8;", (0b1100, 0b1010, 0b0110), 0b1110),  # the majority of three
    ("shf.l.wrap.b32 %r9, %r1, %r2, 8;", (0xAABBCCDD, 0x11223344), 0x223344AA),
    ("shf.r.clamp.b32 %r9, %r1, %r2, 32;", (1, 2), 2),
    ("prmt.b32 %r9, %r1, %r2, 0x5410;", (0x11112222, 0x33334444), 0x44442222),
    ("prmt.b32 %r9, %r1, %r2, 0x0008;", (0x80, 0), 0x808080FF),  # 8 + 0: the sign of byte 0, then byte 0
    ("bfe.u32 %r9, %r1, 8, 8;", (0x00FF8000,), 0x80),
    ("bfe.s32 %r9, %r1, 8, 8;", (0x00FF8000,), 0xFFFFFF80),
    ("bfi.b32 %r9, %r1, %r2, 4, 8;", (0xAB, 0xFFFFFFFF), 0xFFFFFABF),
    ("dp2a.lo.u32.u32 %r9, %r1, %r2, 5;", (0x00030002, 0x0B0A0907), 5 + 2 * 7 + 3 * 9),
    ("dp2a.hi.u32.u32 %r9, %r1, %r2, 5;", (0x00030002, 0x0B0A0907), 5 + 2 * 10 + 3 * 11),
    ("dp2a.lo.s32.u32 %r9, %r1, %r2, 0;", (0xFFFF0002, 0x0000FF07), (2 * 7 - 255) & 0xFFFFFFFF),
    ("dp2a.lo.u32.s32 %r9, %r1, %r2, 1;", (0xFFFF0002, 0x0000FF07), (1 + 2 * 7 - 65535) & 0xFFFFFFFF),
    ("popc.b32 %r9, %r1;", (0xF00F,), 8),
    ("clz.b32 %r9, %r1;", (1,), 31),
    ("clz.b32 %r9, %r1;", (0,), 32),
    ("brev.b32 %r9, %r1;", (0b11,), 0xC0000000),
    ("cvt.u16.u32 %h1, %r1; cvt.u32.u16 %r9, %h1;", (0x12345,), 0x2345),
    ("cvt.s8.s32 %h1, %r1; cvt.s32.s16 %r9, %h1;", (200,), -56 & 0xFFFFFFFF),  # 200 - 256
    ("cvt.s32.s8 %r9, %r1;", (0x180,), 0xFFFFFF80),  # its low byte, by its sign
    ("mov.b32 {%h1, %h2}, %r1; mov.b32 %r9, {%h2, %h1};", (0x11112222,), 0x22221111),
    ("setp.lt.s32 %p1, %r1, %r2; selp.b32 %r9, 10, 20, %p1;", (-1, 1), 10),
    ("setp.lt.u32 %p1, %r1, %r2; selp.b32 %r9, 10, 20, %p1;", (-1, 1), 20),
    (
        "setp.eq.s32 %p1, %r1, 0; setp.eq.or.s32 %p2, %r2, 5, %p1; selp.b32 %r9, 1, 0, %p2;",
        (1, 5),
        1,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("line", "words", "expected"), INTEGERS)
def test_integers(line, words, expected):
    assert hex(of_words(line, *words)) == hex(expected)


NAN = bits(float("nan"))
FLOATS = [
    # (1 + 2**-12)**2 - (1 + 2**-11) is 2**-24; two roundings lose it
    ("fma.rn.f32 %r9, %r1, %r1, %r2;", (bits(1 + 2**-12), bits(-(1 + 2**-11))), bits(2**-24)),
    ("mul.f32 %r3, %r1, %r1; add.f32 %r9, %r3, %r2;", (bits(1 + 2**-12), bits(-(1 + 2**-11))), bits(0)),
    # 1 + 2**-23 + (2**-24 - 2**-70) lies just below the middle of two f32; rounding to f64 first gives the middle
    (
        "fma.rn.f32 %r9, %r1, %r2, %r3;",
        (bits(2**-24 * (1 + 2**-23)), bits(1 - 2**-23), bits(1 + 2**-23)),
        bits(1 + 2**-23),
    ),
    ("min.f32 %r9, %r1, %r2;", (NAN, bits(2)), bits(2)),  # min returns the operand that is not NaN
    ("min.NaN.f32 %r9, %r1, %r2;", (NAN, bits(2)), NAN),
    ("max.NaN.f32 %r9, %r1, %r2;", (bits(2), NAN), NAN),
    ("max.NaN.f32 %r9, %r1, %r2;", (bits(-2), bits(1)), bits(1)),
    ("neg.f32 %r9, %r1;", (bits(0),), 0x80000000),
    ("copysign.f32 %r9, %r1, %r2;", (bits(-3), bits(2)), bits(-2)),  # the sign of the first operand
    ("ex2.approx.f32 %r9, %r1;", (bits(-130),), bits(2.0**-130)),
    ("ex2.approx.ftz.f32 %r9, %r1;", (bits(-130),), 0),
    ("ex2.approx.ftz.f32 %r9, %r1;", (bits(128),), bits(float("inf"))),
    ("lg2.approx.f32 %r9, %r1;", (bits(2.0**-130),), bits(-130)),
    ("lg2.approx.ftz.f32 %r9, %r1;", (bits(2.0**-130),), bits(float("-inf"))),  # .ftz flushes the operand to zero
    ("lg2.approx.f32 %r9, %r1;", (bits(-1),), bits(float("-nan"))),
    ("rcp.approx.ftz.f32 %r9, %r1;", (bits(-4),), bits(-0.25)),
    ("rcp.approx.ftz.f32 %r9, %r1;", (bits(2.0**127),), 0),
    ("rcp.approx.ftz.f32 %r9, %r1;", (bits(-(2.0**-128)),), bits(float("-inf"))),
    ("rcp.rn.f32 %r9, %r1;", (bits(3),), 0x3EAAAAAB),  # 1/3 = 0x0.AAAAAA|AA... is rounded up
    ("sqrt.approx.f32 %r9, %r1;", (bits(2.0**-140),), bits(2.0**-70)),
    ("sqrt.approx.ftz.f32 %r9, %r1;", (bits(2.0**-140),), 0),
    ("sqrt.rn.f32 %r9, %r1;", (bits(9),), bits(3)),
    ("rsqrt.approx.f32 %r9, %r1;", (bits(2.0**-140),), bits(2.0**70)),
    ("tanh.approx.f32 %r9, %r1;", (bits(-20),), bits(-1)),
    ("div.full.f32 %r9, %r1, %r2;", (bits(2.0**-20), bits(2.0**127)), 1 << 2),  # 2**-147 = 4 * 2**-149
    ("div.full.f32 %r9, %r1, %r2;", (bits(-1), bits(0)), bits(float("-inf"))),
    ("cvt.rni.f32.f32 %r9, %r1;", (bits(-2.5),), bits(-2)),  # a tie, to even
    ("cvt.rmi.f32.f32 %r9, %r1;", (bits(-2.5),), bits(-3)),
    ("setp.ne.f32 %p1, %r1, %r1; selp.b32 %r9, 1, 0, %p1;", (NAN,), 0),  # ordered: false for NaN
    ("setp.neu.f32 %p1, %r1, %r1; selp.b32 %r9, 1, 0, %p1;", (NAN,), 1),
    ("setp.geu.f32 %p1, %r1, %r2; selp.b32 %r9, 1, 0, %p1;", (bits(1), bits(2)), 0),
    ("cvt.rzi.s32.f32 %r9, %r1;", (bits(-2.7),), -2 & 0xFFFFFFFF),
    ("cvt.rni.s32.f32 %r9, %r1;", (bits(2.5),), 2),
    (  # 1 + 2**-8 + 2**-28 is above the tie between 1 and 1 + 2**-7; rounded to f32 first, it is the tie, and gives 1
        "mov.b64 %d9, 0x3ff0100001000000; cvt.rn.bf16.f64 %h1, %d9; cvt.u32.u16 %r9, %h1;",
        (),
        0x3F81,
    ),
    ("cvt.u16.u32 %h1, %r1; cvt.f64.bf16 %d9, %h1; cvt.rzi.s32.f64 %r9, %d9;", (0xC2F7,), -123 & 0xFFFFFFFF),
    ("cvt.rzi.s32.f32 %r9, %r1;", (bits(3e9),), 0x7FFFFFFF),
    ("cvt.rzi.s32.f32 %r9, %r1;", (NAN,), 0),
    ("cvt.rn.f32.s32 %r9, %r1;", (0x1000001,), bits(2.0**24)),  # 2**24 + 1 is a tie
    ("cvt.rn.bf16.f32 %h1, %r1; cvt.u32.u16 %r9, %h1;", (bits(1.00390625),), 0x3F80),  # a tie, to even: down
    ("cvt.rn.bf16.f32 %h1, %r1; cvt.u32.u16 %r9, %h1;", (bits(1.01171875),), 0x3F82),  # a tie, to even: up
    ("cvt.rn.bf16x2.f32 %r9, %r1, %r2;", (bits(1), bits(-2)), 0x3F80C000),  # the first operand is the upper half
    ("cvt.rn.f16x2.f32 %r9, %r1, %r2;", (bits(1), bits(65520)), 0x3C007C00),  # 65520 is past the largest
    ("mov.b32 {%h1, %h2}, %r1; cvt.f32.f16 %r9, %h2;", (0x3C010000,), bits(1 + 2**-10)),
    # %h1 and %h2 are the lower and the upper half of a word. 0x3F80 is 1 in bf16, 0x3C00 is 1 in f16
    ("mov.b32 {%h1, %h2}, %r1; neg.bf16 %h3, %h1; cvt.u32.u16 %r9, %h3;", (0x3F80,), 0xBF80),
    ("mov.b32 {%h1, %h2}, %r1; abs.bf16 %h3, %h1; cvt.u32.u16 %r9, %h3;", (0xC049,), 0x4049),
    (
        "mov.b32 {%h1, %h2}, %r1; add.bf16 %h3, %h1, %h2; cvt.u32.u16 %r9, %h3;",
        (0x3F003F80,),
        0x3FC0,
    ),  # 1 + 1/2
    (
        "mov.b32 {%h1, %h2}, %r1; add.rn.bf16 %h3, %h1, %h2; cvt.u32.u16 %r9, %h3;",
        (0x3B803F80,),
        0x3F80,
    ),  # 1 + 2**-8
    (
        "mov.b32 {%h1, %h2}, %r1; sub.bf16 %h3, %h1, %h2; cvt.u32.u16 %r9, %h3;",
        (0x40003F80,),
        0xBF80,
    ),  # 1 - 2
    (
        "mov.b32 {%h1, %h2}, %r1; mul.bf16 %h3, %h1, %h2; cvt.u32.u16 %r9, %h3;",
        (0x40404040,),
        0x4110,
    ),  # 3 * 3
    (
        "mov.b32 {%h1, %h2}, %r1; max.bf16 %h3, %h1, %h2; cvt.u32.u16 %r9, %h3;",
        (0xBF80C000,),
        0xBF80,
    ),  # max(-2, -1)
    (
        "mov.b32 {%h1, %h2}, %r1; min.bf16 %h3, %h1, %h2; cvt.u32.u16 %r9, %h3;",
        (0x3F807FC0,),
        0x3F80,
    ),  # min(NaN, 1)
    ("mov.b32 {%h1, %h2}, %r1; max.NaN.bf16 %h3, %h1, %h2; cvt.u32.u16 %r9, %h3;", (0x3F807FC0,), 0x7FFF),
    (
        "mov.b32 {%h1, %h2}, %r1; min.NaN.f16 %h3, %h1, %h2; cvt.u32.u16 %r9, %h3;",
        (0xBC003C00,),
        0xBC00,
    ),  # min(1, -1)
    (
        "mov.b32 {%h1, %h2}, %r1; max.f16 %h3, %h1, %h2; cvt.u32.u16 %r9, %h3;",
        (0x3C007E00,),
        0x3C00,
    ),  # max(NaN, 1)
    (
        "mov.b32 {%h1, %h2}, %r1; add.f16 %h3, %h1, %h2; cvt.u32.u16 %r9, %h3;",
        (0x38003C00,),
        0x3E00,
    ),  # 1 + 1/2
    (
        "mov.b32 {%h1, %h2}, %r1; setp.lt.bf16 %p1, %h1, %h2; selp.b32 %r9, 1, 0, %p1;",
        (0x3F80BF80,),
        1,
    ),  # -1 < 1
    (
        "mov.b32 {%h1, %h2}, %r1; setp.gt.bf16 %p1, %h1, %h2; selp.b32 %r9, 1, 0, %p1;",
        (0x3F807FC0,),
        0,
    ),  # NaN > 1
    ("mov.b32 {%h1, %h2}, %r1; setp.geu.bf16 %p1, %h1, %h2; selp.b32 %r9, 1, 0, %p1;", (0x3F807FC0,), 1),
    ("mov.b32 {%h1, %h2}, %r1; setp.lt.f16 %p1, %h1, %h2; selp.b32 %r9, 1, 0, %p1;", (0x3C00BC00,), 1),
    ("mov.b32 {%h1, %h2}, %r1; cvt.f32.bf16 %r9, %h2;", (0xC0490000,), bits(-3.140625)),
    ("cvt.rna.tf32.f32 %r9, %r1;", (bits(1 + 2**-11),), bits(1 + 2**-10)),  # a tie, away from zero
]


@pytest.mark.parametrize(("line", "words", "expected"), FLOATS)
def test_floats(line, words, expected):
    found = of_words(line, *words)
    assert hex(found) == hex(expected), (value(found), value(expected))


def test_f64():
    """Compute (1 + 2**-30)**2 - (1 + 2**-29) = 2**-60, which is exact with one rounding only."""
    body = """
    ld.global.b64 %d2, [%d0]; ld.global.b64 %d3, [%d0+8];
    fma.rn.f64 %d4, %d2, %d2, %d3;
    setp.eq.s32 %p1, %r0, 0;
    @%p1 st.global.b64 [%d1], %d4;
    """
    out = run(body, np.array([1 + 2.0**-30, -(1 + 2.0**-29)]), 2)
    assert out.view(np.float64)[0] == 2.0**-60


@pytest.mark.parametrize(
    ("opcode", "given", "expected"),
    [
        ("rcp.approx.ftz.f64", 3.0, 0x3FD55555_00000000),  # the upper half of 1/3
        ("rsqrt.approx.ftz.f64", 4.0, 0x3FE00000_00000000),
        ("rcp.approx.ftz.f64", 5e-324, 0x7FF00000_00000000),  # a subnormal operand counts as zero
        ("rsqrt.approx.f64", 0.25, 0x40000000_00000000),
        ("sqrt.rn.f64", 2.25, 0x3FF80000_00000000),
    ],
)
def test_approximations_of_f64(opcode, given, expected):
    body = f"""
    ld.global.b64 %d2, [%d0];
    {opcode} %d4, %d2;
    setp.eq.s32 %p1, %r0, 0;
    @%p1 st.global.b64 [%d1], %d4;
    """
    assert hex(run(body, np.array([given]), 2).view(np.uint64)[0]) == hex(expected)


STORE = "mul.wide.u32 %d9, %r0, 4; add.s64 %d9, %d1, %d9; st.global.b32 [%d9], %r9;"
NOTHING = np.zeros(1, np.uint32)


@pytest.mark.parametrize("seed", [None, 1])
def test_threads_diverge_and_reconverge(seed):
    """Thread t doubles a 1 in a loop of t % 4 iterations; then odd threads add 100."""
    body = f"""
    and.b32 %r1, %r0, 3; mov.b32 %r9, 1;
    TOP: setp.eq.s32 %p1, %r1, 0;
    @%p1 bra OUT;
    add.s32 %r9, %r9, %r9; sub.s32 %r1, %r1, 1;
    bra TOP;
    OUT: and.b32 %r2, %r0, 1; setp.ne.s32 %p2, %r2, 0;
    @!%p2 bra EVEN;
    add.s32 %r9, %r9, 100;
    EVEN: {STORE}
    """
    expected = [2 ** (t % 4) + 100 * (t % 2) for t in range(64)]
    assert run(body, NOTHING, 64, threads=64, seed=seed).tolist() == expected


def test_labels_belong_to_their_braces():
    """Two blocks declare the same label, and each branch jumps to the label of its own block."""
    block = "{{ .reg .pred q; setp.ge.s32 q, %r0, {0}; @q bra DONE; add.s32 %r9, %r9, {0}; DONE: }}"
    out = run(f"mov.b32 %r9, 0; {block.format(8)} {block.format(16)} {STORE}", NOTHING, 32)
    assert out.tolist() == [24] * 8 + [16] * 8 + [0] * 16


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("shfl.sync.idx.b32 %r9, %r0, 5, 31, -1;", [5] * 32),
        ("shfl.sync.up.b32 %r9, %r0, 2, 0, -1;", [0, 1, *range(30)]),
        ("shfl.sync.down.b32 %r9, %r0, 2, 31, -1;", [*range(2, 32), 30, 31]),
        ("shfl.sync.bfly.b32 %r9, %r0, 1, 31, -1;", [t ^ 1 for t in range(32)]),
        # Segments of 8 lanes: mask 24 in bits 8 to 12 of the bounds keeps the upper bits of the lane
        ("shfl.sync.idx.b32 %r9, %r0, 3, 6175, -1;", [t // 8 * 8 + 3 for t in range(32)]),
        ("setp.lt.s32 %p1, %r0, 4; vote.sync.ballot.b32 %r9, %p1, -1;", [0xF] * 32),
        ("setp.lt.s32 %p1, %r0, 4; vote.sync.any.pred %p2, %p1, -1; selp.b32 %r9, 1, 0, %p2;", [1] * 32),
        ("setp.lt.s32 %p1, %r0, 4; vote.sync.all.pred %p2, %p1, -1; selp.b32 %r9, 1, 0, %p2;", [0] * 32),
    ],
)
def test_shuffles_and_votes(line, expected):
    assert run(f"{line}\n{STORE}", NOTHING, 32).tolist() == expected


def test_atomics_execute_one_after_another():
    """64 threads of two CTAs get 64 different numbers from one counter."""
    body = """
    atom.global.add.u32 %r9, [%d0], 1;
    mul.wide.u32 %d9, %r9, 4; add.s64 %d9, %d1, %d9; st.global.b32 [%d9], %r9;
    """
    assert run(body, NOTHING, 64, blocks=2).tolist() == list(range(64))


@pytest.mark.parametrize("seed", [None, 3])
def test_a_loop_waits_for_another_cta(seed):
    """CTA 0 polls a flag until CTA 1 sets it."""
    body = f"""
    mov.u32 %r1, %ctaid.x; setp.ne.s32 %p1, %r1, 0; @%p1 bra GIVE;
    AGAIN: ld.acquire.gpu.global.b32 %r9, [%d0];
    setp.eq.s32 %p2, %r9, 0; @%p2 bra AGAIN;
    {STORE}
    bra END;
    GIVE: setp.eq.s32 %p3, %r0, 0; @%p3 red.release.gpu.global.add.s32 [%d0], 7;
    END:
    """
    assert run(body, NOTHING, 32, blocks=2, seed=seed).tolist() == [7] * 32


def test_an_endless_polling_loop_is_a_deadlock():
    body = "AGAIN: ld.acquire.gpu.global.b32 %r9, [%d0]; setp.eq.s32 %p2, %r9, 0; @%p2 bra AGAIN;"
    with pytest.raises(EmulationError, match=r"deadlock.*\n.*CTA .0, 0, 0. warp 0 polls memory"):
        run(body, NOTHING, 1)


def test_unknown_instructions_are_errors_before_execution():
    with pytest.raises(UnsupportedError, match=r"does not know.*\n.*line 10: tcgen05.alloc.b32 %r1"):
        run("tcgen05.alloc.b32 %r1, 4;", NOTHING, 1)
    with pytest.raises(UnsupportedError, match="unknown operand %x1"):
        parse(kernel("add.s32 %r1, %r2, %x1;"))
    with pytest.raises(UnsupportedError, match="unknown label NOWHERE"):
        parse(kernel("bra NOWHERE;"))
