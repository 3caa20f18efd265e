"""Programs of somebody else's: a Llama of transformers, with each of its caches."""

from importlib.util import find_spec

import pytest
import torch

from mrv2lab.audit import audit

pytestmark = [  # transformers comes with what vLLM's Python imports
    pytest.mark.source,
    pytest.mark.skipif(find_spec("transformers") is None, reason="make source installs transformers"),
]


class Decode:
    """One decode step over static buffers."""

    def __init__(self, device, make_cache):
        from transformers import LlamaConfig, LlamaForCausalLM

        self.config = LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
        )  # fmt: skip
        self.model = LlamaForCausalLM(self.config).to(device).eval()
        self.make_cache = make_cache
        self.cache = make_cache(self.config)
        self.ids, self.positions = (torch.zeros(1, 1, dtype=torch.long, device=device) for _ in range(2))
        self.mask = torch.ones(1, 32, dtype=torch.long, device=device)

    @torch.no_grad()
    def step(self):
        position = {"position_ids": self.positions, "cache_position": self.positions[0]}
        return self.model(self.ids, **position, past_key_values=self.cache, use_cache=True).logits

    @torch.no_grad()
    def masked_step(self):
        position = {"position_ids": self.positions, "cache_position": self.positions[0]}
        return self.model(self.ids, self.mask, **position, past_key_values=self.cache, use_cache=True).logits

    def vary(self):
        self.ids.add_(3)
        self.positions.add_(1)

    def rebind_mask(self):
        self.vary()
        self.mask = torch.ones_like(self.mask)
        self.mask[:, :1] = 0

    def fresh_cache(self):
        self.cache = self.make_cache(self.config)


def static(config):
    from transformers import StaticCache

    return StaticCache(config=config, max_cache_len=32)


def growing(config):
    from transformers import DynamicCache

    return DynamicCache(config=config)


def test_a_cache_that_stays_where_it_is(device, backend):
    decode = Decode(device, static)
    report = audit(decode.step, vary=decode.vary, backend=backend)
    assert report.findings == (), str(report)
    assert report.num_nodes > 50


def test_a_mask_that_is_bound_anew(device, backend):
    decode = Decode(device, static)
    report = audit(decode.masked_step, vary=decode.rebind_mask, backend=backend)
    assert [(f.kind, f.subject) for f in report.findings] == [("moved-address", "self.mask")], str(report)


def test_a_cache_that_grows(device, backend):
    decode = Decode(device, growing)
    report = audit(decode.step, vary=decode.vary, backend=backend)
    first = report.findings[0]
    assert (first.kind, first.where.function) == ("moved-address", "update"), str(report)
    assert "transformers" in first.where.file


def test_a_growing_cache_that_is_emptied_before_each_step(device, backend):
    decode = Decode(device, growing)
    report = audit(decode.step, vary=decode.vary, reset=decode.fresh_cache, backend=backend)
    assert "self.is_initialized" in [f.subject for f in report.findings], str(report)
