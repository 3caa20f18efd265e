"""What is counted of an engine's steps, on profiles made by hand."""

from types import SimpleNamespace

from mrv2lab.graphs.work import Amount
from mrv2lab.live.engine import without_graphs
from mrv2lab.live.work import Span, count


def test_launches_belong_to_the_step_and_the_model_they_began_in():
    spans = [
        Span("cudaLaunchKernel", 1, 2),  # before the first step
        Span("mrv2lab.step", 10, 50),
        Span("cudaLaunchKernelExC", 11, 12),  # the inputs
        Span("mrv2lab.target", 20, 40),
        Span("cuLaunchKernel", 21, 22),
        Span("vllm::attention", 23, 30),
        Span("vllm::indexer", 24, 25),  # inside of it
        Span("cuLaunchKernelEx", 26, 27),
        Span("cudaMemcpyAsync", 27, 28),  # a copy is no work
        Span("cudaLaunchKernel", 60, 61),  # sampling, behind what the step's mark covers
        Span("mrv2lab.speculator", 70, 80),
        Span("cudaLaunchKernel", 71, 72),
        Span("mrv2lab.step", 100, 110),
        Span("cudaGraphLaunch", 101, 102),
        Span("cudaLaunchKernel", 103, 104),
    ]
    first, second = count(spans, [{}, {"target": 70, "speculator": 7}], {"vllm::attention", "vllm::indexer"})
    assert first == {"step": Amount(0, 5, 1), "target": Amount(0, 2, 1), "speculator": Amount(0, 1)}
    assert second == {"step": Amount(ops=1), "target": Amount(70), "speculator": Amount(7)}


def manager():
    return SimpleNamespace(_graphs_captured=True)


def test_the_reference_finds_no_graph_and_where_drafts_are_counted_they_find_none():
    target, prefill = manager(), manager()
    speculator = SimpleNamespace(prefill_cudagraph_manager=prefill, decode_cudagraph_manager=None)
    runner = SimpleNamespace(cudagraph_manager=target, speculator=speculator)
    with without_graphs(runner):
        assert not target._graphs_captured and prefill._graphs_captured
    with without_graphs(runner, drafts=True):
        assert not target._graphs_captured and not prefill._graphs_captured
    assert target._graphs_captured and prefill._graphs_captured
