"""vLLM's FlashMLA called directly, without an engine: captured at some lengths, replayed at others."""

from typing import Any

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


class Attention:
    """FlashMLA over requests whose lengths lie in `seq_lens`, one token each; a random KV cache.

    Calling it with metadata returns [BATCH_SIZE, NUM_HEADS, LATENT].
    """

    def __init__(self) -> None:
        generator = torch.Generator(device="cuda").manual_seed(0)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device="cuda").bfloat16()

        self.q = normal(BATCH_SIZE, NUM_HEADS, LATENT + ROPE)
        self.k_cache = normal(BATCH_SIZE * MAX_PAGES, PAGE, LATENT + ROPE)
        pages = torch.arange(BATCH_SIZE * MAX_PAGES, dtype=torch.int32, device="cuda")
        self.block_table = pages.view(BATCH_SIZE, MAX_PAGES)
        self.seq_lens = LENGTHS["as_captured"].to("cuda", torch.int32)

    @staticmethod
    def metadata() -> Any:
        """Metadata without a plan: the first call that is given it makes one."""
        from vllm.third_party.flashmla.flash_mla_interface import FlashMLASchedMeta

        return FlashMLASchedMeta()

    def __call__(self, metadata: Any) -> torch.Tensor:
        from vllm.third_party.flashmla.flash_mla_interface import flash_mla_with_kvcache

        one_token, one_head = self.q.unsqueeze(1), self.k_cache.unsqueeze(2)
        out: torch.Tensor
        out, _ = flash_mla_with_kvcache(
            one_token, one_head, self.block_table, self.seq_lens, LATENT, metadata
        )
        return out.squeeze(1)

    def reference(self) -> torch.Tensor:
        """The same in float64."""
        scale = (LATENT + ROPE) ** -0.5
        return flash_mla_reference(self.q, self.k_cache, self.block_table, self.seq_lens, LATENT, scale)


def errors_by_length(*, shared: bool) -> dict[str, float]:
    """Warm up, capture at one page for each request, then replay at each of `LENGTHS`.

    Args:
        shared: whether the capture is given the warm-up's metadata, instead of metadata of its own.

    Returns:
        For each entry of `LENGTHS` the relative error against float64, as `flashmla_error_<entry>`.
    """
    attention = Attention()
    warmup = attention.metadata()
    captured = warmup if shared else attention.metadata()
    attention(warmup)
    graph = capture(lambda: attention(captured), backend="cuda")
    errors = {}
    for name, lengths in LENGTHS.items():
        attention.seq_lens.copy_(lengths)
        graph.replay()
        wanted = attention.reference()
        errors[f"flashmla_error_{name}"] = ((graph.outputs - wanted).norm() / wanted.norm()).item()
    return errors
