"""Adapters: their weights, the slots they occupy on the device, and the layers they change.

Mirrors `vllm/lora/model_manager.py` and the layers of `vllm/lora/layers/`.
"""

import torch
from torch import nn

from mrv2lab.runner.punica_wrapper import LoRAMapping, PunicaWrapper
from mrv2lab.runner.vocab_parallel_embedding import VocabParallelEmbeddingWithLoRA


class LinearWithLoRA(nn.Module):
    """A projection of one or more equal slices, each of which adapters may change. Mirrors
    `MergedColumnParallelLinearWithLoRA`, and with `for_logits` `LogitsProcessorWithLoRA`.
    """

    weight: torch.Tensor  # [out_features, in_features]
    lora_a_stacked: torch.Tensor  # [num_slices, max_loras, rank, in_features]
    lora_b_stacked: torch.Tensor  # [num_slices, max_loras, out_features / num_slices, rank]

    def __init__(
        self,
        weight: torch.Tensor,
        num_slices: int,
        max_loras: int,
        rank: int,
        punica_wrapper: PunicaWrapper,
        *,
        for_logits: bool = False,
    ):
        super().__init__()
        out_features, in_features = weight.shape
        self.register_buffer("weight", weight)
        self.register_buffer("lora_a_stacked", weight.new_zeros(num_slices, max_loras, rank, in_features))
        self.register_buffer(
            "lora_b_stacked", weight.new_zeros(num_slices, max_loras, out_features // num_slices, rank)
        )
        self.scale = 2.0 / rank
        self.add_lora = punica_wrapper.add_lora_logits if for_logits else punica_wrapper.add_lora_linear

    def set_lora(self, slot: int, generator: torch.Generator) -> None:
        """Write an adapter's weights into a slot, in place: captured graphs hold this address."""
        for stacked in (self.lora_a_stacked, self.lora_b_stacked):
            num_slices, _, *shape = stacked.shape
            weights = torch.randn(num_slices, *shape, generator=generator) * shape[-1] ** -0.5
            stacked[:, slot].copy_(weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, in_features] -> [num_tokens, out_features]."""
        y = x @ self.weight.T
        self.add_lora(y, x, self.lora_a_stacked, self.lora_b_stacked, self.scale)
        return y


_WITH_LORA = (LinearWithLoRA, VocabParallelEmbeddingWithLoRA)


class LoRAModelManager:
    """Puts adapters into slots and programs the mapping. Mirrors `LoRAModelManager`.

    vLLM's leaves a mapping alone that equals the last one; here each is programmed.
    An adapter's weights are random, made from its id: adapter 2 is the same adapter in every run.
    """

    def __init__(self, model: nn.Module, max_loras: int, punica_wrapper: PunicaWrapper):
        self.modules = [m for m in model.modules() if isinstance(m, _WITH_LORA)]
        self.lora_index_to_id: list[int | None] = [None] * max_loras
        self.punica_wrapper_mapping = {"language_model": punica_wrapper}

    def set_active_adapters(self, lora_ids: set[int], mapping: LoRAMapping) -> None:
        """Make sure that the adapters of the next batch are in slots, then program its mapping. RuntimeError:
        the batch wants more adapters than there are slots.
        """
        for lora_id in sorted(lora_ids - set(self.lora_index_to_id)):
            self._activate(lora_id, keep=lora_ids)
        self.set_adapter_mapping(mapping)

    def set_adapter_mapping(self, mapping: LoRAMapping) -> None:
        """Program a mapping of adapters that are in their slots already."""
        for wrapper in self.punica_wrapper_mapping.values():
            wrapper.update_metadata(mapping, self.lora_index_to_id)

    def _activate(self, lora_id: int, keep: set[int]) -> None:
        free = [slot for slot, held in enumerate(self.lora_index_to_id) if held not in keep]
        if not free:
            raise RuntimeError(f"adapter {lora_id} finds no slot: {len(keep)} adapters wanted in one batch")
        slot = min(free, key=lambda s: self.lora_index_to_id[s] is not None)  # an empty slot first
        self.lora_index_to_id[slot] = lora_id
        generator = torch.Generator().manual_seed(lora_id)
        for module in self.modules:
            module.set_lora(slot, generator)
