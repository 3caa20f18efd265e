"""What the puzzles share: the buffers, what a step brings, and what an eager step makes of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from random import Random
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from mrv2lab import prose
from mrv2lab.errors import CaptureError
from mrv2lab.graphs import CapturedGraph, capture, device_of, host, is_capturing, new_pool, poison

PUZZLES = {name: SimpleNamespace(**told) for name, told in prose.beside(__file__).items()}
CPU_S = 3.0  # a GPU's first kernels take a part of it
EAGER: dict[str, Callable[[torch.Tensor, SimpleNamespace], torch.Tensor]] = {
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
}


class Stream:
    """A CUDA stream, or a model of it on a CPU: what nothing ties to a capture runs at once, unrecorded."""

    def __init__(self, backend: str, *, is_side: bool):
        self._is_model, self._is_side = backend == "emulated", is_side
        self._cuda = torch.cuda.Stream() if is_side and not self._is_model else None
        self.is_tied = self.is_open = False

    def _real(self) -> Any:
        return self._cuda or torch.cuda.current_stream()

    def wait_stream(self, other: "Stream") -> None:
        """What is issued here from now on runs after what has been issued there."""
        if not self._is_model:
            self._real().wait_stream(other._real())
        elif self._is_side:
            self.is_tied = self.is_open = is_capturing()
        elif is_capturing() and not other.is_tied:
            raise CaptureError("the capture waits for work on a stream that is not captured")
        else:
            other.is_open = False

    @contextmanager
    def current(self) -> Iterator[None]:
        """Within this context work is issued here."""
        self.is_open = self.is_tied
        is_beside = self._is_side and is_capturing() and not self.is_tied
        modelled = _disable_current_modes() if is_beside else nullcontext()
        with modelled if self._is_model else torch.cuda.stream(self._real()):
            yield

    def require_joined(self) -> None:
        """For whoever ends a capture in the model. CUDA asks by itself."""
        if self.is_open:
            raise CaptureError("a stream that was tied to the capture was not joined before its end")


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
        "x": [1.0, 2.0, 3.0, 4.0], "table": [10.0, 20.0, 30.0, 40.0], "out": [0.0] * 4,
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


def steps(puzzle: str, device: torch.device) -> Iterator[tuple[torch.Tensor, SimpleNamespace]]:
    """`x` and what else is new: three steps that are always the same, then three that nobody has seen."""
    for i, numbers, most in [(i, Random(i), 9) for i in range(3)] + [(i, Random(), 999) for i in range(3)]:
        x, table = torch.tensor([numbers.choices(range(3, most), k=4) for _ in "xt"], device=device).float()
        scale, shift = numbers.sample(range(3, most), 2)
        rows = 3 - i if puzzle == "padding" else 4
        yield x, SimpleNamespace(scale=scale, shift=shift, double=i != 1, num_rows=rows, table=table)
