"""Races in global memory: which synchronization orders CTAs, by the PTX memory consistency model."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.build import simt_plan, sm90_plan
from cutegemm.compile.plans import compile_plan
from cutegemm.errors import EmulationError
from cutegemm.plan import Operands
from cutegemm.run import emulated as running
from cutegemm.run.emulated import emulate
from tests.emulator.snippets import run

SEEDS = (None, 0, 1)


def outputs(body, **options):
    """Run CTAs of one thread (by default), which share input word 0, and return the four output words.

    In `body`, %r1 is the CTA, %r8 is 1 and %r6 is 7.
    """
    head = "mov.u32 %r1, %ctaid.x; mov.b32 %r8, 1; mov.b32 %r6, 7;"
    return run(head + body, np.zeros(1, np.uint32), 4, **{"threads": 1, **options}).tolist()


def is_race(body, match, **options):
    with pytest.raises(EmulationError, match=match):
        outputs(body, **options)


# --- two CTAs, by hand ---------------------------------------------------------------------------------------

# CTA 0 writes a word and sets a flag; CTA 1 waits for the flag and reads the word.
PASSED = """
setp.eq.s32 %p0, %r1, 0; @!%p0 bra WAIT;
st.global.b32 [%d1], %r6; {raise_} bra END;
WAIT: {look} setp.eq.s32 %p1, %r3, 0; @%p1 bra WAIT;
{found} ld.global.b32 %r4, [%d1]; st.global.b32 [%d1+4], %r4;
END:
"""
RAISE = {
    "red.release": "red.release.gpu.global.add.s32 [%d0], %r8;",
    "atom.acq_rel": "atom.acq_rel.gpu.global.add.u32 %r5, [%d0], 1;",
    "st.release": "st.release.sys.global.b32 [%d0], %r8;",
    "fence, st.relaxed": "fence.acq_rel.gpu; st.relaxed.gpu.global.b32 [%d0], %r8;",
    "fence, atom": "fence.acq_rel.gpu; atom.global.add.u32 %r5, [%d0], 1;",
    "membar, st.volatile": "membar.gl; st.volatile.global.b32 [%d0], %r8;",
}
WEAK_RAISE = {
    "red.relaxed": "red.relaxed.gpu.global.add.s32 [%d0], %r8;",
    "atom without more": "atom.global.add.u32 %r5, [%d0], 1;",
    "atom.acquire": "atom.acquire.gpu.global.add.u32 %r5, [%d0], 1;",
    "the fence after it": "st.relaxed.gpu.global.b32 [%d0], %r8; fence.acq_rel.gpu;",
    "a fence of the CTA": "fence.acq_rel.cta; st.relaxed.gpu.global.b32 [%d0], %r8;",
    "for the cluster only": "red.release.cluster.global.add.s32 [%d0], %r8;",
}
LOOK = {
    "ld.acquire": ("ld.acquire.gpu.global.b32 %r3, [%d0];", ""),
    "ld.relaxed, fence": ("ld.relaxed.gpu.global.b32 %r3, [%d0];", "fence.acq_rel.gpu;"),
    "ld.volatile, membar": ("ld.volatile.global.b32 %r3, [%d0];", "membar.gl;"),
    "atom.acq_rel": ("atom.acq_rel.gpu.global.add.u32 %r3, [%d0], 0;", ""),
}
WEAK_LOOK = {
    "ld.relaxed": ("ld.relaxed.gpu.global.b32 %r3, [%d0];", ""),
    "the fence before it": ("fence.acq_rel.gpu; ld.relaxed.gpu.global.b32 %r3, [%d0];", ""),
    "a fence of the CTA": ("ld.relaxed.gpu.global.b32 %r3, [%d0];", "fence.acq_rel.cta;"),
    "atom.release": ("atom.release.gpu.global.add.u32 %r3, [%d0], 0;", ""),
}


def passed(raise_, look):
    return PASSED.format(raise_=raise_, look=look[0], found=look[1])


@pytest.mark.parametrize("look", LOOK)
def test_a_word_passes_from_cta_to_cta(look):
    for raise_ in RAISE.values():
        for seed in SEEDS:
            assert outputs(passed(raise_, LOOK[look]), blocks=2, seed=seed)[:2] == [7, 7]


@pytest.mark.parametrize(
    ("raise_", "look"),
    [(raise_, LOOK["ld.acquire"]) for raise_ in WEAK_RAISE.values()]
    + [(RAISE["red.release"], look) for look in WEAK_LOOK.values()],
    ids=[*WEAK_RAISE, *WEAK_LOOK],
)
def test_a_release_or_acquire_alone_does_not_order(raise_, look):
    for seed in SEEDS:
        match = (
            r"kernel snippet, line \d+ \(ld\.global\.b32 %r4.*CTA \(1, 0, 0\), thread 0: race: it reads byte 0 of "
            r"outputs, at 0x\w+ of global memory, which was written by line \d+ \(st\.global\.b32 \[%d1\], %r6\), "
            r"CTA \(0, 0, 0\), thread 0|race: it \w+ byte 0 of inputs"  # cluster scope: the flag itself races
        )
        is_race(passed(raise_, look), match, blocks=2, seed=seed)


def test_a_flag_that_is_an_ordinary_word():
    for raise_, look in (
        ("fence.acq_rel.gpu; st.global.b32 [%d0], %r8;", LOOK["ld.acquire"]),
        ("atom.acq_rel.gpu.global.add.u32 %r5, [%d0], 1;", ("ld.global.b32 %r3, [%d0];", "membar.gl;")),
    ):
        is_race(passed(raise_, look), "byte 0 of inputs", blocks=2)


# Three CTAs: CTA 0 releases the flag, CTA 1 changes it, CTA 2 acquires it after that.
CHAIN = """
setp.eq.s32 %p0, %r1, 0; setp.eq.s32 %p2, %r1, 1; @%p2 bra MIDDLE; @!%p0 bra WAIT;
st.global.b32 [%d1], %r6; red.release.gpu.global.add.s32 [%d0], %r8; bra END;
MIDDLE: {} setp.eq.s32 %p1, %r3, 0; @%p1 bra MIDDLE; {} bra END;
WAIT: ld.relaxed.gpu.global.b32 %r3, [%d0]; setp.ne.s32 %p1, %r3, 2; @%p1 bra WAIT;
ld.acquire.gpu.global.b32 %r3, [%d0]; ld.global.b32 %r4, [%d1]; st.global.b32 [%d1+4], %r4;
END:
"""
RELAXED = "ld.relaxed.gpu.global.b32 %r3, [%d0];"


@pytest.mark.parametrize(
    ("look", "change"),
    [
        (RELAXED, "atom.global.add.u32 %r5, [%d0], 1;"),  # an atomic keeps what CTA 0 has released
        (
            "ld.acquire.gpu.global.b32 %r3, [%d0];",
            "mov.b32 %r7, 2; st.release.gpu.global.b32 [%d0], %r7;",
        ),  # CTA 1 acquires and releases
    ],
    ids=["an atomic", "acquired and released"],
)
def test_a_release_is_passed_on_by_a_third_cta(look, change):
    for seed in SEEDS:
        assert outputs(CHAIN.format(look, change), blocks=3, seed=seed)[:2] == [7, 7]


def test_a_relaxed_store_to_the_flag_ends_the_release():
    body = CHAIN.format(RELAXED, "mov.b32 %r7, 2; st.relaxed.gpu.global.b32 [%d0], %r7;")
    is_race(body, r"CTA \(2, 0, 0\).*byte 0 of outputs.*CTA \(0, 0, 0\)", blocks=3)


# Warp 1 of CTA 0 writes, warp 0 sets the flag; warp 0 of CTA 1 waits for it, warp 1 reads.
BY_WARPS = """
shr.u32 %r2, %r0, 5; setp.eq.s32 %p3, %r2, 1;
setp.eq.s32 %p0, %r1, 0; @!%p0 bra OTHER;
@%p3 st.global.b32 [%d1], %r6; {} @!%p3 red.release.gpu.global.add.s32 [%d0], %r8; bra END;
OTHER: @%p3 bra MEET;
WAIT: ld.acquire.gpu.global.b32 %r3, [%d0]; setp.ne.s32 %p1, %r3, 32; @%p1 bra WAIT;
MEET: {} @!%p3 bra END; ld.global.b32 %r4, [%d1]; st.global.b32 [%d1+4], %r4;
END:
"""


def test_barriers_extend_the_order_to_other_warps():
    meet = "bar.sync 0;"
    for seed in SEEDS:
        options = {"blocks": 2, "threads": 64, "seed": seed}
        assert outputs(BY_WARPS.format(meet, meet), **options)[:2] == [7, 7]
    for before, after in (("", meet), (meet, "")):
        said = []
        for seed in range(8):
            try:
                outputs(BY_WARPS.format(before, after), blocks=2, threads=64, seed=seed)
            except EmulationError as error:
                said.append(str(error))
        assert any(re.search(r"thread 32: race: it reads byte 0 of outputs.*thread 63, ", text) for text in said)


def test_within_a_cluster():
    """A cluster barrier orders accesses to global memory; so do release and acquire with cluster scope."""
    body = """
    setp.eq.s32 %p0, %r1, 0; @%p0 st.global.b32 [%d1], %r6;
    barrier.cluster.arrive{}.aligned; barrier.cluster.wait.aligned;
    @%p0 bra END; ld.global.b32 %r4, [%d1]; st.global.b32 [%d1+4], %r4;
    END:
    """
    pair = {"blocks": 2, "cluster": 2, "threads": 32}
    for_all = passed(WEAK_RAISE["for the cluster only"], ("ld.acquire.cluster.global.b32 %r3, [%d0];", ""))
    for seed in SEEDS:
        assert outputs(body.format(""), **pair, seed=seed)[:2] == [7, 7]
        assert outputs(for_all, **pair, seed=seed)[:2] == [7, 7]
    is_race(body.format(".relaxed"), "it reads byte 0 of outputs", **pair)


def test_a_word_that_two_ctas_write():
    is_race("st.global.b32 [%d1], %r1;", r"it writes byte 0 of outputs.* was written by", blocks=2)
    assert outputs("st.relaxed.gpu.global.b32 [%d1], %r8;", blocks=2)[0] == 1  # strong writes do not race


def test_a_word_that_is_read_before_another_cta_writes_it():
    """The read comes first, but with a relaxed flag nothing orders it before the write."""
    body = """
    setp.eq.s32 %p0, %r1, 0; @!%p0 bra WAIT;
    ld.global.b32 %r4, [%d1+8]; red.{}.gpu.global.add.s32 [%d0], %r8; bra END;
    WAIT: ld.acquire.gpu.global.b32 %r3, [%d0]; setp.eq.s32 %p1, %r3, 0; @%p1 bra WAIT;
    st.global.b32 [%d1+8], %r6;
    END:
    """
    assert outputs(body.format("release"), blocks=2)[2] == 7
    is_race(body.format("relaxed"), r"it writes byte 8 of outputs.* was read by", blocks=2)


def test_readers_of_two_ctas_are_remembered():
    """CTA 0 and CTA 1 read a word. CTA 2 writes it, ordered after CTA 1 only: a race with CTA 0."""
    body = """
    setp.eq.s32 %p0, %r1, 0; setp.eq.s32 %p2, %r1, 1; @%p2 bra MIDDLE; @!%p0 bra WAIT;
    ld.global.b32 %r4, [%d1+8]; red.{}.gpu.global.add.s32 [%d0], %r8; bra END;
    MIDDLE: ld.relaxed.gpu.global.b32 %r3, [%d0]; setp.eq.s32 %p1, %r3, 0; @%p1 bra MIDDLE;
    ld.global.b32 %r4, [%d1+8]; red.release.gpu.global.add.s32 [%d0], %r8; bra END;
    WAIT: ld.acquire.gpu.global.b32 %r3, [%d0]; setp.ne.s32 %p1, %r3, 2; @%p1 bra WAIT;
    st.global.b32 [%d1+8], %r6;
    END:
    """
    for seed in SEEDS:
        assert outputs(body.format("release"), blocks=3, seed=seed)[2] == 7
        is_race(body.format("relaxed"), r"which was read by .*CTA \(0, 0, 0\)", blocks=3, seed=seed)


def test_warps_of_a_cta_pass_a_word_by_a_flag():
    """Release and acquire with CTA scope order warps of a CTA, but not CTAs."""
    body = passed("red.release.cta.global.add.s32 [%d0], %r8;", ("ld.acquire.cta.global.b32 %r3, [%d0];", ""))
    for seed in SEEDS:
        assert outputs("shr.u32 %r1, %r0, 5;" + body, threads=64, seed=seed)[:2] == [7, 7]
    is_race(body, "byte 0 of inputs", blocks=2)


def test_warps_of_a_cta_pass_global_memory_by_a_barrier():
    body = """
    setp.lt.s32 %p1, %r0, 32; @%p1 st.global.b32 [%d1], %r6;
    {} @%p1 bra END; ld.global.b32 %r4, [%d1]; st.global.b32 [%d1+4], %r4;
    END:
    """
    assert outputs(body.format("bar.sync 0;"), threads=64)[:2] == [7, 7]
    is_race(body.format(""), r"thread 32: race: it reads byte 0 of outputs.*thread 31, ", threads=64)


def test_a_store_to_an_operand_is_an_error():
    is_race("st.global.b32 [%d0], %r6;", "it writes byte 0 of inputs, an operand of the kernel", operand=True)


# --- kernels that split K over CTAs ----------------------------------------------------------------------------

BAR = r"bar\.sync[^;]*;"
WITHIN = r"((?:(?!bar\.sync).)*?{})"  # up to a pattern, with no barrier in between
SM90 = {
    "release": (r"red\.release\.gpu", "red.relaxed.gpu"),
    "acquire": (r"ld\.acquire\.gpu", "ld.relaxed.gpu"),
    "barrier before": (BAR + WITHIN.format(r"red\.release"), r"\1"),
    "barrier after": (r"(st\.relaxed\.gpu(?:(?!bar\.sync).)*)" + BAR, r"\1"),
}
SIMT = {
    "release": (r"atom\.global\.acq_rel", "atom.global.acquire"),
    "acquire": (r"atom\.global\.acq_rel", "atom.global.release"),
    "both": (r"atom\.global\.acq_rel", "atom.global.relaxed"),
    "barrier before": (BAR + WITHIN.format(r"atom\.global"), r"\1"),
    "barrier after": (r"(atom\.global(?:(?!bar\.sync).)*)" + BAR, r"\1"),
}


def split(family):
    if family == "sm90":
        return sm90_plan(Operands.of("bf16", layout="nt"), tile=(64, 64, 64), epi_tile_n=32, ctas=4, split_k=4)
    small = {"block": (32, 32, 8), "warp": (32, 16), "thread": (4, 4), "stages": 3}
    return simt_plan(Operands.of("f32", layout="nt", align_bytes=4), **small, split_k=3, reduction="last")


def said_by(plan, text, shape, seeds):
    """Return the set of errors that a kernel's text raises with several seeds."""
    m, n, k = shape
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-2, 3, s).astype(np.float32) for s in ((m, k), (k, n)))
    found = set()
    for seed in seeds:
        try:
            assert (emulate(plan, a, b, ptx=text, seed=seed).d == a @ b).all()
        except EmulationError as error:
            found.add(str(error))
    return found


