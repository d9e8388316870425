"""What the explorer shows, without a browser: held against the algebra, the rules, the analysis and the programs."""

from __future__ import annotations

import itertools
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutegemm import layout as algebra
from cutegemm.analysis import check, shared_accesses, wavefronts
from cutegemm.analysis.accesses import buffer_layout
from cutegemm.analysis.shared import served
from cutegemm.analysis.tables import sections
from cutegemm.choice.catalog import chosen
from cutegemm.choice.names import plans, recipe_named
from cutegemm.errors import PlanError
from cutegemm.explore import State, answer, respond
from cutegemm.explore.conflicts import counts
from cutegemm.explore.expression import evaluated
from cutegemm.explore.layouts import EXAMPLES
from cutegemm.explore.moments import moments, told
from cutegemm.explore.options import BUILDERS, automatic, choices, spelled
from cutegemm.explore.state import DEFAULTS
from cutegemm.layout import Layout, Swizzle, parse
from cutegemm.machine.device import device_named
from cutegemm.parse.groups import Groups
from cutegemm.parse.layout_names import OPERATIONS
from cutegemm.parse.plan import described
from cutegemm.plan import Operands, Problem
from cutegemm.plan.program import operations as op
from cutegemm.tile.tv import make_layout_tv
from tests.explore.pages import Page, fields, page, query

CONFLICT = "simt:block=128x128x8,warp=64x32,thread=8x8,shared_a=k"
SHARED_K = "sm90:tile=64x64x64,schedule=cooperative,consumers=1,cluster_k=4,stages=6"
PLANS = {
    "sm90_pingpong": "nt",
    "sm90_overlapped_2x1": "nt",
    "sm90_wide_2x1/stream": "nt",
    "mma_256x128": "tn",
    "mma_tma_256x128": "nt",
    "simt_256x128": "nn",
    "simt_64x64/k4": "nn",
    CONFLICT: "nn",
    SHARED_K: "nt",
}
VIEWS = ("layouts", "rules", "tile", "banks", "pipeline", "report")


def plan_of(name: str):
    plan, _ = described("test", name, None, PLANS[name], None)
    return plan


# --- expressions ---------------------------------------------------------------------------------------------------

TYPED = (
    ("(4,8)", "(4,8):(1,4)"),
    ("((2,4),8):((1,16),2)", "((2,4),8):((1,16),2)"),
    ("composition((6,2):(8,2), (4,3):(3,1))", "((2,2),3):((24,2),8)"),
    ("A = 4:2\ncomplement(A, 16)", "(2,2):(1,8)"),
    ("zipped_divide((10,8):(8,1), (4,2))", "((4,2),(3,4)):((8,1),(32,2))"),
    ("coalesce(\n  (2,4):(1,2)  # neighbours\n)", "8:1"),
    ("S<3,3,3>", "S<3,3,3>"),
    ("S<3,3,3> o 0 o (8,64):(64,1)", "S<3,3,3> o 0 o (8,64):(64,1)"),
    ("composition(S<2,0,3>, (8,8):(8,1))", "S<2,0,3> o 0 o (8,8):(8,1)"),
    ("(8,8):(F2(9),F2(1))", "(8,8):(F2(9),F2(1))"),
    ("(4,8):(1@0,1@1)", "(4,8):(1@0,1@1)"),
    ("A = (4,8):(8,1); A(2, 3)", "19"),
    ("A = (4,8):(8,1)\nA(2, _)", "(8):(1)"),
    ("(4,8):(8,1)[0]", "4:8"),
    ("raked_product((2,2):(1,2), (3,4):(1,3))", "((3,2),(4,2)):((4,1),(12,2))"),
    ("make_layout_tv((4,8):(8,1), (2,2):(2,1))", "((8,4),(2,2)):((16,2),(8,1)) over (8,16)"),
    ("size((4,8):(8,1))", "32"),
    ("Layout((4,8), (-1,4))", "(4,8):(-1,4)"),
    ("make_layout((4,8), stride=(8,1))", "(4,8):(8,1)"),
    ("make_layout((4,8),(8,1))", "(4,8):(8,1)"),
    ("blocked_product((2,2):(1,2), (3,4))", "((2,3),(2,4)):((1,4),(2,12))"),
    ("Layout<Shape<_8,_64>,Stride<_64,_1>>", "(8,64):(64,1)"),
    ("auto x = GMMA::Layout_K_SW128_Atom<half_t>{};\ntile_to_shape(x, (8,64))",
     "S<3,3,3> o 0 o ((8,1),(64,1)):((64,0),(1,0))"),
    ("((2)):((3))", "((2)):((3))"),
    ("size(4)", "4"),
    ("A = (4,8)\nA[1]", "8"),
    ("tile = (8, 4)\nzipped_divide((16,16), tile)", "((8,4),(2,4)):((1,16),(8,64))"),
)  # fmt: skip


