"""The provider and the operator that `register` makes known to `cutlass.operators`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from cutlass.operators import CompiledArtifact, GemmArguments, Operator, OperatorMetadata, Provider, Status, TargetSm
from cutlass.operators.metadata import BLASDesignMetadata, EpilogueMetadata
from cutlass.operators.mma import AmpereMma, HopperWgmma, MmaInstruction
from cutlass.operators.utils.tensor import strides_to_layout_string

from cutegemm.choice.names import recipe_named
from cutegemm.choice.recipe import Recipe
from cutegemm.compile.plans import compile_plan
from cutegemm.errors import CutegemmError, UnsupportedError
from cutegemm.interop.operators.epilogue import translated
from cutegemm.interop.operators.problem import ARCH, operands_metadata, question_of, signature_of
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.rules.limits import limits
from cutegemm.run.calls import Calls
from cutegemm.run.gemm import gemm
from cutegemm.run.question import Decision, Question, decide
from cutegemm.run.tune import to_time

TARGET = TargetSm(ARCH.removeprefix("sm_"))
MOST = 10  # operators for the arguments of one GEMM

_log = logging.getLogger(__name__)


class Fma(MmaInstruction):
    """Names the FMA instruction of CUDA cores in the description that `cutlass.operators` has of a SIMT plan.

    Its class methods say on which targets the instruction exists, as those of `HopperWgmma` do for wgmma.
    """

    @classmethod
    def supported_targets(cls, design: Any = None, operands: Any = None) -> list[TargetSm]:
        """Return the targets (architectures) on which cutegemm offers plans that use this instruction: Hopper only.

        design, operands   not used
        """
        return [TARGET]


_INSTRUCTIONS = {"sm90": HopperWgmma, "mma_sync": AmpereMma, "simt": Fma}  # by the family of the plan


@dataclass(kw_only=True)
class PlanDesign(BLASDesignMetadata):
    """Metadata of a kernel for `cutlass.operators`: tile, cluster, stages and instruction, with the name of its plan.

    plan   name of the plan, which `cutegemm.gemm(plan=...)` takes
    """

    plan: str

    @classmethod
    def of(cls, recipe: Recipe, plan: GemmPlan) -> PlanDesign:
        """Return the metadata (tile, cluster, stages, instruction, plan name) of a plan for `cutlass.operators`.

        Tile and cluster are those of D, also if the plan swaps A and B.

        recipe   named options that the plan was built from; it gives the plan's name
        plan     the built plan, which gives the rest
        """
        (*tile, tile_k), cluster = plan.cta_tile, plan.cluster_mn
        m, n = (1, 0) if plan.swap_ab else (0, 1)
        return cls(
            mma_instruction_type=_INSTRUCTIONS[plan.family],
            tile_shape=(tile[m], tile[n], tile_k),
            cluster_shape=(cluster[m], cluster[n], plan.cluster_k),
            num_smem_stages=plan.stages,
            plan=str(recipe),
        )


class CutegemmProvider(Provider):
    """Offers the plans of cutegemm for Hopper GPUs as operators of `cutlass.operators`."""


@CutegemmProvider.register
class CutegemmOperator(Operator):
    """A plan of cutegemm as an operator of `cutlass.operators`, which can be listed, compiled and run.

    It works for operands of given types, majorness and alignment, and for any extents. Its kernel is compiled into the
    disk cache of cutegemm. It is launched by `cutegemm.gemm`, which provides the workspace. The operator is listed only
    if a program asks for operators for given arguments, because plans are chosen for a problem.
    """

    supported_args_type = GemmArguments
    designed_for_min_cc = TARGET.cc

    def __init__(self, metadata: OperatorMetadata) -> None:
        super().__init__(metadata)
        self._ending = None if metadata.epilogue is None else translated(metadata.epilogue)
        self._decisions = Calls()

    @classmethod
    def _generate_operators(
        cls,
        metadata_filter: Callable[[OperatorMetadata], bool],
        epilogue_args: Any = None,
        target_sm: TargetSm | None = None,
        args: Any = None,
    ) -> list[Operator]:
        """Return operators for a GEMM: the best ten plans of cutegemm, in ascending order of predicted time.

        metadata_filter   function that returns whether a plan is offered; other plans do not count among the ten
        epilogue_args     custom epilogue of the GEMM; None: none
        target_sm         architecture that is wanted; None: any
        args              a `GemmArguments` with the tensors; None: nothing is offered
        returns           empty if no plan can implement the arguments
        """
        if args is None or not (target_sm or TARGET).supports_operators_from([TARGET]):
            return []
        try:
            epilogue = None if epilogue_args is None else EpilogueMetadata.from_args(epilogue_args)
            question = question_of(args, None if epilogue is None else translated(epilogue))
            made = (
                (candidate.us, cls._metadata_of(args, question, candidate.recipe, decision.plan, epilogue))
                for candidate, decision in to_time(question)
            )
            best = list(islice((each for each in made if metadata_filter(each[1])), MOST))
        except CutegemmError as error:
            _log.debug("no plan of cutegemm is offered: %s", error)
            return []
        return [cls(metadata) for _, metadata in sorted(best, key=lambda each: each[0])]

    @classmethod
    def _metadata_of(
        cls, args: Any, question: Question, recipe: Recipe, plan: GemmPlan, epilogue: Any
    ) -> OperatorMetadata:
        """Return the metadata with which `cutlass.operators` lists a plan: name, operands, tile and epilogue.

        args       a `GemmArguments` that the plan can implement
        question   what the choice of the plan depends on: types, extents, alignments, epilogue
        recipe     named options that the plan was built from
        plan       the built plan
        epilogue   the `EpilogueMetadata`; None without a custom epilogue
        """
        operands = operands_metadata(args, question, recipe)
        matrices = {"A": operands.A, "B": operands.B, "out": operands.out}
        layout = strides_to_layout_string(*[each.stride for each in matrices.values()])
        types = "_".join([f"{name}{each.dtype}x{each.divisibility}" for name, each in matrices.items()])
        return OperatorMetadata(
            operator_name=f"cutegemm.{recipe}_{layout}_{types}_acc{operands.accumulator_type}",
            operator_class=cls,
            supported_targets=[TARGET],
            operands=operands,
            design=PlanDesign.of(recipe, plan),
            epilogue=epilogue,
        )

    def _decision(self, args: Any) -> Decision:
        """Return this operator's plan, built for the arguments of a call, and the problem (extents) that it solves.

        The result is cached by the types, shapes, strides and alignments of the arguments.

        args     a `GemmArguments` with the tensors of the call
        raises   CutegemmError with the reasons why this operator's plan cannot implement the arguments
        """
        signature = signature_of(args)
        decision: Decision | None = self._decisions.found.get(signature)
        if decision is not None:
            return decision
        decision = decide(question_of(args, self._ending), recipe_named(self.metadata.design.plan))
        too_large = list(limits(decision.plan, decision.problem))
        if too_large:
            raise UnsupportedError(" ".join(too_large))
        self._decisions.keep(signature, decision)
        return decision

    def _supports(self, args: Any, target_sm: TargetSm | None = None) -> Status:
        """Return a `Status`: success if this operator's plan can implement the arguments, else the reasons why not.

        args        a `GemmArguments` with the tensors of the call
        target_sm   not used
        """
        try:
            self._decision(args)
        except CutegemmError as error:
            return Status.fail(error)
        return Status.success()

    def _compile(self, args: Any, target_sm: TargetSm | None = None) -> CompiledArtifact:
        """Return the compiled kernel of the plan for the arguments, from the disk cache if it has it.

        args        a `GemmArguments` with the tensors of the call
        target_sm   architecture to compile for; None: Hopper
        raises      UnsupportedError for another target than Hopper; PlanError or CompileError if the plan does not
                    compile
        """
        if target_sm not in (None, TARGET):
            raise UnsupportedError(f"{self.metadata.operator_name}: {target_sm} is not {TARGET}. Pass {str(TARGET)!r}.")
        return CompiledArtifact(compile_plan(self._decision(args).plan, ARCH), self, TARGET)

    def _run(self, args: Any, compiled_artifact: CompiledArtifact, stream: Any, workspace: Any = None) -> None:
        """Launch this operator's kernel on a stream, through `cutegemm.gemm`.

        args                a `GemmArguments` with the tensors of the call
        compiled_artifact   not used: `gemm` finds the kernel in the disk cache
        stream              a torch stream, or an object whose integer is the handle of a CUDA stream
        workspace           not used: `gemm` provides the workspace
        """
        a, b, out = [operand.tensor.runtime_tensor for operand in (args.A, args.B, args.out)]
        operands: dict[str, Any] = {}
        if self._ending is not None:
            values = {name: getattr(value, "runtime_tensor", value) for name, value in args.epilogue.tensors.items()}
            out = tuple([values[name] for name in self._ending.outputs])
            operands = {"epilogue": self._ending.function, **self._ending.operands(values)}
        with _current(stream, a):
            gemm(a, b, out=out, plan=self.metadata.design.plan, **operands)


def _current(stream: Any, like: Any) -> AbstractContextManager[Any]:
    """Return a context that makes a stream torch's current stream on the device of a tensor.

    stream   a torch stream, or an object whose integer is the handle of a CUDA stream
    like     a tensor on the device
    """
    handle = int(getattr(stream, "cuda_stream", stream))
    device = like.device if isinstance(like, torch.Tensor) else torch.device("cuda", torch.cuda.current_device())
    if torch.cuda.current_stream(device).cuda_stream == handle:
        return nullcontext()
    own = torch.cuda.ExternalStream(handle, device) if handle else torch.cuda.default_stream(device)
    return torch.cuda.stream(own)
