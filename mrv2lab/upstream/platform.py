"""Makes vLLM's own Python run on a CPU, its graphs on the emulator: everything that is replaced, and why.

vLLM's wheel is built for CUDA, and none of its libraries load without a driver. Its Python half does
import beside a CPU build of torch. What then remains of CUDA is replaced here, one `Replacement` after
the other, in the process that calls `apply` and nowhere else. Of vLLM's LoRA that is the table of block
sizes, and a wrapper marks which of its metadata is the host's. Nothing of the graph managers, of LoRA's
layers and managers or of attention metadata is replaced: those are what a probe observes. Of the runner
`model_runner` overrides what reads the scheduler's state.
"""

import functools
import os
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from mrv2lab.graphs import CapturedGraph, CaptureSession, GraphPool, host, new_pool, session
from mrv2lab.kernels import flash_mla
from mrv2lab.upstream.environment import ENVIRONMENT

LOUD_BYTE = 0x7F
"""Memory of this byte is loud in every type: 3.4e38 as a float32, 2139062143 as an int32."""


@dataclass(frozen=True)
class Replacement:
    """One thing of torch's or vLLM's that a CPU has not, and what stands in for it."""

    target: str  # `module:attribute`, also where another module of vLLM's imported it by name
    by: Any  # what stands there instead; a module stands in for one that would have to be imported
    reason: str  # why it has to
    made: bool = False  # `by` is given the original and returns what stands there


# ---- what stands in ----


class EmulatedCUDAGraph:
    """`torch.cuda.CUDAGraph`, with a tape of the emulator inside."""

    def __init__(self, keep_graph: bool = False):
        self.captured: CapturedGraph | None = None
        self._session: CaptureSession | None = None

    def capture_begin(self, pool: GraphPool | None = None, capture_error_mode: str = "global") -> None:
        self._session = session(backend="emulated", pool=pool)
        self._session.__enter__()

    def capture_end(self) -> None:
        assert self._session is not None
        self._session.__exit__(None, None, None)
        self.captured, self._session = self._session.graph(None), None

    def replay(self) -> None:
        assert self.captured is not None
        self.captured.replay()


@contextmanager
def graph(cuda_graph: EmulatedCUDAGraph, pool: GraphPool | None = None, **options: Any) -> Iterator[None]:
    """`torch.cuda.graph`, without its streams."""
    cuda_graph.capture_begin(pool)
    try:
        yield
    finally:
        cuda_graph.capture_end()


def graph_pool_handle() -> GraphPool:
    """`torch.cuda.graph_pool_handle`: here the pool is its own handle."""
    return new_pool("emulated")


def weak_ref_tensor(tensor: Any) -> Any:
    """The same memory, not kept alive: vLLM's is a compiled op. Any pool knows whose memory is whose."""
    return new_pool("emulated").alias(tensor) if isinstance(tensor, torch.Tensor) else tensor


def weak_ref_tensors(tensors: Any) -> Any:
    """`weak_ref_tensor` on everything in a tuple, list, dict or `IntermediateTensors`."""
    if hasattr(tensors, "tensors"):
        return type(tensors)({name: weak_ref_tensor(t) for name, t in tensors.tensors.items()})
    return tree_map_only(torch.Tensor, weak_ref_tensor, tensors)


class Stream:
    """`torch.cuda.Stream`: a name for the one order in which a CPU works."""

    def __init__(self, *args: Any, **kwargs: Any):
        pass


class Group:
    """A process group of one, at a chosen place in the pipeline."""

    rank = rank_in_group = 0
    world_size = 1
    device_communicator = None

    def __init__(self, is_first_rank: bool = True, is_last_rank: bool = True):
        self.is_first_rank = is_first_rank
        self.is_last_rank = is_last_rank

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


@contextmanager
def graph_capture(device: torch.device) -> Iterator[None]:
    """`graph_capture` without a second stream and without communicators."""
    yield


