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
    """Patch the CuTe DSL, to save time, so that tracing a kernel does not format the whole module as text.

    The module has all kernels that were traced before. For a plan with four reductions, the text took a sixth of the
    compile time.
    """
    logged = CutlassBaseDSL._enter_gpu_module

    def enter(dsl: CutlassBaseDSL) -> Any:
        if log().isEnabledFor(logging.INFO):
            return logged(dsl)
        return ir.InsertionPoint(dsl.gpu_module.bodyRegion.blocks[0])

    CutlassBaseDSL._enter_gpu_module = enter
