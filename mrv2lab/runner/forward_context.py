"""What layers need besides their inputs. Mirrors `vllm.forward_context`.

Attention reads its metadata from here, so that the model's signature stays the same for all batches.
"""

from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass

import torch

from mrv2lab.graphs.base import set_within
from mrv2lab.kernels.flash_mla import FlashMLASchedMeta


@dataclass(frozen=True)
class AttentionMetadata:
    """Where each token's context lies. Every tensor is a view of a persistent buffer, and shows what was
    written there last, for whatever batch.
    """

    query_start_loc: torch.Tensor  # [num_reqs + 1] int32
    seq_lens: torch.Tensor  # [num_reqs] int32
    max_seq_len: int  # at least the longest of seq_lens; a number of the host's, which sizes attention's work
    block_table: torch.Tensor  # [num_reqs, max_num_blocks] int32
    slot_mapping: torch.Tensor  # [num_tokens] int64, -1 for padding
    max_query_len: int  # host: most tokens that one request has in this batch
    # FLASHMLA: planned by whoever attends first. FLASH_ATTN_MLA: the plan, a view of its builder's buffer
    scheduler_metadata: FlashMLASchedMeta | torch.Tensor


_current: ContextVar[AttentionMetadata] = ContextVar("forward_context")


def set_forward_context(attn_metadata: AttentionMetadata) -> AbstractContextManager[None]:
    """Make `attn_metadata` what `get_forward_context` returns inside."""
    return set_within(_current, attn_metadata)


def get_forward_context() -> AttentionMetadata:
    """The metadata of the running batch. LookupError: no forward pass is running."""
    return _current.get()
