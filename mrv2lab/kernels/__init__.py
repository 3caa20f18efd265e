"""The Triton kernels of the mini runner; tests hold them against torch in float64."""

from mrv2lab.kernels.lora_expand import lora_expand
from mrv2lab.kernels.lora_shrink import lora_shrink

__all__ = ["lora_expand", "lora_shrink"]
