"""Recipes: what a named plan is, as a value.

A recipe holds the arguments of a family's builder, and what a name may say around them: that operands are packed first,
how K is split, that the problem is transposed. `Recipe.build` makes its plan for operands, `dataclasses.replace` a
variant of it, and `str` its name, which `choose.names.recipe_named` reads back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

from cutegemm.errors import PlanError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands
from cutegemm.plan.work.split import KSplit

SWAP_AB = "swap_ab:"  # in front of a name: the plan is to serve D^T = B^T A^T
REPACK = "+repack"
NEEDED = "needed"  # of an option `repack`: the operands that are in the way
STREAM_WAVES = 2  # so that most tiles have two parts, of which one is written long before it is read

SWAPPED = str.maketrans("ab", "ba")  # the names of operands, of the transposed problem


@dataclass(frozen=True)
class BuildTarget:
    """What a plan is built for, beside its operands; a family reads of it what concerns its plans.

    arch         whose shared memory mma.sync plans fill
    sms          multiprocessors that clusters of a persistent grid fill
    with_c       whether the kernel of a Hopper plan must be able to read C
    tpc_rounds   the order in which the hardware hands out a grid: see `Device`
    """

    arch: str
    sms: int
    with_c: bool
    tpc_rounds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Recipe(ABC):
    """What a plan is before its operands are known.

    name          of tile sizes or of a step of a ladder; or the text that spells the options out
    summary       what is special about the plan
    options       arguments of the family's builder
    spelled_out   whether the builder is given the options to the letter
    is_repacked   whether operands that are in the way are packed first
    split         how K is split, instead of what the options say
    ctas          of the persistent grid among which `split` divides, where the name says how many
    swap_ab       whether the plan is to serve D^T = B^T A^T

    Of a family:

    arguments     of its builder, each with what turns its text into a value
    loads_boxes   whether TMA loads A and B, which takes rows of any length, but no stride of 0
    splits        how a name may say that K is split: see `choose.names`
    repacks       whether operands may be packed
    reduction     of a split whose name does not say it: see `KSplit`
    """

    family: ClassVar[str]
    arguments: ClassVar[Mapping[str, Callable[[str], Any]]]
    loads_boxes: ClassVar[bool] = False
    splits: ClassVar[frozenset[str]] = frozenset()
    repacks: ClassVar[bool] = True
    reduction: ClassVar[str] = "last"

    name: str
    summary: str
    options: Mapping[str, Any] = field(hash=False)
    spelled_out: bool = field(default=False, kw_only=True)
    is_repacked: bool = field(default=False, kw_only=True)
    split: KSplit | None = field(default=None, kw_only=True)
    ctas: int | None = field(default=None, kw_only=True)
    swap_ab: bool = field(default=False, kw_only=True)

    @property
    def plan_name(self) -> str:
        """The name of the plan, which does not know that it is for a transposed problem."""
        return f"{self.name}{REPACK * self.is_repacked}{self._split_text}"

    @property
    def _split_text(self) -> str:
        split = self.split
        if split is None:
            return ""
        if split.fixup:
            return "/fixup"
        if self.ctas is not None:
            return f"/s{self.ctas}"
        if split.waves:
            return "/stream" if split.waves == STREAM_WAVES else f"/stream{split.waves}"
        return f"/k{split.splits}{'' if split.reduction == self.reduction else split.reduction}"

    @property
    def division(self) -> KSplit:
        """How K is split, by the name or by the options."""
        return self.split or KSplit()

    @property
    def split_options(self) -> dict[str, Any]:
        """What `split` and `ctas` are as arguments of the builders of plans with a schedule."""
        options: dict[str, Any] = {} if self.ctas is None else {"persistent": self.ctas}
        if self.split is not None:
            of = self.split
            options |= {"split_k": of.splits, "waves": of.waves, "reduction": of.reduction}
        return options

    def __str__(self) -> str:
        return f"{SWAP_AB if self.swap_ab else ''}{self.plan_name}"

    def build(
        self,
        operands: Operands,
        with_c: bool = False,
        arch: str = DEFAULT_ARCH,
        device: Device = DEFAULT_DEVICE,
    ) -> GemmPlan:
        """The plan for operands, those of the problem before it is transposed.

        with_c   whether the kernel of a Hopper plan must be able to read C; the others always are
        arch     whose shared memory mma.sync plans fill
        device   whose multiprocessors a persistent grid fills
        raises   PlanError where the operands break the plan's rules
        """
        size, at_a_time = self.cluster_ctas, device.clusters_by_size
        sms = at_a_time[size] * size if size < len(at_a_time) else device.sms  # no plan has larger ones
        return _built(self, operands, BuildTarget(arch, sms, with_c, device.tpc_rounds))

    @property
    def cluster_ctas(self) -> int:
        """CTAs of a cluster."""
        return 1

    @abstractmethod
    def build_for(self, operands: Operands, target: BuildTarget) -> GemmPlan:
        """The same for the operands that the plan sees: those of the transposed problem where it is for that."""

    def as_launched(self, plan: GemmPlan) -> GemmPlan:
        """A plan that the recipe has built, as `gemm` compiles it: see `GemmPlan.swap_ab`."""
        return plan.with_(swap_ab=True) if self.swap_ab else plan

    def to_repack(self, operands: Operands) -> str:
        """The operands that plans of the family had better pack; none where they cannot."""
        return ""

    def packed(self, operands: Operands) -> str:
        """The operands that the plan packs, of those that it sees: "", "a", "b" or "ab"."""
        asked = NEEDED if self.is_repacked else str(self.options.get("repack", ""))
        return self.to_repack(operands) if asked == NEEDED else asked

    def boxes(self, operands: Operands) -> str | None:
        """Which of the operands, "a" and "b", TMA loads; None where threads load them all.

        operands   those of the problem before it is transposed, as TMA would load them all
        """
        if not self.loads_boxes:
            return None
        if self.swap_ab:
            packed = self.packed(operands.transposed).translate(SWAPPED)
        else:
            packed = self.packed(operands)
        return "".join([name for name in "ab" if name not in packed])


@cache
def _built(recipe: Recipe, operands: Operands, target: BuildTarget) -> GemmPlan:
    if not recipe.swap_ab:
        return recipe.build_for(operands, target)
    try:
        return recipe.build_for(operands.transposed, target)
    except PlanError as error:
        subject = f"{error.subject} for D^T = B^T A^T, whose A is B^T"
        raise PlanError(subject, error.violations) from None
