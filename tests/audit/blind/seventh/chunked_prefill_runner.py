"""Mixed prefill/decode runner with a token budget (chunked prefill)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BUDGET, DIM, BLOCK, NUM_BLOCKS = 12, 16, 4, 16


@dataclass
class AttentionMetadata:
    """One object for the life of the runner; the builder updates it."""

    num_prefill_tokens: int
    num_decode_tokens: int
    slot_mapping: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor


def make_metadata():
    return AttentionMetadata(
        num_prefill_tokens=0,
        num_decode_tokens=0,
        slot_mapping=torch.zeros(BUDGET, dtype=torch.long, device=DEVICE),
        context_lens=torch.ones(BUDGET, dtype=torch.long, device=DEVICE),
        block_tables=torch.zeros(BUDGET, 4, dtype=torch.long, device=DEVICE),
    )


class MixedAttention(torch.nn.Module):
    """Prefill tokens attend causally inside the chunk, decode tokens to the paged cache."""

    def __init__(self, gen):
        super().__init__()
        self.qkv = torch.randn(DIM, 3 * DIM, generator=gen).to(DEVICE) / DIM**0.5
        self.k_cache = torch.randn(NUM_BLOCKS * BLOCK, DIM, generator=gen).to(DEVICE)
        self.v_cache = torch.randn(NUM_BLOCKS * BLOCK, DIM, generator=gen).to(DEVICE)

    def _decode(self, q, meta, start):
        tables = meta.block_tables[start:]
        offs = torch.arange(BLOCK, device=DEVICE)
        slots = (tables[:, :, None] * BLOCK + offs).flatten(1)
        k, v = self.k_cache[slots], self.v_cache[slots]
        scores = torch.einsum("td,tsd->ts", q, k) / DIM**0.5
        live = torch.arange(slots.shape[1], device=DEVICE)[None] < meta.context_lens[start:, None]
        return torch.einsum("ts,tsd->td", scores.masked_fill(~live, -1e9).softmax(-1), v)

    def forward(self, x, meta):
        q, k, v = (x @ self.qkv).chunk(3, dim=-1)
        self.k_cache.index_copy_(0, meta.slot_mapping, k)
        self.v_cache.index_copy_(0, meta.slot_mapping, v)
        n = meta.num_prefill_tokens
        out = torch.empty_like(q)
        if n > 0:
            out[:n] = F.scaled_dot_product_attention(
                q[None, None, :n], k[None, None, :n], v[None, None, :n], is_causal=True
            )[0, 0]
        if n < BUDGET:
            out[n:] = self._decode(q[n:], meta, n)
        return out


class Runner:
    def __init__(self):
        gen = torch.Generator().manual_seed(5)
        self.embed = torch.randn(64, DIM, generator=gen).to(DEVICE)
        self.attn = MixedAttention(gen)
        self.meta = make_metadata()
        self.input_ids = torch.zeros(BUDGET, dtype=torch.long, device=DEVICE)
        self.gen = torch.Generator().manual_seed(17)
        self.turn = 0
        self.schedule(prefill=8)

    def schedule(self, prefill):
        """Give `prefill` tokens of the budget to the chunk, the rest to running decodes."""
        m = self.meta
        m.num_prefill_tokens, m.num_decode_tokens = prefill, BUDGET - prefill
        self.input_ids.copy_(torch.randint(0, 64, (BUDGET,), generator=self.gen))
        m.slot_mapping.copy_(torch.randperm(NUM_BLOCKS * BLOCK, generator=self.gen)[:BUDGET])
        m.context_lens.copy_(torch.randint(3, 16, (BUDGET,), generator=self.gen))
        m.block_tables.copy_(
            torch.stack([torch.randperm(NUM_BLOCKS, generator=self.gen)[:4] for _ in range(BUDGET)])
        )

    def execute(self):
        return self.attn(self.embed[self.input_ids], self.meta)


runner = Runner()


def step():
    return runner.execute()


def vary():
    runner.turn += 1
    # the chunk shrinks only when more sequences have moved to decode
    runner.schedule(prefill=(8, 8, 4, 4, 0, 8, 8)[runner.turn % 7])
