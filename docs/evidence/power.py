"""Clock, power and throttling of the chip while one kernel runs repeatedly.

If kernels alternate, none runs long enough for a sensor. So each runs alone: first until the power is steady, then
while NVML, the library of the driver, is sampled every few milliseconds.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from cutegemm.dtypes import DType, bf16, f16, tf32
from cutegemm.errors import UnsupportedError

# nvml.h: NVML_CLOCK_SM, NVML_FI_DEV_POWER_INSTANT, nvmlClocksEventReason*.
_CLOCK_SM = 1
_POWER_INSTANT = 186
REASONS = {
    0x001: "idle", 0x002: "application clocks", 0x004: "power cap", 0x008: "hardware slowdown", 0x010: "sync boost",
    0x020: "thermal", 0x040: "hardware thermal", 0x080: "power brake", 0x100: "display clocks",
}  # fmt: skip
_LIBRARY = "libnvidia-ml.so.1"
_PERIOD_SECONDS = 0.02
_CALLS_AT_ONCE = 16  # that are under way, so that the device is never idle and the host not far ahead
_CEILING_WARPS = 8
_CEILING_SECONDS = 2e-3  # approximate duration of a launch
_CEILING_TFLOPS = {bf16: 600.0, f16: 600.0, tf32: 300.0}


@dataclass(frozen=True)
class Sample:
    """One moment: SM clock in MHz, power in watts, bits of `REASONS`."""

    clock_mhz: float
    power_w: float
    reasons: int


def summary(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return means, and for each reason the share of samples whose clock it limited.

    >>> summary([Sample(1600, 690, 4), Sample(1500, 700, 0)])
    {'clock_mhz': 1550, 'power_w': 695.0, 'throttle': {'power cap': 0.5}, 'samples': 2}
    """
    if not samples:
        return {"samples": 0}
    shares = {name: fmean(bool(s.reasons & bit) for s in samples) for bit, name in REASONS.items()}
    return {
        "clock_mhz": round(fmean(s.clock_mhz for s in samples)),
        "power_w": round(fmean(s.power_w for s in samples), 1),
        "throttle": {name: round(share, 3) for name, share in shares.items() if share},
        "samples": len(samples),
    }


class _Field(ctypes.Structure):
    """The C struct nvmlFieldValue_t."""

    _fields_ = (
        ("field", ctypes.c_uint), ("scope", ctypes.c_uint), ("timestamp", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong), ("kind", ctypes.c_uint), ("status", ctypes.c_uint),
        ("value", ctypes.c_uint), ("value_high", ctypes.c_uint),
    )  # fmt: skip


class Nvml:
    """The sensors of one GPU.

    uuid       "GPU-...", as in torch and nvidia-smi
    library    NVML; None: the library of the driver
    raises     UnsupportedError if NVML is missing or does not know the GPU
    """

    def __init__(self, uuid: str, library: Any = None) -> None:
        try:
            self.library = library or ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise UnsupportedError(f"clocks and power are read by {_LIBRARY}, of the driver: {error}") from error
        self.device = ctypes.c_void_p()
        self._call("nvmlInit_v2")
        self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self.device))

    def sample(self) -> Sample:
        """Return what the sensors show now."""
        clock, reasons = ctypes.c_uint(), ctypes.c_ulonglong()
        power = _Field(field=_POWER_INSTANT)
        self._call("nvmlDeviceGetClockInfo", self.device, _CLOCK_SM, ctypes.byref(clock))
        self._call("nvmlDeviceGetCurrentClocksThrottleReasons", self.device, ctypes.byref(reasons))
        self._call("nvmlDeviceGetFieldValues", self.device, 1, ctypes.byref(power))
        if power.status:  # not there before Hopper: the average of the last second
            average = ctypes.c_uint()
            self._call("nvmlDeviceGetPowerUsage", self.device, ctypes.byref(average))
            power.value = average.value
        return Sample(clock.value, power.value * 1e-3, reasons.value)

    def limits(self) -> dict[str, float]:
        """Return the highest SM clock in MHz, and the enforced power limit in watts."""
        clock, power = ctypes.c_uint(), ctypes.c_uint()
        self._call("nvmlDeviceGetMaxClockInfo", self.device, _CLOCK_SM, ctypes.byref(clock))
        self._call("nvmlDeviceGetEnforcedPowerLimit", self.device, ctypes.byref(power))
        return {"max_clock_mhz": clock.value, "power_limit_w": power.value * 1e-3}

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, name)(*arguments)
        if status:
            raise UnsupportedError(
                f"{name} of NVML ended with status {status}; without --power nothing is asked of it."
            )


