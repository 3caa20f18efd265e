"""WHAT is captured: a mini Model Runner V2, small enough to read in an hour.

Files and classes carry the names of their counterparts in `vllm/v1/worker/gpu`. Start with
`model_runner.ModelRunner`.
"""

from mrv2lab.runner.config import CUDAGraphMode, RunnerConfig
from mrv2lab.runner.cudagraph_utils import AttentionStatePair
from mrv2lab.runner.engine import Engine
from mrv2lab.runner.forward_context import AttentionMetadata
from mrv2lab.runner.input_batch import InputBatch
from mrv2lab.runner.lora import LoRAModelManager
from mrv2lab.runner.model_runner import AttentionStates, ModelRunner, ModelRunnerOutput
from mrv2lab.runner.punica_wrapper import LoRAMapping
from mrv2lab.runner.sampler import SamplingParams
from mrv2lab.runner.scheduler import Request

__all__ = [
    "AttentionMetadata",
    "AttentionStatePair",
    "AttentionStates",
    "CUDAGraphMode",
    "Engine",
    "InputBatch",
    "LoRAMapping",
    "LoRAModelManager",
    "ModelRunner",
    "ModelRunnerOutput",
    "Request",
    "RunnerConfig",
    "SamplingParams",
]
