"""Later requests are looked at, and watched where something differs: nothing may be left of a look."""

import functools
import sys
from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from mrv2lab.audit import audit, passes, state

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


STORES = [
    global_variable, variable_of_a_closure, slot, attribute_of_a_class, entry, last_of_a_list,
    last_of_a_deque, largest_of_a_set, argument_of_a_partial,
]  # fmt: skip


@pytest.mark.parametrize("store", STORES)
def test_what_a_step_does_once_at_a_later_request_is_found_wherever_it_remembers_it(store, device, backend):
    """The look has done it, and was to leave nothing of that."""
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

    def looked(self):
        held = [t.clone() for t in vars(s).values()]
        results = glance(self)
        looks.append(all(map(torch.equal, held, vars(s).values())))
        assert [*results.written[0].tensor.shape] == [8] and len(results.written) == 4 and not results.left
        return results

    monkeypatch.setattr(passes.Passes, "glance", looked)

    def step():
        s.total.add_(torch.empty_like(s.x).fill_(2) + s.x)
        add_one_to[(1,)](s.launched, N=8)
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


def test_state_is_put_back_only_where_it_has_changed():
    held = {"a": 1, "b": [1, 2]}
    before = state.State({"held": held})
    assert not before.put_back()
    held["b"].append(3)
    del held["a"]
    assert before.put_back()
    assert held == {"a": 1, "b": [1, 2]}
    held["a"] = held.pop("a")
    assert before.put_back() and [*held] == ["a", "b"]


def test_a_gradient_is_let_go_of():
    weight = torch.ones(3, requires_grad=True)
    before = state.State({"weight": weight})
    (weight * 2).sum().backward()
    assert before.put_back() and weight.grad is None


@torch.library.custom_op("glance::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


MORE = {"rows": lambda: 2, "inputs": True, "reads": lambda: 3, "inside": True, "nothing": None}


@pytest.mark.parametrize("name", MORE)
def test_what_a_look_cannot_see_is_watched(name, device, backend, monkeypatch):
    looks, glance = [], passes.Passes.glance
    monkeypatch.setattr(passes.Passes, "glance", lambda self: looks.append(self) or glance(self))
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
