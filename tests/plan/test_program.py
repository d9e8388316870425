"""Programs: what `show` prints of them, which steps there are and who knows them, and the barriers they ask for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from cutegemm.build import mma_tma_plan, simt_plan, sm90_plan
from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.plan import GemmPlan, Operands
from cutegemm.plan.mainloop.promoted import Promote
from cutegemm.plan.program import steps as step
from cutegemm.plan.program.barriers import barriers_of
from cutegemm.plan.program.expand import Expansion, Place, expand
from cutegemm.plan.program.operations import Compute
from cutegemm.plan.program.steps import Program
from cutegemm.plan.program.thread_schedule import single_stage
from cutegemm.simulator.protocol.protocol import work_of
from cutegemm.simulator.roles import Player
from tests.epilogues import CASES
from tests.kernels.mma_sync_forms import FORMS as MMA_FORMS
from tests.kernels.mma_sync_forms import form as mma_form
from tests.kernels.sm90_forms import FORMS, form
from tests.quantized import FORMS as QUANTIZED
from tests.quantized import form as quantized_form
from tests.scaled import FORMS as SCALED
from tests.scaled import form as scaled_form

BF16 = Operands.of("bf16", layout="nt")
E4M3 = Operands.of("e4m3", layout="nt", out="bf16")
COOPERATIVE = {"schedule": "cooperative", "tile": (128, 128, 64)}

# --- what is printed ---------------------------------------------------------------------------------------------

PRODUCER = """
for tile in work:
  for k in tile.k_tiles:
    acquire  empty[k]
    load     A[k], B[k] -> full[k]
"""
# No CTA of a cluster ends before all readers of its last stages have arrived at its barriers.
PRODUCER_OF_A_CLUSTER = (
    PRODUCER
    + """
for k in the next stages, once around the pipeline:
  acquire  empty[k]
"""
)
STORED = """
  epilogue of acc
  for epilogue tile i:
    epilogue of epilogue tile i
    write    epilogue tile i -> epilogue stage
    wait     until all stores have read their epilogue stages, by warp 0
    sync     epilogue tile
    store    epilogue stage -> D by TMA, by warp 0
wait     until all stores have read their epilogue stages
"""
PINGPONG = (
    """
skip     the k-tiles of the consumers before
signal   order[0], by the last consumer
for tile in work, every 2nd from this consumer's first:
  wait     order of this consumer
  for k in tile.k_tiles:
    wait     full[k]
    mma      A[k], B[k] -> acc: k-block 0
    wait     for all MMAs but this k-block's
    release  empty[k - 1]
    mma      A[k], B[k] -> acc: the other k-blocks
  signal   order of the next consumer
  skip     the k-tiles of the other consumers
  wait     for all MMAs
  if tile has k-tiles:
    release  empty[k - 1]
"""
    + STORED
)
COOPERATIVE_TEXT = (
    """
for tile in work:
  for k in tile.k_tiles:
    wait     full[k]
    mma      A[k], B[k] -> acc: k-block 0
    wait     for all MMAs but this k-block's
    release  empty[k - 1]
    mma      A[k], B[k] -> acc: the other k-blocks
  wait     for all MMAs
  if tile has k-tiles:
    release  empty[k - 1]
"""
    + STORED
)
REDUCED = COOPERATIVE_TEXT.replace(
    "    epilogue of epilogue tile i\n",
    """    epilogue of epilogue tile i, with bias from global memory
    reduce   aux of epilogue tile i; partial results that are complete -> workspace
""",
)
OVERLAPPED = """
wait     full[0], then 300 cycles for each consumer before
for tile in work, and until all are stored:
  for k in tile.k_tiles:
    wait     full[k]
    mma      A[k], B[k] -> acc: k-block 0
    wait     for all MMAs but this k-block's
    release  empty[k - 1]
    mma      A[k], B[k] -> acc: the other k-blocks
    if epilogue tile i = k of the tile kept is left:
      write    epilogue tile i -> epilogue stage
      wait     until all stores have read their epilogue stages, by warp 0
      sync     epilogue tile
      store    epilogue stage -> D by TMA, by warp 0
  for epilogue tile i that is left of the tile kept:
    write    epilogue tile i -> epilogue stage
    wait     until all stores have read their epilogue stages, by warp 0
    sync     epilogue tile
    store    epilogue stage -> D by TMA, by warp 0
  wait     for all MMAs
  if tile has k-tiles:
    release  empty[k - 1]
  if there is a tile:
    epilogue of acc
    keep     the tile, converted
