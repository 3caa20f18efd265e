"""From "which request wants which adapter" to kernel launches. Mirrors `vllm/lora/punica_wrapper/`."""

from dataclasses import dataclass
from typing import Any

import torch

from mrv2lab.kernels import lora_expand, lora_shrink
from mrv2lab.runner.lora_kernel_metadata import LoRAKernelMeta
from mrv2lab.runner.lora_utils import get_captured_lora_counts


@dataclass(frozen=True)
class LoRAMapping:
    """Adapter ids of a batch; 0 means none. Mirrors `vllm.lora.layers.LoRAMapping`."""

    index_mapping: tuple[int, ...]  # one for each token
    # one for each row of logits: with drafts more than one for a request, where vLLM has one for each request
    prompt_mapping: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("index_mapping", "prompt_mapping"):  # as vLLM's, which takes any sequence
            object.__setattr__(self, name, tuple(int(lora_id) for lora_id in getattr(self, name)))


def convert_mapping(mapping: tuple[int, ...], lora_index_to_id: list[int | None]) -> torch.Tensor:
    """Turn adapter ids into slots, int64 in host memory: id 0 becomes -1. Mirrors `convert_mapping`.
    ValueError: an adapter that is in no slot (vLLM's too, up to 0.24).
    """
    return torch.tensor([lora_index_to_id.index(lora_id) if lora_id > 0 else -1 for lora_id in mapping])


class PunicaWrapper:
    """Metadata of the running batch and the operations on it. Mirrors `PunicaWrapperGPU`."""

    def __init__(
        self,
        max_num_tokens: int,
        max_loras: int,
        vocab_size: int,
        device: torch.device,
        specialize_active_lora: bool,
    ):
        self.vocab_size = vocab_size
        self.specialize_active_lora = specialize_active_lora
        counts = get_captured_lora_counts(max_loras, specialize_active_lora)
        self.token_mapping_meta = LoRAKernelMeta.make(max_loras, max_num_tokens, device, counts)
        self.prompt_mapping_meta = LoRAKernelMeta.make(max_loras, max_num_tokens, device, counts)
        # [max_num_tokens], slot * vocab_size: where a token's adapter begins in the table of all A's.
        # Not initialised, as upstream, where up to 0.28 another row serves a vocabulary extension.
        self._embeddings_indices = torch.empty(max_num_tokens, dtype=torch.int64, device=device)

    def update_metadata(self, mapping: LoRAMapping, lora_index_to_id: list[int | None]) -> None:
        """Program the mapping of the next batch."""
        token_slots = convert_mapping(mapping.index_mapping, lora_index_to_id)
        # A token without adapter looks up a row of slot 0, which exists; lora_expand then leaves it out.
        self._embeddings_indices[: len(token_slots)].copy_(token_slots.clamp(min=0) * self.vocab_size)
        self.token_mapping_meta.prepare_tensors(token_slots)
        self.prompt_mapping_meta.prepare_tensors(convert_mapping(mapping.prompt_mapping, lora_index_to_id))

    def add_lora_embedding(self, y: torch.Tensor, x: torch.Tensor, lora_b_stacked: torch.Tensor) -> None:
        """Add every token's adapter to its embedding, y: [num_tokens, hidden_size], in place. x: [num_tokens,
        rank], rows of the adapters' A. lora_b_stacked: [1, max_loras, hidden_size, rank].
        """
        meta_args = self.token_mapping_meta.meta_args(x.shape[0], self.specialize_active_lora)
        lora_expand(x.unsqueeze(0), lora_b_stacked, y, *meta_args)

    def add_lora_linear(
        self,
        y: torch.Tensor,  # [num_tokens, num_slices * slice_size], changed in place
        x: torch.Tensor,  # [num_tokens, hidden_size]
        lora_a_stacked: torch.Tensor,  # [num_slices, max_loras, rank, hidden_size]
        lora_b_stacked: torch.Tensor,  # [num_slices, max_loras, slice_size, rank]
        scale: float,  # on the adapter's part
    ) -> None:
        """Add every token's adapter to the output of a projection inside the model."""
        self._add_lora(self.token_mapping_meta, y, x, lora_a_stacked, lora_b_stacked, scale)

    def add_lora_logits(self, *args: Any) -> None:
        """The same for rows of logits. Arguments as of `add_lora_linear`."""
        self._add_lora(self.prompt_mapping_meta, *args)

    def _add_lora(
        self,
        meta: LoRAKernelMeta,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: torch.Tensor,
        lora_b_stacked: torch.Tensor,
        scale: float,
    ) -> None:
        meta_args = meta.meta_args(x.shape[0], self.specialize_active_lora)
        # Not initialised, as upstream: lora_shrink zeroes it, unless it returns before.
        num_slices, _, rank, _ = lora_a_stacked.shape
        buffer = x.new_empty((num_slices, x.shape[0], rank), dtype=torch.float32)
        lora_shrink(x, lora_a_stacked, buffer, *meta_args, scale)
        lora_expand(buffer, lora_b_stacked, y, *meta_args)