@pytest.mark.parametrize(("family", "fault"), [("sm90", fault) for fault in SM90] + [("simt", fault) for fault in SIMT])
def test_a_fault_in_the_reduction_of_k_splits_is_a_race(family, fault):
    plan = split(family)
    pattern, new = (SM90 if family == "sm90" else SIMT)[fault]
    text, count = re.subn(pattern, new, compile_plan(plan).ptx, flags=re.S)
    assert count == 1
    found = said_by(plan, text, (33, 40, 200), range(2))
    # The barriers of the SIMT kernel also guard its flag in shared memory, where the race may be found first.
    where = "shared memory" if (family, fault[:7]) == ("simt", "barrier") else "of the workspace"
    assert any("race: it " in text and where in text for text in found)


def test_ctas_that_run_one_after_another_still_race(monkeypatch):
    """Two CTAs race even if the emulator ends one of them before it starts the other."""
    plan = split("simt")
    text = compile_plan(plan).ptx
    monkeypatch.setattr(running, "_THREADS_AT_ONCE", 1)
    assert said_by(plan, text, (33, 40, 64), [None]) == set()
    (said,) = said_by(plan, text.replace("atom.global.acq_rel", "atom.global.relaxed"), (33, 40, 64), [None])
    assert re.search(r"CTA \(0, 2, 0\), thread \d+: race: it reads .* of the workspace.*CTA \(0, 0, 0\)", said)
