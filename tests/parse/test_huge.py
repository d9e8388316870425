"""Names of plans, problems and epilogues with huge numbers are read, or refused with a message."""

from __future__ import annotations

from random import Random

import pytest

from cutegemm.errors import CutegemmError
from cutegemm.parse.epilogue import parsed_epilogue
from cutegemm.parse.plan import described

NUMBERS = (
    "0", "1", "-1", "3", "64", "1000000", "4294967296", "9" * 20, "9" * 400, "9" * 5000, "1e400", "1e-400", "1_000",
    "٣",
)  # fmt: skip
NAMES = (
    "sm90",
    "sm90_64x64",
    "sm90_epi_stages",
    "simt_64x64",
    "mma_sync_128x128",
    "swap_ab:sm90_64x16",
    "simt",
)
OPTIONS = (
    "tile", "cluster", "stages", "split_k", "stream", "epi_stages", "epi_tile_n", "consumers", "registers",
    "ctas", "raster",
    "cluster_k", "ctas_per_sm", "stagger_cycles", "threads", "tpc_rounds",
)  # fmt: skip
EPILOGUES = (
    "acc * {}", "clamp(acc, {}, 1)", "acc + {} ** 3", "softcap(acc, {})", "-{} * acc", "s * acc + {}",
    "where(acc > {}, acc, 0)", "cast({} * acc, 'bf16')",
)  # fmt: skip


def name(rng: Random) -> str:
    stem = rng.choice(NAMES)
    form = rng.choice(("plain", "suffix", "options", "tile"))
    if form == "suffix":
        return f"{stem}/{rng.choice(('k', 'stream', 'fill', ''))}{rng.choice(NUMBERS)}"
    if form == "options":
        options = [f"{rng.choice(OPTIONS)}={numbers(rng, 1, 3)}" for _ in range(rng.randint(1, 3))]
        return f"{stem.partition('_')[0]}:{','.join(options)}"
    return f"{stem}_{numbers(rng, 2, 2)}" if form == "tile" else stem


def numbers(rng: Random, least: int, most: int) -> str:
    return "x".join([rng.choice(NUMBERS) for _ in range(rng.randint(least, most))])


def refused_in_words(call) -> bool:
    try:
        call()
    except CutegemmError as error:
        return bool(str(error).strip())
    return True


def test_plans_and_problems():
    rng = Random("huge numbers in names")
    for _ in range(300):
        plan, dtype, layout = name(rng), rng.choice(("bf16", "f32", None)), rng.choice(("nt", "nn"))
        problem = rng.choice((None, numbers(rng, 3, 4)))
        assert refused_in_words(lambda: described("test", plan, dtype, layout, problem)), (plan, problem)  # noqa: B023


def test_epilogues():
    rng = Random("huge numbers in epilogues")
    for _ in range(300):
        text = rng.choice(EPILOGUES).format(rng.choice(NUMBERS))
        operands = [f"s:scalar={rng.choice(NUMBERS)}"] if "s *" in text else None
        assert refused_in_words(lambda: parsed_epilogue("test", text, operands)), text  # noqa: B023


@pytest.mark.parametrize("problem", ["9" * 5000 + "x8x8", "8x8x4294967296"])
def test_an_extent_that_is_too_large(problem):
    with pytest.raises(CutegemmError, match="has an extent above 2147482624"):
        described("test", "simt_128x128", "f32", "nn", problem)
