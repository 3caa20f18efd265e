"""A mini runner made of exchangeable parts: more machinery than the cases have, and more places to look.

Adapters change one projection only (`o_proj` of the last layer), the KV cache is scaled, position tables
grow, and logits come from graphs of their own. `build` puts one function into each seam.
"""

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from mrv2lab.graphs import poison
from mrv2lab.mystery.engine import attention, block_table, input_batch, logits_processor, rotary_embedding
from mrv2lab.mystery.engine import cudagraph_utils as cudagraph_utils
from mrv2lab.mystery.engine import lora as lora
from mrv2lab.mystery.engine import mlp as mlp
from mrv2lab.runner import CUDAGraphMode, ModelRunner, RunnerConfig
from mrv2lab.runner.model import Decoder

Part = Callable[..., Any]  # a function for a seam

CONFIG = RunnerConfig(num_layers=2, max_lora_rank=4, cudagraph_capture_sizes=(4, 8))


def build(parts: dict[str, Part], backend: str, mode: CUDAGraphMode = CUDAGraphMode.FULL) -> ModelRunner:
    """A runner, not ready yet, with a part in each seam. `file.seam`: the file here, what is done there."""
    config = RunnerConfig(**{**vars(CONFIG), "cudagraph_mode": mode})
    runner = ModelRunner(config, backend)
    assert isinstance(runner.model, Decoder)
    step = block_table.StepState()
    rotary_emb = rotary_embedding.RotaryEmbedding(config, runner.device, parts)
    runner.input_buffers = input_batch.StagedInputBuffers(config, rotary_emb, parts)
    runner.block_tables = block_table.SteppedBlockTables(config, runner.device, step, parts)
    buffers = attention.ContextBuffers(config, runner.device)
    for index in range(len(runner.model.layers)):
        layer = runner.model.layer(index)
        layer.attn = attention.ScaledAttention(layer.attn, index, buffers, step, parts)
        _put(layer, "before_attention", partial(rotary_emb.before_attention, layer))
        _put(layer.down_proj, "forward", MethodType(parts["mlp.down_proj"], layer.down_proj))
    _into_adapters(runner, runner.model, parts)
    if mode is not CUDAGraphMode.NONE:
        manager = runner.cudagraph_manager
        _put(manager, "dispatch", MethodType(parts["cudagraph_utils.dispatch"], manager))
        graphs = logits_processor.LogitsGraphs(runner.model, runner.backend, manager.pool)
        _put(runner.model, "compute_logits", MethodType(parts["logits_processor.compute_logits"], graphs))
    return runner


def make_ready(runner: ModelRunner) -> None:
    """Warm up and capture, in a pool whose free memory is loud: on a fresh GPU it often is zero."""
    poisoned = poison(runner.cudagraph_manager.pool, runner.backend)
    warm_up_and_capture(runner)
    del poisoned


def warm_up_and_capture(runner: ModelRunner) -> None:
    """The same in a pool as it is: an audit fills memory with patterns of its own."""
    runner.warm_up_and_capture()
    assert isinstance(runner.input_buffers, input_batch.StagedInputBuffers)
    adapters = [tensor for module in runner.lora_manager.modules for tensor in module.buffers()]
    _captured[runner] = [runner.input_buffers.rotary_emb.cos_sin_cache, *adapters]


# A graph holds addresses, not tensors. What parts may re-bind later must stay mapped, or a replay would not
# answer wrongly but take the CUDA context with it.
_captured: WeakKeyDictionary[ModelRunner, list[torch.Tensor]] = WeakKeyDictionary()


def _put(owner: object, name: str, part: Part) -> None:
    """Let an instance have a method of its own."""
    setattr(owner, name, part)


def _into_adapters(runner: ModelRunner, model: Decoder, parts: dict[str, Part]) -> None:
    """One projection has adapters; the others are as a base model's. Mirrors `target_modules` of PEFT."""
    manager = runner.lora_manager
    for module in manager.modules:
        _put(module, "add_lora", lambda *_: None)
    target = model.layer(len(model.layers) - 1).o_proj
    manager.modules = [target]
    wrapper = manager.punica_wrapper_mapping["language_model"]
    _put(target, "add_lora", MethodType(parts["lora.add_lora"], wrapper))
    _put(target, "set_lora", MethodType(parts["lora.set_lora"], target))