wait     until all stores have read their epilogue stages
"""
TWO_LEVEL = """
for tile in work:
  clear    total
  clear    second acc
  if tile has an odd number of k-tiles:
    wait     full[k]
    mma      A[k], B[k] -> second acc, from 0
    advance  past k
  for k in tile.k_tiles, two at a time:
    wait     full[k]
    wait     for all MMAs
    mma      A[k], B[k] -> first acc, from 0
    release  empty[k - 1]
    add      second acc to total
    advance  past k
    wait     full[k]
    mma      A[k], B[k] -> second acc, from 0
    wait     for all MMAs but this k-tile's
    release  empty[k - 1]
    add      first acc to total
  wait     for all MMAs
  if tile has k-tiles:
    release  empty[k - 1]
  add      second acc to total
  epilogue of acc
  store    acc, with C from global memory, -> D
"""
TWO_LEVEL_HALVES = """
for tile in work:
  clear    total
  clear    right half of acc
  if tile has an odd number of k-tiles:
    wait     full[k]
    mma      A[k], B[k] -> left half of acc, from 0
    mma      A[k], B[k] -> right half of acc, from 0
    wait     for all MMAs but this half's
    add      left half of acc to total
    advance  past k
  for k in tile.k_tiles, two at a time:
    wait     full[k]
    wait     for all MMAs
    mma      A[k], B[k] -> left half of acc, from 0
    release  empty[k - 1]
    add      right half of acc to total
    mma      A[k], B[k] -> right half of acc, from 0
    wait     for all MMAs but this half's
    add      left half of acc to total
    advance  past k
    wait     full[k]
    mma      A[k], B[k] -> left half of acc, from 0
    wait     for all MMAs but this half's
    release  empty[k - 1]
    add      right half of acc to total
    mma      A[k], B[k] -> right half of acc, from 0
    wait     for all MMAs but this half's
    add      left half of acc to total
  wait     for all MMAs
  if tile has k-tiles:
    release  empty[k - 1]
  add      right half of acc to total
  epilogue of acc
  store    acc -> D
"""
MULTISTAGE = (
    """
for tile in work:
  for k in the first 3 k-tiles:
    load     A[k], B[k] -> full[k]
  for k in tile.k_tiles:
    wait     full[k]
    mma      A[k], B[k] -> acc
    wait     for all MMAs but this k-tile's
    sync     read
    load     A[k + 3], B[k + 3] -> full[k + 3]
  wait     for all MMAs
"""
    + STORED
)
# 64 elements along K are four k-blocks of 16.
WARPS = """
for tile in work:
  clear    acc
  if tile has k-tiles:
    wait     full[k]
    read     A[k], B[k]: k-block 0
    for k in tile.k_tiles but the last:
      mma      A[k], B[k] -> acc: k-block 0; read k-block 1
      mma      A[k], B[k] -> acc: k-block 1; read k-block 2
      test     full[k + 1]
      mma      A[k], B[k] -> acc: k-block 2; read k-block 3
      wait     full[k + 1]
      mma      A[k], B[k] -> acc: k-block 3; read k-block 0 of k + 1; release empty[k]
    mma      A[k], B[k] -> acc: k-block 0; read k-block 1
    mma      A[k], B[k] -> acc: k-block 1; read k-block 2
    mma      A[k], B[k] -> acc: k-block 2; read k-block 3
    mma      A[k], B[k] -> acc: k-block 3; release empty[k]
    advance  past k
  epilogue of acc
  for epilogue tile i:
    epilogue of epilogue tile i, with C from global memory
    wait     until all stores but 1 have read their epilogue stages, by each warp
    write    epilogue tile i -> epilogue stage
    store    epilogue stage -> D by TMA, by each warp
wait     until all stores have read their epilogue stages
"""
FIXUP = """
for tile in work:
  for k in tile.k_tiles:
    wait     full[k]
    mma      A[k], B[k] -> acc: k-block 0
    wait     for all MMAs but this k-block's
    release  empty[k - 1]
    mma      A[k], B[k] -> acc: the other k-blocks
  signal   semaphore of the tile, if K is split
  wait     for all MMAs
  if tile has k-tiles:
    release  empty[k - 1]
  reduce   the K splits: the last one adds all accumulators, the others store theirs
  if this is the last K split of the tile:
    if C is read, in warp 0:
      wait     until all stores have read their epilogue stages
      load     C of the first epilogue tiles -> their epilogue stages, c
    epilogue of acc
    for epilogue tile i:
      epilogue of epilogue tile i, with C from its epilogue stage (waits for c[i])
      write    epilogue tile i -> epilogue stage
      sync     epilogue tile
      store    epilogue stage -> D by TMA, by warp 0
      if in warp 0:
        wait     until all stores have read their epilogue stages
        load     C of epilogue tile i + 2 -> its epilogue stage, c[i + 2]
