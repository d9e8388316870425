"""Minimum, maximum and rounded-up quotient of traced integers, for the tile scheduler of `plan.work` in a kernel."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute

from cutegemm.plan.work.arithmetic import Arithmetic

TRACED = Arithmetic(cutlass.min, cutlass.max, cute.ceil_div)
