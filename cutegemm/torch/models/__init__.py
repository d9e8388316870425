"""Models of other libraries: `use` replaces their layers and MLPs by modules that cutegemm computes.

layers and MLPs that are recognized, and what they compute   `recognition`
modules that replace them, until `undo`                      `replacement`
kernels that are chosen before the first call                `preparation`
"""

from cutegemm.torch.models.replacement import Replaced, use

__all__ = ["Replaced", "use"]
