"""Checks of accesses: bounds, alignment, uninitialized values, races, and copies under way."""

import numpy as np
import pytest

from cutegemm.errors import EmulationError, UnsupportedError
from tests.emulator.snippets import run

STORE = "mul.wide.u32 %d9, %r0, 4; add.s64 %d9, %d1, %d9; st.global.b32 [%d9], %r9;"
NUMBERS = np.arange(64, dtype=np.uint32)
# %r20: address of the thread's own word in shared memory
OWN = "mov.b32 %r20, pool; shl.b32 %r21, %r0, 2; add.s32 %r20, %r20, %r21;"
# %r22: address of the word of thread %r0 ^ 32
OTHER = "xor.b32 %r21, %r0, 32; shl.b32 %r21, %r21, 2; mov.b32 %r22, pool; add.s32 %r22, %r22, %r21;"
EXCHANGE = f"{OWN} {OTHER} st.shared.b32 [%r20], %r0; {{}} ld.shared.b32 %r9, [%r22]; {STORE}"


def fails(body, match, inputs=NUMBERS, outputs=64, **options):
    with pytest.raises(EmulationError, match=match):
        run(body, inputs, outputs, **options)


def test_vectors_and_widths():
    """Thread t loads words 2 t and 2 t + 1 at once, and byte 1 of word 0 as a signed number."""
    body = f"""
    mul.wide.u32 %d9, %r0, 8; add.s64 %d9, %d0, %d9;
    ld.global.v2.b32 {{%r1, %r2}}, [%d9];
    ld.global.s8 %r3, [%d0+1];
    mad.lo.s32 %r9, %r2, 100, %r1; add.s32 %r9, %r9, %r3;
    {STORE}
    """
    given = np.arange(64, dtype=np.uint32)
    given[0] = 0xFE00  # byte 1 is -2; thread 0 loads 0xFE00 as its first word
    out = run(body, given, 32).view(np.int32)
    assert out[1:].tolist() == [100 * (2 * t + 1) + 2 * t - 2 for t in range(1, 32)]
    assert out[0] == 100 + 0xFE00 - 2


@pytest.mark.parametrize(
    ("line", "match"),
    [
        (
            "ld.global.b32 %r9, [%d0+256];",
            r"line 10 .*CTA \(0, 0, 0\), thread 0: address .* no buffer .*1 bytes past",
        ),
        ("st.global.b32 [%d1+-4], %r0;", "4 bytes before the start of outputs"),
        ("ld.global.b32 %r9, [%d0+2];", "not a multiple of the 4 bytes of the access .byte 2 of inputs"),
        ("add.s32 %r1, %r0, 1023; st.shared.b8 [%r1], %r0;", "thread 0: address 0x3ff of shared memory"),
        ("mov.b32 %r1, pool; ld.shared.b32 %r9, [%r1+254];", "0x4fe of shared memory: the CTA has 256 bytes"),
        (
            "mov.b32 %r1, pool; ld.shared.v4.b32 {%r2, %r3, %r4, %r5}, [%r1+8];",
            "0x408 is not a multiple of the 16",
        ),
        (
            "mov.b32 %r1, pool; cp.async.cg.shared.global [%r1], [%d0], 16, 17;",
            "source size of 17 bytes is larger",
        ),
    ],
)
def test_invalid_accesses(line, match):
    fails(line, match, shared_bytes=256)


def test_words_pass_through_shared_memory():
    out = run(EXCHANGE.format("bar.sync 0;"), NUMBERS, 64, threads=64, shared_bytes=256)
    assert out.tolist() == [t ^ 32 for t in range(64)]


def test_a_barrier_that_is_missing_is_a_race():
    match = r"thread 0: race: it reads shared memory at 0x480, which was written by warp 1 with no barrier"
    fails(EXCHANGE.format(""), match, threads=64, shared_bytes=256)


def test_a_warp_needs_no_barrier_with_itself():
    body = f"{OWN} st.shared.b32 [%r20], %r0; xor.b32 %r1, %r20, 4; bar.warp.sync -1; ld.shared.b32 %r9, [%r1]; {STORE}"
    assert run(body, NUMBERS, 32, shared_bytes=128).tolist() == [t ^ 1 for t in range(32)]


def test_a_barrier_with_another_number_does_not_order():
    """Warp 0 meets warp 1 at barrier 1 and warp 2 at barrier 2. Warp 1 and warp 2 never meet."""
    body = f"""
    {OWN} shr.u32 %r1, %r0, 5;
    setp.eq.s32 %p1, %r1, 2; @%p1 bra LAST;
    setp.eq.s32 %p2, %r1, 0; @%p2 bra FIRST;
    st.shared.b32 [%r20], %r0; bar.arrive 1, 64; bra END;
    FIRST: {{0}} bar.arrive 2, 64; bra END;
    LAST: bar.sync 2, 64; ld.shared.b32 %r9, [%r20+-128]; {STORE}
    END:
    """
    out = run(body.format("bar.sync 1, 64;"), NUMBERS, 96, threads=96, shared_bytes=384)
    assert out[64:].tolist() == list(range(32, 64))
    # If warp 0 does not wait for warp 1, barrier 2 does not order warp 1 before warp 2.
    fails(body.format("bar.arrive 1, 64;"), "written by warp 1", outputs=96, threads=96, shared_bytes=384)


