"""Predictions that a counter contradicts beyond their tolerance, each with the reason as far as it is known.

A test compares the list with the recorded runs: a miss without a reason fails, and so does a reason without a miss.
"""

_JOINED = (
    "the compiler joins reads along K to LDS.64 and LDS.128 if they are aligned, as the SASS shows; "
    "inferred: one of them reads words that another reads too, 68 wavefronts a k-tile for 64"
)

REASONS: dict[tuple[str, str], str] = {
    ("read_a_along_k_1way", "shared load wavefronts"): _JOINED,
    ("read_a_along_k_1way", "shared load wavefronts, by instructions"): _JOINED,
    ("simt_wide_grouped_n_8", "DRAM bytes read"): (
        "between two uses of a panel of A, 33.6 MB pass through a partition of L2 of 31.5 MB, so that the model keeps "
        "nothing of it; counted is as if an eighth were kept. How softly the cache gives way there is not modelled"
    ),
}
