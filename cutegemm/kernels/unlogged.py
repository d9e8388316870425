"""Speed up tracing: the DSL (4.8) does not format text for its log while the log is off."""

from __future__ import annotations

import functools
import logging
from typing import Any

from cutlass._mlir import ir
from cutlass.base_dsl.utils.logger import log
from cutlass.cutlass_dsl.cutlass import CutlassBaseDSL


@functools.cache
def spare_the_text_of_modules() -> None:
    """Patch the DSL so that it does not format all earlier kernels of a module as text whenever it traces a kernel.

    For a plan with four reductions, that took a sixth of the compile time.
    """
    logged = CutlassBaseDSL._enter_gpu_module

    def enter(dsl: CutlassBaseDSL) -> Any:
        if log().isEnabledFor(logging.INFO):
            return logged(dsl)
        return ir.InsertionPoint(dsl.gpu_module.bodyRegion.blocks[0])

    CutlassBaseDSL._enter_gpu_module = enter
