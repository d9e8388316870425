"""Let transformers' mixture models compute their experts by cutegemm.

import cutegemm.torch.models.transformers
model = AutoModelForCausalLM.from_pretrained(name, experts_implementation="cutegemm")
"""

from transformers.integrations.moe import ExpertsInterface

from cutegemm.torch.models.experts import NAME, experts_forward

ExpertsInterface.register(NAME, experts_forward)
