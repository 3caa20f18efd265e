"""NaN now and then from DeepSeek-R1 in NVFP4, with decode batches padded to the size of a graph. Padded
rows have length 0, and for these the MLA kernels write nothing: the output buffer, freshly allocated,
keeps there what its memory held. A scale taken over all rows then carries a NaN to the real ones. Repaired
with output buffers that are zeroed once and kept; reverted later (#38359), for NaN came from elsewhere
too.
"""

from types import SimpleNamespace

import torch
import triton  # the harness has imported mrv2lab before: without a GPU kernels are interpreted
import triton.language as tl

PROJECT = "vLLM"
LINK = "https://github.com/vllm-project/vllm/pull/37442"
MECHANISM = "unwritten-read"
CAUSE = "torch.empty"
LINE = "out = decode_out if fixed else torch.empty(ROWS, HEAD, device=device)"
EXECUTORS = ("emulated", "cuda")

ROWS, HEAD = 4, 8


@triton.jit
def _mla_decode(query, seq_lens, out, HEAD: tl.constexpr):
    row, columns = tl.program_id(0), tl.arange(0, HEAD)
    seq_len = tl.load(seq_lens + row)
    if seq_len > 0:
        values = tl.load(query + row * HEAD + columns) * seq_len
        tl.store(out + row * HEAD + columns, values)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    hidden = torch.ones(ROWS, HEAD, device=device)
    seq_lens = torch.tensor([2] + [0] * (ROWS - 1), device=device)
    decode_out = torch.zeros(ROWS, HEAD, device=device)
    batch = SimpleNamespace(size=1)
    sizes, numbers = iter((1, 2, 3, 4)), torch.Generator().manual_seed(0)

    def decode() -> torch.Tensor:
        projected = hidden * 1e4
        query = projected / 1e4
        del projected  # its memory is free again
        out = decode_out if fixed else torch.empty(ROWS, HEAD, device=device)
        _mla_decode[(ROWS,)](query, seq_lens, out, HEAD)
        scale = out.abs().amax() / 448  # of the quantization that follows
        return (out / scale).round() * scale

    def vary() -> None:
        batch.size = next(sizes)
        seq_lens.zero_()
        seq_lens[: batch.size] = batch.size + 3
        hidden.copy_(torch.rand(ROWS, HEAD, generator=numbers))

    return SimpleNamespace(step=decode, vary=vary, rows=lambda: batch.size, batch=batch)
