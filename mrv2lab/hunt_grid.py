"""What a hunt may run: small models, ways to capture, features, and which of them together."""

import json
import os
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from typing import Any, NamedTuple

from mrv2lab import results, sources
from mrv2lab.bench_engine import MODES as TIMED
from mrv2lab.bench_engine import Mode
from mrv2lab.errors import choose
from mrv2lab.live.hunt_models import MODELS, WITH_ADAPTERS
from mrv2lab.live.releases import installed
from mrv2lab.live.rung import ENVIRONMENT
from mrv2lab.results import Strict
from mrv2lab.upstream.releases import TARGET

BESIDES = ("upstream", "live.pp", "live.releases", "live.variants", "bench_engine", "hunt_told")
TIMEOUT_S, COMPILED_TIMEOUT_S = 150, 400
_LISTENED = ("VLLM_", "CUDA_", "TORCH", "PYTORCH", "TRITON", "NCCL_")


class Feature(NamedTuple):
    """What an engine is asked for beside its graphs."""

    engine: dict[str, Any]  # arguments of `vllm.LLM`
    models: tuple[str, ...] = tuple(MODELS)
    modes: tuple[str, ...] = ("full_decode_only",)  # in which it is asked for unless somebody names one
    sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 64)  # that are captured
    adapters: int = 0


_BREAKS = ("full_decode_only", "breakable")
_LORA = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}

MODES = {"full": Mode(0, "FULL"), "full_decode_only": Mode(0, "FULL_DECODE_ONLY")} | {
    name: TIMED[name] for name in ("breakable", "full_and_piecewise", "piecewise")
}

FEATURES = {
    "plain": Feature({}, modes=(*_BREAKS, "full", "full_and_piecewise")),
    "fp8_kv": Feature({"kv_cache_dtype": "fp8"}, modes=_BREAKS),
    "sync": Feature({"async_scheduling": False}),  # else vLLM turns it on by itself, but for n-gram drafts
    "prefix": Feature({"enable_prefix_caching": True}, modes=_BREAKS),
    "chunked": Feature({"max_num_batched_tokens": 64}, modes=_BREAKS),
    # More requests than seats: some end, others begin, and prompts stand beside decodes.
    "waves": Feature(
        {"max_num_seqs": 4, "max_num_batched_tokens": 192}, modes=(*_BREAKS, "full_and_piecewise")
    ),
    "odd": Feature({"max_num_seqs": 7}, sizes=(1, 3, 6, 10, 25)),
    "half": Feature({"dtype": "float16"}),
    "adapters": Feature(_LORA, WITH_ADAPTERS, adapters=2),
    "adapters_keyed": Feature(_LORA | {"specialize_active_lora": True}, WITH_ADAPTERS, adapters=2),
    "flash_mla": Feature({"attention_backend": "FLASHMLA", "block_size": 64}, ("deepseek",)),
    "mtp": Feature({"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}, ("deepseek",)),
    "ngram": Feature(
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}},
        ("qwen3",),
    ),
}

COMPILED = ("llama", "qwen3_moe", "gemma3", "gpt_oss")
"""The models that are compiled unless somebody names others: that is what takes longest."""


class Configuration(Strict):
    """What one engine is."""

    model: str
    mode: str
    feature: str

    @property
    def file(self) -> str:
        """Its outcome's name: what it is, the code of this package, the versions, and where it runs."""
        whole = [self.job_settings(), *_stack()]
        return f"{self.name.replace(' ', '-')}-{sha256(json.dumps(whole).encode()).hexdigest()[:12]}.json"

    @property
    def name(self) -> str:
        return f"{self.model} {self.mode} {self.feature}"

    @property
    def breaks(self) -> bool:
        return MODES[self.mode].breaks

    @property
    def timeout_s(self) -> int:
        return COMPILED_TIMEOUT_S if MODES[self.mode].compilation else TIMEOUT_S

    def job_settings(self) -> dict[str, Any]:
        """What its worker has to know, `live.hunted.Asked`."""
        mode, feature = MODES[self.mode], FEATURES[self.feature]
        return {
            "labels": self.model_dump(), "config": MODELS[self.model], "compilation": mode.compilation,
            "graphs": mode.graphs, "sizes": feature.sizes, "engine": feature.engine,
            "adapters": feature.adapters, "timeout_s": self.timeout_s,
        }  # fmt: skip


@cache
def _stack() -> list[Any]:
    versions = [results.version_or_none(name) for name in ("vllm", "torch", "triton", "transformers")]
    made_by = sources.of("vllm", "live.hunted", "hunt", besides=BESIDES)
    return [made_by, versions, results.nvidia_smi("name,driver_version"), _inherited()]


def _inherited() -> dict[str, str]:
    """Variables that an engine may listen to and a hunt does not set; where a cache lies says nothing."""
    set_anyway = {*ENVIRONMENT, "CUDA_MODULE_LOADING"}  # the latter by torch, once it has begun with a GPU
    names = sorted(name for name in os.environ if name.startswith(_LISTENED) and name not in set_anyway)
    return {name: os.environ[name] for name in names if "CACHE" not in name or "/" not in os.environ[name]}


def asked(models: Sequence[str], modes: Sequence[str], features: Sequence[str]) -> list[Configuration]:
    """The usual ones of these names, empty for all; where each kind is named, every combination.

    Raises:
        BadInput: there is none of that name.
    """
    known = {"model": (models, list(MODELS)), "mode": (modes, list(MODES))}
    known["feature"] = (features, list(FEATURES))
    for kind, (names, possible) in known.items():
        for name in names:
            choose(kind, name, possible)
    return [
        Configuration(model=model, mode=mode, feature=feature)
        for model in models or MODELS
        for mode in modes or MODES
        for feature in features or FEATURES
        if (models and modes and features) or _is_usual(model, mode, feature)
    ]


def has_latent_attention(model: str) -> bool:
    return "kv_lora_rank" in MODELS.get(model, {})


def _is_usual(model: str, mode: str, feature: str) -> bool:
    fits = model in FEATURES[feature].models and mode in FEATURES[feature].modes
    # In 0.23.0 graphs break at latent attention only: all others are wrong, case `breakable_graph`.
    known = mode == "breakable" and feature != "plain" and installed() == TARGET
    known = known and not has_latent_attention(model)
    return fits and not known and (model in COMPILED or not MODES[mode].compilation)
