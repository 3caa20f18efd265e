"""A small Llama-like decoder with adapters on every projection. Weights are random, made from a seed."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from mrv2lab.runner.attention import Attention
from mrv2lab.runner.block_table import NULL_BLOCK
from mrv2lab.runner.config import RunnerConfig
from mrv2lab.runner.lora import LinearWithLoRA
from mrv2lab.runner.pp_utils import PPGroup, get_pp_indices
from mrv2lab.runner.punica_wrapper import PunicaWrapper
from mrv2lab.runner.sequence import IntermediateTensors
from mrv2lab.runner.vocab_parallel_embedding import VocabParallelEmbedding, VocabParallelEmbeddingWithLoRA


def rms_norm(x: Tensor) -> Tensor:
    """Scale each row to unit root mean square."""
    return nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6)


def rotary(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary position embedding (arXiv 2104.09864) of x: [num_tokens, num_heads, head_dim]."""
    half = x.shape[-1] // 2
    frequency = 10000.0 ** (-torch.arange(half, device=x.device) / half)
    angle = positions[:, None, None] * frequency  # [num_tokens, 1, half]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class DecoderLayer(nn.Module):
    """Attention and a gated MLP, each with a residual."""

    def __init__(self, config: RunnerConfig, linear: "LinearFactory"):
        super().__init__()
        self.heads = (config.num_heads, config.head_dim)
        hidden, inner = config.hidden_size, config.intermediate_size
        self.qkv_proj = linear(3 * hidden, hidden, num_slices=3)
        self.o_proj = linear(hidden, hidden)
        self.gate_up_proj = linear(2 * inner, hidden, num_slices=2)
        self.down_proj = linear(hidden, inner)
        num_blocks = NULL_BLOCK + 1 + config.max_num_reqs * config.max_num_blocks
        self.attn = Attention(*self.heads, num_blocks, config.block_size, config.dtype)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return self.behind_attention(x, self.attn(*self.before_attention(x, positions)))

    def before_attention(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, each [num_tokens, num_heads, head_dim]."""
        q, k, v = (t.unflatten(-1, self.heads) for t in self.qkv_proj(rms_norm(x)).chunk(3, dim=-1))
        return rotary(q, positions), rotary(k, positions), v

    def behind_attention(self, x: Tensor, context: Tensor) -> Tensor:
        """Residual and MLP; context: [num_tokens, num_heads, head_dim]."""
        return torch.add(*self.behind_attention_apart(x, context))

    def behind_attention_apart(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Residual, and the MLP's output that is still to be added to it: what a stage hands on."""
        x = torch.add(x, self.o_proj(context.flatten(1)))
        gate, up = self.gate_up_proj(rms_norm(x)).chunk(2, dim=-1)
        return x, self.down_proj(nn.functional.silu(gate) * up)


class LinearFactory:
    """Makes the model's layers, with weights drawn in order from one seed. Without a wrapper no adapter can
    change them: those of a draft.
    """

    def __init__(self, config: RunnerConfig, punica_wrapper: PunicaWrapper | None = None):
        self.config, self.punica_wrapper = config, punica_wrapper
        self.generator = torch.Generator().manual_seed(config.seed)

    def weight(self, rows: int, columns: int) -> Tensor:
        """[rows, columns] with unit gain."""
        drawn = torch.randn(rows, columns, generator=self.generator)
        return (drawn / math.sqrt(columns)).to(self.config.dtype)

    def embedding(self) -> nn.Module:
        """Token ids to [num_tokens, hidden_size]; with adapters if the config asks for them."""
        config, sizes = self.config, (self.config.max_loras, self.config.max_lora_rank)
        base = VocabParallelEmbedding(self.weight(config.vocab_size, config.hidden_size))
        if not config.lora_embedding or self.punica_wrapper is None:
            return base
        return VocabParallelEmbeddingWithLoRA(base, *sizes, self.punica_wrapper)

    def __call__(self, rows: int, columns: int, num_slices: int = 1, for_logits: bool = False) -> Any:
        if self.punica_wrapper is not None:
            sizes = (num_slices, self.config.max_loras, self.config.max_lora_rank)
            return LinearWithLoRA(
                self.weight(rows, columns), *sizes, self.punica_wrapper, for_logits=for_logits
            )
        layer = nn.Linear(columns, rows, bias=False)
        layer.weight = nn.Parameter(self.weight(rows, columns), requires_grad=False)
        return layer


class Decoder(nn.Module):
    """Token ids to hidden states, and hidden states to logits; with several pipeline stages, a part of it.
    The first stage has the embedding and the first layers, the last has the other layers and the logits.
    """

    def __init__(self, config: RunnerConfig, linear: "LinearFactory", pp_group: PPGroup | None = None):
        super().__init__()
        self.config, self.pp_group = config, pp_group or PPGroup()
        self.embed_tokens = linear.embedding()
        self.layers = nn.ModuleList(DecoderLayer(config, linear) for _ in range(config.num_layers))
        self.lm_head = linear(config.vocab_size, config.hidden_size, for_logits=True)
        place = self.pp_group.rank_in_group, self.pp_group.world_size
        self.own_layers = get_pp_indices(config.num_layers, *place)

    def drop_other_stages(self) -> "Decoder":
        """Free the memory of what other stages compute. Mirrors `PPMissingLayer`.

        Missing layers stay as shapes, on torch's meta device: random weights, of adapters too, are drawn
        in the order of the whole model, so that every split of it is the same model.
        """
        for i, layer in enumerate(self.layers):
            if i not in self.own_layers:
                layer.to("meta")
        if not self.pp_group.is_first_rank:
            self.embed_tokens.to("meta")
        if not self.pp_group.is_last_rank:
            self.lm_head.to("meta")
        return self

    def forward(
        self, input_ids: Tensor, positions: Tensor, intermediate_tensors: IntermediateTensors | None = None
    ) -> Tensor | IntermediateTensors:
        """Run this stage's layers: on ids, [num_tokens], or what the previous stage computed. To
        [num_tokens, hidden_size] on the last stage, to intermediate tensors on the others.
        """
        if intermediate_tensors is None:
            x = self.embed(input_ids)
        else:
            x = torch.add(intermediate_tensors["residual"], intermediate_tensors["hidden_states"])
        for i in self.own_layers[:-1]:
            x = self.layer(i)(x, positions)
        last = self.layer(self.own_layers[-1])
        context = last.attn(*last.before_attention(x, positions))
        residual, hidden_states = last.behind_attention_apart(x, context)
        if not self.pp_group.is_last_rank:
            return IntermediateTensors({"hidden_states": hidden_states, "residual": residual})
        return rms_norm(torch.add(residual, hidden_states))

    def layer(self, index: int) -> DecoderLayer:
        """One of `layers`."""
        layer = self.layers[index]
        assert isinstance(layer, DecoderLayer)
        return layer

    def embed(self, input_ids: Tensor) -> Tensor:
        """[num_tokens] -> [num_tokens, hidden_size]."""
        embedded: Tensor = self.embed_tokens(input_ids)
        return embedded

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """[num_reqs, hidden_size] -> [num_reqs, vocab_size]."""
        logits: Tensor = self.lm_head(hidden_states)
        return logits
