"""vLLM's FlashMLA called directly, without an engine: captured at some lengths, replayed at others."""

import torch

from mrv2lab.graphs import capture
from mrv2lab.kernels.flash_mla import flash_mla_reference

BATCH_SIZE, NUM_HEADS, PAGE, LATENT, ROPE = 16, 16, 64, 512, 64
MAX_PAGES = 32

LENGTHS = {
    "as_captured": torch.full((BATCH_SIZE,), PAGE),
    "one_page_more": torch.tensor([PAGE + 1] + [PAGE] * (BATCH_SIZE - 1)),
    "all_different": torch.linspace(1, MAX_PAGES * PAGE, BATCH_SIZE).int(),
    "longest": torch.full((BATCH_SIZE,), MAX_PAGES * PAGE),
}


def errors_by_length(*, shared: bool) -> dict[str, float]:
    """Warm up, capture at one page for each request, then replay at each of `LENGTHS`.

    Args:
        shared: whether the capture is given the warm-up's metadata, instead of metadata of its own.

    Returns:
        For each entry of `LENGTHS` the relative error against float64, as `flashmla_error_<entry>`.
    """
    from vllm.third_party.flashmla.flash_mla_interface import FlashMLASchedMeta, flash_mla_with_kvcache

    generator = torch.Generator(device="cuda").manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cuda").bfloat16()

    q = normal(BATCH_SIZE, NUM_HEADS, LATENT + ROPE)
    k_cache = normal(BATCH_SIZE * MAX_PAGES, PAGE, LATENT + ROPE)
    block_table = torch.arange(BATCH_SIZE * MAX_PAGES, dtype=torch.int32, device="cuda")
    block_table = block_table.view(BATCH_SIZE, MAX_PAGES)
    seq_lens = LENGTHS["as_captured"].to("cuda", torch.int32)

    def attend(metadata: FlashMLASchedMeta) -> torch.Tensor:
        one_token, one_head = q.unsqueeze(1), k_cache.unsqueeze(2)
        out: torch.Tensor
        out, _ = flash_mla_with_kvcache(one_token, one_head, block_table, seq_lens, LATENT, metadata)
        return out.squeeze(1)

    warmup = FlashMLASchedMeta()
    captured = warmup if shared else FlashMLASchedMeta()
    attend(warmup)
    graph = capture(lambda: attend(captured), backend="cuda")
    errors = {}
    for name, lengths in LENGTHS.items():
        seq_lens.copy_(lengths)
        graph.replay()
        wanted = flash_mla_reference(q, k_cache, block_table, seq_lens, LATENT, (LATENT + ROPE) ** -0.5)
        errors[f"flashmla_error_{name}"] = ((graph.outputs - wanted).norm() / wanted.norm()).item()
    return errors