def test_overwriting_what_another_warp_reads_is_a_race():
    """All threads read the word of thread 0, which then overwrites it without a barrier."""
    body = f"""
    {OWN} mov.b32 %r1, pool; setp.eq.s32 %p1, %r0, 0;
    @%p1 st.shared.b32 [%r1], %r0;
    bar.sync 0; ld.shared.b32 %r9, [%r1]; {{}}
    @%p1 st.shared.b32 [%r1], %r9; {STORE}
    """
    assert run(body.format("bar.sync 0;"), NUMBERS, 64, threads=64, shared_bytes=256).tolist() == [0] * 64
    match = "thread 0: race: it writes shared memory at 0x400, which was read by warp 1"
    fails(body.format(""), match, threads=64, shared_bytes=256)


def test_two_writers_at_once_are_a_race():
    body = "mov.b32 %r1, pool; and.b32 %r2, %r0, 31; shl.b32 %r2, %r2, 2; add.s32 %r1, %r1, %r2; "
    body += "st.shared.b32 [%r1], %r0;"
    fails(body, "written at the same time by warp", threads=64, shared_bytes=256)


def test_uses_of_an_uninitialized_value():
    """An uninitialized value may be read and computed with, but not stored, branched on or used as an address."""
    read = "mov.b32 %r1, pool; ld.shared.b32 %r2, [%r1+64]; add.s32 %r3, %r2, 1;"
    lost = f"{read} setp.eq.s32 %p1, %r0, 99; selp.b32 %r9, %r3, 5, %p1; {STORE}"
    assert run(lost, NUMBERS, 32, shared_bytes=128).tolist() == [5] * 32
    where = "nothing has been written"
    for use, what in (
        ("mov.b32 %r9, %r3; " + STORE, "what it stores"),
        ("setp.eq.s32 %p1, %r3, 0; @%p1 bra END; END:", "the predicate of a branch"),
        ("shfl.sync.idx.b32 %r9, %r3, 0, 31, -1; " + STORE, "what it stores"),
        ("add.s32 %r4, %r3, %r1; ld.shared.b32 %r9, [%r4];", "the address"),
        ("st.shared.b32 [%r1], %r3; ld.shared.b32 %r9, [%r1]; " + STORE, "what it stores"),
    ):
        fails(
            f"{read} {use}",
            rf"{what} comes from memory .* reads shared memory at 0x4[04]0: {where}",
            shared_bytes=128,
        )


COPY = f"""
{OWN} shl.b32 %r1, %r0, 4; mov.b32 %r2, pool; add.s32 %r1, %r1, %r2;
and.b32 %r3, %r0, 15; mul.wide.u32 %d2, %r3, 16; add.s64 %d2, %d0, %d2;
setp.eq.s32 %p1, %r3, 0; selp.b32 %r4, 4, 16, %p1;
cp.async.cg.shared.global [%r1], [%d2], 16, %r4;
cp.async.commit_group;
{{}}
ld.shared.b32 %r9, [%r1+4];
{STORE}
"""


def test_a_copy_is_visible_after_its_wait():
    """Thread t copies four words from word 4 (t % 16) on; threads 0 and 16 copy one word and fill with zeros."""
    out = run(COPY.format("cp.async.wait_group 0;"), NUMBERS, 32, shared_bytes=512)
    assert out.tolist() == [0 if t % 16 == 0 else 4 * (t % 16) + 1 for t in range(32)]
    assert run(COPY.format("cp.async.wait_all;"), NUMBERS, 32, shared_bytes=512).tolist() == out.tolist()


@pytest.mark.parametrize("wait", ["", "cp.async.wait_group 1;"])
def test_a_copy_without_a_wait_is_uninitialized(wait):
    fails(COPY.format(wait), "what it stores comes from .* a copy to it is still under way", shared_bytes=512)


def test_a_copy_is_visible_to_other_warps_after_a_barrier():
    """Each of two warps reads what the other warp has copied."""
    body = f"""
    {OWN} {OTHER} mul.wide.u32 %d2, %r0, 4; add.s64 %d2, %d0, %d2;
    cp.async.ca.shared.global [%r20], [%d2], 4; cp.async.commit_group;
    {{}} ld.shared.b32 %r9, [%r22]; {STORE}
    """
    good = body.format("cp.async.wait_group 0; bar.sync 0;")
    assert run(good, NUMBERS, 64, threads=64, shared_bytes=256).tolist() == [t ^ 32 for t in range(64)]
    for bad in ("cp.async.wait_group 0;", "bar.sync 0; cp.async.wait_group 0;"):
        fails(body.format(bad), "race: it reads .* written by warp", threads=64, shared_bytes=256)


def test_an_incomplete_barrier_is_reported():
    body = f"setp.lt.s32 %p1, %r0, 32; @!%p1 bra END; bar.sync 3, 64; END: {STORE}"
    fails(body, "deadlock.*\n.*warp 0 waits at the barrier at line 10: bar.sync 3, 64", threads=64)
    fails("bar.sync 1, 32;", "64 threads arrive at barrier 1, which expects 32", threads=64)


def test_unimplemented_forms_are_errors():
    for line in (
        "ld.global.v2.b32 %r9, [%d0];",
        "cp.async.ca.shared.global [%r1], [%d0], %r2;",
        "cvt.rz.f32.s32 %r1, %r2;",
    ):
        with pytest.raises(UnsupportedError, match=r"does not know"):
            run(line, NUMBERS, 1)
