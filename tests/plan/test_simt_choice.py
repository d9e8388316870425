"""The choice among SIMT plans, against what was measured, and against arithmetic by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cutegemm.choose.catalog import choose
from cutegemm.choose.simt.choice import H200, parse, ranked, seconds, terms
from cutegemm.choose.simt.named import NAMED, simt_named
from cutegemm.plan import Operands, Problem
from docs.evidence.fit_simt import fit_rates, losses, timed

RECORDED = json.loads((Path(__file__).parents[2] / "docs/evidence/data/simt.json").read_text())
# Until then sums of parts were stored from registers that the mainloop could not choose, which cost it up to a sixth.
SPLIT_SINCE = "2026-11-20 08:30 UTC"
TN = Operands.of("f32", layout="tn")


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
    rates = fit_rates(measured, H200)
    stated = {(named.name, layout): rate for named in NAMED for layout, rate in named.rate.items()}
    assert len(rates) > 20
    for key in [key for key in rates if key[0] in ("simt_256x128", "simt_128x256", "simt_128x128")]:
        assert stated[key] == pytest.approx(rates[key], rel=0.05), key


def test_terms_by_hand():
    """132 multiprocessors, of which the busiest has two of 256 tiles of 128 x 128: one round of two CTAs.

    Its products are 2 * 128 * 128 * 2048 of 2.4167e11 a second. Split in two, it has four parts of half the length;
    the sums of 512 parts, 64 KiB each, are written and read.
    """
    problem = Problem(2048, 2048, 2048, operands=TN)
    whole = terms("simt_128x128", TN, problem, 132, H200)
    assert whole.waiting == pytest.approx(H200.start_s + H200.round_s)
    assert whole.products == pytest.approx(2 * 128 * 128 * 2048 / 2.41667e11, rel=1e-5)
    assert whole.besides == 0
    parts = terms("simt_128x128/k2", TN, problem, 132, H200)
    assert parts.waiting == pytest.approx(H200.start_s + 2 * H200.round_s)
    assert parts.products == pytest.approx(whole.products)
    assert parts.besides == pytest.approx(H200.launch_s + 2 * 512 * 65536 / H200.sums_bytes_per_s)
    assert seconds("simt_128x128", TN, problem, 132) == pytest.approx(
        whole.waiting + whole.products / 0.879, rel=1e-6
    )


def test_even_shares_have_no_quantization():
    """32 tiles of 128 x 256: 32 multiprocessors have one; in even shares each of 132 has 32 / 132 of one."""
    problem = Problem(128, 8192, 8192, operands=TN)
    whole, shared = (terms(name, TN, problem, 132, H200) for name in ("simt_128x256", "simt_128x256/s132"))
    assert whole.products / shared.products == pytest.approx(132 / 32, rel=1e-6)
    assert shared.besides == pytest.approx(
        H200.launch_s + 2 * (132 + 32 - 1) * 131072 / H200.sums_bytes_per_s
    )


def test_packing_is_paid_for():
    ops = Operands.of("f32", layout="nt")
    problem = Problem(1024, 512, 256, operands=ops)
    packed = terms("simt_64x64+pack", ops, problem, 132, H200)
    moved = 2 * 4 * (1024 + 512) * 256
    assert packed.besides == pytest.approx(2 * H200.launch_s + moved / H200.copy_bytes_per_s)


def test_names_read_back():
    for name in ranked(Operands.of("f32", layout="nt"), Problem(128, 8192, 8192), "sm_90a", 132):
        base, pack, parts, ctas = parse(name)
        plan = simt_named(name, Operands.of("f32", layout="nt"))
        assert plan is not None
        assert (plan.split_k, plan.persistent or 0, bool(plan.packs)) == (parts, ctas, pack)
        assert plan.cta_tile == simt_named(base, TN).cta_tile


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
    problem = Problem(4096, 4096, 4096, operands=TN)
    slow = replace(H200, multiply_adds_per_s=H200.multiply_adds_per_s / 2)
    assert seconds("simt_256x128", TN, problem, 132, slow) > 1.9 * seconds("simt_256x128", TN, problem, 132)
