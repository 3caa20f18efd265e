"""What the puzzles share: the buffers, what a step brings, and what an eager step makes of it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from random import Random
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from mrv2lab import prose
from mrv2lab.errors import CaptureError
from mrv2lab.graphs import CapturedGraph, capture, device_of, emulated, host, is_capturing, new_pool, poison

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

Event = tuple[str, int, int]  # `side`, `fork` or `join`, from which piece of captured work on, and to which


class Stream:
    """A CUDA stream, or a model of it on a CPU: what nothing ties to a capture runs at once, unrecorded."""

    def __init__(self, backend: str, events: list[Event], *, is_side: bool):
        self._is_model, self._is_side, self.events = backend == "emulated", is_side, events
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
            self._note("fork")
        elif is_capturing() and not other.is_tied:
            raise CaptureError("the capture waits for work on a stream that is not captured")
        else:
            other.is_open = False
            self._note("join")

    def _note(self, kind: str, since: int | None = None) -> None:
        if (now := _captured_so_far()) is not None:
            self.events.append((kind, now if since is None else since, now))

    @contextmanager
    def current(self) -> Iterator[None]:
        """Within this context work is issued here."""
        self.is_open = self.is_tied
        is_beside = self._is_side and is_capturing() and not self.is_tied
        modelled, since = _disable_current_modes() if is_beside else nullcontext(), _captured_so_far()
        with modelled if self._is_model else torch.cuda.stream(self._real()):
            yield
        if self._is_side:
            self._note("side", since)

    def require_joined(self) -> None:
        """For whoever ends a capture in the model. CUDA asks by itself."""
        if self.is_open:
            raise CaptureError("a stream that was tied to the capture was not joined before its end")


def _captured_so_far() -> int | None:
    """How many pieces of work the emulator's capture holds; None where there is none."""
    recorder = getattr(emulated._capturing, "active", None)
    return len(recorder.tape) if recorder else None


def other_orders(events: list[Event], count: int) -> Iterator[list[int]]:
    """Orders in which the same graph may run on a GPU: the side's work as early as may be, and as late."""
    of_side = [any(e == "side" and a <= i < b for e, a, b in events) for i in range(count)]

    def waits_for(i: int) -> int:
        """How much work of the other stream has to be done before this."""
        ties = [a for e, a, _ in events if e == ("fork" if of_side[i] else "join") and a <= i]
        return sum(of_side[j] != of_side[i] for j in range(max(ties, default=0)))

    for first in (True, False):
        left = {side: [i for i in range(count) if of_side[i] == side] for side in (True, False)}
        order = list[int]()
        while any(left.values()):
            done = {s: sum(of_side[i] != s for i in order) for s in left}  # by the other stream
            ready = [s for s in (first, not first) if left[s] and waits_for(left[s][0]) <= done[s]]
            order.append(left[ready[0]].pop(0))
        yield order


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
    events: list[Event] = []
    return SimpleNamespace(
        **{name: torch.tensor(values, device=device) for name, values in on_device.items()},
        **{"scale": 2, "shift": 1, "double": False, "num_rows": 4},
        staging=host(torch.zeros(2), pinned=True),
        main=Stream(backend, events, is_side=False),
        side=Stream(backend, events, is_side=True),
    )


SEEN, UNSEEN = 3, 6  # steps that are always the same, then steps with other numbers each time


def steps(puzzle: str, device: torch.device) -> Iterator[tuple[torch.Tensor, SimpleNamespace]]:
    """`x` and what else is new: `SEEN` steps, then `UNSEEN` ones that go in another order as well."""
    luck = Random()
    doubles = [True, False, True, *luck.sample([True, False] * UNSEEN, UNSEEN)]
    rows = [3, 2, 1, *luck.choices([1, 2, 3, 4], k=UNSEEN)]
    for i, (double, num_rows) in enumerate(zip(doubles, rows, strict=True)):
        numbers, most = (Random(i), 9) if i < SEEN else (luck, 999)
        x, table = torch.tensor([numbers.choices(range(3, most), k=4) for _ in "xt"], device=device).float()
        scale, shift = numbers.sample(range(3, most), 2)
        num_rows = num_rows if puzzle == "padding" else 4
        yield x, SimpleNamespace(scale=scale, shift=shift, double=double, num_rows=num_rows, table=table)
