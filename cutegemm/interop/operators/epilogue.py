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
    """An epilogue of `cutlass.operators` as arguments of `gemm`.

    text       Python text of the function
    function   function of the accumulator and of the operands
    inputs     name in `cutlass.operators` of each operand; the operands of `function` are x0, x1, ... in this order
    outputs    name in `cutlass.operators` of each result; the first is "D"
    """

    text: str
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def operands(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the operands of `gemm` by name.

        values   tensors and numbers by their names in `cutlass.operators`; others than the operands are ignored
        """
        return {f"x{index}": values[name] for index, name in enumerate(self.inputs)}


def translated(epilogue: Any) -> Translated:
    """Return a traced epilogue of `cutlass.operators` as a function that `gemm` takes.

    epilogue   an `EpilogueArguments` of a `GemmArguments`, or an `EpilogueMetadata`
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
    """Return a sentence for each operation that `gemm` does not have.

    traced   the traced epilogue. Its passes move permutations into the layouts of tensors, where nothing reveals them
    """
    computed = [node.fn.name for node in traced.dag_ir.nodes_meta if node.op == "compute"]
    unknown = dict.fromkeys([name for name in computed if name not in _TEXTS])
    wrong = [f"{name} is not an operation of gemm's epilogues." for name in unknown]
    if traced.layout_cnt:
        wrong.append("permute and reshape are not supported. Pass operands of the shape that D has.")
    return wrong


def _wrong_results(graph: Any, returned: Sequence[str]) -> list[str]:
    """Return a sentence for each result that `gemm` cannot store.

    returned   names of the results
    """
    reduced = [name for name in returned if name in graph.reduction_names]
    unstored = [name for name in returned if graph.get_node_meta(name).op != "store"]
    return [
        *[f"{name} is combined with what its tensor holds; gemm overwrites its results." for name in reduced],
        *[f"{name} is returned without an assignment. Assign it to another name." for name in unstored],
    ]


def _wrong_transports(transports: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each tensor whose transport the caller prescribes.

    transports   a `Load` or a `Store` by the name of the tensor
    """
    return [
        f"{name} has the transport {transport.via.value!r}. Pass the tensor itself, because the plan decides."
        for name, transport in transports.items()
    ]
