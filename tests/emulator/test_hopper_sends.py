"""st.async in small kernels written by hand: the stores to the other CTA of a cluster, and the errors of wrong uses."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm.errors import EmulationError, UnsupportedError
from tests.emulator.snippets import run

# Each thread of two CTAs sends four words to the same thread of the other CTA: 10 * rank, thread, 0, 7.
STORE = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.{kind} [%r5+16], {values}, [%r6];"
WORDS = STORE.format(kind="v4.b32", values="{%r10, %r11, %r12, %r13}")
WAIT = "W{n}: mbarrier.try_wait.parity.shared.b64 %p1, [%r2], {parity}; @!%p1 bra W{n};"
EXPECT = "@!%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 512;"
MEET = "barrier.cluster.arrive; barrier.cluster.wait;"
PASS = "barrier.cluster.arrive.relaxed; barrier.cluster.wait;"  # a cluster barrier that orders no accesses
READ = "ld.shared.v4.b32 {%r20, %r21, %r22, %r23}, [%r4+16];"
LEAVE = "st.global.v4.b32 [%d1], {%r20, %r21, %r22, %r23};"
HEAD = f"""
    mov.b32 %r2, pool;                              // two barriers, 16 bytes for each thread, 16 bytes more
    mov.u32 %r1, %cluster_ctarank;
    setp.ne.s32 %p0, %r0, 0;                        // not the first thread
    @!%p0 mbarrier.init.shared.b64 [%r2], 1;
    @!%p0 mbarrier.init.shared.b64 [%r2+8], 32;
    fence.mbarrier_init.release.cluster;
    {MEET}
    {EXPECT}
    xor.b32 %r3, %r1, 1;                            // the other CTA
    shl.b32 %r4, %r0, 4; add.s32 %r4, %r4, %r2;
    mapa.shared::cluster.u32 %r5, %r4, %r3;
    mapa.shared::cluster.u32 %r6, %r2, %r3;
    mad.lo.s32 %r7, %r1, 32, %r0; mul.wide.u32 %d2, %r7, 16; add.s64 %d1, %d1, %d2;
    mul.lo.s32 %r10, %r1, 10; mov.b32 %r11, %r0; mov.b32 %r12, 0; mov.b32 %r13, 7;
