"""The Triton kernels of the mini runner, each beside its torch reference."""

from mrv2lab.kernels.lora_expand import lora_expand, lora_expand_reference
from mrv2lab.kernels.lora_shrink import lora_shrink, lora_shrink_reference

__all__ = ["lora_expand", "lora_expand_reference", "lora_shrink", "lora_shrink_reference"]
