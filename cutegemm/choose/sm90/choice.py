"""The choice among the named plans for Hopper, by the time that `sm90.time` predicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from cutegemm.choose.candidate import Candidate
from cutegemm.choose.refusals import by_reason
from cutegemm.choose.sm90.named import SM90_CHOSEN, SM90_TWO_LEVEL
from cutegemm.choose.sm90.recipe import Sm90Recipe
from cutegemm.choose.sm90.time import K_TILE_BYTES, bound, predicted_us
from cutegemm.errors import PlanError
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.memory.packing import ALIGN_BYTES, to_pack_for_wgmma
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.rules.limits import limits
from cutegemm.plan.work.shares import shares_of
from cutegemm.plan.work.split import FILLED, Split, by_last

ACCUMULATIONS = ("fast", "two_level")
Suits = Callable[[GemmPlan], bool]

LEAST_GAIN = 1.03  # by which a split must be faster to be taken
# Where idle CTAs take the ends of the last tiles: by which that must be faster, of how many k-tiles the tiles must be,
# which were else seen to lose by it, and for which tiles it was timed.
LEAST_FILL_GAIN = 1.005
LEAST_FILL_K_TILES = 24
FILLED_TILES = ((128, 128), (128, 160), (128, 176), (128, 192), (128, 256), (256, 128))
SPLITS = (2, 3, 4, 6, 8, 12, 16)
LEAST_K_TILES = 8  # of a part: it fills the ring of a large tile twice

PACK_START_US = 2.5  # of a kernel that packs an operand: a fit
# Of wgmma's rate: 0.60 to 0.71 of tf32 in 2048 to 8192 cubed. Where threads load fewer than 16 bytes at a time, it was
# seen to fall with them: 0.04 to 0.1 with rows of bf16 that are aligned to 2.
MMA_SYNC_RATE = 0.62


def choose_sm90(
    operands: Operands,
    problem: Problem,
    device: Device = DEFAULT_DEVICE,
    with_c: bool = False,
    accumulate: str = "fast",
    suits: Suits | None = None,
) -> GemmPlan:
    """The named plan that `predicted_us` holds to be the fastest; K is split where that gains enough.

    Operands that TMA cannot load, or wgmma not multiply, as they are, are packed.

    accumulate   of fp8: "fast" sums up as wgmma does, with about 14 bits; "two_level" adds the sums of each k-tile
                 up in f32. Other types are summed up in full either way
    suits        of a plan: whether it is what is wanted, beside its time; one that is not is taken where none is
    raises       PlanError where no named plan serves the operands

    >>> operands = Operands.of("bf16", layout="nt")
    >>> [choose_sm90(operands, Problem(*mnk)).name for mnk in ((1536, 1536, 1536), (4096, 4096, 4096))]
    ['sm90_128x144_2x1', 'sm90_cluster_2x1/fill']
    >>> choose_sm90(operands, Problem(128, 128, 16384)).split.is_split
    True
    >>> print(*choose_sm90(Operands.of("e4m3"), Problem(64, 4096, 4096)).packs)
    B to k-major by tiles of 128 x 128, 256 threads
    """
    if accumulate not in ACCUMULATIONS:
        raise PlanError(
            "choose_sm90", [f"accumulate = {accumulate!r}; {' or '.join(ACCUMULATIONS)} is expected."]
        )
    second: GemmPlan | None = None
    unsuited: list[tuple[object, str]] = []
    too_large: list[tuple[object, str]] = []
    for recipe in ranked(considered(operands, accumulate), operands, problem, device):
        try:
            plan = recipe.build(operands, with_c, device=device)
        except PlanError as error:
            unsuited += [(recipe, rule) for rule in error.violations]
            continue
        beyond = list(limits(plan, problem))
        if not beyond and (suits is None or suits(plan)):
            return plan
        second = second or (None if beyond else plan)
        too_large += [(recipe, rule) for rule in beyond]
    if second is not None:
        return second
    # A problem that is too large for plans of its operands is so whatever the other plans cannot do
    raise PlanError(f"choose_sm90: no named plan for {operands}", by_reason(too_large or unsuited))


def considered(operands: Operands, accumulate: str = "fast") -> tuple[Sm90Recipe, ...]:
    """The recipes among which there is a choice, none of them split or packed."""
    is_fp8 = operands.a.dtype.is_float and operands.a.dtype.bits == 8
    return SM90_TWO_LEVEL if is_fp8 and accumulate == "two_level" else SM90_CHOSEN


def ranked(
    recipes: Iterable[Sm90Recipe], operands: Operands, problem: Problem, device: Device = DEFAULT_DEVICE
) -> list[Sm90Recipe]:
    """Plans, whole and split, the one to take first; of two that take as long, that which loads fewer bytes.

    All of them pack the operands that are in the way.
    """
    is_packed = bool(to_pack_for_wgmma(operands))
    found = [
        (us, loaded_bytes(recipe, operands, problem), str(recipe), recipe)
        for us, recipe in predicted(recipes, operands, problem, device)
    ]
    found.sort(key=lambda one: one[:3])
    return [replace(recipe, is_packed=is_packed) for *_, recipe in found]


def predicted(
    recipes: Iterable[Sm90Recipe],
    operands: Operands,
    problem: Problem,
    device: Device = DEFAULT_DEVICE,
    rate: float = 1.0,
) -> Iterator[tuple[float, Sm90Recipe]]:
    """Microseconds of plans with whole tiles, and of those with shared ones where that is held to gain enough.

    rate   of the products, to that of wgmma
    """
    whole = [(predicted_us(recipe.shape, operands, problem, device, rate=rate), recipe) for recipe in recipes]
    yield from whole
    whole_us = min(us for us, _ in whole)
    for _, recipe in whole:
        for split in splits(recipe, operands, problem, device):
            us = predicted_us(recipe.shape, operands, problem, device, split, rate=rate)
            if us * (LEAST_FILL_GAIN if split.owned else LEAST_GAIN) <= whole_us:
                yield us, replace(recipe, split=split)


def candidates(
    operands: Operands, problem: Problem, device: Device = DEFAULT_DEVICE, accumulate: str = "fast"
) -> list[Candidate]:
    """What `choose_sm90` weighs, the plan to take first."""
    packed_us = packing_us(operands, problem, device)

    def weighed(recipe: Sm90Recipe) -> Candidate:
        us = predicted_us(recipe.shape, operands, problem, device, recipe.division)
        takes = bound(recipe.shape, operands, problem, device, recipe.division)
        return Candidate(recipe, us + packed_us, takes if us > packed_us else "packing")

    return [weighed(one) for one in ranked(considered(operands, accumulate), operands, problem, device)]


def best_predicted_us(
    operands: Operands, problem: Problem, device: Device = DEFAULT_DEVICE, rate: float = 1.0
) -> float:
    """Of the plan that is held to be the fastest.

    rate   of the products, to that of wgmma
    """
    return min(us for us, _ in predicted(SM90_CHOSEN, operands, problem, device, rate))


def splits(
    recipe: Sm90Recipe, operands: Operands, problem: Problem, device: Device = DEFAULT_DEVICE
) -> Iterator[Split]:
    """Of K, as far as its parts are long enough; or of the last k-tiles of tiles that do not fill the grid."""
    k_tiles = problem.k * operands.a.dtype.bits // 8 // K_TILE_BYTES
    rows, columns = recipe.shape.clusters(problem)
    tiles, grid = rows * columns * problem.l, recipe.shape.grid(device.sms)
    if tiles < grid:
        yield from (by_last(split_k=parts) for parts in SPLITS if k_tiles >= parts * LEAST_K_TILES)
    is_seen = recipe.tile in FILLED_TILES and k_tiles >= LEAST_FILL_K_TILES
    if is_seen and shares_of(FILLED, tiles, k_tiles, grid).shared:
        yield FILLED


def packing_us(operands: Operands, problem: Problem, device: Device = DEFAULT_DEVICE) -> float:
    """What it takes to pack the operands that are in the way: a kernel each, which reads and writes them.

    It is taken to run at the speed of memory, though L2 may hold some of them.

    >>> round(packing_us(Operands.of("bf16", layout="nt", align_bytes=2), Problem(4096, 4096, 4096)), 1)
    37.0
    """
    total, bytes_per_us = 0.0, device.measured.pack_along_k_gb_s * 1e3
    for name in to_pack_for_wgmma(operands):
        rows = problem.m if name == "a" else problem.n
        size = rows * problem.k * problem.l * operands.a.dtype.bits / 8
        total += PACK_START_US + 2 * size / bytes_per_us
    return total


def packing_pays(operands: Operands, problem: Problem, device: Device = DEFAULT_DEVICE) -> bool:
    """Whether operands are faster packed and multiplied by wgmma than as they are by mma.sync.

    >>> tf32 = Operands.of("tf32", layout="nn")
    >>> packing_pays(tf32, Problem(4096, 4096, 4096)), packing_pays(tf32, Problem(64, 4096, 4096))
    (True, False)
    """
    loaded = min(operands.a.align_bytes, operands.b.align_bytes, ALIGN_BYTES)
    rate = MMA_SYNC_RATE * loaded / ALIGN_BYTES
    wgmma_us, mma_sync_us = (best_predicted_us(operands, problem, device, of) for of in (1.0, rate))
    return wgmma_us + packing_us(operands, problem, device) < mma_sync_us


def loaded_bytes(recipe: Sm90Recipe, operands: Operands, problem: Problem) -> float:
    """Of A and B, by all CTAs, each box of a multicast once."""
    shape = recipe.shape
    (bm, bn), (cm, cn), (rows, columns) = shape.tile, shape.cluster, shape.clusters(problem)
    loaded = rows * columns * problem.l * (bm * cm + bn * cn)
    return float(loaded * problem.k * operands.a.dtype.bits / 8)
