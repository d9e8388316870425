"""sm_90 instructions in small kernels written by hand: their results, and the errors of wrong uses."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm.emulator.decode import programs
from cutegemm.emulator.machine import Machine, launch_blocks
from cutegemm.emulator.state import FULL, GlobalMemory
from cutegemm.errors import EmulationError, UnsupportedError

WORDS = 1 << 10


class Bench:
    """Runs kernels with three parameters: two tensor maps and the address of an array of words.

    source, target   (rows, 64) f16 in global memory; boxes of 64 x 8 with the 128-byte swizzle
    """

    def __init__(self, rows: int = 20, columns: int = 64) -> None:
        self.memory = GlobalMemory()
        values = np.arange(rows * 64, dtype=np.float16).reshape(rows, 64)
        self.source = self.memory.add("source", values.view(np.uint8).reshape(-1), self._full(values.nbytes))
        self.target = self.memory.add("target", np.zeros(values.nbytes, np.uint8), self._full(values.nbytes))
        self.words = self.memory.add("words", np.zeros(4 * WORDS, np.uint8), self._full(4 * WORDS))
        self.params = b"".join(
            [
                self._map(self.source.base, rows, columns),
                self._map(self.target.base, rows, columns),
                np.uint64(self.words.base).tobytes(),
            ]
        )

    def _full(self, size: int) -> np.ndarray:
        return np.full(size, FULL, np.uint8)

    def _map(self, address: int, rows: int, columns: int) -> bytes:
        """Return a tensor map of rank 2: f16, 128-byte swizzle, rows of 128 bytes (8 units); see `tensormap`."""
        words = np.zeros(32, np.uint32)
        words[:3] = address & 0xFFFFFFFF, address >> 32, 1 << 4 | 6 << 7 | 3 << 13
        words[[3, 8, 9, 13, 14]] = 8, columns - 1, rows - 1, 63 << 24, 7
        return words.tobytes()

    def run(self, body: str, threads: int = 32, ctas: int = 1, **options: bool) -> np.ndarray:
        """Emulate a kernel with this body, and return the output words: one for each thread."""
        text = f"""
        .version 8.8
        .target sm_90a
        .address_size 64
        .extern .shared .align 1024 .b8 smem[];
        .visible .entry k(.param .align 64 .b8 source[128], .param .align 64 .b8 target[128], .param .u64 words)
        .reqntid {threads}, 1, 1
        {{
          .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<99>; .reg .b64 %rd<99>;
          ld.param.b64 %rd0, [words];
          mov.u32 %r0, %tid.x;
          mul.wide.u32 %rd1, %r0, 4;
          add.s64 %rd0, %rd0, %rd1;        // the thread's own word
          mov.b64 %rd8, source; cvta.param.u64 %rd8, %rd8;
          mov.b64 %rd9, target; cvta.param.u64 %rd9, %rd9;
          mov.b32 %r9, smem;               // boxes
          add.s32 %r8, %r9, 8192;          // barriers
          setp.ne.b32 %p0, %r0, 0;         // not the first thread
          {body}
          ret;
        }}"""
        kernel, program = programs(text)["k"]
        params = np.frombuffer(self.params, np.uint8)
        blocks = launch_blocks((ctas, 1, 1), ctas, 0, ctas)
        Machine(kernel, program, blocks, threads, 16384, params, self.memory, True, 4, **options).run()
        return self.words.data.view(np.uint32)[: threads * ctas]


INIT = "@!%p0 mbarrier.init.shared.b64 [%r8], {count}; fence.mbarrier_init.release.cluster; bar.sync 0;"
LOAD = (
    "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r9], [%rd8, {%r10, %r11}], [%r8];"
)
STORE = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd9, {%r10, %r11}], [%r9];"
ADD = STORE.replace("cp.async", "cp.reduce.async").replace(".tile", ".add.tile")
WAIT = "L: mbarrier.try_wait.parity.shared.b64 %p1, [%r8], {parity}; @!%p1 bra L;"
FETCH = f"""
    mov.b32 %r10, 0; mov.b32 %r11, 16; mov.b32 %r12, 1024;
    {INIT.format(count=1)}
    @%p0 bra NEXT;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r8], %r12;
    {LOAD}
    NEXT:
