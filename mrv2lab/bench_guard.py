"""What a guard takes as graphs grow: replays without one and with one, in turn, and its comparisons alone.

Every second node of a graph gets a number that Python holds, and every second one a tensor, each an attribute
of one of many objects; so a graph has as many values as nodes.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from mrv2lab import bench
from mrv2lab.errors import StaleCapture
from mrv2lab.graphs import capture, device_of, resolve
from mrv2lab.guard import guard
from mrv2lab.results import Verdict
from mrv2lab.verdict import judge, relative_error

SIZES = (100, 1_000, 10_000)
_BLOCK = 100  # layers


class Price(NamedTuple):
    """Medians of `bench.RUNS` runs, after one that does not count; on the emulator CPU time."""

    num_nodes: int
    num_values: int  # that the guard compares before a replay
    verdict: Verdict  # of the replays, and of what the guard tells once one value has changed
    off_ms: float  # a replay
    on_ms: float  # one with the guard on
    asked_us: float  # all of its comparisons, without a replay

    @property
    def ns_a_value(self) -> float:
        return 1e3 * self.asked_us / self.num_values


class Layer:
    """Two nodes: one gets a number, the other an address."""

    def __init__(self, device: torch.device):
        self.scale, self.bias = 1.0, torch.ones(1, device=device)


class Layers:
    """A step that reads two values of each of many layers, over one buffer."""

    def __init__(self, num_layers: int, device: torch.device):
        layers = [Layer(device) for _ in range(num_layers)]
        self.num_layers = num_layers
        self.blocks = [layers[i : i + _BLOCK] for i in range(0, num_layers, _BLOCK)]
        self.x = torch.ones(1024, device=device)

    def step(self) -> torch.Tensor:
        y = self.x
        for block in self.blocks:
            for layer in block:
                y = y * layer.scale
                y = y + layer.bias
        return y


def prices(backend: str = "auto") -> Iterator[Price]:
    """Time each size. BadInput: as `resolve`."""
    backend = resolve(backend)
    return (price(backend, num_nodes) for num_nodes in SIZES)


def price(backend: str, num_nodes: int) -> Price:
    """Time graphs of this many nodes."""
    layers = Layers(num_nodes // 2, device_of(backend))
    layers.step()
    plain = capture(layers.step, backend=backend)
    with guard("warn") as guarded:
        watched = capture(layers.step, backend=backend)
    (checks,) = guarded._graphs
    calls, asked = max(1, 1_000 // num_nodes), max(1, 100_000 // num_nodes)
    works = [(plain.replay, calls), (watched.replay, calls), (checks.is_stale, asked)]
    taken = [[_ms(backend, *work) for work in works] for _ in range(bench.RUNS + 1)]
    off_ms, on_ms, asked_ms = np.median(taken[1:], axis=0).tolist()
    num_values = guarded.checks
    layers.x.fill_(1.0 - layers.num_layers)  # so that one addition more or less is all of the result
    reference = layers.step().clone()
    errors = []
    for graph in (plain, watched):
        graph.replay()
        errors.append(relative_error(graph.outputs, reference))
    is_told = _is_told(layers, watched.replay)
    return Price(
        num_nodes, num_values, judge(errors, []) if is_told else "wrong", off_ms, on_ms, 1e3 * asked_ms
    )


def _is_told(layers: Layers, replay: Callable[[], None]) -> bool:
    """Whether the guard is silent, and tells of one number, and of nothing else, once that has changed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", StaleCapture)
        replay()
        layers.blocks[-1][-1].scale = 2.0  # the one that is asked last of all
        replay()
        texts = [str(one.message) for one in caught if one.category is StaleCapture]
    return len(texts) == 1 and "].scale was 1.0 at capture, is 2.0 now" in texts[0]


def _ms(backend: str, work: Callable[[], object], calls: int) -> float:
    """The mean of some calls, each until the device has done the work."""
    clock = time.perf_counter if backend == "cuda" else time.process_time
    bench._wait(backend)
    start = clock()
    for _ in range(calls):
        work()
        bench._wait(backend)
    return 1e3 * (clock() - start) / calls
