"""Recipes: named plans as values, before the operands are known.

A recipe holds the arguments of a family's builder and the options that a name adds to them: repack passes, a division
of K, swap A/B. `Recipe.build` makes its plan for given operands, `dataclasses.replace` makes a variant, and `str`
writes its name, which `choice.names.recipe_named` reads.
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

SWAP_AB = "swap_ab:"  # prefix of a name: the plan computes D^T = B^T A^T
REPACK = "+repack"
NEEDED = "needed"  # value of the option `repack`: the operands that `Recipe.to_repack` returns
STREAM_WAVES = 2  # waves that `/stream` divides: most tiles have two K splits, one written long before it is read

SWAPPED = str.maketrans("ab", "ba")  # operand names of a problem -> operand names of its transpose


@dataclass(frozen=True)
class BuildTarget:
    """GPU properties that a recipe gets when it builds a plan. Each kernel family uses those that it needs.

    arch         architecture, such as "sm_90a"; its shared memory limits mma.sync plans
    sms          number of multiprocessors, which the clusters of a persistent grid fill
    with_c       whether the kernel of a Hopper plan must be able to read C
    tpc_rounds   order in which the hardware hands out the CTAs of a grid: number of TPCs (pairs of SMs) that get a CTA
                 in each round; () if unknown
    """

    arch: str
    sms: int
    with_c: bool
    tpc_rounds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Recipe(ABC):
    """A plan that is not built yet: its name, and its options; `build` makes it for given operands.

    name          name of a plan, such as "simt_128x128"; or the text that spells out all options
    summary       what is special about the plan, for lists of plans
    options       arguments of the plan builder of the kernel family: name -> value
    spelled_out   True: the builder gets `options` unchanged; False: it also gets values that depend on the operands
    is_repacked   whether a repack pass (a copy kernel before the GEMM) copies the operands that `to_repack` returns
    split         how K is split among CTAs, if a suffix of the name says it, such as "/k4"; None: as `options` say
    ctas          stream-K, if a suffix of the name asks for it: CTAs that share the k-tiles; None: as `options` say
    swap_ab       whether the plan computes D^T = B^T A^T

    Class attributes of each family:

    arguments     names of the builder's arguments, each with the function that converts its text to a value
    loads_boxes   whether TMA loads A and B. TMA takes rows of any length, but no stride of 0
    splits        suffixes for the division of K that a name may have, such as "k" of `/k4`
    repacks       whether a name may end with `+repack`
    reduction     who adds the accumulators of K splits if the name does not say it: "last" (the last CTA) or "kernel"
                  (a kernel after the GEMM)
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
        """Return the name of this recipe's plan with its suffixes, such as "/k4", but without the prefix "swap_ab:"."""
        return f"{self.name}{REPACK * self.is_repacked}{self._split_text}"

    @property
    def _split_text(self) -> str:
        """Return the suffix of this recipe's name that says how K is divided; "" if it has none.

        E.g. "/k4" is four K splits.
        """
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
        """Return how this recipe's plan splits K among CTAs; without a suffix of its name, K is not split.

        A name that ends with "/k4" means four K splits. Subclasses may also read their options.
        """
        return self.split or KSplit()

    @property
    def accumulates_as(self) -> object:
        """Return a key that is equal for plans which add the products of an element of D in the same order along K.

        So the order of all plans is known after one plan per key has been built. By default the key is the recipe
        itself, i.e. the name and arguments of the plan, which equals no other.
        """
        return self

    @property
    def split_options(self) -> dict[str, Any]:
        """Return the arguments `split` and `ctas` for the builders of SIMT and mma.sync plans: name -> value.

        The result is empty if this recipe's name does not say how K is split.
        """
        options: dict[str, Any] = {} if self.ctas is None else {"persistent": self.ctas}
        if self.split is not None:
            split = self.split
            options |= {"split_k": split.splits, "waves": split.waves, "reduction": split.reduction}
        return options

    def __str__(self) -> str:
        """Return the full name of this recipe's plan, with "swap_ab:" if it swaps A and B. `recipe_named` reads it."""
        return f"{SWAP_AB if self.swap_ab else ''}{self.plan_name}"

    def build(
        self,
        operands: Operands,
        with_c: bool = False,
        arch: str = DEFAULT_ARCH,
        device: Device = DEFAULT_DEVICE,
    ) -> GemmPlan:
        """Build the plan of this recipe for the operands of the problem. The result is cached.

        operands   operands of the problem for D; they are transposed first if the plan swaps A and B
        with_c     whether the kernel of a Hopper plan must be able to read C; other kernels always can
        arch       architecture, such as "sm_90a"; its shared memory limits mma.sync plans
        device     device whose multiprocessors a persistent grid fills
        raises     PlanError if the operands break rules of the plan
        """
        size, at_a_time = self.cluster_ctas, device.clusters_by_size
        sms = at_a_time[size] * size if size < len(at_a_time) else device.sms  # no plan has larger clusters
        return _built(self, operands, BuildTarget(arch, sms, with_c, device.tpc_rounds))

    @property
    def cluster_ctas(self) -> int:
        """Return the number of CTAs of a cluster of this plan, including those that split K; 1 without clusters."""
        return 1

    @abstractmethod
    def build_for(self, operands: Operands, target: BuildTarget) -> GemmPlan:
        """Build this recipe's plan for the operands as the kernel sees them: already transposed if it swaps A and B.

        target   architecture and device properties that the plan is built for
        """

    def as_launched(self, plan: GemmPlan) -> GemmPlan:
        """Mark a built plan for swap A/B, if this recipe asks for it, so that a launch computes D^T = B^T A^T.

        plan      plan that this recipe has built
        returns   a copy with its field `swap_ab` set, or `plan` itself
        """
        return plan.with_(swap_ab=True) if self.swap_ab else plan

    def to_repack(self, operands: Operands) -> str:
        """Return which operands need a repack pass (a copy before the GEMM): "", "a", "b" or "ab".

        Each kernel family has its own rule, e.g. operands that TMA cannot load. The default is "".

        operands   as the kernel sees them: transposed if this recipe swaps A and B
        """
        return ""

    def repacked(self, operands: Operands) -> str:
        """Return which operands this plan copies by a repack pass before the GEMM: "", "a", "b" or "ab".

        The recipe's options may name them. If they ask for a repack pass where needed, `to_repack` decides.

        operands   as the kernel sees them: transposed if this recipe swaps A and B
        """
        asked = NEEDED if self.is_repacked else str(self.options.get("repack", ""))
        return self.to_repack(operands) if asked == NEEDED else asked

    def boxes(self, operands: Operands) -> str | None:
        """Return which of the problem's A and B this plan loads by TMA: "ab", "a", "b", ""; None if threads load both.

        An operand that a repack pass (a copy kernel before the GEMM) copies is left out, because the threads of that
        kernel load it.

        operands   operands of the problem for D, with the alignments for loads by TMA
        """
        if not self.loads_boxes:
            return None
        if self.swap_ab:
            repacked = self.repacked(operands.transposed).translate(SWAPPED)
        else:
            repacked = self.repacked(operands)
        return "".join([name for name in "ab" if name not in repacked])


@cache
def _built(recipe: Recipe, operands: Operands, target: BuildTarget) -> GemmPlan:
    """Build the plan of a recipe (name and arguments of a plan) for the operands of a problem. The result is cached.

    Operands are transposed first if the plan swaps A and B; an error then says that the plan's A is the problem's B^T.

    target   architecture and device properties that the plan is built for
    """
    if not recipe.swap_ab:
        return recipe.build_for(operands, target)
    try:
        return recipe.build_for(operands.transposed, target)
    except PlanError as error:
        subject = f"{error.subject} for D^T = B^T A^T, whose A is B^T"
        raise PlanError(subject, error.violations) from None
