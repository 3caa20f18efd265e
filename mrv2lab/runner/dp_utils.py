"""What data-parallel ranks agree about before each step: how to run, and how far to pad.

Mirrors `vllm/v1/worker/gpu/dp_utils.py`. Layers that talk across ranks, like experts, must meet: so all ranks
run the same graph size, and if one of them has to run eagerly all do.
"""

import torch
import torch.distributed as dist

from mrv2lab.runner.config import CUDAGraphMode
from mrv2lab.runner.cudagraph_utils import BatchExecutionDescriptor, CudaGraphManager

_LEVELS = (CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL)


class DPGroup:
    """This rank and its line to the others; alone by default, else over `torch.distributed`."""

    def __init__(self, rank: int = 0, world_size: int = 1):
        self.rank, self.world_size = rank, world_size

    def all_gather(self, values: tuple[int, ...]) -> torch.Tensor:
        """[world_size, len(values)]: what each rank has given."""
        gathered = torch.zeros(self.world_size, len(values), dtype=torch.int64)
        gathered[self.rank] = torch.tensor(values)
        dist.all_reduce(gathered)
        return gathered


def dispatch_cg_and_sync_dp(
    manager: CudaGraphManager,
    num_reqs: int,
    num_tokens: int,
    uniform_token_count: int | None,
    num_active_loras: int,
    dp_group: DPGroup,
) -> tuple[BatchExecutionDescriptor, torch.Tensor | None]:
    """How this rank runs its step, agreed with the others, and how many tokens each of them runs,
    [world_size]; None for a rank that is alone.
    """
    desired = manager.dispatch(num_reqs, num_tokens, uniform_token_count, num_active_loras)
    if dp_group.world_size == 1:
        return desired, None
    level = _LEVELS.index(desired.cg_mode)
    gathered = dp_group.all_gather((num_tokens, level, uniform_token_count or 0))
    num_tokens_across_dp, levels, uniform_counts = gathered.unbind(dim=1)
    if not levels.min():
        return BatchExecutionDescriptor(CUDAGraphMode.NONE, num_tokens, num_reqs), num_tokens_across_dp
    # Ranks whose requests have other numbers of tokens cannot share a graph of decodes.
    is_uniform = bool((uniform_counts == uniform_counts[0]).all()) and bool(uniform_counts[0])
    most = int(num_tokens_across_dp.max())
    uniform = int(uniform_counts[0]) if is_uniform else None
    synced = manager.dispatch(num_reqs, most, uniform, num_active_loras)
    return synced, torch.full_like(num_tokens_across_dp, synced.num_tokens)
