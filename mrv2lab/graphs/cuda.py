"""The CUDA executor: `torch.cuda.CUDAGraph`, and what the driver knows about the nodes inside.

The graph keeps its `cudaGraph_t` (`keep_graph=True`), so that kernels, grids and addresses are read
from the very thing that will be replayed, not from what Python believes it launched.
"""

import ctypes
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from mrv2lab.errors import CaptureError
from mrv2lab.graphs.base import (
    NESTED,
    CapturedGraph,
    CaptureSession,
    GraphPool,
    Node,
    begin_observers,
    end_observers,
    no_garbage_collection,
)
from mrv2lab.graphs.guard import Memory, no_host_reads

_MEMORY = Memory("cuda", lambda tensor: tensor.is_cuda, lambda tensor: tensor.is_pinned())


class CudaPool(GraphPool):
    """A private memory pool of the CUDA caching allocator."""

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor made from a bare address, through the CUDA array interface that torch reads."""
        if not tensor.is_cuda or not tensor.numel():
            return tensor
        elements = 1 + sum((n - 1) * s for n, s in zip(tensor.size(), tensor.stride(), strict=True))
        memory = torch.as_tensor(_Memory(tensor.data_ptr(), elements * tensor.itemsize), device=tensor.device)
        return memory.view(tensor.dtype).as_strided(tensor.size(), tensor.stride())

    @property
    def num_bytes(self) -> int:
        """What the pool has taken from the device."""
        segments = torch.cuda.memory_snapshot()
        return sum(s["total_size"] for s in segments if tuple(s["segment_pool_id"]) == tuple(self.handle))


class _Memory:
    """Bytes at an address, owned by somebody else."""

    def __init__(self, address: int, num_bytes: int):
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


class CudaGraph(CapturedGraph):
    """An instantiated CUDA graph together with its pool, which must outlive it."""

    def __init__(self, outputs: Any, graph: torch.cuda.CUDAGraph, pool: CudaPool):
        super().__init__(outputs, read_nodes(graph))
        self._graph = graph
        self._pool = pool

    def _replay(self) -> None:
        self._graph.replay()


class CudaSession(CaptureSession):
    """Captures what this thread issues, on a side stream. One at a time in a thread."""

    def __init__(self, pool: CudaPool | None):
        self._pool = pool or CudaPool()
        self._graph = torch.cuda.CUDAGraph(keep_graph=True)

    def __enter__(self) -> "CudaSession":
        if torch.cuda.is_current_stream_capturing():
            raise CaptureError(NESTED)
        self._contexts = ExitStack()
        self._contexts.enter_context(no_garbage_collection())
        self._contexts.enter_context(_released_on_error(self._graph))
        self._contexts.enter_context(torch.cuda.graph(self._graph, pool=self._pool.handle))
        self._contexts.enter_context(no_host_reads(_MEMORY))
        begin_observers()
        return self

    def __exit__(self, *exception: Any) -> None:
        end_observers()
        with warnings.catch_warnings():
            # An empty graph is a finding here, not a mistake of the caller's.
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            self._contexts.__exit__(*exception)

    def graph(self, outputs: Any) -> CudaGraph:
        self._graph.instantiate()
        return CudaGraph(outputs, self._graph, self._pool)


@contextmanager
def _released_on_error(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Leave no half-captured graph and no foreign current stream behind."""
    stream = torch.cuda.current_stream()
    try:
        yield
    except Exception as error:
        torch.cuda.set_stream(stream)
        graph.reset()
        if isinstance(error, RuntimeError) and "captur" in str(error):
            raise CaptureError(f"CUDA refused the capture: {str(error).splitlines()[0]}") from error
        raise


def num_nodes(graph: torch.cuda.CUDAGraph) -> int:
    """How many nodes a graph has; it must have been made with `keep_graph=True`."""
    from cuda.bindings import driver

    _, count = _checked(driver.cuGraphGetNodes(driver.CUgraph(graph.raw_cuda_graph())))
    return int(count)


def read_nodes(graph: torch.cuda.CUDAGraph) -> tuple[Node, ...]:
    """Name, grid and addresses of every node, from the driver, in order of capture."""
    from cuda.bindings import driver

    handle = driver.CUgraph(graph.raw_cuda_graph())
    _, count = _checked(driver.cuGraphGetNodes(handle))
    if not count:
        return ()
    nodes, _ = _checked(driver.cuGraphGetNodes(handle, count))
    return tuple(_read_node(driver, node) for node in nodes)


def _checked(result: tuple[Any, ...]) -> Any:
    """Unpack a driver call, whose first value is its status."""
    status, *values = result
    if status != 0:
        raise CaptureError(f"the CUDA driver answered {status} when asked about a captured graph")
    return values[0] if len(values) == 1 else values


def _read_node(driver: Any, node: Any) -> Node:
    kind = _checked(driver.cuGraphNodeGetType(node))
    kinds = driver.CUgraphNodeType
    if kind == kinds.CU_GRAPH_NODE_TYPE_KERNEL:
        return _read_kernel(driver, node)
    if kind == kinds.CU_GRAPH_NODE_TYPE_MEMCPY:
        params = _checked(driver.cuGraphMemcpyNodeGetParams(node))
        return Node("memcpy", None, (int(params.srcDevice), int(params.dstDevice)))
    if kind == kinds.CU_GRAPH_NODE_TYPE_MEMSET:
        return Node("memset", None, (int(_checked(driver.cuGraphMemsetNodeGetParams(node)).dst),))
    return Node(kind.name.removeprefix("CU_GRAPH_NODE_TYPE_").lower(), None, ())


def _read_kernel(driver: Any, node: Any) -> Node:
    params = _checked(driver.cuGraphKernelNodeGetParams(node))
    if int(params.func):
        name = _checked(driver.cuFuncGetName(params.func))
        addresses = _pointers(driver, params, lambda i: driver.cuFuncGetParamInfo(params.func, i))
    else:
        name = _checked(driver.cuKernelGetName(params.kern))
        addresses = _pointers(driver, params, lambda i: driver.cuKernelGetParamInfo(params.kern, i))
    return Node(
        torch._C._demangle(name.decode()), (params.gridDimX, params.gridDimY, params.gridDimZ), addresses
    )


def _pointers(driver: Any, params: Any, param_info: Callable[[int], Any]) -> tuple[int, ...]:
    """The device addresses in a kernel's parameters: every aligned 8-byte word that the driver knows as one.

    Structures (torch passes its tensor iterators by value) are searched word by word.
    """
    found: list[int] = []
    table, index = int(params.kernelParams), 0
    while table:
        status, _, num_bytes = param_info(index)
        if status != 0:  # past the last parameter
            break
        start = ctypes.c_void_p.from_address(table + 8 * index).value or 0
        found += [ctypes.c_uint64.from_address(start + at).value for at in range(0, num_bytes - 7, 8)]
        index += 1
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_POINTER
    known = [w for w in found if w and driver.cuPointerGetAttribute(attribute, driver.CUdeviceptr(w))[0] == 0]
    return tuple(dict.fromkeys(known))