class Watch:
    """Sample a device in a thread while the `with` block runs."""

    def __init__(self, sensors: Nvml, period_seconds: float = _PERIOD_SECONDS) -> None:
        self.sensors, self.period_seconds = sensors, period_seconds
        self.samples: list[Sample] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self.sensors.sample()  # raises here, where the caller sees it
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(self.period_seconds):
            self.samples.append(self.sensors.sample())


def sensors_of_torch() -> Nvml:
    """Return the sensors of torch's current device."""
    import torch

    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    return Nvml(f"GPU-{uuid.removeprefix('GPU-')}")


class Meter:
    """Measures the chip while calls run alone, and relates their rates to the ceiling of mma.sync.

    kind      type of A and B; the ceiling exists for f16, bf16 and tf32
    seconds   time that each call runs
    raises    UnsupportedError as `Nvml` does
    """

    def __init__(self, kind: DType, seconds: float) -> None:
        self.seconds, self.sensors = seconds, sensors_of_torch()
        self.ceiling = ceiling(kind, seconds, self.sensors) if kind in _CEILING_TFLOPS else None

    def alone(self, call: Callable[[], Any], flops: float) -> dict[str, Any]:
        """Return the result of `alone`, with the share of the ceiling at the same clock."""
        return with_rate_per_cycle(alone(call, flops, self.seconds, self.sensors), self.ceiling)

    def known(self) -> dict[str, Any]:
        """Return the limits of the chip and the ceiling, for a record."""
        return {"limits": self.sensors.limits(), "ceiling": self.ceiling}


def alone(call: Callable[[], Any], flops: float, seconds: float, sensors: Nvml) -> dict[str, Any]:
    """Run a call repeatedly; return TFLOP/s, clock, power and throttling over the second half of `seconds`."""
    _repeat(call, seconds / 2)
    with Watch(sensors) as watch:
        each = _repeat(call, seconds / 2)
    return {"tflops": round(flops / each * 1e-12, 2), **summary(watch.samples)}


def _repeat(call: Callable[[], Any], seconds: float) -> float:
    """Run a call back to back for some seconds; return the seconds of one call."""
    import torch

    event: Any = torch.cuda.Event
    first, last = (event(enable_timing=True) for _ in range(2))
    deadline, calls = time.perf_counter() + seconds, 0
    under_way: list[Any] = []
    first.record()
    while not calls or time.perf_counter() < deadline:
        for _ in range(_CALLS_AT_ONCE):
            call()
        calls += _CALLS_AT_ONCE
        under_way.append(event())
        under_way[-1].record()
        if len(under_way) > 1:
            under_way.pop(0).synchronize()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) * 1e-3 / calls


def ceiling(kind: DType, seconds: float, sensors: Nvml) -> dict[str, Any]:
    """Return the result of `alone` for a loop of mma.sync on normally distributed registers, with FLOP per cycle.

    kind   f16, bf16 or tf32
    """
    import torch

    from cutegemm.compile.cuda import multiprocessors
    from cutegemm.run.torch_ops import memory_of
    from docs.evidence.kernels.ceiling import RegisterLoop, compile_loop, words_needed

    loop = RegisterLoop(kind, _CEILING_WARPS)
    kernel = compile_loop(loop)
    ctas = multiprocessors(torch.cuda.current_device())
    words = words_needed(loop)
    values = torch.randn(words * 32 // kind.bits, device="cuda").to(memory_of(kind)).view(torch.int32)
    out = torch.empty(ctas * loop.threads, device="cuda")
    turns = max(1, round(_CEILING_SECONDS * _CEILING_TFLOPS[kind] * 1e12 / (loop.flops * ctas)))
    found = alone(lambda: kernel(values, out, turns, ctas), loop.flops * ctas * turns, seconds, sensors)
    return with_rate_per_cycle(found)


def with_rate_per_cycle(found: dict[str, Any], of_ceiling: dict[str, Any] | None = None) -> dict[str, Any]:
    """Add FLOP per cycle of the chip, and their share of the ceiling's, which does not depend on the clock.

    >>> base = with_rate_per_cycle({"tflops": 640.0, "clock_mhz": 1600})
    >>> with_rate_per_cycle({"tflops": 450.0, "clock_mhz": 1500}, base)["share_at_clock"]
    0.75
    """
    if "clock_mhz" not in found:
        return found
    out = {**found, "flop_per_cycle": round(found["tflops"] * 1e6 / found["clock_mhz"])}
    if of_ceiling and "flop_per_cycle" in of_ceiling:
        out["share_at_clock"] = round(out["flop_per_cycle"] / of_ceiling["flop_per_cycle"], 4)
    return out
