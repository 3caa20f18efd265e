"""Checkpoints made on the spot: random weights in real architectures, from a seed."""

import json
from pathlib import Path
from typing import Any

import torch

LORA_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def make_qwen3(folder: Path, *, num_layers: int = 8, hidden_size: int = 512, vocab_size: int = 2048) -> Path:
    """A Qwen3 of this size, bfloat16, saved by transformers.

    Its weights have a spread at which attention and adapters both show in the logits.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 64,
        num_key_value_heads=max(1, hidden_size // 128),
        head_dim=64,
        max_position_embeddings=2048,
        initializer_range=0.05,
        tie_word_embeddings=False,
    )
    model: Any = Qwen3ForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    """A checkpoint of nothing but a config."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def make_qwen3_config(folder: Path) -> Path:
    """The shape of Qwen3-1.7B without weights."""
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "bfloat16",
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
        "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "tie_word_embeddings": False, "attention_bias": False, "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    return write_config(folder, config)


def make_adapter(folder: Path, model: Path, *, rank: int = 16, seed: int = 1) -> Path:
    """A PEFT adapter on all seven projections of every layer, strong enough to change every logit."""
    from safetensors.torch import load_file

    generator = torch.Generator().manual_seed(seed)
    factors = {}
    for name, weight in load_file(model / "model.safetensors").items():
        if name.split(".")[-2] in LORA_MODULES:
            outputs, inputs = weight.shape
            lora_a = torch.randn(rank, inputs, generator=generator) / inputs**0.5
            lora_b = torch.randn(outputs, rank, generator=generator) / rank**0.5
            factors[name.removesuffix(".weight")] = (lora_a, lora_b)
    return write_adapter(folder, model, factors)


def write_adapter(folder: Path, model: Path, factors: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> Path:
    """A PEFT adapter as files.

    Args:
        factors: name of a layer of the model to A [rank, inputs] and B [outputs, rank]; B @ A is added.
    """
    from safetensors.torch import save_file

    weights = {}
    for name, (lora_a, lora_b) in factors.items():
        weights[f"base_model.model.{name}.lora_A.weight"] = lora_a.cpu().contiguous()
        weights[f"base_model.model.{name}.lora_B.weight"] = lora_b.cpu().contiguous()
        rank = len(lora_a)
    folder.mkdir(parents=True)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": list(LORA_MODULES)}
    more = {"base_model_name_or_path": str(model), "task_type": "CAUSAL_LM", "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config | more))
    return folder


def make_mla_config(folder: Path, *, num_layers: int = 4) -> Path:
    """A DeepSeek-V3 shape without weights: latent attention (FlashMLA), dense layers, one layer for MTP."""
    config = {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "torch_dtype": "bfloat16",
        "vocab_size": 2048, "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": num_layers,
        "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "first_k_dense_replace": 2 * num_layers,
        "moe_intermediate_size": 256, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
        "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "topk_method": "noaux_tc",
        "scoring_func": "sigmoid", "norm_topk_prob": True, "moe_layer_freq": 1,
        "num_nextn_predict_layers": 1, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "max_position_embeddings": 4096, "tie_word_embeddings": False, "attention_bias": False,
        "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    return write_config(folder, config)


def use_spread_weights() -> None:
    """Let vLLM's `load_format="dummy"` draw them in this process."""
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    def load_weights(self: Any, model: torch.nn.Module, model_config: Any) -> None:
        spread_weights(model)

    DummyModelLoader.load_weights = load_weights


def spread_weights(model: torch.nn.Module, seed: int = 0) -> None:
    """Draw weights in place so that every layer matters: those of `load_format="dummy"` are too small.

    Matrices keep the size of what goes through them, norms are 1, everything else is 0.
    """
    generator = torch.Generator(device="cuda").manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            parameter.data.fill_(float("norm" in name))
            continue
        scale = 1.0 if "embed" in name else parameter.shape[-1] ** -0.5
        drawn = torch.randn(parameter.shape, generator=generator, device="cuda")
        parameter.data.copy_((drawn * scale).to(parameter.dtype))
