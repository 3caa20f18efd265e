"""Which token belongs to which adapter, for the kernels and for the host.

Mirrors `vllm/lora/ops/triton_ops/lora_kernel_metadata.py`. Two kinds of memory sit side by side here,
and the bug lives between them: tensors on the device, which a replay reads afresh, and flags on the
host, which only the Python of `lora_shrink` and `lora_expand` reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mrv2lab.graphs import host

_T = torch.Tensor
MetaArgs = tuple[_T, _T, _T, _T, _T, _T]
"""The metadata arguments of `lora_shrink` and `lora_expand`, in their order."""


@dataclass
class LoRAKernelMeta:
    """Mirrors `LoRAKernelMeta`; example values for `max_loras = 3`."""

    token_lora_mapping: torch.Tensor  # [max_num_tokens] int32, adapter slot or -1
    token_indices_sorted_by_lora_ids: torch.Tensor  # [max_num_tokens] int32
    active_lora_ids: torch.Tensor  # [max_loras + 1] int32, e.g. [-1, 0, 2, -1]
    num_tokens_per_lora: torch.Tensor  # [max_loras + 1] int32, e.g. [3, 10, 5, 0]
    lora_token_start_loc: torch.Tensor  # [max_loras + 2] int32, e.g. [0, 3, 13, 18, 0]
    no_lora_flag_cpu: torch.Tensor  # [1] bool, host: the batch has no adapter at all
    num_active_loras_cpu: torch.Tensor  # [1] int32, host: distinct entries of the mapping, -1 among them
    default_num_active_loras_cpu: torch.Tensor  # [1] int32, host: max_loras + 1
    captured_lora_counts: list[int]  # ascending: `num_active_loras_cpu` is rounded up to one of them

    @staticmethod
    def make(
        max_loras: int, max_num_tokens: int, device: torch.device, captured_lora_counts: Sequence[int] = ()
    ) -> "LoRAKernelMeta":
        """Allocate. As upstream, the first three are not initialised: somebody must write them before use."""

        def empty(n: int) -> torch.Tensor:
            return torch.empty(n, dtype=torch.int32, device=device)

        return LoRAKernelMeta(
            token_lora_mapping=empty(max_num_tokens),
            token_indices_sorted_by_lora_ids=empty(max_num_tokens),
            active_lora_ids=empty(max_loras + 1),
            num_tokens_per_lora=torch.zeros(max_loras + 1, dtype=torch.int32, device=device),
            lora_token_start_loc=torch.zeros(max_loras + 2, dtype=torch.int32, device=device),
            no_lora_flag_cpu=host(torch.tensor([False])),
            num_active_loras_cpu=host(torch.tensor([0], dtype=torch.int32)),
            default_num_active_loras_cpu=host(torch.tensor([max_loras + 1], dtype=torch.int32)),
            captured_lora_counts=sorted(captured_lora_counts),
        )

    def prepare_tensors(self, token_lora_mapping: torch.Tensor) -> None:
        """Write the metadata of one batch: [num_tokens] slots of adapters or -1, in host memory."""
        self.active_lora_ids.fill_(-1)
        self.num_tokens_per_lora.fill_(0)
        self.lora_token_start_loc.fill_(0)
        self.num_active_loras_cpu[0] = 0
        no_lora = bool((token_lora_mapping == -1).all())
        self.no_lora_flag_cpu[0] = no_lora
        if no_lora:
            return  # lora_shrink and lora_expand will not be launched

        lora_ids, counts = token_lora_mapping.unique(sorted=True, return_counts=True)
        larger = (n for n in self.captured_lora_counts if n >= len(lora_ids))
        self.num_active_loras_cpu[0] = next(larger, len(lora_ids))
        self.token_lora_mapping[: len(token_lora_mapping)].copy_(token_lora_mapping)
        by_lora = token_lora_mapping.argsort(stable=True)
        self.token_indices_sorted_by_lora_ids[: len(by_lora)].copy_(by_lora)
        self.active_lora_ids[: len(lora_ids)].copy_(lora_ids)
        self.num_tokens_per_lora[: len(counts)].copy_(counts)
        self.lora_token_start_loc[1 : len(counts) + 1].copy_(counts.cumsum(0))

    def meta_args(self, num_tokens: int, specialize_active_lora: bool) -> MetaArgs:
        """What the kernels need to know of a batch of `num_tokens`."""
        return (
            self.token_indices_sorted_by_lora_ids[:num_tokens],
            self.num_tokens_per_lora,
            self.lora_token_start_loc,
            self.active_lora_ids,
            self.no_lora_flag_cpu,
            self.num_active_loras_cpu if specialize_active_lora else self.default_num_active_loras_cpu,
        )
