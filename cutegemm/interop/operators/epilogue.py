"""Translate epilogues of `cutlass.operators` to epilogues of `gemm`.

Their epilogue is a Python function that is parsed, never called: a graph of loads, operations and stores. It becomes
the text of a function of the accumulator and of operands x0, x1, ..., whose names cannot be mistaken for arguments of
`gemm`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cutegemm.epilogue as functions
from cutegemm.errors import UnsupportedError

# Operations by the names that their graph has for them. The arguments are numbered.
_TEXTS = {
    "Plus": "{0} + {1}",
    "Minus": "{0} - {1}",
    "Multiplies": "{0} * {1}",
    "Divides": "{0} / {1}",
    "MultiplyAdd": "{0} * {1} + {2}",
    "Maximum": "maximum({0}, {1})",
    "Minimum": "minimum({0}, {1})",
    "Exp": "exp({0})",
    "Identity": "{0}",
    "ReLU": "relu({0})",
    "Tanh": "tanh({0})",
    "Sigmoid": "sigmoid({0})",
    "SiLU": "silu({0})",
    "Gelu": "gelu({0})",
    "HardSwish": "{0} * clamp({0} + 3, 0, 6) * (1 / 6)",
}


@dataclass(frozen=True)
class Translated:
    """An epilogue of `cutlass.operators`, converted to a Python function that `cutegemm.gemm` takes as its epilogue.

    It also has the names under which `cutlass.operators` knows the operands and results, to pass the tensors of a call.

    text       source text of the function
    function   function of the accumulator and of the operands x0, x1, ...; it returns D and the auxiliary outputs
    inputs     name in `cutlass.operators` of each operand: that of x0, that of x1, and so on
    outputs    name in `cutlass.operators` of each result; the first is "D"
    """

    text: str
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def operands(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the operands of this epilogue as `cutegemm.gemm` takes them: {"x0": value, "x1": value, ...}.

        values   tensors and numbers by their names in `cutlass.operators`; entries that are not operands are ignored
        """
        return {f"x{index}": values[name] for index, name in enumerate(self.inputs)}


def translated(epilogue: Any) -> Translated:
    """Convert an epilogue of `cutlass.operators` to a function that `cutegemm.gemm` takes as its epilogue.

    epilogue   an `EpilogueArguments` of a `GemmArguments`, or an `EpilogueMetadata`; both contain the traced operations
    returns    the function, with the names of its operands and results in `cutlass.operators`. It holds no tensors
    raises     UnsupportedError with every part of the epilogue that `gemm` does not have
    """
    graph, names = epilogue.traced_epilogue.dag_ir, epilogue.traced_epilogue.return_names
    returned = (names,) if isinstance(names, str) else tuple(names)
    wrong = [
        *_wrong_operations(epilogue.traced_epilogue),
        *_wrong_results(graph, returned),
        *_wrong_transports(epilogue.transports),
    ]
    if wrong:
        raise UnsupportedError(f"the epilogue that returns {', '.join(returned)}: {' '.join(wrong)}")
    outputs = ("D", *[name for name in returned if name != "D"])
    symbols = {"accum": "acc"}
    inputs: list[str] = []
    lines: list[str] = []
    for name in graph.nodes_topological_order():
        node, arguments = graph.get_node_meta(name), [symbols[each] for each in graph.get_all_inputs(name)]
        if node.op == "store":
            symbols[name] = arguments[0]
        elif node.op == "compute":
            symbols[name] = f"y{len(lines)}"
            lines.append(f"    {symbols[name]} = {_TEXTS[node.fn.name].format(*arguments)}\n")
        elif node.tensor.is_constant:
            symbols[name] = repr(float(node.tensor.value))
        elif name != "accum" and graph.out_degree(name):
            symbols[name] = f"x{len(inputs)}"
            inputs.append(name)
    parameters = ", ".join(["acc", *[symbols[name] for name in inputs]])
    results = ", ".join([symbols[name] for name in outputs])
    text = f"def epilogue({parameters}):\n{''.join(lines)}    return {results}\n"
    scope = vars(functions).copy()
    exec(text, scope)
    return Translated(text, scope["epilogue"], tuple(inputs), outputs)


def _wrong_operations(traced: Any) -> list[str]:
    """Return an error sentence for each operation of a traced epilogue that `gemm` does not have; empty if it has all.

    traced   the traced epilogue of `cutlass.operators`. Permutations and reshapes do not appear as operations, because
             tracing moves them into the layouts of tensors; they are counted separately
    """
    computed = [node.fn.name for node in traced.dag_ir.nodes_meta if node.op == "compute"]
    unknown = dict.fromkeys([name for name in computed if name not in _TEXTS])
    wrong = [f"{name} is not an operation of gemm's epilogues." for name in unknown]
    if traced.layout_cnt:
        wrong.append("permute and reshape are not supported. Pass operands of the shape that D has.")
    return wrong


def _wrong_results(graph: Any, returned: Sequence[str]) -> list[str]:
    """Return an error sentence for each result of a traced epilogue that `gemm` cannot store; empty if there is none.

    graph      the graph of the epilogue's operations
    returned   names of the results
    """
    reduced = [name for name in returned if name in graph.reduction_names]
    unstored = [name for name in returned if graph.get_node_meta(name).op != "store"]
    return [
        *[f"{name} is combined with what its tensor holds; gemm overwrites its results." for name in reduced],
        *[f"{name} is returned without an assignment. Assign it to another name." for name in unstored],
    ]


def _wrong_transports(transports: Mapping[str, Any]) -> list[str]:
    """Return an error sentence for each tensor of an epilogue whose way of loading or storing the caller prescribes.

    `gemm` chooses that itself.

    transports   a `Load` or a `Store` of `cutlass.operators`, by the name of the tensor
    """
    return [
        f"{name} has the transport {transport.via.value!r}. Pass the tensor itself, because the plan decides."
        for name, transport in transports.items()
    ]
