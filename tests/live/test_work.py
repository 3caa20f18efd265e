"""What is counted of an engine's steps, on profiles made by hand."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from mrv2lab.graphs.work import Amount
from mrv2lab.live import work
from mrv2lab.live.engine import without_graphs
from mrv2lab.live.work import Meter, Span, count, is_to_have_graphs


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
        Span("cuLaunchKernel", 40, 41),  # the target has just ended
        Span("cudaLaunchKernel", 60, 61),  # sampling, behind what the step's mark covers
        Span("mrv2lab.speculator", 70, 80),
        Span("cudaLaunchKernel", 71, 72),
        Span("mrv2lab.step", 100, 110),
        Span("cudaGraphLaunch", 101, 102),
        Span("cudaLaunchKernel", 103, 104),
    ]
    first, second = count(spans, [{}, {"target": 70, "speculator": 7}], {"vllm::attention", "vllm::indexer"})
    assert first == {"step": Amount(0, 6, 1), "target": Amount(0, 2, 1), "speculator": Amount(0, 1)}
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


class Manager:
    """As vLLM's for FULL_DECODE_ONLY: decodes of up to 4 requests, with a draft each."""

    breakable_cg_runner = None

    def __init__(self, num_candidates=9):
        self._candidates, self._graphs_captured = [[]] * num_candidates, False

    def dispatch(self, num_reqs, num_tokens, uniform_token_count):
        fits = self._graphs_captured and num_tokens < len(self._candidates)
        is_decode = uniform_token_count == 2 and num_reqs <= 4
        return SimpleNamespace(cg_mode=SimpleNamespace(name="FULL" if fits and is_decode else "NONE"))


class Model(torch.nn.Module):
    """One op each time."""

    def forward(self, x):
        return x + 1


class Compiled(Model):
    """As a class under `support_torch_compile`: its call does not come by `forward`."""

    def __call__(self, x):
        return x + 1


class Runner:
    """Its step runs the model on so many tokens, then a speculator; an op before, and one behind."""

    def __init__(self, model, num_drafts=1):
        self.model, self.num_speculative_steps, self.cudagraph_manager = model, num_drafts, Manager()
        self.speculator = SimpleNamespace(model=Compiled(), propose=self.propose)
        self.replay = lambda num_nodes: None

    def execute_model(self, scheduler_output):
        if not scheduler_output.num_scheduled_tokens:
            return None
        x = torch.zeros(2) + 1
        self.model(x)
        self.replay(5)
        self.speculator.propose(x)
        return x + 1

    def propose(self, x):
        self.replay(3)
        for _ in range(self.num_speculative_steps):
            self.speculator.model(x)

    def telling(self, replayed):
        self.replay = replayed
        return nullcontext()


def counted(runner, *batches):
    with Meter(runner, runner.telling, "FULL", [8]) as meter:
        for tokens in batches:
            output = SimpleNamespace(num_scheduled_tokens=dict(enumerate(tokens)))
            runner.execute_model(output)
    return meter.steps


@pytest.fixture
def additions_are_launches(monkeypatch):
    monkeypatch.setattr(work, "LAUNCHES", ("aten::add",))
    monkeypatch.setattr(work, "splitting_ops", lambda runner: set())


@pytest.mark.parametrize("model", [Model(), Compiled()])
def test_models_are_told_from_the_rest_compiled_or_not(additions_are_launches, model):
    first, second = counted(Runner(model), [2, 2, 2], [], [3, 2])
    wanted = {"step": Amount(ops=4), "target": Amount(5, 1), "speculator": Amount(3, 1)}
    assert first.work == second.work == wanted
    assert (first.fits, second.fits) == (True, False)
    assert "__call__" not in vars(Model) and "marked" not in Compiled.__call__.__name__


def test_what_drafts_of_several_tokens_replay_is_nobodys(additions_are_launches):
    [step] = counted(Runner(Model(), num_drafts=3), [4])
    assert step.work == {"step": Amount(ops=6), "target": Amount(5, 1)}


def fits(manager, num_tokens, mode="FULL"):
    runner = SimpleNamespace(cudagraph_manager=manager, num_speculative_steps=1)
    return is_to_have_graphs(runner, mode, [4, 8], num_tokens)


def test_sizes_that_vllm_leaves_out_are_no_miss():
    assert fits(Manager(), [2, 2, 2, 2]) and fits(Manager(), [2])
    assert not fits(Manager(), [2] * 5), "more tokens than any size"
    assert not fits(Manager(num_candidates=99), [2] * 5), "more requests than it serves at once"
    assert not fits(Manager(), [3, 1]) and not fits(Manager(), [1, 1]), "no decode of one draft"


def test_where_no_size_is_left_what_was_asked_for_counts():
    none = Manager(num_candidates=0)
    assert fits(none, [5]) and not fits(none, [9]) and not fits(none, [5], "NONE")
    assert fits(none, [2, 2], "FULL_DECODE_ONLY") and not fits(none, [5], "FULL_DECODE_ONLY")


def test_asking_leaves_the_manager_as_it_was():
    manager = Manager()
    fits(manager, [2])
    assert manager._graphs_captured is False
