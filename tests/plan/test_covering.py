"""The forms that are compiled and executed hold every component of all forms alone, and every pair that meets."""

from __future__ import annotations

from tests.kernels import mma_sync_forms, sm90_forms
from tests.kernels.components import covering, hopper_components, items, mma_sync_components, union


def test_a_covering_by_hand() -> None:
    """b holds what a does and one item more; c alone has its own."""
    one, two, three = ((("x", "1"),), (("x", "2"),), (("y", "1"),))
    assert covering({"a": {one}, "b": {one, two}, "c": {three}}) == ["b", "c"]


def test_the_pairs_that_meet() -> None:
    """C is copied to the shared memory that D is stored from, and neither depends on the type of A."""
    found = items({"c": "by TMA", "store": "by TMA", "kind": "bf16"})
    assert found == {
        (("c", "by TMA"),), (("store", "by TMA"),), (("kind", "bf16"),), (("c", "by TMA"), ("store", "by TMA")),
    }  # fmt: skip


def test_forms_of_hopper_plans() -> None:
    held = {name: items(hopper_components(sm90_forms.form(name))) for name in sm90_forms.FORMS}
    every = union(held.values())
    alone = union(held[name] for name in sm90_forms.ALONE)
    assert {item for item in every if len(item) == 1} - alone == set()
    missing = every - alone - union(held[name] for name in sm90_forms.PAIRS)
    assert missing == set(), f"add forms that hold {sorted(missing)}; a covering: {sorted(covering(held))}"


def test_the_smaller_forms_that_are_compiled_have_the_same_components() -> None:
    """The order of the GPCs is left out: it depends on the number of CTAs."""
    for name in (*sm90_forms.ALONE, *sm90_forms.PAIRS):
        both = [hopper_components(plan) for plan in (sm90_forms.form(name), sm90_forms.on_few_ctas(name))]
        whole, smaller = ({key: value for key, value in each.items() if key != "order"} for each in both)
        assert smaller == whole, name
    for name in (*mma_sync_forms.FORMS, *mma_sync_forms.FLOAT8):
        whole = mma_sync_components(mma_sync_forms.form(name))
        assert mma_sync_components(mma_sync_forms.small(name)) == whole, name


def test_forms_of_mma_sync_plans() -> None:
    names = (*mma_sync_forms.FORMS, *mma_sync_forms.FLOAT8)
    held = {name: items(mma_sync_components(mma_sync_forms.form(name))) for name in names}
    missing = union(held.values()) - union(held[name] for name in mma_sync_forms.COVERING)
    assert missing == set(), f"add forms that hold {sorted(missing)}; a covering: {sorted(covering(held))}"
