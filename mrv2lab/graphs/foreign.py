"""Captures and replays that somebody else makes with `torch.cuda.CUDAGraph`; observers hear of them too."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from mrv2lab.graphs.base import CapturedGraph, begin_observers, end_observers
from mrv2lab.graphs.cuda import read_nodes


class ForeignGraph(CapturedGraph):
    """A graph that belongs to somebody else."""

    def __init__(self, graph: torch.cuda.CUDAGraph, replay: Any):
        super().__init__(None, read_nodes(graph))
        self._replay_it = replay

    def _replay(self) -> None:
        self._replay_it()


@contextmanager
def observable_graphs() -> Iterator[None]:
    """Inside, `torch.cuda.CUDAGraph` is a class whose captures and replays `base.observed` hears of. Graphs
    made inside stay observable. Enter it before whoever captures imports the class by name.
    """
    original = torch.cuda.CUDAGraph

    class ObservableGraph(original):  # type: ignore[misc, valid-type]
        def __new__(cls, keep_graph: bool = True) -> Any:
            return super().__new__(cls, True)  # so that its nodes stay readable

        def __init__(self, keep_graph: bool = True):
            super().__init__(True)

        def capture_begin(self, *args: Any, **kwargs: Any) -> None:
            super().capture_begin(*args, **kwargs)
            try:
                begin_observers()
            except BaseException:  # nobody would end what has begun
                with suppress(RuntimeError):
                    super().capture_end()
                raise

        def capture_end(self) -> None:
            end_observers()
            super().capture_end()
            self.instantiate()  # as a graph is that is not kept: not at the first replay of a server
            self._observed = ForeignGraph(self, super().replay)

        def replay(self) -> None:
            self._observed.replay()

    torch.cuda.CUDAGraph = ObservableGraph  # type: ignore[misc]
    try:
        yield
    finally:
        torch.cuda.CUDAGraph = original  # type: ignore[misc]
