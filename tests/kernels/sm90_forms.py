"""Forms of Hopper plans, small enough to compile and to run on a CPU: every majorness, type, schedule and way out."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from _pytest.mark import ParameterSet

from cutegemm.build.sm90 import sm90_plan
from cutegemm.dtypes import DType
from cutegemm.layout import product
from cutegemm.plan import GemmPlan, Operands
from tests.marks import with_thorough

_SMALL = {"tile": (64, 64, 64), "epi_tile_n": 32, "raster": "grouped_m:3"}
_COOPERATIVE = {"schedule": "cooperative"}

# name: (arguments of Operands.of, arguments of sm90_plan)
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pingpong": ({}, {"epi_stages": 4}),
    "pingpong_two_slots": ({}, {"epi_stages": 2, "raster": "along_m"}),
    "pingpong_of_three": ({}, {"tile": (64, 128, 64), "consumers": 3}),
    "cooperative_of_three": ({}, {"tile": (192, 192, 64), "consumers": 3, **_COOPERATIVE}),
    "f16": ({"dtype": "f16"}, _SMALL),
    "f32_out": ({"out": "f32"}, _SMALL),
    "f32_out_m_major": ({"out": "f32", "out_major": "m"}, {"tile": (64, 64, 64)}),
    "warps_store": ({}, {"store": "tma_warp", "epi_stages": 4}),
    "plain_d": ({}, {"shared_d": "plain"}),
    "plain_d_m_major": ({"out_major": "m"}, {"shared_d": "plain", "epi_stages": 4}),
    "padded_d": ({}, {"shared_d": "padded"}),
    "padded_d_m_major": ({"out_major": "m"}, {"shared_d": "padded", "epi_stages": 4}),
    "padded_f32": ({"out": "f32"}, {**_SMALL, "shared_d": "padded"}),
    "padded_c": ({}, {"shared_d": "padded", "with_c": True, "epi_stages": 4}),
    "lines": ({"align_d": 2}, {"shared_d": "padded"}),
    "lines_m_major": ({"align_d": 2, "out_major": "m"}, {"shared_d": "padded", "cluster": (2, 1)}),
    "lines_by_4_bytes": ({"align_d": 4}, {"shared_d": "padded", "tile": (64, 96, 64)}),
    "lines_by_8_bytes": ({"align_d": 8}, {"shared_d": "padded", "tile": (128, 256, 64), **_COOPERATIVE}),
    "lines_f32": ({"out": "f32", "align_d": 4}, {**_SMALL, "shared_d": "padded"}),
    "lines_f32_m_major": (
        {"out": "f32", "align_d": 4, "out_major": "m"},
        {"shared_d": "padded", "tile": (128, 192, 64)},
    ),
    "lines_c": ({"align_d": 2}, {"shared_d": "padded", "tile": (64, 128, 64), "with_c": True}),
    "lines_of_16": ({"align_d": 2}, {"shared_d": "padded", "tile": (64, 48, 64)}),
    "lines_e4m3": ({"dtype": "e4m3", "align_d": 1}, {"shared_d": "padded", "tile": (128, 128, 128)}),
    "lines_split": ({"align_d": 2}, {"shared_d": "padded", "tile": (64, 128, 64), "split_k": 3}),
    "by_eight": ({}, {"tile": (64, 24, 64), "epi_tile_n": 8}),
    "by_eight_m_major": ({"out_major": "m"}, {"tile": (128, 136, 64), "cluster": (1, 2)}),
    "by_eight_c": ({"out_major": "m"}, {"tile": (128, 40, 64), "with_c": True, **_COOPERATIVE}),
    "by_eight_f32": ({"out": "f32"}, {"tile": (64, 56, 64), "epi_tile_n": 8, "with_c": True}),
    "by_eight_lines": ({"align_d": 2}, {"tile": (64, 72, 64), "shared_d": "padded"}),
    "by_eight_read_a": (
        {"dtype": "tf32", "layout": "tt", "out_major": "m"},
        {"tile": (128, 104, 32), "cluster": (1, 2), **_COOPERATIVE},
    ),
    "lines_fill_2x1": (
        {"align_d": 2},
        {"shared_d": "padded", "tile": (128, 128, 64), "fixup": True, "cluster": (2, 1)},
    ),
    "l2": ({}, {"l2": ("evict_last", "evict_last", "evict_first")}),
    "deep_k": ({}, {"tile": (128, 128, 128)}),
    "shared_k": ({}, {"tile": (64, 64, 64), "cluster_k": 4, "consumers": 1, **_COOPERATIVE}),
    "shared_k_pingpong_2x1": ({"layout": "nn"}, {"tile": (64, 64, 64), "cluster_k": 2, "cluster": (2, 1)}),
    "shared_k_c": ({}, {"tile": (128, 64, 64), "cluster_k": 4, "with_c": True, **_COOPERATIVE}),
    "shared_k_of_eight": (
        {"out_major": "m"},
        {"tile": (64, 64, 64), "cluster_k": 8, "consumers": 1, **_COOPERATIVE},
    ),
    "shared_k_direct": (
        {"layout": "tn"},
        {"tile": (128, 96, 64), "cluster_k": 3, "store": "direct", **_COOPERATIVE},
    ),
    "shared_k_lines": (
        {"align_d": 2},
        {"tile": (64, 64, 64), "cluster_k": 2, "consumers": 1, "shared_d": "padded", **_COOPERATIVE},
    ),
    "shared_k_s8": (
        {"dtype": "s8", "out": "s32"},
        {"tile": (64, 128, 128), "cluster_k": 4, "consumers": 1, **_COOPERATIVE},
    ),
    "shared_k_two_level": (
        {"dtype": "e4m3", "out": "bf16"},
        {"tile": (64, 96, 128), "cluster_k": 6, "consumers": 1, "promoted": True, **_COOPERATIVE},
    ),
    "shared_k_packed": (
        {"layout": "tn", "align_bytes": 2},
        {
            "tile": (64, 64, 64),
            "cluster_k": 2,
            "consumers": 1,
            "repack": "ab",
            "shared_d": "padded",
            **_COOPERATIVE,
        },
    ),
    "wide": ({}, {"tile": (128, 192, 64)}),
    "wide_2x1": ({}, {"tile": (128, 192, 64), "cluster": (2, 1)}),
    "tall": ({}, {"tile": (192, 128, 64), "epi_stages": 3}),
    "160": ({"layout": "nn"}, {"tile": (128, 160, 64)}),
    # An n-major B is loaded by whole lines, with columns of the next tile
    "by_lines": ({"layout": "tn"}, {"tile": (128, 112, 64)}),
    "by_lines_1x2": (
        {"layout": "nn"},
        {"tile": (192, 144, 64), "consumers": 3, "cluster": (1, 2), **_COOPERATIVE},
    ),
    "by_lines_odd_2x1": (
        {"layout": "tn"},
        {"tile": (128, 168, 64), "epi_tile_n": 56, "cluster": (2, 1), "fixup": True},
    ),
    "by_lines_shared_k": (
        {"layout": "nn"},
        {"tile": (64, 224, 64), "cluster_k": 2, "consumers": 1, **_COOPERATIVE},
    ),
    "by_lines_batched_c": (
        {"layout": "nn", "batched": True},
        {"tile": (256, 160, 64), "with_c": True, **_COOPERATIVE},
    ),
    "64x256": ({}, {"tile": (64, 256, 64), "epi_stages": 4, "cluster": (2, 1)}),
    "cluster_1x2": ({"layout": "tn"}, {"cluster": (1, 2)}),
    "cluster_2x2": ({}, {"cluster": (2, 2), "tile": (64, 128, 64)}),
    "cluster_2x2_mn": ({"layout": "tn"}, {"cluster": (2, 2), **_COOPERATIVE, "tile": (128, 128, 64)}),
    "cluster_4x1": ({}, {"cluster": (4, 1), "tile": (64, 128, 64)}),
    # Shares of 20 and 12 rows of 128 bytes, and of 18 of 64: no whole groups of the 8 rows of a swizzle
    "shares_4x2": ({}, {"cluster": (4, 2), "tile": (64, 80, 64)}),
    "shares_4x1_e4m3": ({"dtype": "e4m3", "out": "bf16"}, {"cluster": (4, 1), "tile": (64, 48, 128)}),
    "shares_of_64_bytes": ({}, {"cluster": (4, 1), "tile": (64, 72, 32), "epi_tile_n": 8}),
    "cooperative": ({}, {"tile": (128, 256, 64), **_COOPERATIVE}),
    "cooperative_stagger": (
        {},
        {"tile": (128, 256, 64), "cluster": (2, 1), "stagger_cycles": 550, **_COOPERATIVE},
    ),
    "cooperative_tall": ({"layout": "nn"}, {"tile": (256, 128, 64), "cluster": (1, 2), **_COOPERATIVE}),
    "cooperative_two_wgmmas_wide": (
        {},
        {"tile": (128, 272, 64), "cluster": (2, 1), "epi_tile_n": 16, "epi_stages": 2, **_COOPERATIVE},
    ),
    "cooperative_256x160": ({}, {"tile": (256, 160, 64), **_COOPERATIVE}),
    "cooperative_256x192": ({}, {"tile": (256, 192, 64), **_COOPERATIVE}),
    "overlapped": ({}, {"tile": (128, 128, 64), "overlapped": True, **_COOPERATIVE}),
    "deferred_warps_store": (
        {"layout": "tn"},
        {"tile": (128, 256, 64), "overlapped": True, "store": "tma_warp", **_COOPERATIVE},
    ),
    "deferred_stagger_2x1": (
        {"batched": True},
        {"tile": (128, 256, 64), "cluster": (2, 1), "overlapped": True, "stagger_cycles": 550, **_COOPERATIVE},
    ),
    "deferred_tall_1x2": (
        {"layout": "nn", "out_major": "m"},
        {"tile": (256, 128, 64), "cluster": (1, 2), "overlapped": True, **_COOPERATIVE},
    ),
    "deferred_e4m3": (
        {"dtype": "e4m3", "out": "bf16"},
        {"tile": (128, 256, 128), "overlapped": True, **_COOPERATIVE},
    ),
    "deferred_s8": (
        {"dtype": "s8", "out": "f16"},
        {"tile": (128, 128, 128), "overlapped": True, **_COOPERATIVE},
    ),
    "one_consumer": ({}, {"tile": (64, 128, 64), "consumers": 1, **_COOPERATIVE}),
    "one_tile_a_cta": ({}, {"tile": (128, 128, 64), "ctas": None, **_COOPERATIVE}),
    "one_tile_a_cta_2x1": ({}, {"tile": (128, 128, 64), "ctas": None, "cluster": (2, 1), **_COOPERATIVE}),
    "single": ({}, {"tile": (128, 128, 64), "schedule": "single"}),
    "single_two_consumers": (
        {"layout": "tt"},
        {"tile": (128, 128, 64), "schedule": "single", "consumers": 2},
    ),
    "single_three_stages": ({}, {"tile": (64, 128, 64), "schedule": "single", "stages": 3}),
    "single_two_per_sm": ({}, {"tile": (64, 96, 64), "schedule": "single", "ctas_per_sm": 2}),
    "single_two_per_sm_c": (
        {"out_major": "m"},
        {"tile": (64, 128, 64), "schedule": "single", "ctas_per_sm": 2, "with_c": True},
    ),
    "direct": ({}, {"store": "direct"}),
    "direct_elements": ({"align_d": 2}, {"store": "direct", "cluster": (2, 1)}),
    "direct_m_major": ({"out_major": "m"}, {"store": "direct", "tile": (64, 128, 64)}),
    "direct_f32": ({"out": "f32", "align_d": 4}, {"store": "direct", "tile": (128, 256, 64), **_COOPERATIVE}),
    "direct_c": ({"align_d": 2}, {"store": "direct", "with_c": True}),
    "c": ({"layout": "tt"}, {"with_c": True, "epi_stages": 4}),
    "c_two_slots": ({}, {"with_c": True, "epi_stages": 2}),
    "c_m_major": ({"layout": "nn", "out_major": "m"}, {"with_c": True, "epi_stages": 2}),
    "c_f32": ({"out": "f32"}, {"with_c": True, "epi_stages": 4}),
    "c_f32_batched": ({"out": "f32", "batched": True}, {"with_c": True, "epi_stages": 4}),
    "c_cooperative": ({}, {"with_c": True, "tile": (128, 256, 64), "cluster": (2, 1), **_COOPERATIVE}),
    "c_wide": ({}, {"with_c": True, "tile": (128, 192, 64)}),
    "c_of_the_other_major": ({"c_major": "m"}, {"with_c": True, "epi_stages": 4}),
    "c_f32_warps_store": ({"c": "f32"}, {"with_c": True, "store": "tma_warp", "epi_stages": 4}),
    "batched": ({"layout": "nn", "batched": True}, {"epi_stages": 4}),
    "batched_2x1": ({"batched": True}, {"cluster": (2, 1), "tile": (64, 128, 64)}),
    "read_a_2x1": (
        {"dtype": "tf32", "layout": "tt"},
        {"tile": (128, 64, 32), "cluster": (2, 1), **_COOPERATIVE},
    ),
    "read_a_m_major_c": (
        {"dtype": "tf32", "layout": "tt", "out_major": "m", "batched": True},
        {"tile": (256, 64, 32), "with_c": True, **_COOPERATIVE},
    ),
    "read_a_of_three": (
        {"dtype": "tf32", "layout": "tt"},
        {"tile": (192, 96, 32), "consumers": 3, "cluster": (1, 2), **_COOPERATIVE},
    ),
    "read_a_split_direct": (
        {"dtype": "tf32", "layout": "tt", "align_d": 4},
        {"tile": (128, 64, 32), "store": "direct", "split_k": 2, **_COOPERATIVE},
    ),
    "read_a_packs_b": (
        {"dtype": "tf32", "layout": "tn"},
        {"tile": (128, 64, 32), "repack": "b", **_COOPERATIVE},
    ),
    "e4m3": ({"dtype": "e4m3", "out": "bf16"}, {"tile": (128, 128, 128)}),
    "e4m3_f32": (
        {"dtype": "e4m3", "out": "f32"},
        {"tile": (128, 256, 128), "cluster": (2, 1), **_COOPERATIVE},
    ),
    "e4m3_two_level": (
        {"dtype": "e4m3", "out": "bf16"},
        {"tile": (128, 128, 128), "promoted": True, **_COOPERATIVE},
    ),
    "e4m3_two_level_2x1": (
        {"dtype": "e4m3", "out": "f32"},
        {"tile": (128, 192, 128), "cluster": (2, 1), "promoted": True, **_COOPERATIVE},
    ),
    "two_level_pingpong": ({"dtype": "e4m3", "out": "bf16"}, {"tile": (64, 128, 128), "promoted": True}),
    "e4m3_out": ({"dtype": "e4m3"}, {"tile": (128, 128, 128)}),
    "e4m3_out_m_major": ({"dtype": "e4m3", "out_major": "m"}, {"tile": (64, 128, 128)}),
    "e4m3_out_c": ({"dtype": "e4m3"}, {"tile": (128, 128, 128), "with_c": True, "cluster": (2, 1)}),
    "e4m3_out_c_bf16": ({"dtype": "e4m3", "c": "bf16"}, {"tile": (64, 128, 128), "with_c": True}),
    "e4m3_out_direct": ({"dtype": "e4m3", "align_d": 1}, {"tile": (64, 128, 128), "store": "direct"}),
    "e4m3_out_padded": ({"dtype": "e4m3"}, {"tile": (64, 128, 128), "shared_d": "padded", "epi_tile_n": 64}),
    "e5m2_out": ({"dtype": "e5m2"}, {"tile": (128, 256, 128), "promoted": False, **_COOPERATIVE}),
    "gpc_aware": ({}, {**_SMALL, "raster": "even:2", "gpc_raster": True, "tpc_rounds": (3, 2, 1), "ctas": 11}),
    "by_gpc_1x2": (
        {"layout": "tn"},
        {"tile": (64, 64, 64), "gpc_raster": True, "tpc_rounds": (6, 2, 2, 1, 1), "ctas": 24, "cluster": (1, 2)},
    ),
    "by_gpc_fill_2x1": (
        {},
        {
            "tile": (64, 64, 64),
            "gpc_raster": True,
            "tpc_rounds": (2, 2, 1),
            "ctas": 10,
            "cluster": (2, 1),
            "fixup": True,
        },
    ),
    "split": ({}, {"tile": (64, 128, 64), "split_k": 4}),
    "split_c": ({}, {"tile": (64, 128, 64), "split_k": 3, "with_c": True}),
    "split_cooperative_2x1": ({}, {"tile": (128, 256, 64), "cluster": (2, 1), "split_k": 2, **_COOPERATIVE}),
    "split_one_tile_a_cta": ({"layout": "nn"}, {"ctas": None, "split_k": 2, **_COOPERATIVE}),
    "split_direct": (
        {"align_d": 2},
        {"tile": (64, 128, 64), "store": "direct", "split_k": 2, "with_c": True},
    ),
    "split_f32_batched": ({"batched": True, "out": "f32", "out_major": "m"}, {**_SMALL, "split_k": 5}),
    "split_two_level": (
        {"dtype": "e4m3", "out": "bf16"},
        {"tile": (128, 128, 128), "promoted": True, "split_k": 2, **_COOPERATIVE},
    ),
    "split_s8": ({"dtype": "s8", "out": "s32"}, {"tile": (64, 128, 128), "split_k": 3}),
    "stream": ({}, {"stream": 1, "epi_stages": 4}),
    "stream_of_three": ({"layout": "tt"}, {"tile": (64, 128, 64), "consumers": 3, "stream": 2}),
    "stream_wide_1x2": ({}, {"tile": (128, 192, 64), "cluster": (1, 2), "stream": 2}),
    "stream_cooperative_2x1": (
        {},
        {"tile": (128, 256, 64), "cluster": (2, 1), "stream": 2, "with_c": True, **_COOPERATIVE},
    ),
    "fixup": ({}, {"fixup": True, "epi_stages": 4, "cluster": (2, 1)}),
    "fill_of_three": ({"layout": "tt"}, {"tile": (64, 128, 64), "consumers": 3, "fixup": True}),
    "fill_c_batched": (
        {"batched": True},
        {"tile": (128, 256, 64), "cluster": (2, 1), "fixup": True, "with_c": True, **_COOPERATIVE},
    ),
    "fill_deferred_2x1": (
        {},
        {"tile": (128, 256, 64), "cluster": (2, 1), "fixup": True, "overlapped": True, **_COOPERATIVE},
    ),
    "stream_256x160": ({"batched": True}, {"tile": (256, 160, 64), "stream": 1, **_COOPERATIVE}),
    "s8": ({"dtype": "s8", "out": "s32"}, {"tile": (128, 128, 128)}),
    "s8_f32_c": ({"dtype": "s8", "out": "f32"}, {"tile": (64, 128, 128), "with_c": True}),
    "s8_direct": ({"dtype": "s8", "out": "s32", "align_d": 4}, {"tile": (64, 128, 128), "store": "direct"}),
    "e5m2": ({"dtype": "e5m2", "out": "f16"}, {"tile": (64, 128, 128)}),
    "e4m3_e5m2": ({"dtype": "e4m3", "b": "e5m2", "out": "bf16"}, {"tile": (64, 128, 128)}),
    "e5m2_e4m3_two_level": (
        {"dtype": "e5m2", "b": "e4m3", "out": "f32"},
        {"tile": (128, 128, 128), "promoted": True, **_COOPERATIVE},
    ),
    "pack_tf32": (
        {"dtype": "tf32", "layout": "nn", "align_packed": 4},
        {"tile": (64, 128, 32), "repack": "ab"},
    ),
    "pack_tf32_by_16_bytes": (
        {"dtype": "tf32", "layout": "tn"},
        {"tile": (128, 128, 32), "cluster": (2, 1), "repack": "ab", **_COOPERATIVE},
    ),
    "pack_bf16_c": (
        {"layout": "nn", "align_packed": 2, "align_d": 2, "batched": True},
        {"tile": (64, 128, 64), "store": "direct", "with_c": True, "repack": "ab"},
    ),
    "pack_f16_by_4_bytes": (
        {"dtype": "f16", "align_packed": 4},
        {"tile": (64, 64, 64), "epi_tile_n": 32, "repack": "a"},
    ),
    "pack_e4m3": ({"dtype": "e4m3", "layout": "nn", "out": "bf16"}, {"tile": (64, 128, 128), "repack": "b"}),
    "pack_e5m2_by_bytes": (
        {"dtype": "e5m2", "layout": "tn", "out": "f32", "align_packed": 1},
        {"tile": (64, 128, 128), "repack": "ab"},
    ),
    "pack_e5m2_e4m3": (
        {"dtype": "e5m2", "b": "e4m3", "layout": "tn", "out": "bf16", "align_packed": 4},
        {"tile": (64, 128, 128), "repack": "ab"},
    ),
    "pack_s8_split": (
        {"dtype": "s8", "layout": "tn", "out": "s32", "batched": True, "align_packed": 8},
        {"tile": (64, 64, 128), "epi_tile_n": 32, "split_k": 3, "repack": "ab"},
    ),
    **{
        f"{layout}_{major}": ({"layout": layout, "out_major": major}, _SMALL)
        for layout in ("nn", "nt", "tn", "tt")
        for major in "nm"
    },
}


# Forms that hold every component of the forms above. With PAIRS they hold every pair of components that meets, too:
# tests/plan/test_covering.py computes that, by `tests.kernels.components`.
ALONE = (
    "by_eight_read_a", "by_lines_odd_2x1", "cooperative_two_wgmmas_wide", "deferred_stagger_2x1",
    "e4m3_e5m2", "e4m3_out_direct", "e4m3_out_m_major", "e4m3_two_level_2x1", "e5m2", "l2", "lines_c",
    "pack_e5m2_e4m3", "pack_f16_by_4_bytes", "pack_s8_split", "padded_f32", "read_a_packs_b",
    "shared_k_direct", "shared_k_two_level", "shares_of_64_bytes", "single_two_per_sm_c", "stream_of_three",
    "warps_store",
)  # fmt: skip
PAIRS = (
    "by_eight_f32", "by_eight_lines", "c_f32_warps_store", "cluster_2x2_mn", "deferred_s8",
    "deferred_warps_store", "direct", "direct_m_major", "e4m3_out_c", "e4m3_out_c_bf16", "e4m3_out_padded",
    "fill_c_batched", "fill_deferred_2x1", "lines_e4m3", "lines_f32", "lines_f32_m_major", "lines_fill_2x1",
    "lines_m_major", "lines_split", "pack_bf16_c", "pack_e4m3", "pack_e5m2_by_bytes", "pack_tf32",
    "padded_c", "padded_d_m_major", "read_a_2x1", "read_a_m_major_c", "read_a_of_three",
    "read_a_split_direct", "shared_k_c", "shared_k_lines", "shared_k_of_eight", "shared_k_packed",
    "shared_k_pingpong_2x1", "shared_k_s8", "shares_4x2", "split_c", "split_cooperative_2x1",
    "split_direct", "split_one_tile_a_cta", "split_two_level", "stream_256x160", "stream_cooperative_2x1",
    "stream_wide_1x2", "two_level_pingpong",
)  # fmt: skip

# Narrower tiles that have the same components, so that ALONE and PAIRS take half as long to compile and to emulate;
# with 3 stages, so that the mainloop pipeline is soon at its first stage again.
# tests/plan/test_covering.py compares the components; registers are tightest in the plans of `LARGEST` in test_sm90.py.
_NARROWER = {
    "by_eight_read_a": (128, 56, 32), "c_f32_warps_store": (64, 64, 64), "cluster_2x2_mn": (128, 64, 64),
    "deferred_s8": (128, 64, 128), "deferred_stagger_2x1": (128, 64, 64), "deferred_warps_store": (128, 64, 64),
    "direct": (64, 64, 64), "direct_m_major": (64, 64, 64), "e4m3_e5m2": (64, 64, 128),
    "e4m3_out_c": (64, 64, 128), "e4m3_out_c_bf16": (64, 64, 128), "e4m3_out_direct": (64, 64, 128),
    "e4m3_out_m_major": (64, 64, 128), "e5m2": (64, 64, 128), "fill_c_batched": (128, 64, 64),
    "fill_deferred_2x1": (128, 64, 64), "l2": (64, 64, 64), "lines_c": (64, 64, 64), "lines_e4m3": (64, 64, 128),
    "lines_f32_m_major": (128, 64, 64), "lines_fill_2x1": (128, 64, 64), "lines_m_major": (128, 64, 64),
    "lines_split": (64, 64, 64), "pack_bf16_c": (64, 64, 64), "pack_e4m3": (64, 64, 128),
    "pack_e5m2_by_bytes": (64, 64, 128), "pack_e5m2_e4m3": (64, 64, 128), "pack_tf32": (64, 64, 32),
    "padded_c": (64, 64, 64), "padded_d_m_major": (64, 64, 64), "read_a_m_major_c": (256, 32, 32),
    "read_a_of_three": (192, 64, 32), "read_a_split_direct": (128, 32, 32), "single_two_per_sm_c": (64, 64, 64),
    "split_c": (64, 64, 64), "split_cooperative_2x1": (128, 64, 64), "split_direct": (64, 64, 64),
    "split_one_tile_a_cta": (128, 64, 64), "split_two_level": (128, 64, 128), "stream_256x160": (256, 32, 64),
    "stream_cooperative_2x1": (128, 64, 64), "stream_of_three": (64, 64, 64), "stream_wide_1x2": (128, 64, 64),
    "two_level_pingpong": (64, 64, 128), "warps_store": (64, 64, 64),
}  # fmt: skip


def covering() -> list[ParameterSet]:
    """Return the forms of ALONE and PAIRS as parameters of a test; those of PAIRS are marked `thorough`."""
    return with_thorough((*ALONE, *PAIRS), PAIRS)


@cache
def form(name: str, ctas: int | None = 132, **more: Any) -> GemmPlan:
    """Return the plan of a form, for a persistent grid of `ctas` CTAs if it has one, with further arguments."""
    of, options = FORMS[name]
    of = {"dtype": "bf16", "layout": "nt", **of}
    align, c, c_major = of.pop("align_d", 16), of.pop("c", None), of.pop("c_major", None)
    align_packed = of.pop("align_packed", 16)
    operands = Operands.of(of.pop("dtype"), **of)
    d = replace(operands.d, align_bytes=align)
    of_c = replace(d, dtype=DType.parse(c or d.dtype), major=c_major or d.major)
    operands = replace(operands, c=of_c, d=d)
    for packed in options.get("repack", ""):
        operand = replace(getattr(operands, packed), align_bytes=align_packed)
        operands = replace(operands, **{packed: operand})
    return sm90_plan(operands, name=name, **{"ctas": ctas, **options, **more})


def on_few_ctas(name: str) -> GemmPlan:
    """Return a form for a persistent grid of 4 CTAs, or of one cluster if that is larger."""
    options = FORMS[name][1]
    narrower = {"tile": _NARROWER[name], "stages": 3} if name in _NARROWER else {}
    return form(name, max(4, product(options.get("cluster", (1, 1))) * options.get("cluster_k", 1)), **narrower)


def fitting(plan: GemmPlan, m: int, n: int, k: int) -> tuple[int, int, int]:
    """The extents, or as much larger as the accesses to C, to D and to what is packed need them."""
    ops, step = plan.operands, {"m": 1, "n": 1, "k": 1}
    for operand in (ops.c, ops.d, *[getattr(ops, repack.name) for repack in plan.repacks]):
        step[operand.major] = max(step[operand.major], operand.align_elems)
    m, n, k = (-(-extent // step[mode]) * step[mode] for mode, extent in zip("mnk", (m, n, k), strict=True))
    return m, n, k