wait     until all stores have read their epilogue stages
"""
FUSED = """
skip     the k-tiles of the consumers before
signal   order[0], by the last consumer
for tile in work, every 2nd from this consumer's first:
  wait     order of this consumer
  for k in tile.k_tiles:
    wait     full[k]
    mma      A[k], B[k] -> acc: k-block 0
    wait     for all MMAs but this k-block's
    release  empty[k - 1]
    mma      A[k], B[k] -> acc: the other k-blocks
  signal   order of the next consumer
  skip     the k-tiles of the other consumers
  wait     for all MMAs
  if tile has k-tiles:
    release  empty[k - 1]
  epilogue of acc
  for epilogue tile i:
    epilogue of epilogue tile i, with bias, gate from global memory
    store    aux2 of epilogue tile i -> global memory
    write    aux of epilogue tile i -> epilogue stage
    wait     until all stores have read their epilogue stages, by warp 0
    sync     epilogue tile
    store    epilogue stage -> aux by TMA, by warp 0
    write    epilogue tile i -> epilogue stage
    wait     until all stores have read their epilogue stages, by warp 0
    sync     epilogue tile
    store    epilogue stage -> D by TMA, by warp 0
wait     until all stores have read their epilogue stages
"""
PRINTED = {
    "pingpong": (sm90_plan(BF16), PRODUCER, PINGPONG),
    "fused": (CASES["three"].on(sm90_plan(BF16), 16), PRODUCER, FUSED),
    "reduced": (CASES["absmax"].on(sm90_plan(BF16, **COOPERATIVE)), PRODUCER, REDUCED),
    "cooperative": (sm90_plan(BF16, **COOPERATIVE, cluster=(2, 1)), PRODUCER_OF_A_CLUSTER, COOPERATIVE_TEXT),
    "overlapped": (sm90_plan(BF16, **COOPERATIVE, overlapped=True, stagger_cycles=300), PRODUCER, OVERLAPPED),
    "two-level": (
        sm90_plan(E4M3, **{**COOPERATIVE, "tile": (128, 128, 128)}, promoted=True, store="direct", with_c=True),
        PRODUCER,
        TWO_LEVEL,
    ),
    "two-level, halves": (
        sm90_plan(E4M3, **{**COOPERATIVE, "tile": (128, 192, 128)}, promoted=True, store="direct"),
        PRODUCER,
        TWO_LEVEL_HALVES,
    ),
    "multistage": (sm90_plan(BF16, schedule="single", stages=4), None, MULTISTAGE),
    "warps": (mma_tma_plan(BF16), PRODUCER, WARPS),
    "split and fill": (sm90_plan(BF16, **COOPERATIVE, fixup=True, with_c=True), PRODUCER, FIXUP),
}


def written(text: str) -> str:
    """Without the empty lines of this file."""
    return "\n".join(line for line in text.splitlines() if line)


@pytest.mark.parametrize("name", PRINTED)
def test_what_is_printed(name: str) -> None:
    plan, loads, own = PRINTED[name]
    wanted = {role.name: own if role.name.startswith("consumer") else loads for role in plan.roles}
    assert ("producer" in wanted) == (loads is not None)
    for role, text in wanted.items():
        assert str(plan.program(role)) == written(text or ""), role
    assert list(plan.programs) == list(wanted)


# --- which steps there are, and who knows them -----------------------------------------------------------------


def steps_of(base: type[step.Step]) -> set[type[step.Step]]:
    """Return the classes of steps of the package that derive from `base`."""
    own = {each for each in base.__subclasses__() if each.__module__.startswith("cutegemm.")}
    return own.union(*map(steps_of, own))


STEPS = steps_of(step.Step) - {step.Block}


def all_plans() -> list[GemmPlan]:
    """Every form of plans with a pipeline."""
    made = [mma_form(name) for name in MMA_FORMS] + [form(name) for name in FORMS]
    made += [scaled_form(name) for name in SCALED]
    made += [quantized_form(name) for name in QUANTIZED]
    return [*(plan for plan in made if plan.body.has_roles), *(plan for plan, _, _ in PRINTED.values())]


def used_steps(plans: list[GemmPlan], role: str) -> set[type[step.Step]]:
    """Return the classes of steps in the programs of a role."""
    programs = [plan.programs[name] for plan in plans for name in plan.programs if name.split()[0] == role]
    return {type(each) for program in programs for each in program.walk()}


def test_every_step_is_used_by_a_program() -> None:
    assert used_steps(all_plans(), "producer") | used_steps(all_plans(), "consumer") == STEPS


def test_every_step_can_be_expanded() -> None:
    assert [each for each in STEPS if Expansion.handler_of(each) is None] == []


def test_every_step_that_computes_can_be_simulated() -> None:
    """The player of the simulator handles every step that an operation `Compute` carries."""
    computed = {
        type(each.step)
        for plan in all_plans()
        for number, role in enumerate(plan.roles)
        for each in expand(plan, plan.program(role.name), Place(0, number), work_of(plan, k_tiles=9, tiles=2)[0])
        if isinstance(each, Compute)
    }
    assert len(computed) > 8
    assert [each for each in computed if Player.handler_of(each) is None] == []


@pytest.mark.parametrize("role", ["producer", "consumer of wgmma", "consumer of mma.sync"])
def test_every_step_of_a_role_can_be_traced(role: str) -> None:
    pytest.importorskip("cutlass")
    from cutegemm.kernels.mma_sync.tma import WarpTracer
    from cutegemm.kernels.sm90.consumer import ConsumerTracer
    from cutegemm.kernels.sm90.loads import ProducerTracer

    by_warps = role.endswith("mma.sync")
    tracer = ProducerTracer if role == "producer" else WarpTracer if by_warps else ConsumerTracer
    plans = [plan for plan in all_plans() if plan.tiled_mma.atom.is_of_warpgroup != by_warps]
    used = used_steps(plans, role.split()[0])
    assert len(used) > 3
    assert [each for each in used if tracer.handler_of(each) is None] == []


def test_a_step_that_no_reader_knows_is_named() -> None:
    @dataclass(frozen=True)
    class Hum(step.Step):
        """A step that nothing is registered for."""

    with pytest.raises(UnsupportedError, match=r": no function is registered for the step Hum. Decorate one with @Exp"):
        expand(sm90_plan(), step.Program((Hum(),)), Place(0, 1), [])


# --- what the options of a plan ask for -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, ("AwaitOrder", "PassOrder", "OpenOrder", "Skip")),
        ({"stagger_cycles": 9, **COOPERATIVE}, ("Stagger",)),
        ({"overlapped": True, **COOPERATIVE}, ("KeepTile", "OverlappedEpiTile")),
        ({"schedule": "single"}, ("ForAhead", "Load", "SyncThreads")),
        ({"split_k": 2}, ("IncrementSemaphore", "ReduceSplits")),
        ({"stream": 1}, ("IncrementSemaphore", "ReduceSplits")),
        ({"fixup": True}, ("IncrementSemaphore", "ReduceSplits")),
        ({"with_c": True}, ("LoadEpiTile",)),
        ({"store": "direct"}, ("StoreTile",)),
    ],
    ids=str,
)
def test_an_option_is_in_the_program(options: dict, steps: tuple[str, ...]) -> None:
    """The steps that only such a plan has: a plain cooperative one has none of them."""

    def kinds(plan: GemmPlan) -> set[str]:
        return {type(each).__name__ for each in plan.program("consumer 0").walk()}

    assert set(steps) <= kinds(sm90_plan(BF16, **options))
    assert not set(steps) & kinds(sm90_plan(BF16, **COOPERATIVE))


@pytest.mark.parametrize(
    ("tile", "columns", "accumulators", "registers"),
    [  # accumulators of a thread of a consumer, whose tile has 64 rows: N / 2 sums
        ((128, 128, 128), 128, [step.FIRST, step.SECOND], (64, 128)),  # 3 * 64 registers are the most
        ((128, 144, 128), 72, [step.LEFT, step.RIGHT], (72, 72)),
        ((128, 192, 128), 96, [step.LEFT, step.RIGHT], (96, 96)),
    ],
)
def test_two_levels_are_in_the_program(tile, columns, accumulators, registers) -> None:
    """Two accumulators alternate if registers hold both and the total; otherwise two halves of the columns do."""
    plain, plan = (sm90_plan(E4M3, **{**COOPERATIVE, "tile": tile}, promoted=promoted) for promoted in (False, True))
    assert not plain.program("consumer 0").has(Promote)
    assert plan.tiled_mma.atom.shape_mnk == (64, columns, 32)
    assert tuple(plan.registers().values()) == registers
    used = {
        kind: sorted({each.accumulators for each in plan.program("consumer 0").walk() if isinstance(each, kind)})
        for kind in (step.Multiply, Promote)
    }
    assert used == {step.Multiply: sorted(accumulators), Promote: sorted(accumulators)}


def test_the_way_to_memory_is_in_the_program() -> None:
    """(who stores an epilogue stage, by TMA, pending stores of each wait, in their order)."""

    def way(**options: object) -> tuple[set[tuple[str, bool]], list[int]]:
        program = sm90_plan(BF16, **options).program("consumer 0")
        stores = {(each.by, each.by_tma) for each in program.walk() if isinstance(each, step.StoreEpiStage)}
        return stores, [each.pending for each in program.walk() if isinstance(each, step.WaitStores)]

    assert way(epi_stages=4, epi_tile_n=32) == ({(step.FIRST_WARP, True)}, [2, 0])
    assert way(epi_stages=4, epi_tile_n=32, store="tma_warp") == ({(step.EACH_WARP, True)}, [3, 0])
    assert way(shared_d="padded") == ({(step.ALL, False)}, [])
    assert way(store="direct") == (set(), [])


# --- barriers -----------------------------------------------------------------------------------------------------

# (count, arrivals, bytes) of each barrier. A consumer has 4 warps of 32 threads.
# "full": the producer's expect_tx arrives; the bytes are those of A and B.
# "empty": a warp of every consumer that reads a stage arrives, in each of the cm + cn - 1 CTAs of the cluster that the
# CTA loads for: those of its row and its column.
# "epi_tile": the threads of a consumer arrive.
# "order": the threads of a consumer that waits arrive, and those of the one before it, which signals.
# "c": expect_tx of one warp arrives, for each epilogue stage.
# "splits": the threads of a consumer arrive.
HAND_COUNTED = {
    "pingpong": (  # a consumer reads a stage; 227 KiB - 1 KiB - 32 KiB hold 6 stages of 2 * 128 * 64 * 2 bytes
        sm90_plan(BF16),
        {"full": (6, 1, 32768), "empty": (6, 4, 0), "epi_tile": (2, 128, 0), "order": (2, 256, 0)},
    ),
    "pingpong in a cluster of 2 x 1": (  # 4 warps * (2 + 1 - 1) CTAs
        sm90_plan(BF16, cluster=(2, 1)),
        {"full": (6, 1, 32768), "empty": (6, 8, 0), "epi_tile": (2, 128, 0), "order": (2, 256, 0)},
    ),
    "pingpong of three": (  # turn: the one that waits and the one before, of three; (64 + 128) * 64 * 2 bytes
        sm90_plan(BF16, tile=(64, 128, 64), consumers=3, stages=5),
        {"full": (5, 1, 24576), "empty": (5, 4, 0), "epi_tile": (3, 128, 0), "order": (3, 256, 0)},
    ),
    "cooperative": (  # 2 consumers * 4 warps; (128 + 256) * 64 * 2 bytes
        sm90_plan(BF16, schedule="cooperative", tile=(128, 256, 64), stages=3),
        {"full": (3, 1, 49152), "empty": (3, 8, 0), "epi_tile": (2, 128, 0)},
    ),
    "cooperative in a cluster of 2 x 2": (  # 8 warps * (2 + 2 - 1) CTAs
        sm90_plan(BF16, schedule="cooperative", tile=(128, 256, 64), stages=3, cluster=(2, 2)),
        {"full": (3, 1, 49152), "empty": (3, 24, 0), "epi_tile": (2, 128, 0)},
    ),
    "cooperative of three in a cluster of 1 x 2": (  # 12 warps * (1 + 2 - 1) CTAs; (192 + 128) * 64 * 2 bytes
        sm90_plan(BF16, schedule="cooperative", tile=(192, 128, 64), consumers=3, stages=4, cluster=(1, 2)),
        {"full": (4, 1, 40960), "empty": (4, 24, 0), "epi_tile": (3, 128, 0)},
    ),
    "C by TMA": (  # 2 epilogue stages of 2 consumers, of 64 x 64 elements of C, 2 bytes each
        sm90_plan(BF16, with_c=True),
        {
            "full": (6, 1, 32768), "empty": (6, 4, 0), "epi_tile": (2, 128, 0), "c": (4, 1, 8192), "order": (2, 256, 0),
        },
    ),
    "split": (
        sm90_plan(BF16, split_k=3),
        {
            "full": (6, 1, 32768), "empty": (6, 4, 0), "epi_tile": (2, 128, 0), "order": (2, 256, 0),
            "splits": (2, 128, 0),
        },
    ),
    "fill, deferred, in a cluster": (  # (128 + 128) * 64 * 2 bytes; 8 warps * 2 CTAs
        sm90_plan(BF16, **COOPERATIVE, fixup=True, overlapped=True, cluster=(2, 1), stages=4),
        {"full": (4, 1, 32768), "empty": (4, 16, 0), "epi_tile": (2, 128, 0), "splits": (2, 128, 0)},
    ),
    "two-level": (  # (128 + 128) * 128 elements of a byte; nobody meets at an epilogue stage that D leaves without
        sm90_plan(E4M3, **{**COOPERATIVE, "tile": (128, 128, 128)}, promoted=True, store="direct", stages=5),
        {"full": (5, 1, 32768), "empty": (5, 8, 0)},
    ),
    "a warp stores its own rows": (  # nobody else writes there: no barrier of an epilogue tile
        sm90_plan(BF16, store="tma_warp"),
        {"full": (6, 1, 32768), "empty": (6, 4, 0), "order": (2, 256, 0)},
    ),
    "one consumer, multistage": (  # one warp expects; all threads have read a stage when they pass "read"
        sm90_plan(BF16, schedule="single", stages=4),
        {"full": (4, 1, 32768), "read": (1, 128, 0), "epi_tile": (1, 128, 0)},
    ),
    "two consumers, multistage": (
        sm90_plan(BF16, schedule="single", stages=4, consumers=2),
        {"full": (4, 1, 32768), "read": (1, 256, 0), "epi_tile": (2, 128, 0)},
    ),
    "eight warps": (  # each a consumer; (256 + 128) * 64 * 2 bytes
        mma_tma_plan(BF16),
        {"full": (4, 1, 49152), "empty": (4, 8, 0)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HAND_COUNTED)
def test_barriers_counted_by_hand(name: str) -> None:
    plan, wanted = HAND_COUNTED[name]
    assert {b.name: (b.count, b.arrivals, b.transaction_bytes) for b in plan.barriers} == wanted


def test_barriers_follow_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program with a step more, or less, asks for other barriers: they are stated nowhere else."""
    plan = sm90_plan(BF16, **COOPERATIVE)
    sound = plan.programs

    def counted(edit) -> dict[str, int]:
        changed = {
            role: program.edited(edit) if role.startswith("consumer") else program for role, program in sound.items()
        }
        monkeypatch.setattr(GemmPlan, "program", lambda _, role: changed[role])
        return {barrier.name: barrier.arrivals for barrier in barriers_of(plan)}

    assert counted(lambda each: each) == {"full": 1, "empty": 8, "epi_tile": 128}
    assert "epi_tile" not in counted(lambda each: None if isinstance(each, step.SyncEpiTile) else each)
    assert "empty" not in counted(lambda each: None if isinstance(each, step.Release) else each)


def test_a_program_with_a_step_taken_out() -> None:
    program = Program((step.ForTiles((step.ForKTiles((step.Wait("full"), step.Multiply())),)),))
    shorter = program.edited(lambda each: None if isinstance(each, step.Wait) else each)
    assert [type(each).__name__ for each in program.walk()] == ["ForTiles", "ForKTiles", "Wait", "Multiply"]
    assert str(shorter) == "for tile in work:\n  for k in tile.k_tiles:\n    mma      A[k], B[k] -> acc"


def test_a_schedule_of_what_is_no_step_can_be_printed() -> None:
    """So that a message can hold it; of a plan a rule refuses it."""
    odd = replace(single_stage(2), prologue=(None,))
    assert str(odd).splitlines()[:2] == ["None", "for k in tile.k_tiles:"]
    with pytest.raises(PlanError, match="prologue"):
        simt_plan().with_(body=odd)
