"""Beside a fresh engine: since when a tensor differs that a step finds wrong, and what was done then."""

import random
from collections import deque
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mrv2lab.audit import audit
from mrv2lab.graphs import capture


class Clipped:
    """The largest score is kept for the clip before every other request, which makes the weight smaller."""

    def __init__(self, device, backend, in_place):
        self.weight, self.x = torch.ones(4, device=device), torch.ones(4, device=device)
        self.in_place, self.largest = in_place, torch.zeros((), device=device)
        self.graph, self.number = None, 0
        self.backend = backend

    def forward(self):
        scores = self.x * self.weight
        if self.in_place:
            self.largest.copy_(scores.max())
        else:
            self.largest = scores.max()
        return scores * 2

    def step(self):
        if self.number and self.graph is None:
            self.graph = capture(self.forward, backend=self.backend)
            if not self.in_place:
                self.largest = self.largest.new_zeros(())  # what a capture has left is no score
        if self.graph is None:
            return self.forward()
        self.graph.replay()
        return self.graph.outputs.clone()

    def vary(self):
        self.number += 1
        if self.number % 2 == 0:
            self.weight.div_(self.largest.clamp(min=1))
        self.x.add_(1)


class Counted:
    """Puts its state back after so many steps as its forward pass has counted."""

    def __init__(self, device, backend, in_forward):
        self.state, self.x = torch.zeros(4, device=device), torch.ones(4, device=device)
        self.in_forward, self.taken = in_forward, 0
        self.forward()
        self.graph = capture(self.forward, backend=backend)
        self.restart()

    def restart(self):
        self.state.zero_()
        self.taken = 0

    def forward(self):
        self.state.add_(self.x)
        self.taken += self.in_forward
        return self.state * 2

    def serve(self, run):
        result = run()
        self.taken += not self.in_forward
        if self.taken >= 3:
            self.restart()
        return result

    def replay(self):
        self.graph.replay()
        return self.graph.outputs.clone()

    def step(self):
        return self.serve(self.replay)

    def vary(self):
        self.x.add_(1)


def engine(kind, device, backend, argument):
    made = kind(device, backend, argument)
    eager = partial(made.serve, made.forward) if kind is Counted else made.forward
    return SimpleNamespace(step=made.step, vary=made.vary, eager=eager, made=made)


@pytest.mark.parametrize("is_right", [True, False])
def test_a_state_that_nobody_puts_back_is_followed_to_what_led_to_it(is_right, device, backend):
    """An earlier step has not done what an eager one does: it was counted as it was captured alone."""
    make = partial(engine, Counted, device, backend, not is_right)
    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make)
    assert bool(report.findings) == (not is_right), str(report)
    if not is_right:
        first = report.findings[0]
        assert first.kind == "lost-kernel" and first.where.function == "restart", str(report)
        assert "differs from request" in first.evidence


@pytest.mark.parametrize("is_right", [True, False])
def test_what_is_made_as_a_request_is_prepared_is_followed(is_right, device, backend):
    make = partial(engine, Clipped, device, backend, is_right)
    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make)
    assert bool(report.findings) == (not is_right), str(report)
    if not is_right:
        assert report.findings[0].subject.endswith("largest"), str(report)


class Warmed:
    """Warm-ups of a capture, at the first call or behind some, move on what requests read."""

    def __init__(self, device, backend, is_right, call):
        self.mean, self.x = torch.zeros(4, device=device), torch.ones(4, device=device)
        self.backend, self.is_right, self.call, self.calls, self.graph = backend, is_right, call, 0, None

    def capture(self):
        held = self.mean.clone()
        for _ in range(2):
            self.forward()
        if self.is_right:
            self.mean.copy_(held)
        self.graph = capture(self.forward, backend=self.backend)

    def forward(self):
        self.mean.lerp_(self.x, 0.5)
        return self.x - self.mean

    def step(self):
        self.calls += 1
        if self.calls == self.call:
            self.capture()
        if self.graph is None:
            return self.forward()
        self.graph.replay()
        return self.graph.outputs.clone()

    def eager(self):
        return self.forward()

    def vary(self):
        self.x.add_(1)


@pytest.mark.parametrize("call", [1, 2, 4])
@pytest.mark.parametrize("is_right", [True, False])
def test_what_a_warm_up_has_left_is_told_with_its_line(is_right, call, device, backend):
    make = partial(Warmed, device, backend, is_right, call)
    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make)
    assert bool(report.findings) == (not is_right), str(report)
    if not is_right:
        first = report.findings[0]
        assert first.subject.endswith("mean") and first.where.function == "forward", str(report)
        told = "has written it before the first request" if call == 1 else "in the same step: a warm-up, at"
        assert told in first.evidence, str(report)