"""
EXCHANGE = f"{HEAD} {WORDS} {WAIT.format(n=1, parity=0)} {READ} {LEAVE}"


def exchange(body: str, seed: int | None = None, cluster: int = 2) -> np.ndarray:
    """Run a kernel on two CTAs, and return its output words (CTAs, threads, 4)."""
    found = run(body, np.zeros(1), 256, blocks=2, cluster=cluster, shared_bytes=16 + 512 + 16, seed=seed)
    return found.reshape(2, 32, 4)


def sent_to(rank: int) -> np.ndarray:
    """Return the words (threads, 4) that a CTA receives."""
    return np.array([[10 * (1 - rank), thread, 0, 7] for thread in range(32)], np.uint32)


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_words_arrive_in_the_other_cta(seed):
    """The words arrive, also if the sender overwrites their registers before that."""
    again = f"{HEAD} {WORDS} mov.b32 %r10, -1; mov.b32 %r11, -1; {WAIT.format(n=1, parity=0)} {READ} {LEAVE}"
    for body in (EXCHANGE, again, again.replace(".weak", "")):
        found = exchange(body, seed)
        assert (found[0] == sent_to(0)).all()
        assert (found[1] == sent_to(1)).all()


@pytest.mark.parametrize(
    ("kind", "values", "size"),
    [(kind, "%r11", 4) for kind in ("b32", "u32", "s32", "f32")]
    + [(kind, "%d10", 8) for kind in ("b64", "u64", "s64", "f64")]
    + [(f"v2.{kind}", "{%r11, %r10}", 8) for kind in ("b32", "f32")]
    + [(f"v2.{kind}", "{%d10, %d11}", 16) for kind in ("b64", "f64")]
    + [("v4.f32", "{%r11, %r10, %r13, %r12}", 16), ("v4.u32", "{%r11, %r10, 7, %r12}", 16)],
)
def test_all_types_and_vectors(kind, values, size):
    """Store the first bytes of the words thread, 10 * rank, 7, 0."""
    words = size // 4
    into = ", ".join(f"%r{20 + i}" for i in range(words))
    read = f"ld.shared.v{words}.b32 {{{into}}}, [%r4+16];" if words > 1 else "ld.shared.b32 %r20, [%r4+16];"
    body = f"""
        {HEAD.replace(", 512;", f", {32 * size};")}
        mov.b64 %d10, {{%r11, %r10}}; mov.b64 %d11, {{%r13, %r12}};
        {STORE.format(kind=kind, values=values)}
        {WAIT.format(n=1, parity=0)}
        mov.b32 %r20, 0; mov.b32 %r21, 0; mov.b32 %r22, 0; mov.b32 %r23, 0;
        {read} {LEAVE}
    """
    found = exchange(body)
    for rank in (0, 1):
        whole = np.array([[thread, 10 * (1 - rank), 7, 0] for thread in range(32)])
        assert (found[rank, :, :words] == whole[:, :words]).all()
        assert (found[rank, :, words:] == 0).all()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (WAIT.format(n=1, parity=0), "", "race: it reads shared memory at .* written by an asynchronous copy"),
        (READ, f"{READ} {PASS} {WORDS}", "race: it writes shared memory at .* read by warp 0"),
        (WORDS, WORDS * 2, "where a copy is still under way"),
        (WORDS, f"{WORDS} st.shared.b32 [%r4+16], %r0;", "race: it writes .* written by an asynchronous copy"),
        ("[%r5+16]", "[%r5+12]", "not a multiple of the 16 bytes"),
        ("[%r5+16]", "[%r5+48]", "of shared memory: the CTA has 544 bytes"),
        ("[%r5+16]", "[%r5]", "where an mbarrier is"),
        ("[%r5+16]", "[%r6+16]", "several threads of a warp store to shared memory at 0x410"),
        ("}, [%r6];", "}, [%r2];", "the destination and the mbarrier of a store lie in different CTAs"),
        ("}, [%r6];", "}, [%r6+4];", "not a multiple of the 8 bytes"),
        ("}, [%r6];", "}, [%r6+16];", "no mbarrier is initialised at shared address 1040"),
        ("%r1, 1; ", "%r1, 2; ", "CTA rank 2 is not in the cluster"),
        ("%r1, 1; ", "%r1, -1; ", "CTA rank 254 is not in the cluster"),
        (", 512;", ", 528;", "deadlock(.|\n)*lacks 0 of 1 arrivals and 16 bytes"),
        (", 512;", ", 496;", "deadlock(.|\n)*lacks 0 of 1 arrivals and -16 bytes"),
        ("fence.mbarrier_init.release.cluster;", "", "no fence.mbarrier_init since"),
        (MEET, "", "used by a thread that has not waited at barrier.cluster"),
        ("mov.b32 %r13, 7;", "ld.shared.b32 %r13, [%r2+528];", r"what it stores .* 0x610: nothing has been written"),
        (EXPECT, f"setp.eq.s32 %p2, %r1, 1; @%p2 ret; {EXPECT}", "in CTA .1, 0, 0., which has ended"),
        (WAIT.format(n=1, parity=0), "ret;", "it stores to CTA .*, which ends before the values arrive"),
    ],
    ids=lambda text: text[:30],
)  # fmt: skip
def test_wrong_uses_are_errors(old, new, says):
    assert old in EXCHANGE
    with pytest.raises(EmulationError, match=says):
        exchange(EXCHANGE.replace(old, new))


def test_st_async_needs_a_cluster():
    with pytest.raises(EmulationError, match="needs a cluster of at least 2 CTAs"):
        exchange(EXCHANGE.replace("%r1, 1;", "%r1, 0;"), cluster=1)


def test_a_missing_wait_is_a_race():
    """Without a wait it is a race, also if the words arrive before they are read."""
    for seed in range(8):
        with pytest.raises(EmulationError, match=r"race: it reads .* written by an asynchronous copy"):
            exchange(EXCHANGE.replace(WAIT.format(n=1, parity=0), PASS), seed)


# A receiver signals to the sender that it has read the first words. Then the sender sends others.
SPENT = "mapa.shared::cluster.u32 %r8, %r2, %r3; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r8+8];"
AWAIT_SPENT = "S: mbarrier.try_wait.parity.shared.b64 %p1, [%r2+8], 0; @!%p1 bra S;"
TWICE = f"""
    {HEAD} {WORDS} {WAIT.format(n=1, parity=0)} {READ} add.s32 %r30, %r20, %r21;
    {SPENT} {AWAIT_SPENT}
    {EXPECT} add.s32 %r10, %r10, 100; {WORDS} {WAIT.format(n=2, parity=1)}
    {READ} add.s32 %r20, %r20, %r30; {LEAVE} {MEET}
"""


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_a_destination_is_reused(seed):
    found = exchange(TWICE, seed)
    for rank in (0, 1):
        of_both = 2 * 10 * (1 - rank) + np.arange(32) + 100
        assert (found[rank, :, 0] == of_both).all()


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_reuse_before_the_receiver_has_read_is_a_race(seed):
    """The sender must wait for the receiver's arrival before it sends to the same place again."""
    assert AWAIT_SPENT in TWICE
    with pytest.raises(EmulationError, match=r"race: it writes .* read by warp 0|a copy is still under way"):
        exchange(TWICE.replace(AWAIT_SPENT, ""), seed)


@pytest.mark.parametrize(
    "line",
    [
        STORE.format(kind="v4.b64", values="{%d10, %d11, %d10, %d11}"),
        STORE.format(kind="b16", values="%h1"),
        STORE.format(kind="v2.b32", values="{%r1, %r2, %r3, %r4}"),
        STORE.format(kind="v2.b32", values="%r1"),
        "st.async.weak.shared::cluster.b32 [%r5], %r1, [%r6];",
        "st.async.shared::cta.mbarrier::complete_tx::bytes.b32 [%r5], %r1, [%r6];",
        "st.async.release.gpu.global.b32 [%d0], %r1;",
    ],
)
def test_unknown_forms_are_errors(line):
    with pytest.raises(UnsupportedError, match=r"does not implement this form of st.async"):
        run(line, np.zeros(1), 1, blocks=2, cluster=2)
