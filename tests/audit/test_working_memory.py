"""Steps that return nothing: which of what they write is a result, and which is memory to work with."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from mrv2lab.audit import audit
from mrv2lab.graphs import capture


def serving(device, backend, held, captured, eager=None, **more):
    """An engine of which the caller reads what its graph writes. If it is wrong, it holds its first scale."""
    graph = capture(captured, backend=backend)

    def vary():
        held.x.add_(1)
        held.position.add_(1)
        held.number += 1
        held.scale += held.growth

    def step():
        graph.replay()

    def run():
        (eager or captured)()

    return SimpleNamespace(step=step, eager=run, vary=vary, held=held, **more)


def holding(device, growth, **tensors):
    zeros = {name: torch.zeros(*shape, device=device) for name, shape in tensors.items()}
    position = torch.zeros(1, dtype=torch.int64, device=device)
    x = torch.ones(4, device=device)
    return SimpleNamespace(x=x, position=position, number=0, scale=1.0, growth=growth, **zeros)


def paged(device, backend, growth):
    """The engines lend blocks of a paged KV cache in another order."""
    held = holding(device, growth, cache=(64, 4), out=(4,))
    held.table = torch.zeros(8, dtype=torch.int64, device=device)

    def model(first, by):
        block = first + by * held.position
        held.table.scatter_(0, held.position, block)
        held.cache.index_copy_(0, block, (held.x * held.scale)[None])
        is_seen = torch.arange(8, device=device) <= held.position
        held.out.copy_((held.cache[held.table] * is_seen[:, None]).sum(0))

    return serving(device, backend, held, lambda: model(20, 1), lambda: model(50, -1))


def split(device, backend, growth):
    """The number of splits is fixed in the graph."""
    held = holding(device, growth, parts=(4,), out=(1,))

    def model(num_splits):
        held.parts.zero_()
        held.parts[:num_splits].copy_((held.x * held.scale).view(num_splits, -1).sum(1))
        held.out.copy_(held.parts.sum(0, keepdim=True))

    return serving(device, backend, held, lambda: model(2), lambda: model(4))


def staged(device, backend, growth):
    """A graph has its staging buffer, eager steps take turns."""
    held = holding(device, growth, out=(4,))
    held.stages = [torch.zeros(4, device=device) for _ in range(3)]

    def model(slot):
        held.stages[slot].copy_(held.x * held.scale)
        held.out.copy_(held.stages[slot] + 1)

    return serving(device, backend, held, lambda: model(0), lambda: model(held.number % 3))


def read_later(device, backend, growth):
    """What one step has staged the next one reads."""
    held = holding(device, growth, stages=(4, 4), out=(4,))

    def model(first):
        slot = (held.position + first) % 4
        held.out.copy_(held.stages[(slot - 1) % 4][0])
        held.stages.index_copy_(0, slot, (held.x * held.scale)[None])

    return serving(device, backend, held, lambda: model(0), lambda: model(2))


def padded(device, backend, growth):
    """Eager steps clear the rows that are not real."""
    held = holding(device, growth, out=(4, 2))

    def num_rows():
        return max(1, 4 - held.number)

    def model(rows):
        held.out.zero_()
        held.out[:rows].copy_((held.x * held.scale)[:rows, None].expand(-1, 2))

    return serving(device, backend, held, lambda: model(4), lambda: model(num_rows()), rows=num_rows)


@pytest.mark.parametrize("growth", [0.0, 1.0])
@pytest.mark.parametrize("make", [paged, split, staged, read_later, padded])
def test_memory_to_work_with_may_differ_and_a_wrong_result_is_found(make, growth, device, backend):
    make = partial(make, device, backend, growth)
    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make, rows=getattr(one, "rows", None))
    if growth:
        assert "held.scale" in [f.subject for f in report.findings], str(report)
    else:
        assert not report.findings, str(report)
        assert make.func is padded or any("not taken for a result" in note for note in report.notes)


def state(device, backend, kind):
    """The result is right, but not what is left for others or for later."""
    held = holding(device, float(kind != "bound_anew"), cache=(16, 4), out=(4,), count=(1,), weight=(4,))
    large = torch.zeros(1 if kind != "large" else 70_000, device=device)

    def model():
        new = held.x * held.scale
        match kind:
            case "unread" | "context":  # it attends to what was in the cache, and the new is for later
                held.cache.index_copy_(0, held.position, new[None])
                held.out.copy_(held.x + held.cache[12] if kind == "context" else held.x)
            case "count":
                held.count.add_(held.scale)
                held.out.copy_(held.x)
            case "weights":  # too small a step to be seen in the result
                held.out.copy_(held.x + held.weight)
                held.weight.sub_(new * 1e-7)
            case "small":
                held.weight.mul_(0.5).add_(new * 1e-6)
                held.out.copy_(held.x * 100 + held.weight)
            case "recurrent":
                held.weight.mul_(0.5).add_(new)
                held.out.copy_(held.weight)
            case "written_again":
                held.out.copy_(held.x * 2)
                held.count.copy_(held.out.sum(0, keepdim=True))
                held.out.copy_(new)
            case "bound_anew":
                held.weight.mul_(0.5).add_(held.x)
                held.out.copy_(held.weight)
            case "large":
                large[100:104].copy_(new)

    one = serving(device, backend, held, model, large=large)
    prepare = one.vary

    def vary():
        prepare()
        if kind == "bound_anew" and held.number == 3:
            held.old, held.weight = held.weight, held.weight.clone()

    one.vary = vary
    return one


@pytest.mark.parametrize(
    "kind",
    ["unread", "context", "count", "weights", "small", "recurrent", "written_again", "bound_anew", "large"],
)
def test_what_is_left_for_others_or_for_later_is_a_result(kind, device, backend):
    one = state(device, backend, kind)
    report = audit(one.step, vary=one.vary, backend=backend, twin=lambda: state(device, backend, kind))
    subject = "held.weight" if kind == "bound_anew" else "held.scale"
    assert [f.subject for f in report.findings][:1] == [subject], str(report)


@pytest.mark.parametrize("is_right", [True, False])
def test_large_results_are_compared(is_right, device, backend):
    """Sums come in another order, or rows at other places, which a plain sum would not show."""

    def make():
        x, number = torch.linspace(1, 2, 70_000, device=device), torch.ones(1, device=device)
        out = torch.zeros(70_000, device=device)

        def model(factor, row):
            out.copy_(x * factor * (number / factor)).index_fill_(0, row, 0.0)

        rows = torch.tensor([[0], [0 if is_right else 512]], device=device)
        graph = capture(lambda: model(1.0, rows[0]), backend=backend)

        def step():
            graph.replay()

        return SimpleNamespace(
            step=step, eager=lambda: model(3.0, rows[1]), vary=lambda: number.add_(1), out=out
        )

    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make)
    assert bool(report.findings) != is_right, str(report)
    assert any("as rounding may explain" in note for note in report.notes) == is_right