@pytest.mark.parametrize(("text", "value"), TYPED)
def test_what_is_typed_is_evaluated(text: str, value: str) -> None:
    last = evaluated(text)[-1]
    assert (str(last.value), last.error) == (value, "")
    assert page(expr=text).texts("p", role="status") == [" ".join(f"{last.text} = {value}".split())]


REFUSED = (
    ("composition((6,2):(1,7), (3,2):(2,3))", "no layout is A o B"),
    ("nothing(4:1)", "'nothing' is not a known name"),
    ("composed((4,8), 4)", "Did you mean composition?"),
    ("B", "'B' is not a known name. Write B = ... before"),
    ("(4,8", "',' or ')' is expected at the end of the text"),
    ("(4,8):(1", "is expected at the end"),
    ("coalesce(4:1, 2, 3)", "coalesce has 3 arguments. Pass (layout, target_profile)"),
    ("coalesce(4:1, 'x')", "is expected at"),
    ("size.__class__", "'(' or '<' after size is expected at '.'"),
    ("__import__('os')", "'__import__' is not a known name"),
    ("[4:1 for x in 4:1]", "a layout, a number or a name is expected at '['"),
    ("(4:1)()", "coordinate"),
    ("tv(4:1, 8)", "two extents"),
    ("complement(4:0x, 16)", "is expected at 'x'"),
)  # fmt: skip


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_what_is_refused_says_why(text: str, reason: str) -> None:
    last = evaluated(text)[-1]
    assert last.value is None
    assert reason in last.error
    assert reason in " ".join(page(expr=text).texts("div", class_="error"))


def test_every_call_is_shown_in_the_order_in_which_it_is_made() -> None:
    shown = page(expr="A = composition((8,8):(8,1), 16:2)\ncoalesce(logical_divide(A, 4:1))")
    assert shown.texts("h2")[:3] == [
        "1composition((8,8):(8,1), 16:2) as A",
        "2logical_divide((4,4):(16,1), 4:1)",
        "3coalesce((4,4):(16,1))",
    ]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_are_those_of_the_algebra(operation: str) -> None:
    assert callable(getattr(algebra, operation))


@pytest.mark.parametrize(
    "text",
    ["composition((6,2):(8,2), 4:3)", "complement(4:2, 16)", "coalesce((2,4):(1,2))", "right_inverse((4,8):(8,1))",
     "left_inverse((4,8):(1,5))", "logical_divide(24:3, 4:2)", "zipped_divide(24:3, 4:2)", "tiled_divide(24:3, 4:2)",
     "flat_divide(24:3, 4:2)", "logical_product(4:1, 3:1)", "zipped_product(4:1, 3:1)", "tiled_product(4:1, 3:1)",
     "flat_product(4:1, 3:1)", "blocked_product(4:1, 3:1)", "raked_product(4:1, 3:1)"],
)  # fmt: skip
def test_a_derivation_ends_in_the_result(text: str) -> None:
    shown = page(expr=text)
    (derivation,) = [said for _, said in shown.all("pre")]
    assert derivation.splitlines()[-1] == f"= {evaluated(text)[-1].value}"
    assert len(derivation.splitlines()) > 2


