"""What the DSL is told before it is imported: a machine without a GPU has no architecture of its own."""

import os

os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")
