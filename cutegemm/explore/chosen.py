"""The plan that a state chooses or edits, with the problem; and the form in which it is chosen."""

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
    """What a state stands for.

    plan         None where it breaks rules
    violations   every rule that the plan, or what was typed, breaks
    """

    plan: GemmPlan | None
    problem: Problem | None
    device: Device | None
    violations: tuple[str, ...]


def chosen(state: State) -> Chosen:
    """The plan of a state; never raises CutegemmError."""
    return _chosen(*[state[name] for name in OF_PLAN])


@lru_cache(maxsize=64)
def _chosen(name: str, dtype: str, layout: str, problem: str, device: str, epilogue: str, operands: str) -> Chosen:
    complaints = Complaints("explore")
    target = complaints.attempt(lambda: device_named(device))
    arch = "sm_90a" if target is None else target.arch
    try:
        complaints.check()
        ending = parsed_epilogue("explore", epilogue or None, operands.split())
        plan, of = described("explore", name.strip(), dtype or None, layout, problem.strip() or None, arch, ending)
    except PlanError as found:
        return Chosen(None, None, target, found.violations)
    except CutegemmError as found:
        return Chosen(None, None, target, (str(found),))
    return Chosen(plan, of, target, tuple(plan.violations(arch, of)))


def edited(state: State) -> State:
    """The state with its edited options in the text of its plan, which then begins as the text before did.

    >>> edited(State.of("plan=simt:&o.block=64x64x16&o.stages="))["plan"]
    'simt:block=64x64x16'
    """
    if not state.edits:
        return state
    family = state["plan"].partition("=")[0].rpartition(":")[0]
    told = [f"{name}={value.strip()}" for name, value in state.edits.items() if value.strip()]
    return State(state.with_(plan=f"{family}:{','.join(told)}").values, state.edits)


def spelled(recipe: Recipe, plan: GemmPlan) -> dict[str, str]:
    """The options of a plan's builder by name, as its spelled-out name has them.

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
    """What a name leaves to the operands."""
    found: dict[str, Any] = {
        "tile" if family == "sm90" else "block": plan.mma_tile,
        "stages": plan.stages,
    }
    if family == "simt":
        found["raster"] = str(plan.raster)
    if family == "mma_sync":
        found |= {"store": "direct" if plan.smem_d is None else "shared"}
    return found


def asked(state: State, found: Chosen) -> Html:
    """The forms in which a plan is chosen and edited, and what is wrong with it."""
    known = [el("option", value=name, label=summary) for name, summary in _names()]
    fields = [
        field("plan", "plan", state["plan"], listed="plans", hint="a name, or simt:block=128x128x8,..."),
        el("datalist", *known, id="plans"),
        el(
            "div",
            choice("dtype", "type", state["dtype"], [(t, t or "its own") for t in _TYPES]),
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
    chooser = form(state, fields, label="plan", keeps=("view", "expr"))
    return el("div", card("", chooser), _editor(state, found), class_="side")


@lru_cache(maxsize=1)
def _names() -> tuple[tuple[str, str], ...]:
    return tuple(plans())


def _editor(state: State, found: Chosen) -> Html | None:
    """A field for each option of the plan's builder."""
    try:
        recipe = recipe_named(state["plan"].strip())
    except CutegemmError:
        return None
    options: Mapping[str, str]
    if recipe.spelled_out:
        text = state["plan"].strip().removeprefix(SWAP_AB)
        pairs = [part.partition("=") for part in text.partition(":")[2].split(",")]
        options = {name: value for name, _, value in pairs}
    elif found.plan is None:
        return None
    else:
        options = spelled(recipe, found.plan)
    arguments: Mapping[str, Callable[[str], Any]] = recipe.arguments
    boxes = [field(EDIT + name, name, options.get(name, "")) for name in arguments]
    keeps = [name for name in OF_PLAN if name != "plan"]
    begins = f"{SWAP_AB if recipe.swap_ab else ''}{recipe.family}:"
    fields = [el("input", type="hidden", name="plan", value=begins), el("div", *boxes, class_="fields")]
    return el(
        "details",
        el("summary", "edit its options"),
        form(state, fields, label="options of the plan", keeps=("view", "expr", *keeps)),
        class_="card",
        open=bool(state.edits),
        id="editor",
    )


def verdict(found: Chosen) -> Html:
    """Every rule that is broken, in words; or that all are kept."""
    if not found.violations:
        return el("p", "all rules kept", class_="kept")
    count = len(found.violations)
    head = el("p", f"{count} {'rule is' if count == 1 else 'rules are'} broken", class_="violations")
    return joined(head, el("ul", [el("li", error(rule)) for rule in found.violations], class_="rules"))