def test_a_thread_value_layout_is_derived() -> None:
    (derivation,) = [said for _, said in page(expr="make_layout_tv((4,8):(8,1), (2,2):(2,1))").all("pre")]
    results = [line for line in derivation.splitlines() if line.startswith("=")]
    assert results[0] == f"= {algebra.raked_product(parse('(4,8):(8,1)'), parse('(2,2):(2,1)'))}"
    assert results[-1] == f"= {make_layout_tv(parse('(4,8):(8,1)'), parse('(2,2):(2,1)'))[1]}"


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=60))
def test_no_text_breaks_the_page(text: str) -> None:
    shown = Page(answer(query(expr=text)).html)
    assert len(shown.all("textarea", id="f-expr")) == 1


@pytest.mark.parametrize("value", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</textarea><b>"])
@pytest.mark.parametrize("name", ["expr", "plan", "problem", "epilogue", "operands", "dtype", "view", "t", "find"])
def test_what_a_link_brings_is_text(name: str, value: str) -> None:
    for view in ("layouts", "rules", "pipeline"):
        found = answer(query(**{"view": view, name: value})).html
        assert value not in found
        assert "<script>" not in found


@pytest.mark.parametrize(
    ("text", "wavefronts"),
    [
        ("(8,128):(128,1)", "256 wavefronts of 32: 8-way conflict"),
        ("S<3,4,3> o 0 o (8,128):(128,1)", "64 wavefronts of 32: 2-way conflict"),
        ("S<3,3,4> o 0 o (8,128):(128,1)", "32 wavefronts of 32: no conflict"),
        ("(8,128):(136,1)", "32 wavefronts of 32: no conflict"),
    ],
)
def test_conflicts_are_counted_beside_the_colours(text: str, wavefronts: str) -> None:
    """Rows of 256 bytes: without a swizzle, the 8 rows of a matrix of ldmatrix begin in the same bank."""
    assert wavefronts in page(expr=text, bits="16").texts("dd")
    assert wavefronts not in page(expr=text, bits="16", color="offset").texts("dd")


def test_the_example_of_ldmatrix_conflicts_compares_none_with_some() -> None:
    (text,) = [text for name, text in EXAMPLES if name == "ldmatrix conflicts"]
    without, some = [counts(call.value, 16)["ldmatrix.x4 of rows"].ways for call in evaluated(text)]
    assert (without, some) == (1, 8)


@pytest.mark.parametrize(
    "text", ["(3,5)", "(8,8):(1@0,1@1)", "(8,8):(F2(9),F2(1))", "(0,8)", "(300,300)", "(8,9):(-9,1)"]
)
@pytest.mark.parametrize("bits", ["4", "16", "64", "1024", "12"])
def test_conflicts_of_any_tile(text: str, bits: str) -> None:
    assert len(page(expr=text, bits=bits).all("textarea", id="f-expr")) == 1


@pytest.mark.parametrize("text", ["(8,64):(64,1)", "(64,64):(64,1)", "S<3,3,3> o 0 o (8,64):(64,1)"])
def test_offsets_are_written_in_64_columns(text: str) -> None:
    offsets = {str(offset) for offset in parse(text).offsets().tolist()}
    assert offsets <= set(re.findall(r">(\d+)</text>", answer(query(expr=text)).html))


# --- states and links ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
def test_links_lead_to_states(view: str) -> None:
    """Each link is the query of the state that it stands for, and keeps what it does not change."""
    shown = page(view=view, plan="simt_64x64", layout="nn", expr="4:1")
    links = {text: attributes["href"] or "" for attributes, text in shown.all("a") if "hx-get" in attributes}
    assert all(State.of(link).query == link for link in links.values())
    for name in ("layouts", "rules", "tile", "banks", "pipeline", "time", "code"):
        assert State.of(links[name])["plan"] == "simt_64x64"
        assert State.of(links[name])["expr"] == "4:1"


def test_a_form_says_how_its_address_is_written_shortest() -> None:
    html, headers = respond("form=1&view=banks&plan=simt_64x64&layout=nn&dtype=&bits=16&warp=1")
    assert headers == {"HX-Replace-Url": "?view=banks&plan=simt_64x64&layout=nn&warp=1"}
    assert html.startswith("<title>simt_64x64: cutegemm explorer</title>")
    assert respond("view=banks")[1] == {}
    assert respond("view=banks", restores=True)[0].startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("view", VIEWS)
def test_everything_has_a_name(view: str) -> None:
    """Fields have labels, scrolling parts and tables names, ids are given once; headings do not leave a level out."""
    shown = page(view=view, plan=CONFLICT, layout="nn", expr="composition((6,2):(8,2), (4,3):(3,1))")
    ids = [attributes["id"] for _, attributes, _ in shown.elements if attributes.get("id")]
    assert [name for name, count in Counter(ids).items() if count > 1] == []
    labels = {attributes.get("for") for attributes, _ in shown.all("label")}
    for tag in ("input", "select", "textarea"):
        for attributes, _ in shown.all(tag):
            if attributes.get("type") != "hidden" and attributes.get("class") is None:
                inside = attributes.get("id") in {"color-d", "color-ab", "stage", "zoom"}  # in their labels
                assert attributes.get("id") in labels or attributes.get("aria-label") or inside, attributes
    for tag, attributes, _ in shown.elements:
        if attributes.get("role") == "region":
            assert attributes.get("aria-label"), (tag, attributes)
    (current,) = [text for attributes, text in shown.all("a") if attributes.get("aria-current") == "page" and text in
                  ("layouts", "rules", "tile", "banks", "pipeline", "time")]  # fmt: skip
    assert current in (view, "time")
    levels = [int(tag[1]) for tag, _, _ in shown.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


# --- plans ----------------------------------------------------------------------------------------------------------


def test_every_broken_rule_is_shown() -> None:
    name = "sm90:tile=100x100x64,cluster=3x1"
    with pytest.raises(PlanError) as raised:
        described("test", name, None, "nt", None)
    assert len(raised.value.violations) > 2
    for view in ("rules", "banks", "pipeline"):
        shown = page(view=view, plan=name)
        assert shown.texts("div", class_="error") == [" ".join(v.split()) for v in raised.value.violations]


@pytest.mark.parametrize("view", ["rules", "tile", "banks", "pipeline", "report"])
def test_a_broken_rule_keeps_the_view_of_the_last_plan(view: str) -> None:
    """The form of a plan that can be built carries it along; the answer for a broken one shows it below the rules."""
    valid = query(view=view, plan="simt:block=128x128x8,warp=64x32,thread=8x8", layout="nn")
    before = Page(answer(valid).html)
    assert "last=" not in answer(valid).query
    (last,) = {a["value"] for a, _ in before.all("input", type="hidden", name="last")} - {""}
    broken = query(view=view, plan="simt:block=100x128x8,warp=64x32,thread=8x8", layout="nn", last=last)
    after = Page(answer(broken).html)
    assert "100 elements" in after.texts("div", class_="error")[0]
    assert [title for title in before.texts("h2") if title != "Rules"] == after.texts("h2")[1:]
    assert Page(answer(answer(broken).query).html).texts("h2") == after.texts("h2")
    (kept,) = {a["value"] for a, _ in after.all("input", type="hidden", name="last")} - {""}
    assert kept == last


def test_what_is_typed_wrong_is_said_at_once() -> None:
    said = " ".join(page(view="rules", plan="simt_64x6", dtype="f7", problem="12").texts("div", class_="error"))
    assert "f7" in said
    assert "'12' is not MxNxK" in said
    assert "simt_64x64" in said  # what was meant


def test_a_spelled_out_plan_is_the_named_one() -> None:
    """What the fields of the editor are filled with makes the plan that they were filled from."""
    for name, _ in plans():
        recipe = recipe_named(name)
        operands = Operands.of("f32") if recipe.family == "simt" else Operands.of("bf16", layout="nt")
        try:
            plan = recipe.build(operands)
        except PlanError:
            continue
        named = spelled(recipe, plan)
        for options in (named, {**automatic(recipe, plan), **named}):
            told = ",".join(f"{option}={value}" for option, value in options.items() if value)
            assert recipe_named(f"{recipe.family}:{told}").build(operands).key() == plan.key(), name


@pytest.mark.parametrize("name", ["sm90_wide_2x1/stream", "simt_64x64/k4", "swap_ab:sm90_wide_2x1"])
def test_the_editor_makes_the_plan_anew(name: str) -> None:
    layout = "nn" if "simt" in name else "nt"
    before = page(view="rules", plan=name, layout=layout)
    sent = {key: value for key, value in fields(before).items() if key.startswith("o.")}
    (begins,) = {a["value"] for a, _ in before.all("input", type="hidden", name="plan")}
    (last,) = {a["value"] for a, _ in before.all("input", type="hidden", name="last")}
    for more in ({"last": last}, {}):  # without it, every value is written into the name
        after = page(view="rules", plan=begins, layout=layout, **sent, **more)
        words = [shown.all("pre")[0][1].partition("\n")[2] for shown in (before, after)]
        assert words[0] == words[1]
    changed = answer(query(view="rules", plan=begins, layout=layout, **{**sent, "o.stages": "2"}))
    assert "stages=2" in changed.query


def test_the_editor_shows_the_values_of_the_plan() -> None:
    """Fields are filled, enumerations are selections, and what the builder finds is not written into the name."""
    before = page(view="rules", plan="sm90_epi_stages")
    sent = {key: value for key, value in fields(before).items() if key.startswith("o.")}
    arguments = recipe_named("sm90_epi_stages").arguments
    assert sent.keys() == {f"o.{name}" for name in arguments}
    assert {name for name, value in sent.items() if not value} == {"o.repack"}  # none is repacked
    assert (sent["o.stages"], sent["o.store"], sent["o.consumers"], sent["o.ctas"]) == ("5", "tma", "2", "132")
    selects = {attributes["name"] for attributes, _ in before.all("select")}
    assert {"o.schedule", "o.store", "o.shared_d", "o.promoted", "o.gpc_raster", "o.repack"} <= selects
    (last,) = {a["value"] for a, _ in before.all("input", type="hidden", name="last")}
    edits = {**sent, "o.tile": "128x256x64", "o.schedule": "cooperative"}
    after = answer(query(view="rules", plan="sm90:", last=last, **edits))
    assert State.of(after.query)["plan"] == "sm90:tile=128x256x64,epi_stages=4,schedule=cooperative,raster=along_n"


@pytest.mark.parametrize("family", BUILDERS)
def test_what_can_be_selected_reads(family: str) -> None:
    """A builder may refuse a value in combination with others, but not as an unknown one."""
    name = {"simt": "simt_64x64", "mma_sync": "mma_64x64", "mma_tma": "mma_tma_256x128", "gemv": "gemv_16x8"}.get(
        family, "sm90_epi_stages"
    )
    recipe = recipe_named(name)
    operands = Operands.of("f32") if family == "simt" else Operands.of("bf16", layout="nt")
    named = spelled(recipe, recipe.build(operands))
    for option in recipe.arguments:
        for value, _ in choices(recipe, option, ""):
            edited = {**named, option: value}
            text = ",".join([f"{key}={each}" for key, each in edited.items() if each])
            said = ""
            try:
                recipe_named(f"{family}:{text}").build(operands)
            except PlanError as error:
                said = str(error)
            assert not re.search(rf"{option} = \S+ is (neither|none|not one of)|cannot read", said)


def test_the_first_plan_is_the_one_that_gemm_chooses() -> None:
    operands = Operands.of("bf16", layout=DEFAULTS["layout"])
    m, n, k = map(int, DEFAULTS["problem"].split("x"))
    recipe, _ = chosen(operands, Problem(m, n, k, operands=operands), device=device_named(DEFAULTS["device"]))
    assert str(recipe) == DEFAULTS["plan"]


# --- banks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANS)
def test_phases_are_the_wavefronts(name: str) -> None:
    """Words of the busiest bank, phase by phase, are what the model of shared memory counts."""
    plan = plan_of(name)
    for access in shared_accesses(plan):
        if access.op in ("tma", "cp.async"):
            continue
        addresses, bits = access.addresses(buffer_layout(plan, access.buffer))
        requests = addresses.reshape(-1, addresses.shape[-1])[::7]
        for lanes, counted in zip(requests, wavefronts(requests, bits, op=access.op)[0], strict=True):
            phases = served(lanes, bits, op=access.op)
            assert sum(max(map(len, phase.values())) for phase in phases) == counted
            asked = {lane for phase in phases for words in phase.values() for who in words.values() for lane in who}
            assert asked == set(range(len(lanes)))


@pytest.mark.parametrize("name", [DEFAULTS["plan"], "sm90_pingpong", "mma_tma_256x128"])
def test_the_first_access_is_one_that_can_conflict(name: str) -> None:
    (marked,) = [text for a, text in page(view="banks", plan=name).all("tr") if a.get("class") == "marked"]
    assert "tma" not in marked


def test_banks_that_lanes_meet_in_are_marked() -> None:
    shown = page(view="banks", plan=CONFLICT, layout="nn")
    red = shown.all("li", class_="meets")
    assert [attributes["aria-label"] for attributes, _ in red] == [
        "bank 0: " + "; ".join(f"lanes {i}, {i + 8}, {i + 16}, {i + 24} at byte {128 * i:#06x}" for i in range(8))
    ]
    assert len(shown.all("li", class_="bank")) == 32
    assert "8-way: lanes 0, 1, 2, 3, 4, 5, 6, 7 of warp 0 in bank 0" in shown.texts("td")
    assert page(view="banks", plan="simt_256x128", layout="nn").all("li", class_="meets") == []


# --- pipelines --------------------------------------------------------------------------------------------------------

WORDS = {
    op.Load: "load",
    op.Expect: "load",
    op.BeginRead: "mma",
    op.WriteEpiStage: "write",
    op.StoreEpiStage: "store",
}


@pytest.mark.parametrize("name", [name for name in PLANS if name.startswith(("sm90", "mma_tma"))])
def test_moments_follow_the_programs(name: str) -> None:
    """Each role is at the line that what it does comes from; its lines go on only by what it has done."""
    plan = plan_of(name)
    texts = {role: str(program).splitlines() for role, program in plan.programs.items()}
    every = moments(plan)
    assert len(every) > 100
    said: Counter[tuple[str, str]] = Counter()
    for before, now in itertools.pairwise(every):
        for role, line in now.at.items():
            assert line is None or 0 <= line < len(texts[role])
            if role not in (before.role, now.role):
                assert line == before.at[role]
        if now.role is not None:
            said[" ".join(now.text.split()[:2]), texts[now.role][now.at[now.role]].split()[0]] += 1
    for does, words in (
        ("issues the", {"load"}),
        ("expects", {"load", "wait", "send"}),  # the wait for C, where it comes to an epilogue stage
        ("begins", {"mma", "read", "add"}),
        ("sends", {"send"}),
        ("tests whether", {"if", "for"}),
        ("write epilogue stage", {"write"}),
        ("store epilogue stage", {"store"}),
    ):
        assert {line for did, line in said if did.startswith(does)} <= words
    assert said["issues the", "load"] > 20
    assert every[-1].time > every[0].time
    assert all(before.time <= after.time for before, after in itertools.pairwise(every))


def test_a_stage_is_read_when_it_is_full_alone() -> None:
    for moment in moments(plan_of("sm90_pingpong")):
        for held, readers in moment.stages:
            assert not readers or all(text.startswith("k-tile") for text in held.values())


def test_sums_come_from_all_ctas_before_they_are_added() -> None:
    """Four CTAs split K.

    Each sends a tile's accumulators once and receives four times; it reads when all have arrived.
    """
    every = moments(plan_of(SHARED_K))
    sent = [now.text for now in every if now.text.startswith("sends")]
    assert sent == [f"sends accumulators of tile {tile} to 4 CTAs, by their columns" for tile in range(4)]
    assert sum(now.text == "accumulators have arrived" for now in every) == 4 * 4
    read = [now for now in every if now.text == "begins to read the received accumulators"]
    for tile, now in enumerate(read):
        ((held, readers),) = now.accumulators
        assert readers == 1
        assert held == {f"sums {cta}.0": f"of tile {tile}" for cta in range(4)}
    assert len(read) == 4
    assert all(not now.accumulators for now in moments(plan_of("sm90_pingpong")))


def test_the_state_of_the_sums_is_shown() -> None:
    every = moments(plan_of(SHARED_K))
    number = next(i for i, now in enumerate(every) if now.text.startswith("begins to read the received"))
    shown = page(plan=SHARED_K, view="pipeline", t=number)
    heads = shown.texts("th")
    senders = [head for head in heads if head.startswith("accumulators of")]
    assert senders == [f"accumulators of CTA {cta}" for cta in range(4)]


def test_the_stepper_goes_through_the_moments() -> None:
    every = moments(plan_of("sm90_pingpong"))
    for number in (0, 41, len(every) - 1):
        shown = page(view="pipeline", plan="sm90_pingpong", t=number)
        now = every[number]
        who = f"{now.role} " if now.role else ""
        assert shown.texts("p", class_="result") == [f"{number + 1} of {len(every)}, at {now.time:g}: {who}{now.text}"]
        links = {text: State.of(a["href"])["t"] for a, text in shown.all("a", class_="button")}
        assert links == {
            "first": "0", "back": str(max(0, number - 1)), "next": str(min(len(every) - 1, number + 1)),
            "last": str(len(every) - 1),
        }  # fmt: skip
        assert len(shown.all("li", class_="here")) == len({line for line in now.at.items() if line[1] is not None} -
                                                          ({("consumer 1", now.at["consumer 0"])}))  # fmt: skip


def test_a_schedule_is_stepped_through_too() -> None:
    plan = plan_of("simt_256x128")
    lines = str(plan.body).splitlines()
    for number in (0, 9, 60):
        shown = page(view="pipeline", plan="simt_256x128", layout="nn", t=number)
        (here,) = shown.texts("li", class_="here")
        (text,) = shown.texts("p", class_="result")
        step = {"fetch": "fetch", "commit": "commit", "store": "store", "wait": "wait", "sync": "sync", "read": "read",
                "multiply": "mma"}[text.split(", ")[1]]  # fmt: skip
        assert here.split()[0] == step
        assert here in [" ".join(line.split()) for line in lines]


def test_operations_are_told_in_words() -> None:
    assert told(op.Expect("full", 1, 32768)) == "expects 32768 bytes at full[1]"
    assert told(op.EndRead(3)) == "has read stage 3"


# --- time -----------------------------------------------------------------------------------------------------------


def test_the_report_is_that_of_check() -> None:
    plan, problem = described("test", "simt_256x128", None, "nn", "4096x4096x4096", "sm_90a")
    found = check(plan, problem, device="h200")
    shown = page(view="report", plan="simt_256x128", layout="nn")
    cells = shown.texts("td")
    for access in found.shared:
        assert access.name in shown.texts("th")
        assert str(access.cost.wavefronts) in cells
    roof = found.roofline
    assert f"at least {roof.seconds * 1e3:.3f} ms, so {roof.tflops:.1f} TFLOP/s at most" in shown.texts("p")
    assert [text for text in shown.texts("div") if f"{roof.bound.seconds * 1e3:.3f} ms, binds" in text]
    for change in found.changes:
        assert any(change.what in text for text in shown.texts("p"))


@pytest.mark.parametrize(
    "sizes", [{}, {"ends": "1000,1000,1100"}, {"sizes": "1000,0,100"}], ids=["equal", "ends", "sizes"]
)
@pytest.mark.parametrize("along", ["m", "n", "k"])
def test_groups(along: str, sizes: dict[str, str]) -> None:
    """The report has the section of `check`, and the schedule; other views show the grouped plan."""
    layout, problem = ("tn" if along == "k" else "nt"), "1536x1536x1536"
    state = {"plan": "sm90_pingpong", "layout": layout, "problem": problem, "groups": 3, "along": along, **sizes}
    plan, of = described("test", "sm90_pingpong", None, layout, problem, groups=Groups(3, along))
    found = check(plan, of, device="h200", ends=[1000, 1000, 1100] if sizes else None)
    (section,) = [each for each in sections(found) if each.title == "Groups"]
    shown = page(view="report", **state)
    assert {*section.lines, *section.after} <= {*shown.texts("p")}
    assert ("The other sections take groups of equal size." in shown.texts("p")) == bool(sizes)
    assert "Schedule of the groups" in shown.texts("h2")
    assert not shown.all("div", class_="error")
    sent = fields(shown)
    assert (sent["groups"], sent["along"]) == ("3", along)
    assert any(f"groups 3 along {along.upper()}" in text for text in page(view="rules", **state).texts("pre"))
    for view in ("tile", "banks", "pipeline"):
        assert not page(view=view, **state).all("div", class_="error")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"groups": "x"}, "groups 'x' is not a number, such as 8."),
        ({"groups": "0"}, "--groups 0 is less than 1."),
        ({"groups": "2", "along": "l"}, "--along l is not m, n or k."),
        ({"ends": "4"}, "--ends 4 needs --groups and --problem."),
        ({"groups": "2", "ends": "3"}, "--ends 3 is not a list of 2 ends"),
        ({"groups": "2", "ends": "3", "sizes": "3"}, "--ends 3 and --sizes 3 exclude each other."),
        ({"groups": "2", "epilogue": "relu(acc)"}, "--groups excludes --scales and --epilogue."),
        ({"groups": "2", "plan": "simt_64x64", "dtype": "f32"}, "groups"),
    ],
)
def test_wrong_groups_are_said(wrong: dict[str, str], said: str) -> None:
    shown = page(view="rules", **wrong)
    assert any(said in text for text in shown.texts("pre"))
    assert shown.all("div", class_="error")


def test_layouts_that_are_drawn_are_those_that_are_told() -> None:
    """The cells of the picture are the offsets of the result."""
    shown = page(expr="zipped_divide((8,12):(12,1), (4,3))", cells="offsets", color="offset")
    result = parse("((4,3),(2,4)):((12,1),(48,3))")
    numbers = [int(text) for text in shown.texts("text") if text.isdigit()]
    expected = Counter(np.asarray(result.offsets()).tolist())
    assert not expected - Counter(numbers)


def test_a_swizzle_is_told_by_its_bits() -> None:
    assert "bits 3 .. 5 of an offset are XORed with its bits 6 .. 8" in page(expr="S<3,3,3>").texts("p")
    swizzle = Swizzle(3, 3, 3)
    assert all(swizzle(1 << bit) == (1 << bit) ^ (1 << (bit - 3)) for bit in (6, 7, 8))
    assert all(swizzle(1 << bit) == 1 << bit for bit in (0, 3, 5, 9))
    assert isinstance(parse("(4,8)"), Layout)


@pytest.mark.parametrize("bits", ["None", "1" * 50, "-3", "0"])
def test_bits_that_no_element_has(bits: str) -> None:
    said, _ = respond(f"view=layouts&bits={bits}")
    assert "<svg" in said
