"""Tensor maps: bits that are not documented, against those that the driver writes."""

from __future__ import annotations

import ctypes

import pytest

from cutegemm.emulate.hopper.tensormap import TENSOR_MAP_BYTES, TensorMap
from cutegemm.tile.atoms import runs_on
from cutegemm.tile.tma import L2_PROMOTIONS, TMA_SWIZZLES, TmaBox

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.gpu
_BF16 = 9  # CU_TENSOR_MAP_DATA_TYPE_BFLOAT16


@pytest.mark.parametrize("promotion", L2_PROMOTIONS)
@pytest.mark.parametrize("swizzle", TMA_SWIZZLES)
def test_the_drivers_are_read_as_what_they_were_asked_to_be(arch, promotion, swizzle):
    if not runs_on(TmaBox.min_arch, arch):
        pytest.skip("no TMA")
    given = torch.zeros(64, 136, dtype=torch.bfloat16, device="cuda")
    inner = (TMA_SWIZZLES[swizzle][1] or 64) // 2
    raw = ctypes.create_string_buffer(2 * TENSOR_MAP_BYTES)
    at = (ctypes.addressof(raw) + 63) // 64 * 64
    failed = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
        ctypes.c_void_p(at), _BF16, 2, ctypes.c_void_p(given.data_ptr()),
        (ctypes.c_uint64 * 2)(128, 64), (ctypes.c_uint64 * 1)(272), (ctypes.c_uint32 * 2)(inner, 8),
        (ctypes.c_uint32 * 2)(1, 1), 0, list(TMA_SWIZZLES).index(swizzle), L2_PROMOTIONS.index(promotion), 0,
    )  # fmt: skip
    assert failed == 0
    found = TensorMap.of(ctypes.string_at(at, TENSOR_MAP_BYTES))
    assert found == TensorMap(
        "bf16", given.data_ptr(), (128, 64), (272,), (inner, 8), (1, 1), 0, swizzle, False, promotion
    )
