"""The plan and problem of a state, and the forms that choose and edit the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from cutegemm.build.building import Complaints
from cutegemm.choice.names import plans, recipe_named
from cutegemm.choice.recipe import SWAP_AB, Recipe
from cutegemm.errors import CutegemmError, PlanError
from cutegemm.explore.forms import card, choice, field, form
from cutegemm.explore.html import Html, el, error, joined
from cutegemm.explore.options import BUILDERS, automatic, choices, spelled
from cutegemm.explore.state import EDIT, State
from cutegemm.machine.device import DEVICES, Device, device_named
from cutegemm.parse.epilogue import parsed_epilogue
from cutegemm.parse.groups import ends_of, groups_of
from cutegemm.parse.plan import described
from cutegemm.plan import GemmPlan, Problem

_TYPES = ("", "bf16", "f16", "tf32", "e4m3", "e5m2", "s8", "f32", "f64")
_LAYOUTS = ("nn", "nt", "tn", "tt")
_OF_GROUPS = ("groups", "along", "ends", "sizes")
OF_PLAN = ("plan", "dtype", "layout", "problem", "device", "epilogue", "operands", *_OF_GROUPS)


@dataclass(frozen=True)
class Chosen:
    """Holds the kernel plan, the problem and the device that a user has selected on the explorer's web page.

    plan         the plan; None if it cannot be built
    problem      extents and operands of the GEMM; None if none was typed, or the plan cannot be built
    device       the GPU whose rates are used; None if its name is unknown
    violations   one message for each rule that the plan or the typed text breaks; empty if all rules are kept
    ends         end of each group of a grouped GEMM; None for groups of equal size, and for other GEMMs
    """

    plan: GemmPlan | None
    problem: Problem | None
    device: Device | None
    violations: tuple[str, ...]
    ends: tuple[int, ...] | None = None


def chosen(state: State) -> Chosen:
    """Return the kernel plan, problem and device that a user has selected on the web page.

    Errors in the typed text become entries of `violations`; CutegemmError is never raised.

    state   the user's choices on the web page, as texts
    """
    return _chosen(*[state[name] for name in OF_PLAN])


@lru_cache(maxsize=64)
def _chosen(
    name: str,
    dtype: str,
    layout: str,
    problem: str,
    device: str,
    epilogue: str,
    operands: str,
    groups: str,
    along: str,
    ends: str,
    sizes: str,
) -> Chosen:
    """Build the plan, problem and device from the texts that a user has typed; report rules that they break.

    Each argument is the text of one input field, unchanged. Recent results are cached.

    name       plan name, such as "sm90_pingpong"
    dtype      element type of A and B, such as "bf16"; "" for the plan's default
    layout     BLAS letters of A and B, such as "nt"
    problem    extents such as "4096x4096x512"; "" for no problem
    device     device name, such as "h200"
    epilogue   expression such as "relu(acc + bias)"; "" for alpha * acc + beta * c
    operands   epilogue operands, such as "bias:row"
    groups     number of groups of a grouped GEMM, such as "8"; "" for other GEMMs
    along      the mode that groups divide: "m", "n" or "k"
    ends       end of each group, such as "100,300,512"; "" for groups of equal size
    sizes      size of each group instead of its end; "" for none
    """
    complaints = Complaints("explore")
    target = complaints.attempt(lambda: device_named(device))
    arch = "sm_90a" if target is None else target.arch
    try:
        complaints.check()
        ending = parsed_epilogue("explore", epilogue or None, operands.split())
        own = groups_of("explore", _count(groups), along)
        text = problem.strip() or None
        plan, size = described("explore", name.strip(), dtype or None, layout, text, arch, ending, groups=own)
        extent = getattr(size, plan.operands.groups) if own is not None and size is not None else None
        known = ends_of("explore", own, extent, ends.strip() or None, sizes.strip() or None)
    except PlanError as error:
        return Chosen(None, None, target, error.violations)
    except CutegemmError as error:
        return Chosen(None, None, target, (str(error),))
    return Chosen(plan, size, target, tuple(plan.violations(arch, size)), known)


def _count(groups: str) -> int | None:
    """Return the number of groups that a user has typed; None for none.

    raises   PlanError if the text is not a number
    """
    if not groups.strip():
        return None
    if not groups.strip().isdecimal():
        raise PlanError("explore", [f"groups {groups.strip()[:20]!r} is not a number, such as 8."])
    return int(groups.strip()[:9])


def edited(state: State) -> State:
    """Return the user's choices with the plan's name changed to contain the options that the user edited in a form.

    The new name spells the options out, such as "simt:stages=3,...". An option that the name of the last valid plan
    leaves out is added only if the user changed its field; else the plan's builder computes it from the other options.

    state   the choices on the web page; its attribute `edits` holds the edited options

    >>> edited(State.of("plan=simt:&o.block=64x64x16&o.stages="))["plan"]
    'simt:block=64x64x16'
    """
    if not state.edits:
        return state
    family = state["plan"].partition("=")[0].rpartition(":")[0]
    before = state.remembered
    found = None if before is None else _options(before, chosen(before))
    left_out = {name: value for name, value in found.automatic.items() if name not in found.named} if found else {}
    options = [
        f"{name}={value.strip()}"
        for name, value in state.edits.items()
        if value.strip() and value.strip() != left_out.get(name)
    ]
    return State(state.with_(plan=f"{family}:{','.join(options)}").values, state.edits)


@dataclass(frozen=True)
class _Options:
    """Holds a plan's options, such as stages = 3, for the form in which a user of the web page edits them.

    recipe      kernel family and options, as the plan's name describes them; the plan is built from them
    named       dict of the options that the plan's name sets, e.g. "stages" -> "3"
    automatic   dict of the options that the name leaves out, with the values that the builder chooses, as text. If the
                plan cannot be built, the values of the last plan that could
    """

    recipe: Recipe
    named: Mapping[str, str]
    automatic: Mapping[str, str]


def _options(state: State, selected: Chosen) -> _Options | None:
    """Return the options of the selected plan for the form that edits them.

    state      the user's choices on the web page
    selected   the plan that they select
    returns    None if the plan's name is unknown, if its family has no builder with options, or if the name does not
               list its options and no plan can be built
    """
    name = state["plan"].strip()
    try:
        recipe = recipe_named(name)
    except CutegemmError:
        return None
    before = state.remembered
    plan = selected.plan or (chosen(before).plan if before is not None else None)
    if recipe.family not in BUILDERS or (plan is None and not recipe.spelled_out):
        return None
    if recipe.spelled_out:
        pairs = [part.partition("=") for part in name.removeprefix(SWAP_AB).partition(":")[2].split(",")]
        named = {option: value for option, _, value in pairs}
    else:
        assert plan is not None
        named = spelled(recipe, plan)
    is_of_family = plan is not None and plan.family == recipe.family.replace("mma_tma", "mma_sync")
    return _Options(recipe, named, automatic(recipe, plan) if plan is not None and is_of_family else {})


def asked(state: State, selected: Chosen) -> Html:
    """Return the HTML forms with which a user chooses and edits the plan, the problem, the device and the epilogue.

    state      the user's choices on the web page, which are the values of the fields
    selected   the plan that they select; its options are the initial values of the form that edits them
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
        el(
            "details",
            el("summary", "groups"),
            el(
                "div",
                field("groups", "groups", state["groups"], inputmode="numeric", placeholder="8"),
                choice("along", "along", state["along"], [(mode, mode) for mode in "mnk"]),
                class_="fields",
            ),
            field("ends", "ends", state["ends"], placeholder="equal sizes"),
            field("sizes", "or sizes", state["sizes"], placeholder="100,0,28"),
            open=bool(state["groups"]),
        ),
    ]
    chooser = form(state, fields, label="plan", keeps=("view", "expr", "last"))
    return el("div", card("", chooser), _editor(state, selected), class_="side")


