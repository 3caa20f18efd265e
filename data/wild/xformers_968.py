"""Attention with a block-diagonal mask in a CUDA graph gave the results of eager mode up to 256 tokens, and
others for longer sequences. The mask holds its sequence lengths on the device, and the longest of them as a
Python int as well, from which the launch grid is made: nobody works on rows behind the grid of the capture.
The answer of the maintainers: set that int to the longest length that can come.
"""

from itertools import cycle
from types import SimpleNamespace

import torch
import triton
import triton.language as tl

PROJECT = "xFormers"
LINK = "https://github.com/facebookresearch/xformers/issues/968"
MECHANISM = "frozen-grid"
CAUSE = "seqinfo.max_seqlen"
LINE = "grid = (SEQUENCES, triton.cdiv(seqinfo.max_seqlen, BLOCK))"
EXECUTORS = ("emulated", "cuda")

SEQUENCES, LONGEST, BLOCK = 2, 16, 4


@triton.jit
def attention_kernel(query, seqlens, out, LONGEST: tl.constexpr, BLOCK: tl.constexpr):
    sequence, block = tl.program_id(0), tl.program_id(1)
    rows = block * BLOCK + tl.arange(0, BLOCK)
    is_real = rows < tl.load(seqlens + sequence)
    values = tl.load(query + sequence * LONGEST + rows, mask=is_real, other=0.0)
    tl.store(out + sequence * LONGEST + rows, values * 2, mask=is_real)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    query = torch.ones(SEQUENCES, LONGEST, device=device)
    seqinfo = SimpleNamespace(seqlens=torch.zeros(SEQUENCES, dtype=torch.int64, device=device), max_seqlen=0)
    batches = cycle([[3, 4], [9, 2], [6, 15], [1, 12]])

    def set_mask_seqlens(lengths: list[int]) -> None:
        seqinfo.seqlens.copy_(torch.tensor(lengths, device=device))
        seqinfo.max_seqlen = LONGEST if fixed else max(lengths)

    def attend() -> torch.Tensor:
        out = torch.zeros_like(query)
        grid = (SEQUENCES, triton.cdiv(seqinfo.max_seqlen, BLOCK))
        attention_kernel[grid](query, seqinfo.seqlens, out, LONGEST=LONGEST, BLOCK=BLOCK)
        return out

    def vary() -> None:
        set_mask_seqlens(next(batches))
        query.add_(1)

    set_mask_seqlens([2, 2])
    return SimpleNamespace(step=attend, vary=vary, seqinfo=seqinfo)