"""


def test_a_box_is_swizzled_and_padded_by_zeros():
    """Thread t reads unit t % 8 of row t / 8: column 8 (t % 8 ^ t / 8) of the row, by the 128-byte swizzle.

    The box begins in row 16, and rows 20 to 23 are out of bounds. Each word has the first two elements of a unit.
    """
    got = Bench(rows=20).run(
        f"{FETCH} {WAIT.format(parity=0)} shl.b32 %r20, %r0, 4; add.s32 %r20, %r20, %r9;"
        "ld.shared.b32 %r21, [%r20]; st.global.b32 [%rd0], %r21;",
        threads=64,
    )
    pairs = got.view(np.float16).reshape(64, 2)
    for t in range(64):
        row, column = 16 + t // 8, 8 * (t % 8 ^ t // 8)
        first = row * 64 + column if row < 20 else 0
        second = first + 1 if row < 20 else 0
        assert tuple(pairs[t]) == (first, second)


def test_columns_past_the_end_are_zeros():
    # 60 columns: unit 7 has columns 56 to 63, and 56 to 59 are in bounds. The swizzle does not permute row 16.
    got = Bench(columns=60).run(
        f"{FETCH} {WAIT.format(parity=0)} shl.b32 %r20, %r0, 2; add.s32 %r20, %r20, %r9;"
        "ld.shared.b32 %r21, [%r20]; st.global.b32 [%rd0], %r21;"
    )
    row = np.arange(16 * 64, 17 * 64).astype(np.float16)
    row[60:] = 0
    assert (got.view(np.float16) == row).all()


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("operation", ["store", "add"])
def test_a_box_goes_through_shared_memory_and_back(seed, operation):
    bench = Bench()
    before = np.arange(20 * 64, dtype=np.float16) % 5
    bench.target.data[...] = before.view(np.uint8)
    leave = f"{ADD if operation == 'add' else STORE} cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;"
    bench.run(f"{FETCH} {WAIT.format(parity=0)} @%p0 ret; {leave}", seed=seed)
    after = bench.target.data.view(np.float16).reshape(20, 64)
    expected = np.arange(16 * 64, 20 * 64).reshape(4, 64) + before[16 * 64 :].reshape(4, 64) * (operation == "add")
    assert (after[:16].reshape(-1) == before[: 16 * 64]).all()
    assert (after[16:] == expected.astype(np.float16)).all()


@pytest.mark.parametrize("seed", [None, 3])
def test_a_box_that_two_ctas_store_is_a_race(seed):
    """Two reductions (add) to the same box are not a race, two stores are."""
    before, after = f"{FETCH} {WAIT.format(parity=0)} @%p0 ret;", "cp.async.bulk.commit_group;"
    after += "cp.async.bulk.wait_group 0;"
    bench = Bench()
    bench.run(before + ADD + after, ctas=2, seed=seed)
    added = 2.0 * np.arange(16 * 64, 20 * 64)
    assert (bench.target.data.view(np.float16)[16 * 64 :] == added.astype(np.float16)).all()
    match = r"race: it writes byte 2048 of target.*CTA \(., 0, 0\), thread 0, and"
    with pytest.raises(EmulationError, match=match):
        Bench().run(before + STORE + after, ctas=2, seed=seed)


def test_a_store_writes_whole_units_past_the_end_of_a_row():
    # 60 columns in rows of 64: elements 60 to 63 are OUTSIDE, but the last unit is written as a whole
    bench = Bench(columns=60)
    bench.target.state.reshape(20, 64, 2)[:, 60:] = GlobalMemory.OUTSIDE
    leave = f"{STORE} cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
    with pytest.raises(EmulationError, match="outside of the matrix: TMA writes whole units of 16 bytes"):
        bench.run(f"{FETCH} {WAIT.format(parity=0)} @%p0 ret; {leave}")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (f"{FETCH} ld.shared.b32 %r20, [%r9];", "race: it reads .* written by an asynchronous copy"),
        (f"{FETCH} st.shared.b32 [%r9], %r0;", "race: it writes .* written by an asynchronous copy"),
        (f"{FETCH.replace(LOAD, LOAD * 2)}", "where a copy is still under way"),
        (f"{FETCH} @%p0 ret; {STORE} cp.async.bulk.commit_group;", "wait_group.read is missing"),
        (
            f"{FETCH} {WAIT.format(parity=0)} @%p0 ret; {STORE} cp.async.bulk.commit_group;"
            f"mbarrier.arrive.expect_tx.shared.b64 _, [%r8], %r12; {LOAD}",
            "race: it writes .* which an asynchronous copy has not read yet",
        ),
        (
            f"{FETCH} {WAIT.format(parity=0)} @%p0 ret; {STORE} cp.async.bulk.commit_group;"
            "st.shared.b32 [%r9], %r0; cp.async.bulk.wait_group.read 0;",
            "which warp 0 wrote by an ordinary store",
        ),
        (
            f"{FETCH} {WAIT.format(parity=0)} @%p0 ret; mov.b32 %r11, -1; {ADD} cp.async.bulk.commit_group;",
            r"reduces into a box at \(0, -1\); a coordinate is negative",
        ),
        (f"{FETCH.replace('[%r9], [%rd8', '[%r9+64], [%rd8')}", "not a multiple of 128"),
        (f"{FETCH.replace('{%r10, %r11}', '{%r10}').replace('2d', '1d')}", "1 coordinates for a tensor map of 2"),
        (f"{FETCH.replace('1024;', '2048;')} {WAIT.format(parity=0)}", "lacks 0 of 1 arrivals and 1024 bytes"),
        (f"{INIT.format(count=1)} {WAIT.format(parity=0)}", "deadlock(.|\n)*lacks 1 of 1 arrivals"),
        (f"{INIT.format(count=2)} mbarrier.arrive.shared.b64 _, [%r8], 3;", "too many arrivals"),
        (f"{INIT.format(count=2)} {WAIT.format(parity=2)}", "parity 2"),
        (f"{INIT.format(count=2)} st.shared.b32 [%r8+4], %r0;", "stores to shared memory .* where an mbarrier is"),
        (f"{INIT.format(count=2)} ld.shared.b32 %r3, [%r8]; st.global.b32 [%rd0], %r3;", "nothing has been written"),
        ("mbarrier.init.shared.b64 [%r8], 1;", "initialised again"),
        ("mbarrier.arrive.shared.b64 _, [%r8];", "no mbarrier is initialised"),
        (FETCH.replace("fence.mbarrier_init.release.cluster;", ""), "no fence.mbarrier_init since"),
        (
            f"{INIT.format(count=1)} mapa.shared::cluster.u32 %r3, %r8, 1;"
            "mbarrier.arrive.shared::cluster.b64 _, [%r3];",
            "CTA rank 1 is not in the cluster",
        ),
        ("barrier.cluster.wait;", "before it has arrived"),
        ("elect.sync %r3|%p3, 15;", "does not contain this thread"),
        ("prefetch.tensormap [%rd0];", "a tensor map violates rules"),
    ],
)  # fmt: skip
def test_wrong_uses_are_errors(body, says):
    with pytest.raises(EmulationError, match=says):
        Bench().run(body)


def test_unimplemented_forms_are_errors():
    with pytest.raises(UnsupportedError, match="uses im2col, which the emulator does not implement"):
        Bench().run(LOAD.replace("tile", "im2col"))


def test_states_and_counts_of_a_barrier():
    """A barrier for 33 arrivals: 32 threads arrive once, then one thread again. Then the first phase is complete."""
    body = f"""
        {INIT.format(count=33)}
        mbarrier.arrive.shared.b64 %rd10, [%r8];
        mbarrier.test_wait.shared.b64 %p1, [%r8], %rd10;
        bar.sync 0;
        @!%p0 mbarrier.arrive.shared.b64 _, [%r8], 1;
        W: mbarrier.try_wait.shared.b64 %p2, [%r8], %rd10; @!%p2 bra W;
        selp.b32 %r20, 10, 0, %p1; selp.b32 %r21, 1, 0, %p2; add.s32 %r20, %r20, %r21;
        st.global.b32 [%rd0], %r20;
        bar.sync 0;
        @!%p0 mbarrier.inval.shared.b64 [%r8];
    """
    assert (Bench().run(body) == 1).all()


def test_arrivals_at_the_mbarrier_of_another_cta():
    """CTA 1 arrives at the mbarrier of CTA 0, which waits for it. CTA 0 must not end before the arrivals."""
    body = """
        mov.u32 %r1, %cluster_ctarank; setp.ne.b32 %p2, %r1, 0;
        @!%p0 mbarrier.init.shared.b64 [%r8], 32;
        fence.mbarrier_init.release.cluster;
        barrier.cluster.arrive.relaxed; barrier.cluster.wait;
        @!%p2 bra FIRST;
        mapa.shared::cluster.u32 %r3, %r8, 0;
        mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];
        bra LAST;
        FIRST: mbarrier.try_wait.parity.shared.b64 %p1, [%r8], 0; @!%p1 bra FIRST;
        mov.b32 %r5, 7; st.global.b32 [%rd0], %r5;
        LAST: barrier.cluster.arrive; barrier.cluster.wait;
    """
    assert (Bench().run(body, ctas=2)[:32] == 7).all()
    early = body.replace("LAST: barrier.cluster.arrive; barrier.cluster.wait;", "LAST: ")
    assert (Bench().run(early, ctas=2)[:32] == 7).all()  # CTA 0 waits for the arrivals, so it ends after them
    gone = early.replace("@!%p2 bra FIRST;", "@!%p2 ret; bar.sync 0;")
    with pytest.raises(EmulationError, match="which has ended"):
        Bench().run(gone, ctas=2)


def test_a_cluster_waits_for_all_its_ctas():
    """CTA 1, which arrives later, writes to the shared memory of CTA 0. CTA 0 reads it after the cluster barrier."""
    body = """
        mov.u32 %r1, %cluster_ctarank; setp.ne.b32 %p2, %r1, 0;
        shl.b32 %r2, %r0, 2; add.s32 %r2, %r2, %r9;
        @%p2 bra LATE;
        MEET: barrier.cluster.arrive; barrier.cluster.wait;
        @%p2 bra DONE;
        ld.shared.b32 %r5, [%r2]; st.global.b32 [%rd0], %r5;
        bra DONE;
        LATE: mapa.shared::cluster.u32 %r3, %r2, 0; add.s32 %r4, %r0, 100;
        st.shared::cluster.b32 [%r3], %r4;
        bra MEET;
        DONE:
    """
    assert Bench().run(body, ctas=2)[:32].tolist() == list(range(100, 132))
    for missing in ("barrier.cluster.wait;", "barrier.cluster.arrive; barrier.cluster.wait;"):
        with pytest.raises(EmulationError, match="nothing has been written"):
            Bench().run(body.replace(missing, ""), ctas=2)


def test_a_wait_for_one_copy_does_not_order_another():
    """Two boxes have a barrier each. A thread that waits for the second box must not read the first."""
    second = LOAD.replace("[%r9]", "[%r9+1024]").replace("[%r8]", "[%r8+8]")
    body = f"""
        mov.b32 %r10, 0; mov.b32 %r11, 0; mov.b32 %r12, 1024;
        @!%p0 mbarrier.init.shared.b64 [%r8+8], 1;
        {INIT.format(count=1)}
        @%p0 bra NEXT;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r8], %r12;
        {LOAD}
        mbarrier.arrive.expect_tx.shared.b64 _, [%r8+8], %r12;
        {second}
        NEXT: {WAIT.format(parity=0).replace("[%r8]", "[%r8+8]")}
        bar.sync 0;
        ld.shared.b32 %r20, [%r9+1024]; st.global.b32 [%rd0], %r20;
    """
    assert (Bench().run(body) == 0x3C00 << 16).all()  # elements 0 and 1
    with pytest.raises(EmulationError, match=r"race: it reads .* written by an asynchronous copy"):
        Bench().run(body.replace("[%r9+1024]; st", "[%r9]; st"))


def test_a_tma_store_of_st_async_data_needs_a_fence():
    """st.async stores through the generic proxy, so a TMA store of its data needs fence.proxy.async.

    64 threads of each CTA send 1 and 2, in f16, to the other CTA.
    """
    body = f"""
        {INIT.format(count=1)}
        barrier.cluster.arrive; barrier.cluster.wait;
        mov.u32 %r1, %cluster_ctarank; xor.b32 %r2, %r1, 1;
        shl.b32 %r3, %r0, 4; add.s32 %r3, %r3, %r9; mov.b32 %r4, 0x40003C00;
        mapa.shared::cluster.u32 %r3, %r3, %r2; mapa.shared::cluster.u32 %r5, %r8, %r2;
        @!%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r8], 1024;
        st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%r3], {{%r4, %r4, %r4, %r4}}, [%r5];
        {WAIT.format(parity=0)}
        fence.proxy.async.shared::cta;
        bar.sync 0;
        @%p0 ret;
        mov.b32 %r10, 0; shl.b32 %r11, %r1, 3;
        {STORE} cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    """
    bench = Bench()
    bench.run(body, threads=64, ctas=2)
    after = bench.target.data.view(np.float16).reshape(20, 64)
    assert (after[:16] == np.tile([1, 2], 32)).all()
    assert (after[16:] == 0).all()
    with pytest.raises(EmulationError, match=r"which st\.async wrote with no fence\.proxy\.async after it"):
        Bench().run(body.replace("fence.proxy.async.shared::cta;", ""), threads=64, ctas=2)


def test_mapa_of_a_missing_cta_is_not_an_error():
    """Compilers compute such addresses before a branch; mapa itself is not an error."""
    got = Bench().run("mapa.shared::cluster.u32 %r3, %r8, %r0; mov.b32 %r4, 5; st.global.b32 [%rd0], %r4;")
    assert (got == 5).all()


def test_one_lane_is_elected():
    got = Bench().run("elect.sync %r3|%p3, -1; selp.b32 %r4, 1, 0, %p3; st.global.b32 [%rd0], %r4;", threads=64)
    assert got.tolist() == ([1] + [0] * 31) * 2


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("setmaxnreg.inc.sync.aligned.u32 232;", "deadlock"),  # no warpgroup releases registers
        ("setmaxnreg.dec.sync.aligned.u32 20;", "a multiple of 8 from 24"),
        ("setmaxnreg.dec.sync.aligned.u32 36;", "a multiple of 8 from 24"),
        ("setmaxnreg.dec.sync.aligned.u32 176;", "raises .* from 168 to 176"),  # 65536 / 384, in steps of 8
        ("setmaxnreg.inc.sync.aligned.u32 160;", "lowers .* from 168 to 160"),
    ],
)
def test_wrong_uses_of_setmaxnreg(line, says):
    with pytest.raises(EmulationError, match=says):
        Bench().run(line, threads=384)


# --- wgmma: m64n8k16, accumulators += A B; ordinary stores write B ---------------------------------------------

WGMMA = """
    shl.b32 %r20, %r0, 4; add.s32 %r20, %r20, %r9;
    setp.gt.u32 %p4, %r0, 15; @%p4 bra STORED;         // B: 8 rows of two units; 16 threads write one each
    mov.b32 %r21, 0x40003C00;                          // 1, 2 in f16
    st.shared.v4.b32 [%r20], {%r21, %r21, %r21, %r21};
    STORED: fence.proxy.async.shared::cta;
    bar.sync 0;
    mov.b32 %r30, 0f3F800000; mov.b32 %r31, %r30; mov.b32 %r32, %r30; mov.b32 %r33, %r30;
    mov.b32 %r40, 0x3C003C00; mov.b32 %r41, %r40; mov.b32 %r42, %r40; mov.b32 %r43, %r40;   // A: ones
    shr.u32 %r22, %r9, 4; cvt.u64.u32 %rd20, %r22;
    or.b64 %rd20, %rd20, 34359738368;                  // 128 bytes to the next 8 rows: none here
    mov.b64 %rd21, 524288; or.b64 %rd20, %rd20, %rd21; // 128 bytes between the units of K
    wgmma.fence.sync.aligned;
    setp.eq.b32 %p5, %r9, %r9;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r30, %r31, %r32, %r33}, {%r40, %r41, %r42, %r43},
        %rd20, %p5, -1, 1, 0;
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    st.global.b32 [%rd0], %r30;
"""


def test_wgmma_with_a_in_registers():
    # A row of ones times a column of 1, 2, 1, 2, ... is 24. A is negated, and the accumulator was 1.
    assert (Bench().run(WGMMA, threads=128).view(np.float32) == 1 - 24).all()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("fence.proxy.async.shared::cta;", "", "no fence.proxy.async"),
        (
            "fence.proxy.async.shared::cta;",  # executed by a warp that has not stored
            "setp.lt.u32 %p6, %r0, 32; @%p6 bra ON; fence.proxy.async.shared::cta; ON:",
            "which warp 0 wrote by an ordinary store",
        ),
        ("wgmma.fence.sync.aligned;", "", "no wgmma.fence"),
        ("setp.eq.b32 %p5, %r9, %r9;", "setp.eq.b32 %p5, %r9, %r9; mov.b32 %r41, %r40;", "no wgmma.fence"),
        ("wgmma.wait_group.sync.aligned 0;", "", "is under way"),
        ("wgmma.wait_group.sync.aligned 0;", "mov.b32 %r40, 0;", "is under way"),
        ("bar.sync 0;", "", "race"),
        ("%r9, %r9;", "%r0, 5;", "scale-d differs within the warpgroup"),
        ("setp.gt.u32 %p4, %r0, 15;", "setp.gt.u32 %p4, %r0, 14;", "nothing has been written"),
        ("m64n8k16", "m64n16k16", "4 accumulator registers; the shape has 8"),
        ("shr.u32 %r22, %r9, 4;", "shr.u32 %r22, %r9, 4; add.s32 %r22, %r22, 1000;", "past its end|nothing"),
    ],
)
def test_wrong_uses_of_wgmma(old, new, says):
    assert old in WGMMA
    with pytest.raises(EmulationError, match=says):
        Bench().run(WGMMA.replace(old, new), threads=128)
