"""Later requests are looked at, and watched where something differs: nothing may be left of a look."""

import contextvars
import functools
import sys
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mrv2lab.audit import audit, passes

import triton  # isort: skip
import triton.language as tl  # isort: skip

half_precision = sys.modules["half_precision"]
_folded = 0


class Slotted:
    __slots__ = ("folded",)


class OfClass:
    folded = 0

    def fold(self, version):
        type(self).folded = version


@dataclass
class Nested:
    inner: dict


def global_variable():
    def get():
        return _folded

    def put(version):
        global _folded
        _folded = version

    return get, put


def variable_of_a_closure():
    folded = 0

    def get():
        return folded

    def put(version):
        nonlocal folded
        folded = version

    return get, put


def slot():
    one = Slotted()
    one.folded = 0
    return lambda: one.folded, functools.partial(setattr, one, "folded")


def attribute_of_a_class():
    one = OfClass()
    OfClass.folded = 0
    return lambda: one.folded, one.fold


def entry():
    one = Nested({"folded": 0})
    return lambda: one.inner["folded"], lambda version: one.inner.update(folded=version)


def last_of_a_list():
    one = [0]
    return lambda: one[-1], one.append


def last_of_a_deque():
    one = deque([0], maxlen=2)
    return lambda: one[-1], one.append


def largest_of_a_set():
    one = {0}
    return lambda: max(one), one.add


def argument_of_a_partial():
    def of(held, version=None):
        if version is not None:
            held["folded"] = version
        return held["folded"]

    both = functools.partial(of, {"folded": 0})
    return both, lambda version: both(version=version)


def numpy_array():
    one = np.zeros(1, np.int64)
    return lambda: one[0], lambda version: one.fill(version)


def class_as_a_namespace():
    OfClass.folded = 0
    return lambda: OfClass.folded, functools.partial(setattr, OfClass, "folded")


def attribute_of_a_tensor():
    one = torch.ones(1)
    one.folded = 0
    return lambda: one.folded, functools.partial(setattr, one, "folded")


def variable_of_a_context():
    one = contextvars.ContextVar("folded", default=0)
    return one.get, one.set


STORES = [
    numpy_array, class_as_a_namespace, attribute_of_a_tensor, variable_of_a_context,
    global_variable, variable_of_a_closure, slot, attribute_of_a_class, entry, last_of_a_list,
    last_of_a_deque, largest_of_a_set, argument_of_a_partial,
]  # fmt: skip


@pytest.mark.parametrize("store", STORES)
def test_what_a_step_does_once_at_a_later_request_is_found_wherever_it_remembers_it(store, device, backend):
    """A look has done it, and tells what led there."""
    get, put = store()
    s = SimpleNamespace(
        x=torch.ones(4, device=device), weight=torch.ones(4, device=device), turn=0, version=0
    )
    s.table = s.weight * 2

    def step():
        if get() != s.version:
            s.table.copy_(s.weight * 2)
            put(s.version)
        return s.x * s.table

    def vary():
        s.turn += 1
        s.x.add_(1)
        if s.turn == 3:
            s.weight.mul_(3)
            s.version += 1

    report = audit(step, vary=vary, backend=backend)
    assert report.findings, str(report)
    assert report.notes[-1] == "nothing was found at 2 requests before this one", str(report)


@triton.jit
def add_one_to(out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out_ptr + at, tl.load(out_ptr + at) + 1)


