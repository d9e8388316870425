"""The plan and problem of a state, and the forms that choose and edit the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cutegemm.build.building import Complaints
from cutegemm.choice.names import plans, recipe_named
from cutegemm.choice.options import written
from cutegemm.choice.recipe import SWAP_AB, Recipe
from cutegemm.errors import CutegemmError, PlanError
from cutegemm.explore.forms import card, choice, field, form
from cutegemm.explore.html import Html, el, error, joined
from cutegemm.explore.state import EDIT, State
from cutegemm.machine.device import DEVICES, Device, device_named
from cutegemm.parse.epilogue import parsed_epilogue
from cutegemm.parse.plan import described
from cutegemm.plan import GemmPlan, Problem

_TYPES = ("", "bf16", "f16", "tf32", "e4m3", "e5m2", "s8", "f32", "f64")
_LAYOUTS = ("nn", "nt", "tn", "tt")
OF_PLAN = ("plan", "dtype", "layout", "problem", "device", "epilogue", "operands")


@dataclass(frozen=True)
class Chosen:
    """The plan, problem and device of a state.

    plan         None if it cannot be built
    problem      None if none was typed, or the plan cannot be built
    device       None if its name is unknown
    violations   one message for each rule that the plan or the typed text breaks; empty if all are kept
    """

    plan: GemmPlan | None
    problem: Problem | None
    device: Device | None
    violations: tuple[str, ...]


def chosen(state: State) -> Chosen:
    """Return the plan of a state. Errors become violations; CutegemmError is never raised."""
    return _chosen(*[state[name] for name in OF_PLAN])


@lru_cache(maxsize=64)
def _chosen(name: str, dtype: str, layout: str, problem: str, device: str, epilogue: str, operands: str) -> Chosen:
    """Build the plan of the values of a state that `OF_PLAN` names, as they were typed. Recent plans are cached."""
    complaints = Complaints("explore")
    target = complaints.attempt(lambda: device_named(device))
    arch = "sm_90a" if target is None else target.arch
    try:
        complaints.check()
        ending = parsed_epilogue("explore", epilogue or None, operands.split())
        plan, size = described("explore", name.strip(), dtype or None, layout, problem.strip() or None, arch, ending)
    except PlanError as error:
        return Chosen(None, None, target, error.violations)
    except CutegemmError as error:
        return Chosen(None, None, target, (str(error),))
    return Chosen(plan, size, target, tuple(plan.violations(arch, size)))


def edited(state: State) -> State:
    """Return the state with its edited options written into the name of the plan. The name keeps its family.

    >>> edited(State.of("plan=simt:&o.block=64x64x16&o.stages="))["plan"]
    'simt:block=64x64x16'
    """
    if not state.edits:
        return state
    family = state["plan"].partition("=")[0].rpartition(":")[0]
    options = [f"{name}={value.strip()}" for name, value in state.edits.items() if value.strip()]
    return State(state.with_(plan=f"{family}:{','.join(options)}").values, state.edits)


def spelled(recipe: Recipe, plan: GemmPlan) -> dict[str, str]:
    """Return the options of a plan's builder by name, as text in the notation of plan names.

    recipe   the recipe of the plan
    plan     the plan that the recipe builds; it has the options that the recipe leaves open

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
    """Return the options that a plan name leaves open and the builder derives from the operands."""
    options: dict[str, Any] = {
        "tile" if family == "sm90" else "block": plan.mma_tile,
        "stages": plan.stages,
    }
    if family == "simt":
        options["raster"] = str(plan.raster)
    if family == "mma_sync":
        options |= {"store": "direct" if plan.smem_d is None else "shared"}
    return options


def asked(state: State, selected: Chosen) -> Html:
    """Return the forms that choose and edit the plan, the problem, the device and the epilogue.

    state      the values of the fields
    selected   the plan of `state`, whose options are the initial values of the form that edits them
    """
    known = [el("option", value=name, label=summary) for name, summary in _names()]
    fields = [
        field("plan", "plan", state["plan"], listed="plans", hint="a plan name, or simt:block=128x128x8,..."),
        el("datalist", *known, id="plans"),
        el(
            "div",
            choice("dtype", "type", state["dtype"], [(t, t or "default") for t in _TYPES]),
            choice("layout", "layout", state["layout"], [(t, t) for t in _LAYOUTS]),
            field("problem", "problem", state["problem"], inputmode="text", placeholder="MxNxK"),
            choice("device", "device", state["device"], [(name, name) for name in DEVICES]),
            class_="fields",
        ),
        el(
            "details",
            el("summary", "epilogue"),
            field("epilogue", "D =", state["epilogue"], placeholder="gelu(acc + bias)"),
            field("operands", "operands", state["operands"], placeholder="bias:row:f32"),
            open=bool(state["epilogue"]),
        ),
    ]
    chooser = form(state, fields, label="plan", keeps=("view", "expr", "last"))
    return el("div", card("", chooser), _editor(state, selected), class_="side")


@lru_cache(maxsize=1)
def _names() -> tuple[tuple[str, str], ...]:
    """Return (name, summary) of all named plans."""
    return tuple(plans())


def _editor(state: State, selected: Chosen) -> Html | None:
    """Return a form with a field for each option of the plan's builder, or None if the plan is unknown."""
    try:
        recipe = recipe_named(state["plan"].strip())
    except CutegemmError:
        return None
    options: Mapping[str, str]
    if recipe.spelled_out:
        text = state["plan"].strip().removeprefix(SWAP_AB)
        pairs = [part.partition("=") for part in text.partition(":")[2].split(",")]
        options = {name: value for name, _, value in pairs}
    elif selected.plan is None:
        return None
    else:
        options = spelled(recipe, selected.plan)
    arguments: Mapping[str, Callable[[str], Any]] = recipe.arguments
    boxes = [field(EDIT + name, name, options.get(name, "")) for name in arguments]
    keeps = [name for name in OF_PLAN if name != "plan"]
    begins = f"{SWAP_AB if recipe.swap_ab else ''}{recipe.family}:"
    fields = [el("input", type="hidden", name="plan", value=begins), el("div", *boxes, class_="fields")]
    return el(
        "details",
        el("summary", "edit the options of the plan"),
        form(state, fields, label="options of the plan", keeps=("view", "expr", "last", *keeps)),
        class_="card",
        open=bool(state.edits),
        id="editor",
    )


def verdict(selected: Chosen) -> Html:
    """Return the list of broken rules, or a line that says that the plan keeps all rules."""
    if not selected.violations:
        return el("p", "all rules kept", class_="kept")
    count = len(selected.violations)
    head = el("p", f"{count} {'rule is' if count == 1 else 'rules are'} broken", class_="violations")
    return joined(head, el("ul", [el("li", error(rule)) for rule in selected.violations], class_="rules"))
