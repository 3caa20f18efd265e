"""What the driver knows of the nodes of a captured graph: what is launched, how, and with which bytes."""

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from mrv2lab.graphs import CapturedGraph, emulated
from mrv2lab.graphs.cuda import CudaGraph, _checked

Params = tuple[bytes, ...]


class Launch(NamedTuple):
    """A node as the driver knows it."""

    node: int
    label: str
    shape: tuple[int, ...]  # grid, block and bytes of shared memory; of copies and fills what they cover
    params: Params  # of a kernel, in order


def last_node() -> int:
    """The node that the current stream has captured last; 0 for none. The emulator counts its own from 1."""
    if emulated.is_capturing():
        return len(emulated._capturing.active.nodes)
    stream = torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())
    if _ask is not None and (found := _ask(stream)) is not None:
        return found
    from cuda.bindings import driver

    *_, nodes, _, _ = _checked(driver.cuStreamGetCaptureInfo(driver.CUstream(stream)))
    return max(map(int, nodes or ()), default=0)


def _asking() -> Callable[[int], int | None] | None:
    """How the driver is asked directly, in a fourth of the time: it is, for each line. What it does not tell
    without the data of edges is None."""
    try:
        ask = ctypes.PyDLL("libcuda.so.1").cuStreamGetCaptureInfo_v2  # threads share what follows
    except (OSError, AttributeError):
        return None
    nodes, count = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_size_t()
    others = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
    given = [ctypes.byref(one) for one in (*others, nodes, count)]  # each keeps what it refers to

    def asked(stream: int) -> int | None:
        status = ask(ctypes.c_void_p(stream), *given)
        return None if status else max((nodes[i] or 0 for i in range(count.value)), default=0)

    return asked


_ask = _asking()


def replay_until(graph: CapturedGraph, node: int) -> None:
    """Replay a graph as far as a node that `last_node` has named."""
    if isinstance(graph, emulated.EmulatedGraph):
        for run in graph._tape[:node]:
            run()
    elif isinstance(graph, CudaGraph):
        from cuda.bindings import driver

        nodes = [one.node for one in read(graph)]
        part = _checked(driver.cuGraphClone(driver.CUgraph(graph._graph.raw_cuda_graph())))
        for behind in reversed(nodes[nodes.index(node) + 1 :]):
            twin = _checked(driver.cuGraphNodeFindInClone(driver.CUgraphNode(behind), part))
            _checked(driver.cuGraphDestroyNode(twin))
        made, stream = _checked(driver.cuGraphInstantiate(part, 0)), torch.cuda.current_stream()
        _checked(driver.cuGraphLaunch(made, driver.CUstream(stream.cuda_stream)))
        stream.synchronize()
        _checked(driver.cuGraphExecDestroy(made))
        _checked(driver.cuGraphDestroy(part))


def failed_node(error: BaseException) -> int:
    """The node at which a replay of the emulator's has raised, as `last_node` counts; 0 if none did."""
    at = error.__traceback__
    while at is not None:
        held = at.tb_frame.f_locals
        graph = held.get("self")
        if at.tb_frame.f_code.co_name == "_replay" and isinstance(graph, emulated.EmulatedGraph):
            return graph._tape.index(held["run"]) + 1
        at = at.tb_next
    return 0


def node_handles(graph: int) -> list[Any]:
    """The driver's handles of the nodes of its graph, in order of capture."""
    from cuda.bindings import driver

    handle = driver.CUgraph(graph)
    _, count = _checked(driver.cuGraphGetNodes(handle))
    return list(_checked(driver.cuGraphGetNodes(handle, count))[0]) if count else []


def read(graph: CapturedGraph) -> list[Launch]:
    """The nodes of a graph in order of capture; none of the emulator's."""
    if not isinstance(graph, CudaGraph):
        return []
    from cuda.bindings import driver

    both = zip(node_handles(graph._graph.raw_cuda_graph()), graph.nodes, strict=True)
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