def test_what_a_look_has_written_is_put_back(device, backend, monkeypatch):
    """By an op, by one that writes beside what it returns, and by a kernel."""
    ones = functools.partial(torch.ones, device=device)
    s = SimpleNamespace(x=ones(8), total=ones(8), launched=ones(8), means=ones(2), variances=ones(2))
    looks, glance = [], passes.Passes.glance

    def looked(self, known):
        held = [t.clone() for t in vars(s).values()]
        results, way = glance(self, known)
        looks.append(all(map(torch.equal, held, vars(s).values())))
        assert [*results.written[0].tensor.shape] == [8] and len(results.written) == 4 and not results.left
        return results, way

    monkeypatch.setattr(passes.Passes, "glance", looked)

    def step():
        s.total.add_(torch.empty_like(s.x).fill_(2) + s.x)
        add_one_to[(1,)](out_ptr=s.launched, N=8)
        y = torch.nn.functional.batch_norm(s.x.view(4, 2), s.means, s.variances, training=True)
        return y + s.total.view(4, 2) + s.launched.view(4, 2)

    assert audit(step, vary=lambda: s.x.add_(1), backend=backend).findings == ()
    assert looks == [True] * 5


def test_a_look_sees_what_a_step_leaves_in_attributes(device, backend):
    s = SimpleNamespace(x=torch.ones(4, device=device), turn=0, hidden=None)

    def step():
        s.hidden = s.x * (2.0 if s.turn < 3 else 3.0)

    def vary():
        s.turn += 1
        s.x.add_(1)

    (found,) = audit(step, vary=vary, backend=backend).findings
    assert (found.kind, found.subject) == ("frozen-host-value", "s.turn")


