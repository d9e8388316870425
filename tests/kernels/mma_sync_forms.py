"""Forms of mma.sync plans in small tiles: every majorness, type, alignment, schedule and way out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cutegemm.build import Shared, mma_sync_plan, mma_tma_plan
from cutegemm.plan import GemmPlan, Operands

_SMALL = {"block": (64, 64, 64), "warp": (32, 32)}
_TF32 = {"block": (64, 64, 32), "warp": (32, 32)}
_LAYOUTS = ("nn", "nt", "tn", "tt")

# name: (arguments of Operands.of, arguments of mma_sync_plan)
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{
        f"{dtype}_{layout}_{align}": (
            {"dtype": dtype, "layout": layout, "align_bytes": align},
            {**_SMALL, "block": (64, 64, 32 if dtype == "tf32" or align == 2 else 64)},
        )
        for dtype, aligns in (("bf16", (16, 8, 4, 2)), ("tf32", (16, 8, 4)))
        for align in aligns
        for layout in _LAYOUTS
    },
    **{
        f"{dtype}_{layout}_m_major": ({"dtype": dtype, "layout": layout, "out_major": "m"}, small)
        for dtype, small in (("f16", _SMALL), ("tf32", _TF32))
        for layout in _LAYOUTS
    },
    "f16_into_f32": ({"dtype": "f16", "out": "f32"}, _SMALL),
    "f16_into_f32_m_major": ({"dtype": "f16", "out": "f32", "out_major": "m"}, _SMALL),
    "f16_sums": ({"dtype": "f16", "acc": "f16"}, _SMALL),
    "bf16_into_f16": ({"out": "f16"}, _SMALL),
    "unaligned_d": ({"align_d": 2}, _SMALL),
    "direct": ({}, {**_SMALL, "store": "direct"}),
    "direct_elements": ({"align_d": 2}, {**_SMALL, "store": "direct"}),
    "direct_m_major": ({"out_major": "m"}, {**_SMALL, "store": "direct"}),
    "direct_f32": ({"dtype": "tf32"}, {**_TF32, "store": "direct"}),
    "batched": ({"layout": "nn", "batched": True}, _SMALL),
    "batched_tf32": ({"dtype": "tf32", "layout": "tn", "batched": True}, _TF32),
    "rna": ({"dtype": "tf32"}, {**_TF32, "rounding": "rna"}),
    "one_stage": ({}, {**_SMALL, "stages": 1}),
    "one_stage_registers": ({"dtype": "tf32"}, {**_TF32, "stages": 1, "load": "register"}),
    "one_buffer": ({}, {**_SMALL, "fragments": 1}),
    "one_buffer_registers": ({"layout": "nn"}, {**_SMALL, "fragments": 1, "load": "register", "stages": 2}),
    "two_stages": ({}, {**_SMALL, "stages": 2}),
    "five_stages": ({"layout": "tt"}, {**_SMALL, "stages": 5}),
    "one_share": ({}, {**_SMALL, "load_chunks": 1}),
    "two_shares": ({"layout": "tn"}, {**_SMALL, "load_chunks": 2}),
    "narrow_loads": ({}, {**_SMALL, "load_bytes": 4}),
    "through_l1": ({"layout": "tt"}, {**_SMALL, "cache": "ca"}),
    "one_k_block": ({}, {**_SMALL, "block": (64, 64, 16)}),
    "three_k_blocks": ({}, {**_SMALL, "block": (64, 64, 48)}),
    "shallow_atom": ({}, {**_SMALL, "atom_k": 8}),
    "shallow_atom_tf32": ({"dtype": "tf32"}, {**_TF32, "atom_k": 4, "read": "plain"}),
    "plain": ({}, {**_SMALL, "shared": "plain", "read": "plain"}),
    "plain_nn": ({"layout": "nn"}, {**_SMALL, "shared": "plain", "read": "plain"}),
    "plain_tf32_tn": ({"dtype": "tf32", "layout": "tn"}, {**_TF32, "shared": "plain", "read": "plain"}),
    "padded": ({"dtype": "tf32"}, {**_TF32, "shared": Shared("k", pad=4), "read": "plain"}),
    "padded_ldmatrix": ({}, {**_SMALL, "shared": Shared("k", pad=8)}),
    "warps_along_n": ({}, {**_SMALL, "warps_along": "n", "mma_order": "m"}),
    "wide": ({"layout": "nn"}, {"block": (64, 128, 64), "warp": (32, 64), "raster": "grouped_n:2"}),
    "tall": ({"dtype": "f16"}, {"block": (128, 64, 64), "warp": (64, 32), "raster": "along_m"}),
    "few_rows": ({}, {"block": (16, 128, 64), "warp": (16, 32)}),
    "wide_warps": ({"layout": "tn"}, {"block": (64, 192, 64), "warp": (32, 96), "fragments": 1}),
    "one_warp": ({}, {"block": (32, 32, 64), "warp": (32, 32)}),
    "single_halves": ({"align_bytes": 2}, {**_SMALL, "block": (64, 64, 32), "stages": 2, "load_run": 1}),
    "deep_halves": ({"layout": "tn", "align_bytes": 2}, {"block": (32, 32, 128), "warp": (16, 16), "stages": 2}),
    "split": ({"layout": "nn", "align_bytes": 2}, {**_SMALL, "stages": 2, "split_k": 3}),
    "split_tf32": ({"dtype": "tf32", "layout": "tn", "align_bytes": 4}, {**_TF32, "split_k": 5}),
    "split_last": ({"dtype": "tf32", "layout": "nn"}, {**_TF32, "split_k": 2, "reduction": "last"}),
    "split_strided": ({"layout": "tt", "out_major": "m"}, {**_SMALL, "split_k": 3, "split_order": "strided"}),
    "split_batched": ({"batched": True}, {**_SMALL, "split_k": 2}),
    "split_evenly": ({"layout": "tt"}, {**_SMALL, "waves": 1, "persistent": 5}),
}  # fmt: skip


# Forms of mma_tma_plan: a producer, and consumers of a warp each.
FED = {
    **{
        f"tma_{dtype}_{layout}": ({"dtype": dtype, "layout": layout}, small)
        for dtype, small in (("bf16", _SMALL), ("tf32", _TF32))
        for layout in _LAYOUTS
    },
    "tma_m_major": ({"dtype": "f16", "layout": "tt", "out_major": "m"}, _SMALL),
    "tma_tf32_m_major": ({"dtype": "tf32", "layout": "tn", "out_major": "m"}, _TF32),
    "tma_into_f32": ({"dtype": "f16", "layout": "tn", "out": "f32"}, {**_SMALL, "mma_order": "m"}),
    "tma_tf32_into_bf16": ({"dtype": "tf32", "layout": "nn", "out": "bf16"}, _TF32),
    "tma_f16_sums": ({"dtype": "f16", "acc": "f16"}, _SMALL),
    "tma_unaligned_d": ({"align_d": 2}, _SMALL),
    "tma_lines_m_major": ({"align_d": 2, "layout": "tn", "out_major": "m"}, _SMALL),
    "tma_lines_tf32": ({"align_d": 4, "dtype": "tf32", "layout": "tt"}, _TF32),
    "tma_direct": ({"layout": "nn"}, {**_SMALL, "store": "direct"}),
    "tma_batched": ({"layout": "tn", "batched": True}, {**_SMALL, "ctas": None}),
    "tma_two_blocks": ({}, {**_SMALL, "block": (64, 64, 32), "stages": 2}),
    "tma_eight_warps": ({}, {**_SMALL, "block": (128, 64, 64), "mma_order": "m"}),
    "tma_wide_warps": ({"layout": "nn"}, {"block": (128, 160, 64), "warp": (64, 80)}),
}
FORMS.update(FED)


# float8, k-major as torch._scaled_mm has it.
FLOAT8: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{
        f"e4m3_nt_{align}": ({"dtype": "e4m3", "layout": "nt", "align_bytes": align, "out": "bf16"}, _SMALL)
        for align in (16, 8, 4)
    },
    "e5m2": ({"dtype": "e5m2", "layout": "nt", "out": "f32"}, _SMALL),
    "e4m3_into_e4m3": ({"dtype": "e4m3", "layout": "nt", "out": "e4m3"}, _SMALL),
    "e4m3_into_e4m3_m_major": ({"dtype": "e4m3", "layout": "nt", "out": "e4m3", "out_major": "m"}, _SMALL),
    "e4m3_sums_of_f16": ({"dtype": "e4m3", "layout": "nt", "out": "f16", "acc": "f16"}, _SMALL),
    "e4m3_split": ({"dtype": "e4m3", "layout": "nt", "out": "bf16"}, {**_SMALL, "split_k": 3}),
}

# Forms that hold every component of all forms, and every pair of components that meets: see `tests.kernels.components`.
COVERING = (
    "batched_tf32", "bf16_nn_4", "bf16_nn_8", "bf16_nt_2", "deep_halves", "e4m3_into_e4m3",
    "e4m3_into_e4m3_m_major", "e4m3_nt_4", "e4m3_nt_8", "e5m2", "f16_nn_m_major", "f16_sums",
    "f16_tn_m_major", "five_stages", "one_buffer_registers", "one_k_block", "one_stage_registers",
    "one_warp", "padded_ldmatrix", "plain", "plain_tf32_tn", "rna", "shallow_atom_tf32", "split",
    "split_batched", "split_evenly", "split_last", "split_strided", "split_tf32", "tf32_nn_m_major",
    "tf32_tn_8", "tf32_tt_4", "three_k_blocks", "tma_batched", "tma_direct", "tma_eight_warps",
    "tma_lines_m_major", "tma_lines_tf32", "tma_m_major", "tma_tf32_m_major", "tma_tf32_nn", "tma_tf32_nt",
    "tma_unaligned_d", "two_stages",
)  # fmt: skip

# Forms that have the same components in tiles of 32 x 32, which take two thirds of the time to compile.
_IN_SMALL_TILES = (
    "batched_tf32", "bf16_nn_4", "e4m3_nt_8", "e5m2", "f16_sums", "five_stages", "one_k_block", "one_stage_registers",
    "plain_tf32_tn", "rna", "shallow_atom_tf32", "split_evenly", "split_last", "split_strided", "tf32_nn_m_major",
    "tma_batched", "tma_bf16_nn", "tma_direct", "tma_lines_m_major", "tma_m_major", "tma_unaligned_d",
)  # fmt: skip


def form(name: str, **more: Any) -> GemmPlan:
    """The plan of a form, with further arguments of its builder."""
    of, options = {**FORMS, **FLOAT8}[name]
    of = {"dtype": "bf16", "layout": "nt", **of}
    align = of.pop("align_d", None)
    operands = Operands.of(of.pop("dtype"), **of)
    if align is not None:
        c, d = (replace(operand, align_bytes=align) for operand in (operands.c, operands.d))
        operands = replace(operands, c=c, d=d)
    build = mma_tma_plan if name in FED else mma_sync_plan
    return build(operands, name=name, **{"stages": 3, **options, **more})


def small(name: str, **more: Any) -> GemmPlan:
    """Return a form for tests that compile it, in tiles of 32 x 32 if it has the same components in these."""
    if name not in _IN_SMALL_TILES:
        return form(name, **more)
    depth = {**FORMS, **FLOAT8}[name][1]["block"][2]
    return form(name, **{"block": (32, 32, depth), "warp": (16, 16), **more})
