"""Counting work: what Python issues is counted, what graphs do is counted as nodes, and nothing twice."""

import threading

import torch

from mrv2lab.graphs import capture, device_of, host
from mrv2lab.graphs.base import idle_replays
from mrv2lab.graphs.work import Amount, counted, measured, splitting


def test_ops_that_compute_are_counted_and_what_moves_memory_is_not(device):
    x, y = torch.ones(2, 4, device=device), torch.empty(2, 4, device=device)
    with counted(), measured() as work:
        y.copy_(x)
        y.zero_()
        torch.empty_like(x)
        torch.zeros(4, device=device)
        x.view(8)[2:].clone().to(torch.float64)
        x @ x.T
        torch.arange(4, device=device)
    assert dict(work.ops) == {"aten::mm": 1, "aten::arange": 1}
    assert work.amount == Amount(0, 2, 0)


def test_what_the_host_computes_is_not_counted(backend):
    flags = host(torch.ones(4))
    with counted(), measured() as work:
        flags.add_(1)
        flags.sum()
    assert work.num_ops == 0


def test_composites_count_as_what_they_are_made_of(device):
    x = torch.ones(2, 4, device=device)
    with torch.inference_mode(), counted(), measured() as work:
        torch.nn.functional.linear(x, x)
    assert dict(work.ops) == {"aten::mm": 1}


def test_a_replay_is_nodes_and_a_capture_is_nothing(device, backend):
    x = torch.ones(4, device=device)
    with counted(), measured() as capturing:
        graph = capture(lambda: x.add_(1).mul_(2), backend=backend)
    with counted(), measured() as work:
        x.add_(1)
        graph.replay()
    assert capturing.amount == Amount()
    assert work.amount == Amount(nodes=2, ops=1)


def test_a_replay_in_a_thread_is_nodes_too(device, backend):
    x = torch.ones(4, device=device)
    graph = capture(lambda: x.add_(1).mul_(2), backend=backend)

    def work_there():
        x.add_(1)
        graph.replay()

    with counted(), measured() as work:
        thread = threading.Thread(target=work_there)
        thread.start()
        thread.join()
    assert work.amount == Amount(nodes=2, ops=1)


def test_blocks_nest_and_splitting_ops_are_told_apart(device):
    x = torch.ones(4, device=device)
    with counted(), measured() as outer:
        x.add_(1)
        with measured() as inner, splitting():
            x.mul_(2)
    assert (outer.amount, inner.amount) == (Amount(0, 2, 1), Amount(0, 1, 1))


def test_outside_of_counted_only_replays_are_seen(device, backend):
    x = torch.ones(4, device=device)
    graph = capture(lambda: x.add_(1), backend=backend)
    with measured() as work:
        x.add_(1)
        graph.replay()
    assert work.amount == Amount(nodes=1)


def test_idle_replays_do_nothing_and_are_seen_all_the_same(device, backend):
    x = torch.zeros(1, device=device_of(backend))
    graph = capture(lambda: x.add_(1), backend=backend)
    with idle_replays(), measured() as work:
        graph.replay()
    assert x.item() == 0 and work.graphs == [graph]
    graph.replay()
    assert x.item() == 1
