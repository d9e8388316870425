"""Our algebra against the real CuTe DSL, on the same random arguments.

Where the DSL's answer obeys the law, ours is the same in shape and stride. Where it breaks the law, ours
obeys it or raises; these cases are the table that a test prints (`pytest -rP`). Where the DSL raises, ours
may answer. Nothing here depends on a GPU.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from random import Random

import pytest

from cutegemm.errors import LayoutError
from cutegemm.layout import ComposedLayout, Layout, Swizzle
from tests.layout import cases, laws
from tests.layout.naive import size, table
from tests.layout.test_laws import perform
from tests.oracle.dsl import Case, Refused, ask, missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

CASES_AN_OPERATION = 160

# Known before, and kept in whatever the random ones are: (case, our answer; None if we raise).
KNOWN_DIFFERENCES = [
    (Case("make_ordered_layout", ((4, 2, 3), (0, 0, 1))), Layout((4, 2, 3), (1, 4, 8))),
    (Case("composition", (Layout((6, 2), (1, 7)), Layout((3, 2), (2, 3)))), None),
    (Case("left_inverse", (Layout((4, 8), (1, 2)),)), None),
    (Case("left_inverse", (Layout((4, 2), (2, 2)),)), None),
    (Case("complement", (Layout((3, 2), (2, 3)), 24)), None),
    # Room for one copy before the next period, and two are wanted: the DSL lays them on top of each other.
    (
        Case("logical_product", (Layout((2, 2, 2), (1, 3, 11)), Layout(2))),
        Layout(((2, 2, 2), 2), ((1, 3, 11), 22)),
    ),
    (Case("recast_layout", (32, 16, Layout((8, 3), (1, 3)))), None),
    (Case("recast_layout", (8, 16, Layout(4, 2))), None),
    (Case("max_common_vector", (Layout(2, 1), Layout(8, 1))), 2),
    (
        Case("zipped_divide", (Layout(((2, 5), 2), ((4, 8), 1)), (None, 2))),
        Layout((((2, 5), 2), (1, 1)), (((4, 8), 1), (0, 0))),
    ),
]


def random_cases(operation: str) -> list[Case]:
    rng = Random(f"oracle of {operation}")
    return [Case(operation, *cases.ARGUMENTS[operation](rng)) for _ in range(CASES_AN_OPERATION)]


@pytest.fixture(scope="module")
def answers() -> dict[str, list[tuple[Case, object, object]]]:
    """For each operation (case, our answer, the DSL's)."""
    asked = [case for operation in laws.LAWS for case in random_cases(operation)]
    out = defaultdict(list)
    for case, theirs in zip(asked, ask(asked), strict=True):
        out[case.operation].append((case, ours(case), theirs))
    return out


def ours(case: Case) -> object:
    try:
        return perform(case.operation, *case.args, **case.options)
    except LayoutError as error:
        return Refused(str(error))


def broken_law(case: Case, answer: object) -> str | None:
    return laws.LAWS[case.operation](answer, *case.args, **case.options)


def same(a: object, b: object) -> bool:
    """Sizes first: equal shapes and strides of different sizes would be a fault of the harness."""
    if isinstance(a, (Layout, ComposedLayout)) and isinstance(b, (Layout, ComposedLayout)):
        return size(a) == size(b) and a == b
    return a == b


@pytest.mark.parametrize("operation", laws.LAWS)
def test_equal_to_the_dsl_wherever_it_is_right(operation, answers):
    compared = 0
    for case, mine, theirs in answers[operation]:
        if isinstance(theirs, Refused):
            assert isinstance(mine, Refused) or broken_law(case, mine) is None, str(case)
        elif same(mine, theirs):
            compared += 1
        else:
            law = broken_law(case, theirs)
            assert law is not None, f"{case}: the DSL gives {theirs}, which is right; ours {mine}"
            assert isinstance(mine, Refused) or broken_law(case, mine) is None, str(case)
    assert compared >= CASES_AN_OPERATION // 5, "too few cases that both answer"


def test_enough_cases_and_the_table_of_exceptions(answers):
    rows = [
        (operation, law_name(broken_law(case, theirs)), "raises" if isinstance(mine, Refused) else "right")
        for operation, compared in answers.items()
        for case, mine, theirs in compared
        if not isinstance(theirs, Refused) and not same(mine, theirs)
    ]
    total = sum(map(len, answers.values()))
    print(f"{total} cases; in {len(rows)} the DSL's answer breaks the law:")
    for (operation, law, outcome), count in sorted(Counter(rows).items()):
        print(f"{count:5}  {operation:20} {law:60} ours {outcome}")
    assert total >= 5000


def law_name(law: str | None) -> str:
    """The violated law without its numbers."""
    return re.sub(r"-?[0-9.]+", "#", law or "")


def test_known_differences():
    theirs = ask([case for case, _ in KNOWN_DIFFERENCES])
    for (case, want), answer in zip(KNOWN_DIFFERENCES, theirs, strict=True):
        mine = ours(case)
        assert not isinstance(answer, Refused), str(case)
        assert broken_law(case, answer) is not None, f"{case}: the DSL is right now"
        assert isinstance(mine, Refused) if want is None else mine == want, str(case)


def test_slices_of_swizzled_layouts_take_the_same_values():
    """The DSL's slice of a swizzled layout drops the offset and the swizzle: its steps are compared.

    Where sums of strides carry into the swizzled bits it is wrong: S<2,0,3> o 0 o (5,4):(1,1) at (3,_) takes
    3, 4, 5, 6, and the DSL gives 4:-1.
    """
    rng = Random("slices of composed layouts")
    asked = []
    for _ in range(300):
        plain, coord = cases.slice_arguments(rng)
        asked.append(Case("slice_", (ComposedLayout(Swizzle(*rng.choice(cases.SWIZZLES)), 0, plain), coord)))
    equal = 0
    for case, theirs in zip(asked, ask(asked), strict=True):
        mine = ours(case)
        assert broken_law(case, mine) is None, str(case)
        equal += not isinstance(theirs, Refused) and steps(mine) == steps(theirs)
    assert equal > 200


def steps(layout: Layout | ComposedLayout) -> list[int]:
    offsets = table(layout)
    return [offset - offsets[0] for offset in offsets]


def divides_by_coordinates(rng: Random) -> list[Case]:
    """Divisions of a matrix into tiles that mostly divide each of its modes."""
    asked = []
    for _ in range(100):
        extents = [rng.choice((2, 4, 6, 8, 12)) for _ in range(rng.randint(2, 3))]
        tile = cases.into_coordinates(rng, extents)
        matrix = Layout(tuple(extents), tuple(cases.strides(rng, extents, "pg")))
        asked += [Case(form, (matrix, tile)) for form in ("logical_divide", "zipped_divide", "tiled_divide")]
    return asked


def masks(rng: Random) -> list[Case]:
    asked = []
    for _ in range(40):
        shape = rng.choice(((2, 4), (4, 2), (2, 2, 2), (16, 1), (1, 8)))
        coord = tuple(rng.randrange(s) for s in shape)
        asked.append(Case("make_layout_image_mask", (Layout(shape), coord, rng.randrange(len(shape)))))
    return asked


def congruences(rng: Random) -> list[Case]:
    names = ("is_congruent", "is_weakly_congruent")
    return [Case(rng.choice(names), (cases.layout(rng, "p"), cases.layout(rng, "p"))) for _ in range(150)]


def test_coordinates_masks_and_congruence():
    """Divides by coordinates: where the DSL takes each offset once, ours is the same, and so does ours."""
    rng = Random("coordinates, masks and congruence")
    divided, masked, congruent = divides_by_coordinates(rng), masks(rng), congruences(rng)
    answers = dict(zip(map(str, asked := divided + masked + congruent), ask(asked), strict=True))
    compared = 0
    for case in divided:
        mine, theirs = ours(case), answers[str(case)]
        if isinstance(mine, Refused) or isinstance(theirs, Refused):
            continue
        whole = case.args[0]
        if sorted(table(theirs)) == sorted(table(whole)):
            compared += 1
            assert same(mine, theirs), f"{case}: the DSL gives {theirs}; ours {mine}"
        assert sorted(table(mine)) == sorted(table(whole)) or size(mine) > size(whole), str(case)
    assert compared > 100
    for case in masked:
        assert ours(case) == answers[str(case)] % 2**16, str(case)  # theirs has a sign
    for case in congruent:
        assert ours(case) == answers[str(case)], str(case)


def test_the_oracle_survives_what_kills_the_dsl():
    alive = Case("size", (Layout(8, 1),))
    deadly = Case("blocked_product", (Layout((4, 5000), (8, 1)), Layout((2, 2), (1, 4))))
    got = ask([alive, deadly, alive, Case("no_such_operation", ()), alive])
    assert [got[0], got[2], got[4]] == [8, 8, 8]
    assert isinstance(got[1], Refused)
    assert "AttributeError" in got[3].reason
