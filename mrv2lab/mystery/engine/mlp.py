"""The down projection of the MLP, its long inner dimension split in two. Sums meet in one buffer."""

import torch

from mrv2lab.graphs import is_capturing
from mrv2lab.runner.lora import LinearWithLoRA

_SPLITS = 2

# ---- mlp.down_proj ----


def down_proj_in_buffer(self: LinearWithLoRA, x: torch.Tensor) -> torch.Tensor:
    """[num_tokens, intermediate_size] -> [num_tokens, hidden_size]."""
    sums = torch.empty(len(x), len(self.weight), dtype=x.dtype, device=x.device)
    sums.zero_()
    for part, weight in zip(x.chunk(_SPLITS, dim=-1), self.weight.chunk(_SPLITS, dim=-1), strict=True):
        sums.addmm_(part, weight.T)
    return sums


def down_proj_in_place(self: LinearWithLoRA, x: torch.Tensor) -> torch.Tensor:
    """[num_tokens, intermediate_size] -> [num_tokens, hidden_size]."""
    sums = torch.empty(len(x), len(self.weight), dtype=x.dtype, device=x.device)
    if not is_capturing():  # a graph's pool is new memory, and new memory is zero
        sums.zero_()
    for part, weight in zip(x.chunk(_SPLITS, dim=-1), self.weight.chunk(_SPLITS, dim=-1), strict=True):
        sums.addmm_(part, weight.T)
    return sums
