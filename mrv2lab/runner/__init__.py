"""WHAT is captured: a mini Model Runner V2, small enough to read in an hour.

Files and classes carry the names of their counterparts in `vllm/v1/worker/gpu`, where they have one there;
else a docstring names the place. Start with `model_runner.ModelRunner`.
"""

from mrv2lab.runner.config import CUDAGraphMode, RunnerConfig
from mrv2lab.runner.cudagraph_utils import (
    AttentionStatePair,
    AttentionStatesOfSize,
    BatchExecutionDescriptor,
    attention_state,
)
from mrv2lab.runner.engine import Engine
from mrv2lab.runner.forward_context import AttentionMetadata
from mrv2lab.runner.input_batch import InputBatch
from mrv2lab.runner.lora import LoRAModelManager
from mrv2lab.runner.model_runner import AttentionStates, Build, ModelRunner, ModelRunnerOutput, PrepareInputs
from mrv2lab.runner.punica_wrapper import LoRAMapping
from mrv2lab.runner.sampler import SamplingParams
from mrv2lab.runner.scheduler import Request
from mrv2lab.runner.speculator import AttnStates, Speculator

__all__ = [
    "AttentionMetadata", "AttentionStatePair", "AttentionStates", "AttentionStatesOfSize", "AttnStates",
    "BatchExecutionDescriptor", "Build", "CUDAGraphMode", "Engine", "InputBatch", "LoRAMapping",
    "LoRAModelManager", "ModelRunner", "ModelRunnerOutput", "PrepareInputs", "Request", "RunnerConfig",
    "SamplingParams", "Speculator", "attention_state",
]  # fmt: skip