class Padded:
    """A graph of four rows; the row that is no request's writes the state of somebody, or of nobody."""

    def __init__(self, device, backend, is_right):
        self.state, self.x = torch.zeros(6, 2, device=device), torch.ones(4, 2, device=device)
        self.slots, self.num_rows = torch.tensor([3, 1, 2, 0], device=device), 4
        self.backend, self.graph = backend, None
        self.nobodys = 5 if is_right else -1

    def forward(self, num_rows):
        slots = self.slots[:num_rows].clamp(min=0)
        new = self.state[slots] * 0.5 + self.x[:num_rows]
        self.state.index_copy_(0, slots, new)
        return new * 2

    def eager(self):
        return self.forward(self.num_rows)

    def step(self):
        if self.graph is None:
            held = self.state.clone()
            self.forward(4)
            self.state.copy_(held)
            self.graph = capture(lambda: self.forward(4), backend=self.backend)
        self.graph.replay()
        return self.graph.outputs[: self.num_rows].clone()

    def vary(self):
        self.num_rows = 3 if self.num_rows == 4 else 4
        self.slots.copy_(torch.tensor([3, 1, 2, 0 if self.num_rows == 4 else self.nobodys]))
        self.x.add_(1)


@pytest.mark.parametrize("is_right", [True, False])
def test_a_padded_size_is_no_cause_where_padding_gets_through(is_right, device, backend):
    make = partial(Padded, device, backend, is_right)
    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make)
    assert bool(report.findings) == (not is_right), str(report)
    if not is_right:
        assert report.findings[0].kind == "padding-leak", str(report)
        assert report.findings[0].subject.endswith("slots"), str(report)


class Molecules:
    """Two lookups on one line: the second takes what the first found. The graph reads copies of its own."""

    def __init__(self, device, backend, is_right):
        self.charges = torch.linspace(1, 2, 4, device=device)
        self.z, self.edges = (torch.tensor(n, device=device) for n in ([0, 1, 2], [2, 0, 1]))
        self.its_z, self.its_edges, self.is_right = self.z.clone(), self.edges.clone(), is_right
        self.look_up(self.its_z, self.its_edges)
        self.graph = capture(lambda: self.look_up(self.its_z, self.its_edges), backend=backend)

    def look_up(self, z, edges):
        return self.charges[z][edges] * 2

    def step(self):
        self.its_edges.copy_(self.edges)
        if self.is_right:
            self.its_z.copy_(self.z)
        self.graph.replay()
        return self.graph.outputs.clone()

    def eager(self):
        return self.look_up(self.z, self.edges)

    def vary(self):
        self.z.copy_(self.z.roll(1))
        self.edges.copy_(self.edges.flip(0))


@pytest.mark.parametrize("is_right", [True, False])
def test_of_two_lookups_on_a_line_the_right_operand_is_named(is_right, device, backend):
    make = partial(Molecules, device, backend, is_right)
    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make)
    found = [(f.kind, f.subject) for f in report.findings]
    assert found == ([] if is_right else [("stale-input", "self.its_z")]), str(report)


def feeding(lag, copies, device, keeps_reset=True):
    """A result is fed back some requests later. Replays return the same memory each time."""
    held = SimpleNamespace(result=None, fed=torch.zeros(4, device=device), x=torch.ones(4, device=device))
    held.queue, held.issued, numbers = deque(), 0, torch.Generator().manual_seed(3)

    def step():
        held.result = torch.tanh(held.x + held.fed)
        return held.result

    def vary():
        if held.issued:
            held.queue.append(held.result.clone() if copies else held.result)
            if len(held.queue) == lag:
                held.fed.copy_(held.queue.popleft())
        held.x.copy_(torch.rand(4, generator=numbers))
        held.issued += 1

    def reset():
        held.queue.clear()
        held.issued = 0
        held.fed.zero_()

    more = {"reset": reset} if keeps_reset else {}
    return SimpleNamespace(step=step, vary=vary, **more)


