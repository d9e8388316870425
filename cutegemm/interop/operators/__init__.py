"""Offer the plans of cutegemm as operators of NVIDIA's package `nvidia-cutlass-operators`.

`cutlass.operators.get_operators(args)` lists kernels that compute a GEMM. After `register()`, the list has up to ten
plans of cutegemm for a Hopper GPU: those that the tuner would time first, in the order of their predicted times.

    import cutlass.operators as ops
    from cutegemm.interop.operators import register

    provider = register()
    args = ops.GemmArguments(a, b, out, accumulator_type=torch.float32)
    operator, *others = ops.get_operators(args, target_sm="90a", providers=[provider])
    operator.run(args)
"""

from __future__ import annotations

from typing import Any

from cutegemm.errors import UnsupportedError, how_to_install

NAME = "cutegemm"  # name of the provider
KNOWN = "0.3."  # versions of nvidia-cutlass-operators whose interface is known start with this


def register(first: bool = False) -> Any:
    """Register the plans of cutegemm with `cutlass.operators`, and return their provider.

    The provider is a class, which `get_operators(providers=[...])` takes. It may be registered more than once.

    first    whether its operators are listed before those of all other providers, for programs that time only the
             first few of the list
    raises   UnsupportedError if nvidia-cutlass-operators is not installed, or if its version is not known

    >>> from cutegemm.interop.operators import register
    >>> provider = register()  # doctest: +SKIP
    >>> operators = cutlass.operators.get_operators(args, target_sm="90a", providers=[provider])  # doctest: +SKIP
    """
    try:
        import cutlass.operators as ops
    except ImportError as error:
        raise UnsupportedError(
            f"register: the package nvidia-cutlass-operators cannot be imported ({error}). "
            f"{how_to_install('kernels', 'torch', 'operators')}"
        ) from error
    if not ops.__version__.startswith(KNOWN):
        raise UnsupportedError(
            f"register: nvidia-cutlass-operators {ops.__version__} is installed, whose interface is not known. Install "
            f"a version that starts with {KNOWN}"
        )
    from cutegemm.interop.operators.operator import CutegemmProvider

    providers = ops.available_providers
    others = {name: provider for name, provider in providers.items() if name != NAME}
    if first:
        providers.clear()
    ops.register_provider(NAME)(CutegemmProvider)
    providers.update(others)
    return CutegemmProvider
