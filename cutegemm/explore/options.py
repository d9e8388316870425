"""The options of a plan's builder, for the form that edits them: values, and what can be selected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from cutegemm.build import gemv_plan, mma_sync_plan, mma_tma_plan, simt_plan, sm90_plan
from cutegemm.build.epi_stages import SHARED_D
from cutegemm.build.sm90 import default_l2
from cutegemm.choice.options import parse_flag, written
from cutegemm.choice.recipe import Recipe
from cutegemm.plan import GemmPlan
from cutegemm.plan.warp_roles import WARP_ROLES_KINDS
from cutegemm.plan.work.split import ORDERS, REDUCTIONS

BUILDERS: Mapping[str, Callable[..., GemmPlan]] = {
    "simt": simt_plan,
    "mma_sync": mma_sync_plan,
    "mma_tma": mma_tma_plan,
    "sm90": sm90_plan,
    "gemv": gemv_plan,
}
_FLAG = (("0", "no"), ("1", "yes"))
_LOADS, _MODES, _REPACKS = ("cp.async", "register"), ("m", "n"), ("a", "b", "ab")
# (family, option) -> what can be selected; "" stands for every family.
_CHOICES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "mma_order"): _MODES,
    ("", "repack"): _REPACKS,
    ("", "reduction"): REDUCTIONS,
    ("", "split_order"): ORDERS,
    ("", "rounding"): ("rz", "rna", "rne"),
    ("", "store"): ("shared", "direct"),
    ("sm90", "schedule"): WARP_ROLES_KINDS,
    ("sm90", "store"): ("tma", "tma_warp", "direct"),
    ("sm90", "shared_d"): SHARED_D,
    ("simt", "load_a"): _LOADS,
    ("simt", "load_b"): _LOADS,
    ("simt", "lanes_along"): _MODES,
    ("mma_sync", "load"): _LOADS,
    ("mma_sync", "cache"): ("cg", "ca"),
    ("mma_sync", "read"): ("ldmatrix", "plain"),
    ("mma_sync", "warps_along"): _MODES,
    ("mma_sync", "shared"): ("swizzled", "padded", "plain"),
}


def spelled(recipe: Recipe, plan: GemmPlan) -> dict[str, str]:
    """Return all options that a plan's name stands for, as name -> text, e.g. "stages" -> "3".

    recipe   kernel family and options that the plan's name describes
    plan     the plan that was built from them; it has the options that the name leaves open

    >>> from cutegemm.choice.names import recipe_named
    >>> from cutegemm.plan import Operands
    >>> recipe = recipe_named("simt_64x64")
    >>> spelled(recipe, recipe.build(Operands.of("f32")))["block"]
    '64x64x16'
    """
    options = {**recipe.options, **_of_built(recipe.family, plan)}
    if recipe.is_repacked:
        options["repack"] = "".join([repack.name for repack in plan.repacks])
    split = recipe.split
    if split is not None and recipe.family == "sm90":
        divided = {"split_k": split.splits, "stream": split.waves, "fixup": split.fixup}
        options |= {name: value for name, value in divided.items() if value not in (0, 1) or value is True}
    elif split is not None:
        options |= {"split_k": split.splits, "reduction": split.reduction}
        options |= {"waves": split.waves} if split.waves else {}
    if recipe.ctas is not None:
        options["persistent"] = recipe.ctas
    return {name: written(value) for name, value in options.items() if name in recipe.arguments}


def _of_built(family: str, plan: GemmPlan) -> dict[str, Any]:
    """Return the values that the builder chose for options of a plan, such as {"stages": 4}, as a dict by option name.

    The result has the options that a plan's name may leave out, so that the builder has to choose them.

    family   kernel family of the plan, such as "simt", which decides what options exist
    plan     the plan that was built
    """
    options: dict[str, Any] = {"tile" if family == "sm90" else "block": plan.mma_tile}
    if family == "simt":
        options |= {"raster": str(plan.scheduler.raster), "stages": plan.stages}
    if family == "mma_sync":
        options |= {"store": "direct" if plan.store.layout is None else "shared", "stages": plan.stages}
    return options


def automatic(recipe: Recipe, plan: GemmPlan) -> dict[str, str]:
    """Return option -> value as text, for the options that a plan's name may leave out.

    The value is what the builder uses without the option: its default, or what it derived for `plan`. An option is
    missing if neither is known.

    recipe   kernel family and options that the plan's name describes
    plan     the plan that was built from them

    >>> from cutegemm.choice.names import recipe_named
    >>> from cutegemm.plan import Operands
    >>> recipe = recipe_named("sm90_epi_stages")
    >>> found = automatic(recipe, recipe.build(Operands.of("bf16", layout="nt")))
    >>> found["consumers"], found["store"], found["stages"], found["epi_tile_n"]
    ('2', 'tma', '5', '64')
    """
    defaults = {
        name: parameter.default
        for name, parameter in signature(BUILDERS[recipe.family]).parameters.items()
        if parameter.default not in (None, parameter.empty)
    }
    consumers = [role.registers for role in plan.roles if role.name.startswith("consumer")]
    found = {
        **defaults,
        **_of_built(recipe.family, plan),
        "stages": plan.stages,
        "raster": str(plan.scheduler.raster),
        "rounding": plan.rounding,
        "mma_order": plan.mma_order,
        "ctas": plan.scheduler.grid.ctas or None,
        "gpc_raster": plan.scheduler.order.by_gpc,
        "l2": default_l2(plan.operands.groups),
        "consumers": len(consumers),
        **plan.store.options,
    }
    if plan.roles[0].registers and consumers:
        found["registers"] = (plan.roles[0].registers, consumers[0])
    return {name: written(found[name]) for name in recipe.arguments if name in found}


def choices(recipe: Recipe, name: str, value: str) -> list[tuple[str, str]]:
    """Return (value, text) for each item that a user can select for a plan option; empty if the user types the value.

    recipe   kernel family and options of the plan; the family decides the items
    name     name of the option, such as "mma_order"
    value    the present value, which is always among the items; "" if the plan does not show it
    """
    options: list[tuple[str, str]]
    if recipe.arguments[name] is parse_flag:
        options = [*_FLAG]
    else:
        known = _CHOICES.get((recipe.family, name)) or _CHOICES.get(("", name), ())
        options = [(option, option) for option in known]
    if not options:
        return []
    if name == "repack":
        return [("", "none"), *options]
    if value not in dict(options):
        options.insert(0, (value, value or "automatic"))
    return options
