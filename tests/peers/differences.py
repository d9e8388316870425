"""Where a peer's own tests fail on this package's operations: which test, who is right, and why.

Versions: pycute of CUTLASS (all of its tests pass), tensor-layouts 0.3.2. NVlabs' PyCuTe has no public snapshot to run.
"""

WORDS = "both refuse; the test looks for a word of the peer's message"
REPRESENTATION = "both are right; the test looks into the peer's own type of a swizzled layout"

# peer -> test -> who is right, and why
DIFFERENCES: dict[str, dict[str, str]] = {
    "pycute": {},
    "tensor_layouts": {
        "test_coalesce_by_mode_with_profile": "both: the peer's profile is a shape whose sizes are matched, CuTe's a "
        "hierarchy whose leaves are modes, as here",
        "test_complement_layouts": "both: ours ends at the size of (3,4), 12; the peer, and the DSL, round each extent "
        "up",
        "test_complement_rejects_zero_sized_shapes": "both: an empty layout has no complement here, 16:1 there",
        "test_compose_divisibility_failures_match_pycute[layout0-tiler0]": WORDS,
        "test_compose_divisibility_failures_match_pycute[layout1-tiler1]": WORDS,
        "test_compose_divisibility_failures_match_pycute[layout2-tiler2]": WORDS,
        "test_compose_divisibility_failures_match_pycute[layout3-tiler3]": WORDS,
        "test_s3_3_3_stride_violation_raises": WORDS,
        "test_s3_3_3_apparent_violation_fail_left_raises": WORDS,
        "test_s3_3_3_apparent_violation_fail_right_raises": WORDS,
        "test_logical_divide_rejects_over_rank_tiler": WORDS,
        "test_logical_product_rejects_nondivisible_complement_path": WORDS,
        "test_compose_negative_stride_matches_cute": "both: as C++ divides negative numbers A(-i) is -A(i); here an A "
        "of several modes has no negative index, and the operation refuses",
        "test_divide_1d_tiler_on_2d_layout": "CuTe: an integer tiles the whole layout, as here; the peer tiles mode 0",
        "test_compose_tile_partial_modes": "CuTe: modes beyond the tiler are dropped, as here; the peer keeps them",
        "test_compose_shape_tiler_variants": "CuTe: modes beyond the tiler are dropped, as here; the peer keeps them",
        "test_tile_to_shape_1d": "CuTe: the DSL's result is ours; the peer's is the same function",
        "test_tile_to_shape_exact_fit": "CuTe: the DSL's result is ours; the peer's is the same function",
        "test_right_inverse_preserves_embedded_swizzle": REPRESENTATION,
        "test_left_inverse_preserves_embedded_swizzle": REPRESENTATION,
        "test_layout_repr_swizzled": REPRESENTATION,
        "test_offset_swizzled_layout_basic": REPRESENTATION,
        "test_slice_and_offset_preserves_swizzle_for_partial_hierarchical_slice": REPRESENTATION,
        "test_max_common_swizzled_vs_plain_is_representation_invariant": REPRESENTATION,
        "test_max_common_identical_swizzles_match_across_representations": REPRESENTATION,
        "test_max_common_reverse_swizzle_exact_form_matches_plain_layout": REPRESENTATION,
    },
}
