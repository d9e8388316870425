"""The choice among SIMT plans, against what was measured, and against arithmetic by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cutegemm.choose.catalog import choose
from cutegemm.choose.names import recipe_named
from cutegemm.choose.simt.choice import ranked
from cutegemm.choose.simt.named import SIMT_PLANS
from cutegemm.choose.simt.time import FITTED, seconds, terms
from cutegemm.machine.device import DEFAULT_DEVICE
from cutegemm.plan import Operands, Problem
from docs.evidence.fit_simt import fit_rates, losses, timed

RECORDED = json.loads((Path(__file__).parents[2] / "docs/evidence/data/simt.json").read_text())
# Until then sums of parts were stored from registers that the mainloop could not choose, which cost it up to a sixth.
SPLIT_SINCE = "2026-11-20 08:30 UTC"
TN = Operands.of("f32", layout="tn")
H200, RATES = DEFAULT_DEVICE, DEFAULT_DEVICE.measured


def comparable():
    """The plans that were timed as they are today, by problem."""
    measured = timed(RECORDED["rows"])
    if RECORDED["machine"]["date"] < SPLIT_SINCE:
        measured = {key: [one for one in several if not one.is_split] for key, several in measured.items()}
    return {key: several for key, several in measured.items() if len(several) > 1}


def test_the_first_is_near_the_fastest():
    """Of the plans that were timed on each problem: within 3%, and in one of 39, 1024 cubed tt, within 6%."""
    found = losses(comparable())
    assert len(found) > 35
    assert len([loss for loss in found if loss[2] > 1.03]) <= 1
    assert [loss for loss in found if loss[2] > 1.06] == []


def test_the_rates_are_those_of_the_fit():
    """The command prints what stands in the catalog, as long as the measurements are those it was fitted to."""
    measured = [one for several in timed(RECORDED["rows"]).values() for one in several]
    rates = fit_rates(measured)
    stated = {(recipe.name, layout): rate for recipe in SIMT_PLANS for layout, rate in recipe.rate.items()}
    assert len(rates) > 20
    for key in [key for key in rates if key[0] in ("simt_256x128", "simt_128x256", "simt_128x128")]:
        assert stated[key] == pytest.approx(rates[key], rel=0.05), key


def test_terms_by_hand():
    """132 multiprocessors, of which the busiest has two of 256 tiles of 128 x 128: one round of two CTAs.

    Its products are 2 * 128 * 128 * 2048 of 2.4167e11 a second. Split in two, it has four parts of half the length;
    the sums of 512 parts, 64 KiB each, are written and read.
    """
    problem = Problem(2048, 2048, 2048, operands=TN)
    whole = terms(recipe_named("simt_128x128"), TN, problem, H200)
    assert whole.waiting == pytest.approx(FITTED.start_s + FITTED.round_s)
    assert whole.products == pytest.approx(2 * 128 * 128 * 2048 / 2.41667e11, rel=1e-5)
    assert whole.besides == 0
    parts = terms(recipe_named("simt_128x128/k2"), TN, problem, H200)
    assert parts.waiting == pytest.approx(FITTED.start_s + 2 * FITTED.round_s)
    assert parts.products == pytest.approx(whole.products)
    assert parts.besides == pytest.approx(FITTED.launch_s + 2 * 512 * 65536 / (RATES.sums_gb_s * 1e9))
    assert seconds(recipe_named("simt_128x128"), TN, problem) == pytest.approx(
        whole.waiting + whole.products / 0.879, rel=1e-6
    )


def test_even_shares_have_no_quantization():
    """32 tiles of 128 x 256: 32 multiprocessors have one; in even shares each of 132 has 32 / 132 of one."""
    problem = Problem(128, 8192, 8192, operands=TN)
    whole, shared = (
        terms(recipe_named(name), TN, problem, H200) for name in ("simt_128x256", "simt_128x256/s132")
    )
    assert whole.products / shared.products == pytest.approx(132 / 32, rel=1e-6)
    assert shared.besides == pytest.approx(
        FITTED.launch_s + 2 * (132 + 32 - 1) * 131072 / (RATES.sums_gb_s * 1e9)
    )


def test_packing_is_paid_for():
    ops = Operands.of("f32", layout="nt")
    problem = Problem(1024, 512, 256, operands=ops)
    packed = terms(recipe_named("simt_64x64+pack"), ops, problem, H200)
    moved = 2 * 4 * (1024 + 512) * 256
    assert packed.besides == pytest.approx(2 * FITTED.launch_s + moved / (RATES.pack_along_mn_gb_s * 1e9))


def test_a_recipe_builds_what_it_says():
    ops = Operands.of("f32", layout="nt")
    recipes = ranked(ops, Problem(128, 8192, 8192))
    assert len(recipes) > 100
    for recipe in recipes:
        plan = recipe.build(ops)
        parts = 1 if recipe.split is None else recipe.split.parts
        assert (plan.split_k, plan.persistent, bool(plan.packs)) == (parts, recipe.ctas, recipe.is_packed)
        assert plan.name == str(recipe)
        assert plan.cta_tile == recipe_named(recipe.name).build(TN).cta_tile


def test_few_tiles_are_split_and_many_are_not():
    def chosen(m, n, k, layout="nt"):
        ops = Operands.of("f32", layout=layout)
        return choose(ops, Problem(m, n, k, operands=ops))

    for m in (16, 32, 64, 128, 256):
        assert chosen(m, 8192, 8192).split.is_split
    assert chosen(256, 256, 131072).split_k == 66  # 2 tiles on 132 multiprocessors
    for n in (2048, 4096, 8192):
        assert not chosen(n, n, n).split.is_split


def test_a_slower_machine_is_modelled_as_one():
    problem, large = Problem(4096, 4096, 4096, operands=TN), recipe_named("simt_256x128")
    slow = replace(H200, own_rates=replace(RATES, ffma_tflops=RATES.ffma_tflops / 2))
    assert seconds(large, TN, problem, slow) > 1.9 * seconds(large, TN, problem)


def test_half_a_chip_takes_twice_as_long():
    """Each of its multiprocessors is as fast as before."""
    problem, large = Problem(8192, 8192, 8192, operands=TN), recipe_named("simt_256x128")
    half = seconds(large, TN, problem, H200.with_sms(66))
    assert half / seconds(large, TN, problem) == pytest.approx(2, rel=0.05)