def get_lora_op_configs(op_type: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Blocks that hold the whole of a tiny problem."""
    blocks = {"block_m": 16, "block_n": 32, "block_k": 32, "split_k": 1, "group_size_m": 1}
    return blocks | {"num_warps": 4, "num_ctas": 1, "num_stages": 1, "max_nreg": None}


def async_tensor_h2d(data: Any, *args: Any, out: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor:
    """A new tensor, or `out`, which releases from 0.30 on may give, written over.

    The order of the other parameters has changed between releases, their types have not.
    """
    if out is not None:
        return out.copy_(torch.as_tensor(data))
    dtype = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.dtype)), None)
    return torch.as_tensor(data, dtype=dtype).clone()


def dense_decode_fwd(
    q: torch.Tensor,  # [batch_size, 1, num_heads, head_dim]
    k_cache: torch.Tensor,  # [num_blocks, page_size, 1, head_dim]
    head_dim_v: int,
    cache_seqlens: torch.Tensor,
    block_table: torch.Tensor,
    softmax_scale: float,
    causal: bool,
    tile_scheduler_metadata: torch.Tensor | None,
    num_splits: torch.Tensor | None,
    out: torch.Tensor | None = None,  # since 0.20.2
) -> tuple[torch.Tensor, None, torch.Tensor | None, torch.Tensor | None]:
    """FlashMLA's compiled op on our kernels: without a plan it allocates one and launches the planner."""
    result, tile_scheduler_metadata, num_splits = flash_mla.dense_decode_fwd(
        q.squeeze(1), k_cache.squeeze(2), head_dim_v, cache_seqlens, block_table, softmax_scale,
        tile_scheduler_metadata, num_splits,
    )  # fmt: skip
    return result.unsqueeze(1), None, tile_scheduler_metadata, num_splits


def nothing(*args: Any, **kwargs: Any) -> None:
    """Where there is no device to wait for, to tidy up or to choose."""


def _no_memory(*args: Any) -> tuple[int, int]:
    return 0, 0


def emulated_platform(original: Any) -> Any:
    """A platform of vLLM's own kind for others than its own: it takes native code everywhere."""
    interface = import_module("vllm.platforms.interface")

    class EmulatedPlatform(interface.Platform):  # type: ignore[name-defined, misc]
        _enum = interface.PlatformEnum.OOT
        device_name = device_type = "cpu"
        dispatch_key = "CPU"
        graph_pool_handle = staticmethod(graph_pool_handle)

        @classmethod
        def get_punica_wrapper(cls) -> str:
            return "vllm.lora.punica_wrapper.punica_gpu.PunicaWrapperGPU"

        @classmethod
        def is_pin_memory_available(cls) -> bool:
            return False

        @classmethod
        def get_current_memory_usage(cls, device: Any = None) -> float:
            return 0.0

    return EmulatedPlatform()


def marks_host_memory(make: Callable[..., Any]) -> Any:
    """`LoRAKernelMeta.make`, telling the emulator which tensors are the host's: their names end in `_cpu`."""

    def marked(*args: Any, **kwargs: Any) -> Any:
        made = make(*args, **kwargs)
        for name, value in vars(made).items():
            if name.endswith("_cpu"):
                host(value)
        return made

    return staticmethod(marked)


REPLACEMENTS = (
    Replacement("torch.cuda:CUDAGraph", EmulatedCUDAGraph, "records on the emulator's tape"),
    Replacement("torch.cuda:graph", graph, "begins and ends a recording; there are no streams"),
    Replacement("torch.cuda:graph_pool_handle", graph_pool_handle, "captures share the emulator's pool"),
    Replacement("torch.cuda:Stream", Stream, "work on a CPU has one order"),
    Replacement("torch.cuda:mem_get_info", _no_memory, "the runner logs what capture took"),
    Replacement("torch.accelerator:get_memory_info", _no_memory, "the same, from 0.25 on"),
    Replacement("torch.accelerator:empty_cache", nothing, "no caching allocator"),
    Replacement("torch.accelerator:synchronize", nothing, "nothing runs behind Python's back"),
    Replacement("torch:ops._flashmla_C.dense_decode_fwd", dense_decode_fwd, "is a compiled op"),
    Replacement("vllm:_flashmla_C", types.ModuleType("vllm._flashmla_C"), "is a compiled module"),
    Replacement("vllm.platforms:current_platform", emulated_platform,
                "built for CUDA, vLLM finds no platform; it has room for one of ours", made=True),
    Replacement("vllm.utils.torch_utils:weak_ref_tensor", weak_ref_tensor, "is a compiled op"),
    Replacement("vllm.utils.torch_utils:weak_ref_tensors", weak_ref_tensors, "calls a compiled op"),
    Replacement("vllm.utils.torch_utils:async_tensor_h2d", async_tensor_h2d, "page-locks memory"),
    Replacement("vllm.utils.torch_utils:PIN_MEMORY", False, "is asked before the platform is known"),
    Replacement("vllm.distributed.parallel_state:_TP", Group(), "one process, no torch.distributed"),
    Replacement("vllm.distributed.parallel_state:_PP", Group(), "the same; `pipeline_rank` moves it"),
    Replacement("vllm.distributed.parallel_state:graph_capture", graph_capture, "no second stream"),
    Replacement("vllm.distributed.device_communicators.pynccl_allocator:set_graph_pool_id", nothing,
                "tells NCCL's allocator about the pool"),
    Replacement("vllm.lora.ops.triton_ops.utils:get_lora_op_configs", get_lora_op_configs,
                "the usual split of 64 takes the interpreter a second each"),
    Replacement("vllm.lora.ops.triton_ops.lora_kernel_metadata:LoRAKernelMeta.make", marks_host_memory,
                "here all memory is the CPU's, and the emulator must know which plays the host's", made=True),
)  # fmt: skip
"""Everything that is replaced, in the order in which it is."""


# ---- putting it in place ----


def apply() -> None:
    """Replace all of the above in this process, whose `sys.path` leads to one release. Imports vLLM.

    Raises:
        RuntimeError: vLLM was imported before, so what it imported by name cannot be replaced any more; or
            the process was started without `ENVIRONMENT`, which Triton has read by now.
    """
    if any(name.partition(".")[0] == "vllm" for name in sys.modules):
        raise RuntimeError("vLLM is imported already; replace what it needs before, in a process of its own")
    if wrong := {name for name, value in ENVIRONMENT.items() if os.environ.get(name) != value}:
        raise RuntimeError(f"start this process with the environment that vLLM needs here: {sorted(wrong)}")
    for replacement in REPLACEMENTS:
        put_in_place(replacement)


def put_in_place(replacement: Replacement) -> None:
    """Replace at home, and in every loaded module of vLLM that imported the original by name."""
    module_name, _, attribute = replacement.target.partition(":")
    if isinstance(replacement.by, types.ModuleType):
        sys.modules[f"{module_name}.{attribute}"] = replacement.by
        return
    *path, name = attribute.split(".")
    home = functools.reduce(getattr, path, import_module(module_name))
    if module_name.startswith("vllm") and not hasattr(home, name):  # not every release has everything
        return
    original = getattr(home, name, None)
    by = replacement.by(original) if replacement.made else replacement.by
    setattr(home, name, by)
    for module in [m for n, m in sys.modules.items() if n.startswith("vllm.")]:
        if vars(module).get(name) is original is not None:
            setattr(module, name, by)


@contextmanager
def pipeline_rank(*, is_first: bool, is_last: bool) -> Iterator[None]:
    """What is built inside believes to be at this place of a pipeline."""
    parallel_state = vars(import_module("vllm.distributed.parallel_state"))
    before, parallel_state["_PP"] = parallel_state["_PP"], Group(is_first, is_last)
    try:
        yield
    finally:
        parallel_state["_PP"] = before


class unwritten_memory(TorchFunctionMode):
    """What `torch.empty` makes inside holds this byte everywhere: memory that nobody wrote holds anything."""

    def __init__(self, byte: int):
        super().__init__()
        self.byte = byte

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.empty:
            result.untyped_storage().fill_(self.byte)  # a view as bytes is not to be had of every shape
        return result
