"""An int8 problem whose partial sums exceed 32 bits: a 2 x 4 D with K = 132,352.

    A[0] = -128, A[1] = 127; column 0 of B: 131,328 times -128, then 127; column 1: 132,224 times -128, then 127;
    column 2: -128; column 3: 127

Row 0, column 0 reaches 131,328 * 16,384 = 2,151,677,952 > 2^31 - 1 and ends at 2,135,031,808. Row 1, column 1 reaches
132,224 * -16,256 = -2,149,433,344 < -2^31 and ends at -2,147,368,832. An instruction that saturates gives other values.
"""

from __future__ import annotations

import numpy as np

K = 132_352
A = np.repeat(np.array([[-128], [127]], np.int8), K, axis=1)
B = np.full((K, 4), -128, np.int8)
B[131_328:, 0] = B[132_224:, 1] = B[:, 3] = 127
EXACT = A.astype(np.int64) @ B.astype(np.int64)