@torch.library.custom_op("glance::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


MORE = {"rows": lambda: 2, "inputs": True, "reads": lambda: 3, "inside": True, "nothing": None}


@pytest.mark.parametrize("name", MORE)
def test_what_a_look_cannot_see_is_watched(name, device, backend, monkeypatch):
    looks, glance = [], passes.Passes.glance
    monkeypatch.setattr(
        passes.Passes, "glance", lambda self, known: looks.append(self) or glance(self, known)
    )
    x = torch.ones(4, 2, device=device)
    more = {name: [x] if name == "inputs" else MORE[name]} if name in ("rows", "inputs", "reads") else {}
    step = (lambda: double(x)) if name == "inside" else (lambda: x * 2)
    report = audit(step, vary=lambda: x.add_(1), backend=backend, **more)
    assert report.findings == ()
    # At the first request, where the step is run once more, and at each later one, again or instead.
    assert len(looks) == {"inside": 0, "reads": 1}.get(name, 6)


def test_what_rounding_may_do_at_a_later_request_is_a_note():
    """Of 150 such steps five were flagged, and as many that lose something."""
    step = half_precision.Step(4, torch.device("cpu"))
    report = audit(step, vary=lambda: step.vary(False), backend="emulated")
    assert report.findings == ()
    assert [note for note in report.notes if "as rounding may do: frozen-host-value: " in note], str(report)


class Later:
    """Something is done at the third request."""

    def __init__(self, device):
        self.x, self.weight, self.turn, self.version = torch.ones(4, device=device), None, 0, 0
        self.weight, self.table = torch.ones(4, device=device), torch.full((4,), 2.0, device=device)
        self.is_folded = bytearray([1])

    def vary(self):
        self.turn += 1
        self.x.add_(1)
        if self.turn == 3:
            self.weight.mul_(3)
            self.is_folded[0] = 0


class OnOneLine(Later):
    def step(self):
        self.is_folded[0] or (self.table.copy_(self.weight * 2), self.is_folded.__setitem__(0, 1))
        return self.x * self.table


class BlockTable(Later):
    def __init__(self, device):
        super().__init__(device)
        self.rows, self.blocks = (
            np.zeros((4, 2), np.int64),
            torch.zeros(4, 2, dtype=torch.int64, device=device),
        )
        self.is_dirty = np.zeros(4, bool)

    def step(self):
        for row in np.flatnonzero(self.is_dirty):
            self.blocks[row].copy_(torch.from_numpy(self.rows[row]).to(self.x.device))
        self.is_dirty[:] = False
        return self.x[self.blocks]

    def vary(self):
        super().vary()
        if self.turn == 3:
            self.rows[2], self.is_dirty[2] = (3, 1), True
            self.x[3] = 9


class Packed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", None)
        self.register_buffer("packed", torch.ones(4))

    def pack(self, weight):
        self.scale = weight.abs().max()
        self.packed.copy_(weight / self.scale)


class Reloaded(Later):
    def __init__(self, device):
        super().__init__(device)
        self.layer = Packed().to(device)

    def step(self):
        if self.layer.scale is None:
            self.layer.pack(self.weight)
        return self.x * self.layer.packed * self.layer.scale

    def vary(self):
        super().vary()
        if self.turn == 3:
            self.layer.scale = None


class Cached(Later):
    def __init__(self, device):
        super().__init__(device)
        self.n = 4
        self.fill = functools.lru_cache(maxsize=1)(lambda n: self.table.copy_(torch.arange(4.0) * n))

    def step(self):
        self.fill(self.n)
        return self.x * self.table

    def vary(self):
        super().vary()
        self.n = 8 if self.turn == 3 else self.n


@pytest.mark.parametrize("kind", [OnOneLine, BlockTable, Reloaded, Cached])
def test_what_is_done_once_and_remembered_in_whatever_way_is_found(kind, backend, device):
    if kind in (BlockTable, Cached) and backend == "cuda":
        pytest.skip("a copy from pageable memory cannot be captured")
    one = kind(device)
    report = audit(one.step, vary=one.vary, backend=backend)
    assert report.findings, str(report)
    if kind is OnOneLine:  # a look has done it: by then nobody can tell what it was
        (found,) = report.findings
        assert found.kind == "diverged" and "the first has done something once" in found.evidence


class LeastRecentlyUsed(Later):
    """Right: what the host moves decides nothing."""

    def __init__(self, device):
        super().__init__(device)
        self.adapters = [torch.full((4,), float(i), device=device) for i in range(3)]
        self.slots = OrderedDict((adapter, i) for i, adapter in enumerate(self.adapters[:2]))
        self.stack, self.now = torch.stack(self.adapters[:2]), 0
        self.index = torch.zeros(1, dtype=torch.int64, device=device)

    def step(self):
        self.slots.move_to_end(self.adapters[self.now])
        return self.x + self.stack[self.index]

    def vary(self):
        super().vary()
        self.now = int(self.turn == 3)
        self.index.fill_(self.now)


class Built(Later):
    """Right: what is built late is not read by the device."""

    def __init__(self, device):
        super().__init__(device)
        self.names, self.is_built = None, bytearray(1)

    def step(self):
        if self.turn >= 2 and not self.is_built[0]:
            self.names, self.is_built[0] = {"a": [1]}, 1
        if self.turn >= 2:
            len(self.names["a"])
        return self.x * 2


@pytest.mark.parametrize("kind", [LeastRecentlyUsed, Built])
def test_what_a_right_step_keeps_hinders_no_look(kind, backend, device):
    one = kind(device)
    report = audit(one.step, vary=one.vary, backend=backend)
    assert report.findings == () and not any("could not be compared" in note for note in report.notes), report


def test_of_a_step_that_draws_from_an_iterator_nobody_takes_a_look(device, backend):
    s = SimpleNamespace(x=torch.ones(4, device=device), numbers=iter([1.0] * 6 + [2.0] * 30))
    report = audit(lambda: s.x * next(s.numbers), vary=lambda: s.x.add_(1), backend=backend)
    assert report.findings, str(report)


def test_an_interrupt_at_a_later_request_leaves_the_inputs_of_the_first(device, backend):
    x, turns = torch.ones(4, device=device), count(1)

    def vary():
        x.add_(1)
        if next(turns) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit(lambda: x * 2, vary=vary, backend=backend)
    assert x.tolist() == [2.0] * 4


def test_what_a_later_step_leaves_in_python_is_found_where_it_is_read(device, backend):
    """Eager steps come first there: what they leave is not what a replay leaves."""
    s = SimpleNamespace(x=torch.ones(4, device=device), turn=0, num_served=0)

    def step():
        s.num_served += s.turn == 3
        return s.x * 2

    def vary():
        s.turn += 1
        s.x.add_(1)

    report = audit(step, vary=vary, backend=backend, reads=lambda: s.num_served)
    assert [(f.kind, f.subject) for f in report.findings] == [("left-behind", "s.num_served")], str(report)


class Served(Later):
    """One more thing is done at the third request, in the middle of what the step takes and gives back."""

    def twice(self, y):
        if self.turn >= 3:
            y = y * 0.5
        return y


class Workspaces(Served):
    def __init__(self, device):
        super().__init__(device)
        self.free = [torch.zeros(4, device=device)]

    def step(self):
        work = self.free.pop()
        torch.mul(self.x, 3, out=work)
        y = self.twice(work + 1)
        self.free.append(work)
        return y

    def is_as_it_was(self):
        return len(self.free) == 1


class Locked(Served):
    def __init__(self, device):
        super().__init__(device)
        self.lock = threading.Lock()

    def step(self):
        self.lock.acquire()
        y = self.twice(self.x * 2)
        self.lock.release()
        return y

    def is_as_it_was(self):
        return not self.lock.locked()


class Guarded(Served):
    is_dead = is_busy = False

    def step(self):
        if self.is_busy or self.is_dead:
            raise RuntimeError("not reentrant")
        self.is_busy = True
        try:
            y = self.twice(self.x * 2)
        except BaseException:
            self.is_dead = True
            raise
        self.is_busy = False
        return y

    def is_as_it_was(self):
        return not (self.is_dead or self.is_busy)


class Generated(Served):
    def __init__(self, device):
        super().__init__(device)
        self.factor = self.factors().__next__

    def factors(self):
        while True:
            if self.turn >= 3:
                yield 0.5
            else:
                yield 1.0

    def step(self):
        return self.x * self.factor()

    def is_as_it_was(self):
        return self.factor() == 0.5


@pytest.mark.parametrize("kind", [Workspaces, Locked, Guarded, Generated])
def test_a_look_ends_what_the_step_has_begun(kind, backend, device):
    one = kind(device)
    report = audit(one.step, vary=one.vary, backend=backend)
    assert report.findings and one.is_as_it_was(), str(report)


class Logs(Later):
    def __init__(self, device):
        super().__init__(device)
        self.log, self.averaged = [], self.weight * 5

    def told(self):
        if self.turn == 3:
            self.log.append("three requests")
        return 1.0


class Swapped(Logs):
    """Right: the weights change places twice."""

    def swap(self):
        self.weight, self.averaged = self.averaged, self.weight

    def step(self):
        self.swap()
        y = self.x * self.weight
        self.told()
        self.swap()
        return y

    def vary(self):
        self.turn += 1
        self.x.add_(1)

    def is_as_it_was(self):
        return self.averaged[0].item() == 5


class FallsBack(Logs):
    """Right: nothing ever fails."""

    has_failed = False

    def step(self):
        y = self.x * 2
        try:
            y = y + self.told()
        except:  # noqa: E722
            self.has_failed = True
        return y

    def is_as_it_was(self):
        return not self.has_failed


class OfOtherType(Logs):
    """Right: what it sets for the process it sets back."""

    def step(self):
        torch.set_default_dtype(torch.float64)
        y = self.x.double() * 2
        self.told()
        torch.set_default_dtype(torch.float32)
        return y

    def is_as_it_was(self):
        return torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize("kind", [Swapped, FallsBack, OfOtherType])
def test_a_right_step_that_logs_once_is_left_as_it_was(kind, backend, device):
    one = kind(device)
    report = audit(one.step, vary=one.vary, backend=backend)
    assert report.findings == () and one.is_as_it_was(), str(report)
