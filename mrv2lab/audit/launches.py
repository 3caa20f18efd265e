"""What the driver knows of the nodes of a captured graph: what is launched, how, and with which bytes."""

import ctypes
from typing import Any, NamedTuple

import torch

from mrv2lab.graphs import CapturedGraph
from mrv2lab.graphs.cuda import CudaGraph, _checked

Params = tuple[bytes, ...]


class Launch(NamedTuple):
    """A node as the driver knows it."""

    node: int
    label: str
    shape: tuple[int, ...]  # grid, block and bytes of shared memory; of copies and fills what they cover
    params: Params  # of a kernel, in order


def last_node() -> int:
    """The node that the current stream has captured last; 0 for none."""
    from cuda.bindings import driver

    stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
    *_, nodes, _, _ = _checked(driver.cuStreamGetCaptureInfo(stream))
    return max(map(int, nodes or ()), default=0)


def read(graph: CapturedGraph) -> list[Launch]:
    """The nodes of a graph in order of capture; none of the emulator's."""
    if not isinstance(graph, CudaGraph):
        return []
    from cuda.bindings import driver

    handle = driver.CUgraph(graph._graph.raw_cuda_graph())
    _, count = _checked(driver.cuGraphGetNodes(handle))
    nodes = _checked(driver.cuGraphGetNodes(handle, count))[0] if count else []
    both = zip(nodes, graph.nodes, strict=True)
    return [Launch(int(handle), node.label, *_launched(driver, handle)) for handle, node in both]


def _launched(driver: Any, node: Any) -> tuple[tuple[int, ...], Params]:
    kind, kinds = _checked(driver.cuGraphNodeGetType(node)), driver.CUgraphNodeType
    if kind == kinds.CU_GRAPH_NODE_TYPE_MEMCPY:
        p = _checked(driver.cuGraphMemcpyNodeGetParams(node))
        return (p.WidthInBytes, p.Height, p.Depth), ()
    if kind == kinds.CU_GRAPH_NODE_TYPE_MEMSET:
        p = _checked(driver.cuGraphMemsetNodeGetParams(node))
        return (p.width, p.height, p.elementSize), (int(p.value).to_bytes(4, "little"),)
    if kind != kinds.CU_GRAPH_NODE_TYPE_KERNEL:
        return (), ()
    p = _checked(driver.cuGraphKernelNodeGetParams(node))
    ask = driver.cuFuncGetParamInfo if int(p.func) else driver.cuKernelGetParamInfo
    function, params = p.func if int(p.func) else p.kern, list[bytes]()
    table = int(p.kernelParams)
    while table and (info := ask(function, len(params)))[0] == 0:
        start = ctypes.c_void_p.from_address(table + 8 * len(params)).value
        params.append(ctypes.string_at(start or 0, info[2]) if start else b"")
    grid, block = (p.gridDimX, p.gridDimY, p.gridDimZ), (p.blockDimX, p.blockDimY, p.blockDimZ)
    return (*grid, *block, p.sharedMemBytes), tuple(params)
