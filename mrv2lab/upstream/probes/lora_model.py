"""A model of vLLM's own layers with its LoRA managers around it, for the two LoRA bugs."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

import torch

from mrv2lab.upstream.model_runner import (
    CPU,
    Request,
    Setup,
    Step,
    execute,
    make_model_config,
    make_model_runner,
    make_vllm_config,
)
from mrv2lab.upstream.platform import unwritten_memory
from mrv2lab.upstream.probe import Seen

VOCAB_SIZE, HIDDEN_SIZE, RANK, MAX_LORAS = 64, 32, 8, 3
DTYPE = torch.float16  # vLLM's LoRA kernels take no float32, and the interpreter gets bfloat16 wrong

Steps = tuple[tuple[Request, ...], ...]
STEPS: Steps = (  # adapters and lengths change from step to step; 0 is no adapter
    (Request((5,), 3, 1), Request((6,), 4, 2), Request((7,), 4, 0), Request((8,), 9, 3)),
    (Request((9,), 4, 2), Request((3,), 5, 1)),
    (Request((4,), 5, 0), Request((2,), 6, 0), Request((11,), 2, 1)),
    (Request((60,), 6, 3), Request((1,), 7, 3), Request((33,), 3, 1), Request((12,), 10, 2)),
)


class Decoder(torch.nn.Module):
    """An embedding and one projection; both take adapters."""

    embedding_modules: ClassVar = {"embed_tokens": "input_embeddings"}
    packed_modules_mapping: ClassVar[dict[str, list[str]]] = {}
    config = None

    def __init__(self) -> None:
        super().__init__()
        embedding = import_module("vllm.model_executor.layers.vocab_parallel_embedding")
        linear = import_module("vllm.model_executor.layers.linear")
        self.embed_tokens = embedding.VocabParallelEmbedding(VOCAB_SIZE, HIDDEN_SIZE, params_dtype=DTYPE)
        self.proj = linear.ColumnParallelLinear(HIDDEN_SIZE, HIDDEN_SIZE, bias=False, params_dtype=DTYPE)
        generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator).to(DTYPE)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, **unused: Any) -> torch.Tensor:
        """[num_tokens] -> [num_tokens, hidden_size]."""
        hidden_states: torch.Tensor = self.embed_tokens(input_ids)
        return torch.add(hidden_states, self.proj(hidden_states)[0])


def make_lora_runner(setup: Setup, *, memory: int, max_loras: int = MAX_LORAS, **settings: Any) -> Any:
    """A real runner with vLLM's worker manager, model manager, Punica wrapper and layers.

    Args:
        memory: the byte that memory nobody wrote holds where their metadata is allocated.
        settings: further ones of `LoRAConfig`.
    """
    lora_config = import_module("vllm.config.lora").LoRAConfig(
        max_lora_rank=RANK, max_loras=max_loras, max_cpu_loras=max_loras, lora_dtype=DTYPE, **settings
    )
    runner = make_model_runner(make_decoder(setup), setup, lora_config=lora_config)
    runner.vllm_config.model_config = make_model_config(
        get_vocab_size=lambda: VOCAB_SIZE,
        is_encoder_decoder=False,
        hf_config=SimpleNamespace(get_text_config=lambda: SimpleNamespace(max_position_embeddings=64)),
    )
    with unwritten_memory(memory):
        runner.model = runner.load_lora_model(runner.model, runner.vllm_config, CPU)
    runner.lora_manager._load_adapter = load_adapter  # vLLM's would read a checkpoint
    return runner


def make_decoder(setup: Setup) -> Any:
    """The model, of a class that vLLM accepts for LoRA."""
    interface = import_module("vllm.model_executor.models.interfaces").SupportsLoRA
    with import_module("vllm.config").set_current_vllm_config(make_vllm_config(setup)):
        return type("Decoder", (Decoder, interface), {})()


def load_adapter(request: Any) -> Any:
    """An adapter on both layers, weights by its id."""
    generator = torch.Generator().manual_seed(request.lora_int_id)

    def weights(module: str, input_dim: int) -> Any:
        lora_a = torch.randn(RANK, input_dim, generator=generator).to(DTYPE) / 4
        lora_b = torch.randn(HIDDEN_SIZE, RANK, generator=generator).to(DTYPE) / 4
        made = import_module("vllm.lora.lora_weights").LoRALayerWeights
        return made(module, RANK, RANK, lora_a, lora_b)

    loras = {"embed_tokens": weights("embed_tokens", VOCAB_SIZE), "proj": weights("proj", HIDDEN_SIZE)}
    return import_module("vllm.lora.lora_model").LoRAModel(request.lora_int_id, RANK, loras)


def start_up(runner: Any) -> dict[str, float]:
    """What an engine does before it serves, a profiling run and the captures; `start_up_metrics` of it."""
    with programmed_mappings() as mappings:
        runner._dummy_run(runner.max_num_tokens, skip_attn=True, is_profile=True)
        runner.capture_model()
    return start_up_metrics(mappings)


def start_up_metrics(mappings: list[list[int]]) -> dict[str, float]:
    """How many mappings to adapters there were, and the most adapters that one of them held."""
    adapters = [len(set(mapping) - {-1}) for mapping in mappings]
    return {"start_up_mappings": len(mappings), "start_up_adapters": max(adapters, default=0)}


@contextmanager
def programmed_mappings() -> Iterator[list[list[int]]]:
    """Adapters of the tokens, for every mapping that vLLM programs meanwhile.

    One mapping fills the kernel metadata of the tokens and that of the prompts.
    """
    wrapper = import_module("vllm.lora.punica_wrapper.punica_gpu").PunicaWrapperGPU
    original, mappings = wrapper.update_metadata, []

    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        mappings.append(self.token_lora_indices.tolist())

    with patch.object(wrapper, "update_metadata", noted):
        yield mappings


def reference(steps: Steps = STEPS, **settings: Any) -> list[Step]:
    """The same steps in a runner that never ran a dummy batch and has no graphs."""
    runner = make_lora_runner(Setup("NONE", (2, 4), max_num_reqs=4), memory=0, **settings)
    return [execute(runner, requests) for requests in steps]


def observe(setup: Setup, memory: int = 0, steps: Steps = STEPS, **settings: Any) -> Seen:
    """Start up as an engine does, then serve. Arguments as of `make_lora_runner`."""
    runner = make_lora_runner(setup, memory=memory, **settings)
    metrics = start_up(runner)
    return Seen([execute(runner, r) for r in steps], partial(reference, steps, **settings), metrics)
