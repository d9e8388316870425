"""Let transformers' mixture models compute their experts by cutegemm.

import cutegemm.torch.models.transformers
model = AutoModelForCausalLM.from_pretrained(name, experts_implementation="cutegemm")
"""

from contextlib import suppress

from transformers.integrations.moe import ExpertsInterface

from cutegemm.torch.models.experts import NAME, experts_forward
from cutegemm.torch.models.fp8_experts import fp8_experts_forward

ExpertsInterface.register(NAME, experts_forward)
with suppress(ImportError):  # the first versions of transformers 5 have no such interface
    from transformers.integrations.finegrained_fp8 import FP8ExpertsInterface

    FP8ExpertsInterface.register(NAME, fp8_experts_forward)
