"""What the puzzles share: the buffers, what a step brings, and what an eager step makes of it."""

from collections.abc import Callable, Iterator, Mapping
from random import Random
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch

from mrv2lab import prose
from mrv2lab.graphs import CapturedGraph, capture, device_of, host, new_pool, poison, streams

PUZZLES = MappingProxyType({name: SimpleNamespace(**told) for name, told in prose.beside(__file__).items()})
CPU_S = 3.0  # a GPU's first kernels take a part of it
EAGER: Mapping[str, Callable[[torch.Tensor, SimpleNamespace], torch.Tensor]] = MappingProxyType({
    "frozen_number": lambda x, new: x * new.scale,
    "lost_branch": lambda x, new: (x + 1) * (2 if new.double else 1),
    "moved_buffer": lambda x, new: x + new.table,
    "lent_output": lambda x, new: x * 2,
    "unwritten_memory": lambda x, new: torch.cat([x[:2] * 3, torch.zeros_like(x[2:])]),
    "shared_pool": lambda x, new: x * 2,
    "host_copy": lambda x, new: x * new.scale + new.shift,
    "counter": lambda x, new: x * 2,
    "padding": lambda x, new: x[: new.num_rows].sum(),
    "stream": lambda x, new: x * 2 + x * 3,
})  # fmt: skip


class Stream:
    """A CUDA stream, or on a CPU the model of one. The main one is whichever is current."""

    def __init__(self, backend: str, *, is_side: bool):
        self._named: Any = streams if backend == "emulated" else torch.cuda
        self._side = self._named.Stream() if is_side else None

    @property
    def _real(self) -> Any:
        return self._side or self._named.current_stream()

    def wait_stream(self, other: "Stream") -> None:
        """What is issued here from now on runs after what has been issued there."""
        self._real.wait_stream(other._real)

    def current(self) -> Any:
        """Within this context work is issued here."""
        return self._named.stream(self._real)


def graphs_of(puzzle: str, step: Callable[[], Any], x: torch.Tensor, backend: Any) -> list[CapturedGraph]:
    """The graph of a step and those beside it in its pool: captured before it, and replayed after it."""
    pool = new_pool(backend)
    in_parts = [lambda: torch.stack([x + 100, x + 100, x + 100]).sum(0)]  # each part needs memory meanwhile
    others = [capture(fn, backend=backend, pool=pool) for fn in in_parts if puzzle == "shared_pool"]
    _loud = poison(pool, backend)  # held until the end: a pool forgets what no graph holds
    return [capture(step, backend=backend, pool=pool), *others]


def make_buffers(backend: str) -> SimpleNamespace:
    """All that a puzzle may use. What ends in `_gpu` is the device's twin of a value of the host's."""
    device = device_of(backend)
    on_device = {
        "x": [1.0, 2.0, 3.0, 4.0], "table": [10.0, 20.0, 30.0, 40.0], "out": [-9.0] * 4,
        "scale_gpu": [2.0], "shift_gpu": [1.0], "double_gpu": [False], "num_rows_gpu": [4],
        "row": [0, 1, 2, 3], "count": [0.0],
    }  # fmt: skip
    return SimpleNamespace(
        **{name: torch.tensor(values, device=device) for name, values in on_device.items()},
        **{"scale": 2, "shift": 1, "double": False, "num_rows": 4},
        staging=host(torch.zeros(2), pinned=True),
        main=Stream(backend, is_side=False),
        side=Stream(backend, is_side=True),
    )


SEEN, UNSEEN = 3, 6  # steps that are always the same, then steps with other numbers each time


def steps(puzzle: str, device: torch.device) -> Iterator[tuple[torch.Tensor, SimpleNamespace]]:
    """`x` and what else is new: `SEEN` steps, then `UNSEEN` ones that go in another order as well."""
    luck = Random()
    doubles = seen = [True, False, True]
    while any(doubles[n:] == doubles[:-n] for n in (2, SEEN)):  # who counts steps would be right by chance
        doubles = [*seen, *luck.sample([True, False] * UNSEEN, UNSEEN)]
    rows = [3, 2, 1, *luck.choices([1, 2, 3, 4], k=UNSEEN)]
    for i, (double, num_rows) in enumerate(zip(doubles, rows, strict=True)):
        numbers, most = (Random(i), 9) if i < SEEN else (luck, 999)
        x, table = torch.tensor([numbers.choices(range(3, most), k=4) for _ in "xt"], device=device).float()
        scale, shift = numbers.sample(range(3, most), 2)
        num_rows = num_rows if puzzle == "padding" else 4
        yield x, SimpleNamespace(scale=scale, shift=shift, double=double, num_rows=num_rows, table=table)
