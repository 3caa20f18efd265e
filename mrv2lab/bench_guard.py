"""What a guard takes as graphs grow: replays without one and with one, in turn, and its comparisons alone.

Every second node of a graph gets a number that Python holds, and every second one a tensor, each an attribute
of one of many objects; so a graph has as many values as nodes.
"""

import warnings
from collections.abc import Callable, Iterator

import torch

from mrv2lab.errors import StaleCapture
from mrv2lab.graphs import capture, device_of, resolve
from mrv2lab.guard import guard
from mrv2lab.timed import Row, in_turn
from mrv2lab.verdict import judge, relative_error

SIZES = (100, 1_000, 10_000)
_BLOCK = 100  # layers


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


def rows(backend: str = "auto") -> Iterator[Row]:
    """Time each size. BadInput: as `resolve`."""
    backend = resolve(backend)
    return (price(backend, num_nodes) for num_nodes in SIZES)


def price(backend: str, num_nodes: int) -> Row:
    """Time graphs of this many nodes: a replay, one with the guard on, and all of its comparisons alone.

    The verdict is that of the replays, and of what the guard tells once one value has changed.
    """
    layers = Layers(num_nodes // 2, device_of(backend))
    layers.step()
    plain = capture(layers.step, backend=backend)
    with guard("warn") as guarded:
        watched = capture(layers.step, backend=backend)
    (checks,) = guarded._graphs
    calls, asked = max(1, 1_000 // num_nodes), max(1, 100_000 // num_nodes)
    works = {"off": (plain.replay, calls), "on": (watched.replay, calls), "asked": (checks.is_stale, asked)}
    ms, num_values = in_turn(backend, works), guarded.checks
    layers.x.fill_(1.0 - layers.num_layers)  # so that one addition more or less is all of the result
    reference = layers.step().clone()
    errors = []
    for graph in (plain, watched):
        graph.replay()
        errors.append(relative_error(graph.outputs, reference))
    verdict = judge(errors, []) if _is_told(layers, watched.replay) else "wrong"
    counts = {"values": num_values, "ns a value": 1e6 * ms["asked"].median / num_values}
    return Row(labels={"nodes": num_nodes}, verdict=verdict, ms=ms, counts=counts)


def _is_told(layers: Layers, replay: Callable[[], None]) -> bool:
    """Whether the guard is silent, and tells of one number, and of nothing else, once that has changed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", StaleCapture)
        replay()
        layers.blocks[-1][-1].scale = 2.0  # the one that is asked last of all
        replay()
        texts = [str(one.message) for one in caught if one.category is StaleCapture]
    return len(texts) == 1 and "].scale was 1.0 at capture, is 2.0 now" in texts[0]
