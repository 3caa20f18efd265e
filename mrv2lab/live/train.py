"""A Qwen3 with real margins: trained for less than a minute on a task that an adapter answers otherwise.

On random weights rounding flips near-ties, so generated tokens are a poor oracle. Here they are a good one.

The task: a line begins with `PERIOD` symbols. The base model repeats them over and over. The adapter has
learnt to add 1 to every symbol each time round. Nothing in the prompt tells which of the two is wanted.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import parametrize

from mrv2lab.live.models import LORA_MODULES, make_qwen3, write_adapter
from mrv2lab.live.protocol import tell_progress

NUM_SYMBOLS, PERIOD, ROUNDS = 64, 8, 5
LEARNT = 3e-3
"""Mean loss in nats below which training ends: at every position the right symbol is all but certain."""


class LowRank(torch.nn.Module):
    """What an adapter adds to a weight [outputs, inputs]: the product of two thin matrices."""

    def __init__(self, outputs: int, inputs: int, rank: int):
        super().__init__()
        self.lora_A = torch.nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.lora_B = torch.nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """The weight that the adapted layer uses."""
        return weight + self.lora_B @ self.lora_A


def lines(num_lines: int, shift: int, generator: torch.Generator) -> torch.Tensor:
    """Lines of the task, [num_lines, PERIOD * ROUNDS]: `shift` is added in every round."""
    device = generator.device
    first = torch.randint(NUM_SYMBOLS, (num_lines, PERIOD), generator=generator, device=device)
    rounds = torch.arange(ROUNDS, device=device).repeat_interleave(PERIOD)
    return (first.repeat(1, ROUNDS) + shift * rounds) % NUM_SYMBOLS


def train(model: Any, shift: int, *, max_steps: int = 3000, lr: float = 1e-3, seed: int = 0) -> float:
    """Train what requires gradients until the task is learnt.

    Returns:
        The last loss, in nats.

    Raises:
        RuntimeError: not learnt in `max_steps`.
    """
    generator = torch.Generator(device=model.device).manual_seed(seed)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    for _ in range(max_steps):
        tokens = lines(256, shift, generator)
        logits = model(tokens[:, :-1]).logits[:, PERIOD - 1 :]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, PERIOD:].flatten())
        if loss.item() < LEARNT:
            return loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    raise RuntimeError(f"loss {loss.item():.3g} after {max_steps} steps; {LEARNT:g} was expected")


def make_trained_qwen3(folder: Path, *, hidden_size: int = 256, rank: int = 16) -> tuple[Path, Path]:
    """Train a model, then an adapter on all its projections.

    Returns:
        The folders of a Qwen3 checkpoint in bfloat16 and of a PEFT adapter.
    """
    from transformers import AutoModelForCausalLM

    tell_progress(0.1, "training a model and an adapter")
    path = make_qwen3(folder / "model", num_layers=2, hidden_size=hidden_size, vocab_size=NUM_SYMBOLS)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    model.to(device)
    train(model, shift=0)
    model.to(torch.bfloat16).save_pretrained(path)
    model.float().requires_grad_(False)
    return path, _train_adapter(model, path, folder / "adapter", rank)


def _train_adapter(model: Any, path: Path, folder: Path, rank: int) -> Path:
    layers = {n: m for n, m in model.named_modules() if n.rpartition(".")[2] in LORA_MODULES}
    for layer in layers.values():
        outputs, inputs = layer.weight.shape
        low_rank = LowRank(outputs, inputs, rank).to(layer.weight.device)
        parametrize.register_parametrization(layer, "weight", low_rank)
    train(model, shift=1)
    factors = {name: layer.parametrizations.weight[0] for name, layer in layers.items()}
    return write_adapter(folder, path, {n: (f.lora_A.data, f.lora_B.data) for n, f in factors.items()})


def make_eagle_head(folder: Path, model: Path, *, seed: int = 2) -> Path:
    """A random EAGLE head: one Llama layer that drafts for a model, seldom rightly. It changes no answer."""
    from safetensors.torch import save_file

    target = json.loads((model / "config.json").read_text())
    hidden, inner = target["hidden_size"], target["intermediate_size"]
    heads, kv_heads, dim = target["num_attention_heads"], target["num_key_value_heads"], target["head_dim"]
    shapes = {
        "fc": (hidden, 2 * hidden),
        "layers.0.self_attn.q_proj": (heads * dim, hidden),
        "layers.0.self_attn.k_proj": (kv_heads * dim, hidden),
        "layers.0.self_attn.v_proj": (kv_heads * dim, hidden),
        "layers.0.self_attn.o_proj": (hidden, heads * dim),
        "layers.0.mlp.gate_proj": (inner, hidden),
        "layers.0.mlp.up_proj": (inner, hidden),
        "layers.0.mlp.down_proj": (hidden, inner),
    }
    generator = torch.Generator().manual_seed(seed)
    weights = {
        f"{name}.weight": (torch.randn(shape, generator=generator) / shape[1] ** 0.5).bfloat16()
        for name, shape in shapes.items()
    }
    weights["layers.0.post_attention_layernorm.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors")
    same = ["vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"]
    same += ["head_dim", "max_position_embeddings", "rms_norm_eps"]
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1}
    config |= {"torch_dtype": "bfloat16", "tie_word_embeddings": False}
    config |= {name: target[name] for name in same}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
