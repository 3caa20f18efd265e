"""Token ids to vectors, with and without adapters. Mirrors `vllm/lora/layers/vocal_parallel_embedding.py`.

An adapter of a projection is two products. An adapter of an embedding begins with a look-up instead:
row `token_id` of its A. All A's lie in one table, one below the other, so the row is found at
`token_id + slot * vocab_size`. The second term comes from `PunicaWrapper._embeddings_indices`.
"""

import torch
import torch.nn.functional as F
from torch import nn

from mrv2lab.runner.punica_wrapper import PunicaWrapper


class VocabParallelEmbedding(nn.Module):
    """Rows of a table, by token id. Mirrors its namesake, on one GPU."""

    weight: torch.Tensor  # [vocab_size, hidden_size]

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """[num_tokens] -> [num_tokens, hidden_size]."""
        return self.weight[input_ids.long()]


class VocabParallelEmbeddingWithLoRA(nn.Module):
    """An embedding that adapters may change. Mirrors its namesake."""

    lora_a_stacked: torch.Tensor  # [max_loras, vocab_size, rank]
    lora_b_stacked: torch.Tensor  # [1, max_loras, hidden_size, rank]

    def __init__(
        self, base_layer: VocabParallelEmbedding, max_loras: int, rank: int, punica_wrapper: PunicaWrapper
    ):
        super().__init__()
        self.base_layer, self.punica_wrapper = base_layer, punica_wrapper
        vocab_size, hidden_size = base_layer.weight.shape
        self.register_buffer("lora_a_stacked", base_layer.weight.new_zeros(max_loras, vocab_size, rank))
        self.register_buffer("lora_b_stacked", base_layer.weight.new_zeros(1, max_loras, hidden_size, rank))
        self.scale = 2.0 / rank

    def set_lora(self, slot: int, generator: torch.Generator) -> None:
        """Write an adapter's weights into a slot, in place: captured graphs hold this address."""
        hidden_size, rank = self.lora_b_stacked.shape[-2:]
        a = torch.randn(self.lora_a_stacked[slot].shape, generator=generator)
        b = torch.randn(self.lora_b_stacked[0, slot].shape, generator=generator)
        self.lora_a_stacked[slot].copy_(a * rank**-0.5)
        # A look-up has no factor, so B carries it.
        self.lora_b_stacked[0, slot].copy_(b * hidden_size**-0.5 * self.scale)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """[num_tokens] -> [num_tokens, hidden_size]. The look-up is done for every token, with an adapter or
        without: this layer does not ask the host's `no_lora_flag_cpu`. Only the expand behind it does.
        """
        # Upstream looks up A first. In this order the launch behind the look-up is the expand's.
        y: torch.Tensor = self.base_layer(input_ids)
        rows = input_ids + self.punica_wrapper._embeddings_indices[: len(input_ids)]
        x = F.embedding(rows, self.lora_a_stacked.flatten(0, 1))  # [num_tokens, rank]
        self.punica_wrapper.add_lora_embedding(y, x, self.lora_b_stacked)
        return y
