"""Predictions that a counter contradicts beyond their tolerance, each with the reason as far as it is known.

A test holds the list against the recorded runs: a miss without a reason fails, and so does a reason without a
miss.
"""

_PARTLY = (
    "inferred: sectors of D that a 4-byte store fills in part are read before they are written; about as "
    "many bytes are read more as are written more than where rows are aligned, 4.4 and 4.6 MB"
)
_JOINED = (
    "the compiler joins reads along K to LDS.64 and LDS.128 where they are aligned, as the SASS shows; "
    "inferred: one of them reads words that another reads too, 68 wavefronts a k-tile for 64"
)
_CLEARED = (
    "zeros of the ragged tiles, which the plan's accesses leave out: each of the 101 CTAs on an edge clears its "
    "16,384 bytes once, 128 wavefronts"
)
_DRIFT = (
    "outside: persistent, bound by shared memory and not paced by the tensor cores, in columns of the whole M "
    "or N; what is kept hangs on how far multiprocessors drift apart, and the one fitted constant for it, "
    "says too much"
)
_CHUNKS = (
    "not understood: eight lanes that read three lines, or chunks twice, at random: the rule of one XOR for all "
    "gives {}"
)

REASONS: dict[tuple[str, str], str] = {
    ("cp.async128 to stride 3", "wavefronts"): _CHUNKS.format("7 a group of eight lanes, the counter 6"),
    ("cp.async128 from stride 3", "wavefronts"): _CHUNKS.format("7 a group of eight lanes, the counter 6"),
    ("cp.async128 from random 3", "wavefronts"): _CHUNKS.format("2 too few of 30"),
    ("cp.async128 from random pairs 1", "wavefronts"): _CHUNKS.format("2 too few of 32"),
    ("read_a_along_k_1way", "shared load wavefronts"): _JOINED,
    ("read_a_along_k_1way", "shared load wavefronts, by instructions"): _JOINED,
    ("odd", "sectors read into L1"): (
        "rows of 4-byte alignment begin within a sector, which tiles on both sides of it bring; the prediction "
        "takes the bytes of each tile over 32, and some of the others are found in L1"
    ),
    ("odd", "DRAM bytes read"): _PARTLY,
    ("simt_ragged_grouped_m_12", "shared store wavefronts, by instructions"): _CLEARED,
    ("simt_ragged_grouped_m_12", "shared store wavefronts less conflicts"): _CLEARED,
    ("simt_wide_grouped_n_8", "DRAM bytes read"): (
        "outside: between two uses of A as much passes as a partition holds, 29 MB for 28; the model drops all "
        "of it, as exact LRU does, and the cache keeps about a tenth more"
    ),
    ("sm90_along_m", "DRAM bytes read"): _DRIFT + "; 573 MB in an earlier run",
    ("sm90_along_n", "DRAM bytes read"): _DRIFT,
}