@pytest.mark.parametrize("has_twin", [False, True])
@pytest.mark.parametrize("keeps_reset", [False, True])
@pytest.mark.parametrize(("lag", "copies"), [(1, False), (2, True), (3, True)])
def test_a_result_that_is_fed_back_is_right(lag, copies, keeps_reset, has_twin, device, backend):
    """`vary` reads what the step has bound: between two passes that is what an eager one has left."""
    make = partial(feeding, lag, copies, device, keeps_reset)
    one = make()
    more = {"twin": make} if has_twin else {}
    report = audit(one.step, vary=one.vary, reset=getattr(one, "reset", None), backend=backend, **more)
    assert not report.findings, str(report)


def test_a_result_that_is_kept_for_longer_is_not(device, backend):
    make = partial(feeding, 2, False, device)
    one = make()
    report = audit(one.step, vary=one.vary, reset=one.reset, backend=backend, twin=make)
    assert report.findings and "queue" in report.findings[0].subject, str(report)
    assert report.findings[0].where.function == "vary"


def decoding(device, is_right, from_step=2):
    """`vary` feeds what the last step has returned, as tokens are; a penalty begins behind some steps."""
    numbers = torch.Generator().manual_seed(0)
    table, head = (torch.randn(*shape, generator=numbers).to(device) for shape in ((50, 16), (16, 50)))
    held = SimpleNamespace(ids=torch.tensor([3, 7], device=device), tokens=None, turn=0)
    penalty = torch.randn(50, generator=numbers).to(device) * 9

    def step():
        scores = torch.tanh(table[held.ids]) @ head
        if held.turn >= from_step and not is_right:
            scores = scores - penalty
        held.tokens = scores.argmax(-1)
        return held.tokens

    def vary():
        held.turn += 1
        held.ids.copy_(held.tokens)

    return SimpleNamespace(step=step, vary=vary)


@pytest.mark.parametrize("has_twin", [False, True])
@pytest.mark.parametrize("is_right", [True, False])
def test_tokens_that_are_fed_back(is_right, has_twin, device, backend):
    make = partial(decoding, device, is_right)
    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make if has_twin else None)
    told = [(f.kind, f.subject) for f in report.findings][:1]
    assert told == ([] if is_right else [("frozen-host-value", "held.turn")]), str(report)


class Dummies:
    """Draws a dummy batch when it captures, from the generator that requests are drawn from, as late as it is
    asked for a graph."""

    def __init__(self, device, backend, draw, is_right):
        self.ids, self.backend, self.draw = torch.zeros(2, dtype=torch.long, device=device), backend, draw
        self.table = torch.arange(50.0, device=device)
        self.graph, self.scale, self.is_right = None, 1.0, is_right

    def forward(self):
        return self.table[self.ids] * self.scale

    def step(self):
        if self.graph is None:
            held = self.ids.clone()
            self.ids.copy_(torch.tensor(self.draw()))
            self.forward()
            self.ids.copy_(held)
            self.graph = capture(self.forward, backend=self.backend)
        self.graph.replay()
        return self.graph.outputs.clone()

    def eager(self):
        return self.forward()

    def vary(self):
        self.scale *= 1.0 if self.is_right else 0.5
        self.ids.copy_(torch.tensor(self.draw()))


DRAWS = {
    "random": lambda: [random.randrange(50), random.randrange(50)],
    "numpy": lambda: np.random.randint(0, 50, 2).tolist(),
    "torch": lambda: torch.randint(0, 50, (2,)).tolist(),
}


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("is_right", [True, False])
def test_each_engine_is_served_the_same_requests(is_right, draw, device, backend):
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    make = partial(Dummies, device, backend, DRAWS[draw], is_right)
    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make)
    told = [(f.kind, f.subject) for f in report.findings]
    assert told == ([] if is_right else [("frozen-host-value", "self.scale")]), str(report)
    if draw == "torch":  # what an engine has drawn that nobody audits stays drawn
        assert states[0] == random.getstate() and states[1] == np.random.get_state()[1].tolist()


def test_where_no_number_is_finite_nothing_is_compared(device, backend):
    held, x = SimpleNamespace(scale=1.0), torch.full((4,), torch.nan, device=device)
    report = audit(lambda: x * held.scale, vary=lambda: setattr(held, "scale", 2.0), backend=backend)
    assert not report.findings
    assert "no result holds a finite number, so nothing could be compared" in report.notes


class Shrinking:
    """A size shrinks that the graph holds; a warm-up has left what makes no difference."""

    def __init__(self, device, backend):
        self.x, self.scratch = torch.arange(8.0, device=device), torch.zeros(8, device=device)
        self.size, self.graph, self.backend = 8, None, backend

    def forward(self):
        return (self.x[: self.size] + self.scratch[: self.size] * 0).sum()

    def step(self):
        if self.graph is None:
            self.scratch.fill_(3)
            self.forward()
            self.graph = capture(self.forward, backend=self.backend)
        self.graph.replay()
        return self.graph.outputs.clone()

    def eager(self):
        return self.forward()

    def vary(self):
        self.size -= 2
        self.x.add_(1)


