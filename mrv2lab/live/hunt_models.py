"""Small models of many architectures, a config and drawn weights each: what `mrv2lab hunt` serves."""

from typing import Any

import torch

from mrv2lab.live.models import spread_weights

_ALIKE: dict[str, Any] = {
    "torch_dtype": "bfloat16", "vocab_size": 2048, "hidden_size": 512, "intermediate_size": 1024,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
    "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "attention_bias": False, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1,
    "pad_token_id": 0,
}  # fmt: skip
_EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True}
_WINDOW: dict[str, Any] = {
    "sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 16, "mamba_d_head": 64, "mamba_d_state": 64, "mamba_n_groups": 1, "mamba_d_conv": 4,
    "mamba_expand": 2, "mamba_chunk_size": 128, "mamba_conv_bias": True, "mamba_proj_bias": False,
}  # fmt: skip

# By name: the architecture, `model_type`, and in what the config is another one than `_ALIKE`.
_MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "llama", {}),
    "qwen2": ("Qwen2ForCausalLM", "qwen2", {}),  # with biases
    "qwen3": ("Qwen3ForCausalLM", "qwen3", {}),
    "mistral": ("MistralForCausalLM", "mistral", {"sliding_window": 64}),
    "phi3": ("Phi3ForCausalLM", "phi3", {}),
    "granite": (
        "GraniteForCausalLM", "granite",
        {"residual_multiplier": 0.5, "attention_multiplier": 0.125, "logits_scaling": 2.0},
    ),
    "glm4": ("Glm4ForCausalLM", "glm4", {"attention_bias": True, "partial_rotary_factor": 0.5}),
    "gemma3": (
        "Gemma3ForCausalLM", "gemma3_text",
        _WINDOW | {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 64,
                   "rope_local_base_freq": 1000.0, "tie_word_embeddings": True},
    ),
    "olmo3": ("Olmo3ForCausalLM", "olmo3", _WINDOW),
    "cohere2": (
        "Cohere2ForCausalLM", "cohere2",
        _WINDOW | {"layer_norm_eps": 1e-5, "logit_scale": 0.25, "tie_word_embeddings": True},
    ),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM", "qwen3_moe",
        _EXPERTS | {"moe_intermediate_size": 256, "decoder_sparse_step": 1, "mlp_only_layers": []},
    ),
    "mixtral": ("MixtralForCausalLM", "mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "olmoe": ("OlmoeForCausalLM", "olmoe", _EXPERTS | {"num_key_value_heads": 8}),
    "gpt_oss": (
        "GptOssForCausalLM", "gpt_oss",
        _WINDOW | {"num_local_experts": 8, "num_experts_per_tok": 2, "attention_bias": True,
                   "intermediate_size": 512},
    ),
    "deepseek": (  # latent attention; the first layer is dense
        "DeepseekV3ForCausalLM", "deepseek_v3",
        {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 64, "q_lora_rank": None,
         "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
         "first_k_dense_replace": 1, "moe_intermediate_size": 256, "n_routed_experts": 8,
         "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
         "routed_scaling_factor": 1.0, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
         "norm_topk_prob": True, "moe_layer_freq": 1, "num_nextn_predict_layers": 1},
    ),
    "falcon_h1": (
        "FalconH1ForCausalLM", "falcon_h1",
        _MAMBA | {"mamba_d_ssm": 1024, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
    "granite_hybrid": (
        "GraniteMoeHybridForCausalLM", "granitemoehybrid",
        _MAMBA | {"layer_types": ["mamba", "attention"] * 2, "shared_intermediate_size": 512,
                  "intermediate_size": 256, "num_local_experts": 8, "num_experts_per_tok": 2,
                  "attention_multiplier": 0.125, "position_embedding_type": "rope"},
    ),
    "mamba2": (
        "Mamba2ForCausalLM", "mamba2",
        {"num_heads": 16, "head_dim": 64, "state_size": 64, "n_groups": 1, "expand": 2, "conv_kernel": 4,
         "chunk_size": 128, "layer_norm_epsilon": 1e-5, "use_bias": False, "use_conv_bias": True},
    ),
}  # fmt: skip

MODELS = {
    name: _ALIKE | {"architectures": [architecture], "model_type": model_type} | other
    for name, (architecture, model_type, other) in _MODELS.items()
}
"""By name: what its `config.json` holds."""

WITH_ADAPTERS = ("llama", "qwen3", "mistral", "gemma3", "granite", "qwen3_moe")
"""Models whose attention takes adapters of `adapter_factors`."""


def draw(model: torch.nn.Module) -> None:
    """Weights at which attention, state, sinks, biases and experts all show in the logits.

    `spread_weights` gives vectors 0 or 1. A state that decays at once or never, a query that looks everywhere
    alike, and a bias of 0 would hide a step that reads a wrong one.
    """
    spread_weights(model)
    scales = type(model).__name__.startswith("Gemma")  # embeddings by the root of their size: too loud
    generator = torch.Generator(device="cuda").manual_seed(1)
    for name, parameter in model.named_parameters():
        last, data = name.rsplit(".", 1)[-1], parameter.data
        drawn = torch.rand(data.shape, generator=generator, device="cuda")
        if last in ("A", "A_log"):
            data.copy_(-0.2 - 2 * drawn)  # vLLM keeps -exp(A_log)
        elif last == "D":
            data.copy_(0.5 + drawn)
        elif last == "dt_bias":
            data.copy_(-3 + 2 * drawn)
        elif last == "sinks" or "bias" in last:
            data.copy_(drawn - 0.5)
        elif any(of in name for of in ("q_norm", "k_norm", "qkv_proj.weight")):
            data.mul_(1.5)  # so that a query has few keys that count
        elif scales and "embed_tokens" in name:
            data.mul_(data.shape[-1] ** -0.5)


def adapter_factors(config: dict[str, Any], seed: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """For `models.write_adapter`: an adapter of rank 8 on the attention of every layer."""
    generator = torch.Generator().manual_seed(seed)
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    query, key = (config[f"num_{heads}_heads"] * head_dim for heads in ("attention", "key_value"))
    shapes = {"q_proj": (query, hidden), "k_proj": (key, hidden), "v_proj": (key, hidden),
              "o_proj": (hidden, query)}  # fmt: skip
    return {
        f"model.layers.{layer}.self_attn.{name}": (
            torch.randn(8, inputs, generator=generator) / inputs**0.5,
            torch.randn(outputs, 8, generator=generator) / 8**0.5,
        )
        for layer in range(config["num_hidden_layers"])
        for name, (outputs, inputs) in shapes.items()
    }
