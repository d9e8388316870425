"""Models before and after `cutegemm.use(model)`: errors against float32, and tokens per second. See `decoders`.

python -m docs.evidence models --model llama --seconds 5 --json models.json
python -m docs.evidence models --tiny     # small, also on a CPU: errors only

The passes are a forward pass and a training step (forward and backward). Models of transformers also have a prefill,
which fills a static cache of keys and values, and a decode, which adds tokens one by one. A static cache is read as a
whole, so the speed of a decode does not depend on the number of tokens in it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from docs.evidence.arguments import parser_of, to_measure
from docs.evidence.files import significant, write_record
from docs.evidence.machine import cpu
from docs.evidence.measure import need_gpu
from docs.evidence.pages import markdown

_SEED = 0
_DECODED = 16  # tokens of each sequence that a decode adds


def errors(found: Sequence[Any], exact: Sequence[Any]) -> dict[str, float]:
    """Return relative errors: of the output, of all gradients as one vector, and the largest of a single gradient.

    found, exact   output and gradients
    """
    pairs = [(f.double(), e.to(f.device).double()) for f, e in zip(found, exact, strict=True)]
    wrong, right = [float((f - e).norm()) for f, e in pairs], [float(e.norm()) for _, e in pairs]
    each = [w / r for w, r in zip(wrong, right, strict=True) if r]
    together = sum(w * w for w in wrong[1:]) ** 0.5 / sum(r * r for r in right[1:]) ** 0.5
    return {"output": each[0], "gradients": together, "worst_gradient": max(each[1:])}


def relative(found: Any, exact: Any) -> float:
    """Return the norm of the error of a tensor / the norm of the exact one."""
    exact = exact.double()
    return float((found.double() - exact).norm() / exact.norm())


def decode(run: Any, x: Any, cache: Any) -> list[Any]:
    """Return the hidden states of tokens that are decoded one by one, beginning with an empty cache.

    run     the model, or the compiled one
    x       hidden states before the first block; the first tokens of each sequence are decoded
    cache   from `decoders.static_cache`
    """
    import torch

    from docs.evidence import decoders

    cache.reset()
    with torch.no_grad():
        return [decoders.continued(run, x[:, i : i + 1], cache).clone() for i in range(_DECODED)]


def run(name: str, is_tiny: bool, seconds: float) -> dict[str, Any]:
    """Return the errors of torch and of cutegemm and, on a GPU, the tokens per second of both, eager and compiled.

    name      one of `decoders.SIZES`
    is_tiny   whether to use a small model, whose speed is not measured
    seconds   measuring time of each kind of pass
    raises    UnsupportedError if a GPU is needed and missing
    """
    import torch

    import cutegemm
    from docs.evidence import decoders

    if not is_tiny:
        need_gpu()
    size = (decoders.TINY if is_tiny else decoders.SIZES)[name]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(_SEED)
    with torch.device(device):
        model = decoders.stack(name, size)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()  # both types hold the same values
    x = torch.randn(size.batch, size.tokens, size.width, device=device).bfloat16()
    upstream = torch.randn_like(x)

    def step(run: Any, of: Any, dtype: Any) -> list[Any]:
        """Return the output and the gradients of one training step."""
        of.zero_grad(set_to_none=True)
        given = x.to(dtype, copy=True).requires_grad_()
        output = decoders.through(run, given)
        output.backward(upstream.to(dtype))
        return [output.detach(), given.grad, *[p.grad for p in of.parameters() if p.grad is not None]]

    def decoded(of: Any, dtype: Any) -> Any:
        """Return the hidden states of decoded tokens, on the CPU."""
        return torch.cat(decode(of, x.to(dtype), decoders.static_cache(of, size.tokens)), 1).cpu()

    exact = [each.cpu() for each in step(model, model, torch.float32)]
    exact_decoded = decoded(model, torch.float32) if decoders.has_transformers() else None
    model.bfloat16()
    ours = copy.deepcopy(model)
    replaced = cutegemm.use(ours)
    found: dict[str, Any] = {
        "size": vars(size),
        "source": decoders.source(),
        "replaced": len(replaced.replaced),
        "left": replaced.left,
        "errors": {
            "torch": errors([each.cpu() for each in step(model, model, torch.bfloat16)], exact),
            "cutegemm": errors([each.cpu() for each in step(ours, ours, torch.bfloat16)], exact),
        },
    }
    if exact_decoded is not None:
        for whose, of in (("torch", model), ("cutegemm", ours)):
            found["errors"][whose]["decode"] = relative(decoded(of, torch.bfloat16), exact_decoded)
    if not is_tiny:
        found["tokens_per_second"] = _speeds(model, ours, step, x, seconds)
    return found


def _speeds(model: Any, ours: Any, step: Callable[..., Any], x: Any, seconds: float) -> dict[str, dict[str, float]]:
    """Return the tokens per second of each kind of pass: its name -> speed by whose and how the model runs."""
    import torch

    from cutegemm.run.on_gpu import alternating
    from docs.evidence import decoders

    runs = {
        "torch": (model, model),
        "torch, compiled": (torch.compile(model), model),
        "cutegemm": (ours, ours),
        "cutegemm, compiled": (torch.compile(ours), ours),
    }

    def forward(run: Any) -> None:
        with torch.no_grad():
            decoders.through(run, x)

    def train(run: Any, of: Any) -> None:
        step(run, of, torch.bfloat16)

    kinds: dict[str, list[Callable[[], Any]]] = {
        "forward": [partial(forward, run) for run, _ in runs.values()],
        "training": [partial(train, run, of) for run, of in runs.values()],
    }
    if decoders.has_transformers():
        caches = [decoders.static_cache(of, x.shape[1]) for _, of in runs.values()]
        for (_, of), cache in zip(runs.values(), caches, strict=True):
            _prefill(of, x, cache)  # allocates its tensors, which graphs must not
        runners = [run for run, _ in runs.values()]
        kinds["prefill"] = [partial(_prefill, run, x, cache) for run, cache in zip(runners, caches, strict=True)]
        by_token = [
            torch.compile(of, mode="reduce-overhead", dynamic=False) if name.endswith("compiled") else of
            for name, (_, of) in runs.items()
        ]
        kinds["decode"] = [partial(decode, run, x, cache) for run, cache in zip(by_token, caches, strict=True)]
    found = {}
    for kind, calls in kinds.items():
        tokens = x.shape[0] * (_DECODED if kind == "decode" else x.shape[1])
        for call in calls:  # compiled, and planned, before it is measured
            for _ in range(3):
                call()
        torch.cuda.synchronize()
        found[kind] = {
            name: significant(tokens / took) for name, took in zip(runs, alternating(calls, seconds), strict=True)
        }
    return found


def _prefill(run: Any, x: Any, cache: Any) -> None:
    """Compute the first tokens of each sequence, and fill a static cache with their keys and values."""
    import torch

    from docs.evidence import decoders

    cache.reset()
    with torch.no_grad():
        decoders.continued(run, x, cache)


def table(name: str, found: dict[str, Any]) -> str:
    """Return the results as lines of text."""
    lines = [f"{name}, {found['source']}: {found['replaced']} modules replaced, {len(found['left'])} left"]
    for whose, wrong in found["errors"].items():
        said = ", ".join(f"{what} {value:.2e}" for what, value in wrong.items())
        lines.append(f"  error of {whose:9} against float32: {said}")
    for kind, speeds in found.get("tokens_per_second", {}).items():
        said = ", ".join(f"{whose} {value:,.0f}" for whose, value in speeds.items())
        lines.append(f"  tokens/s, {kind}: {said}")
    return "\n".join(lines)


def table_of(record: Mapping[str, Any]) -> str:
    """Return the tokens per second of a record as a table in Markdown, one line for each model and kind of pass.

    >>> speeds = {"torch": 1000.4, "torch, compiled": 2e3, "cutegemm": 1500, "cutegemm, compiled": 2500}
    >>> print(table_of({"models": {"llama": {"tokens_per_second": {"forward": speeds}}}}).splitlines()[-1])
    | llama | forward | 1,000 | 2,000 | 1,500 | 2,500 |
    """
    lines = [
        [name, kind, *(f"{speed:,.0f}" for speed in speeds.values())]
        for name, found in record["models"].items()
        for kind, speeds in found["tokens_per_second"].items()
    ]
    return markdown.table(["model", "pass", "torch", "compiled", "after `use`", "compiled"], lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line of this module."""
    parser = parser_of("models", __doc__)
    parser.add_argument(
        "--model",
        action="append",
        choices=("llama", "gpt2", "qwen3_moe"),
        help="may be repeated; if left out, all that this installation has: qwen3_moe needs transformers",
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of measuring for each kind of pass")
    parser.add_argument("--tiny", action="store_true", help="small models, without speeds; a CPU will do")
    given = to_measure(parser, arguments, table_of)
    if given is None:
        return
    found: dict[str, Any] = {"machine": {}, "models": {}}
    for name in given.model or _installed():
        found["models"][name] = run(name, given.tiny, given.seconds)
        found["machine"] = _machine(given.tiny)
        print(table(name, found["models"][name]), flush=True)
        if given.json:
            write_record(given.json, found)


def _installed() -> list[str]:
    """Return the names of the models that this installation has."""
    from docs.evidence import decoders

    return decoders.names()


def _machine(is_tiny: bool) -> dict[str, str]:
    if is_tiny:
        return cpu()
    from docs.evidence.measure import machine

    return machine()