def test_what_differs_and_makes_no_difference_is_no_cause(device, backend):
    make = partial(Shrinking, device, backend)
    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make)
    assert report.findings[0].subject == "self.size", str(report)


def test_a_table_that_grows_is_named_beside_a_twin_too():
    def make():
        held = SimpleNamespace(table=torch.arange(4.0), ids=torch.zeros(1, dtype=torch.long), turn=0)

        def vary():
            held.turn += 1
            if held.turn == 3:
                held.table = torch.arange(8.0)
            held.ids.fill_(5 if held.turn >= 3 else held.turn)

        return SimpleNamespace(step=lambda: held.table[held.ids], vary=vary)

    one = make()
    report = audit(one.step, vary=one.vary, backend="emulated", twin=make)
    assert (report.findings[0].kind, report.findings[0].subject) == ("moved-address", "held.table")


def test_results_that_are_collected_from_a_graph_of_ones_own(device):
    def make():
        x, got, held = torch.ones(4, device=device), [], SimpleNamespace(graph=None, out=None)

        def work():
            held.out = x * 2

        def step():
            if held.graph is None:
                work()
                held.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(held.graph):
                    work()
            held.graph.replay()
            got.append(held.out)

        def eager():
            work()
            got.append(held.out)

        return SimpleNamespace(
            step=step, eager=eager, vary=lambda: x.add_(1), finish=lambda: torch.stack(got[1:])
        )

    one = make()
    report = audit(one.step, vary=one.vary, backend="auto", twin=make)
    assert report.findings[0].kind == "overwritten-output", str(report)


def recurrent(device, in_place):
    """State that is written in place, and what it gives is fed back: both belong to one step."""
    numbers = torch.Generator().manual_seed(5)
    wi, wh = (torch.randn(4, 4, generator=numbers).to(device) * 0.5 for _ in range(2))
    held = SimpleNamespace(x=torch.ones(1, 4, device=device), y=None, h=torch.zeros(1, 4, device=device))

    def step():
        new = torch.tanh(held.x @ wi + held.h @ wh)
        if in_place:
            held.h.copy_(new)
        else:
            held.h = new
        held.y = held.h @ wi.T
        return held.y

    return SimpleNamespace(step=step, vary=lambda: held.x.copy_(held.y))


@pytest.mark.parametrize("in_place", [True, False])
def test_a_state_beside_what_is_fed_back(in_place, device, backend):
    make = partial(recurrent, device, in_place)
    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make)
    assert bool(report.findings) == (not in_place), str(report)


def test_where_vary_reaches_what_a_step_binds_a_twin_is_recommended(device, backend):
    one = feeding(2, False, device, keeps_reset=False)
    report = audit(one.step, vary=one.vary, backend=backend)
    told = "vary() reaches held.result, which the step binds anew and no replay does; a twin would tell"
    assert any(note.startswith(told) for note in report.notes), str(report)
    quiet = Clipped(device, backend, True)
    assert not any(
        "vary() reaches" in n for n in audit(quiet.forward, vary=quiet.vary, backend=backend).notes
    )


@pytest.mark.parametrize("keeps", [True, False])
def test_gradients_that_vary_lets_go_of_are_told_beside_a_twin_too(device, backend, keeps):
    """A captured backward pass adds to the gradients of the capture; the optimizer no longer sees them."""

    def make():
        numbers = torch.Generator().manual_seed(1)
        x, w = (torch.randn(4, 4, generator=numbers).to(device) for _ in range(2))
        w.requires_grad_().grad = torch.zeros_like(w)
        optimizer = torch.optim.SGD([w], lr=0.1)

        def step():
            loss = (x @ w).square().mean()
            loss.backward()
            return loss.detach()

        def vary():
            optimizer.step()
            optimizer.zero_grad(set_to_none=not keeps)
            x.mul_(0.5)

        return SimpleNamespace(step=step, vary=vary)

    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make)
    assert bool(report.findings) is not keeps, str(report)
    if not keeps:
        first = report.findings[0]
        assert first.kind == "left-behind", str(report)
        assert first.evidence.startswith("is done less often there than where all runs eagerly, when request")
        assert any(note.endswith("which the step binds anew and no replay does") for note in report.notes)
