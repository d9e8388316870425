"""How long a plan of mma.sync takes: the products of the busiest multiprocessor, at the rate of the plan's tiles."""

from __future__ import annotations

from math import inf

from cutegemm.machine.device import Device
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem

# What is added to K for each tile: filling the pipeline and writing D, in steps of K. A fit.
START_STEPS = 512


def predicted_us(plan: GemmPlan, problem: Problem, rate: float, device: Device) -> float:
    """Microseconds that a plan takes; an estimate, in which the fastest tiles run at the peak of their pipe.

    Infinitely many where the device has no such pipe.

    rate   of the plan on large problems, that of the fastest being 1
    """
    peak = device.peak_tflops(plan.tiled_mma.atom)
    if not peak:
        return inf
    return 2 * busiest_cost(plan, problem, rate, device.sms, START_STEPS) * device.sms / (peak * 1e6)


def busiest_cost(plan: GemmPlan, problem: Problem, rate: float, sms: int, start_steps: int) -> float:
    """Multiply-adds that the multiprocessor with the most tiles takes, at a rate.

    It has ceil(tiles / multiprocessors) of them, each costs bM * bN * (K + start_steps), and they run at the
    plan's rate on large problems, less where fewer CTAs than planned share the multiprocessor: the square
    root of the share, as their latencies are covered less.
    """
    m_tiles, n_tiles, batch = plan.grid(problem)
    most = max(1, -(-m_tiles * n_tiles * batch // sms))
    resident = min(plan.ctas_per_sm, most) / plan.ctas_per_sm
    bm, bn, _ = plan.cta_tile
    return float(most * bm * bn * (problem.k + start_steps) / (rate * resident**0.5))
