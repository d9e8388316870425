"""Minimum, maximum and division of traced integers, with which the tile scheduler of `plan.work` computes in a kernel."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute

from cutegemm.plan.work.arithmetic import Arithmetic

TRACED = Arithmetic(cutlass.min, cutlass.max, cute.ceil_div)