@lru_cache(maxsize=1)
def _names() -> tuple[tuple[str, str], ...]:
    """Return (name, summary) of all named plans, which the input field for a plan suggests."""
    return tuple(plans())


def _editor(state: State, selected: Chosen) -> Html | None:
    """Return an HTML form with an input field for each option of the selected plan, such as its number of stages.

    None if the plan has no options that can be edited.

    state      the user's choices on the web page
    selected   the plan that they select
    """
    options = _options(state, selected)
    if options is None:
        return None
    recipe, values = options.recipe, {**options.automatic, **options.named}
    boxes = [_option(recipe, name, values.get(name, "")) for name in recipe.arguments]
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


def _option(recipe: Recipe, name: str, value: str) -> Html:
    """Return the HTML field of one plan option: a drop-down list if its possible values are known, else a text field.

    recipe   kernel family and options of the plan
    name     name of the option, such as "stages"
    value    present value as text; "" if the builder computes it
    """
    items = choices(recipe, name, value)
    if items:
        return choice(EDIT + name, name, value, items)
    return field(EDIT + name, name, value, placeholder="automatic")


def verdict(selected: Chosen) -> Html:
    """Return HTML with the hardware rules that the selected plan breaks, or with a note that it breaks none."""
    if not selected.violations:
        return el("p", "all rules kept", class_="kept")
    count = len(selected.violations)
    head = el("p", f"{count} {'rule is' if count == 1 else 'rules are'} broken", class_="violations")
    return joined(head, el("ul", [el("li", error(rule)) for rule in selected.violations], class_="rules"))
