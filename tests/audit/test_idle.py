"""Frozen numbers that change nothing by themselves stand behind those that do."""

import os
import threading
from types import SimpleNamespace

import pytest
import torch

from mrv2lab.audit import Engine, EngineAudit, audit, frozen_host_value, names, split
from mrv2lab.audit.ops import holding, schema_of
from mrv2lab.audit.report import Finding
from mrv2lab.audit.trace import Event, TensorArgument
from mrv2lab.graphs import capture

# In a process that uses a GPU values of the capture are not bound, and so not asked.
EMULATED = pytest.mark.parametrize("backend", ["emulated"])


def found(step, vary, device, **more):
    report = audit(step, vary=vary, backend="emulated" if device.type == "cpu" else "cuda", **more)
    return [(one.kind, one.subject, one.evidence) for one in report.findings]


def test_a_bound_that_nothing_reaches_comes_behind_the_factor(device):
    """As `max_seqlen_k` of attention, that every step of an engine passes."""
    x, state = torch.ones(4, device=device), SimpleNamespace(most=99.0, factor=2.0)

    def step():
        bounded = x.clamp(max=state.most)
        return bounded * state.factor

    def vary():
        state.most, state.factor = 88.0, 3.0

    (first, second) = found(step, vary, device)
    assert first[:2] == ("frozen-host-value", "state.factor")
    assert second[:2] == ("frozen-host-value", "state.most") and "by itself it changes nothing" in second[2]


def test_numbers_of_many_layers_are_held_together(device):
    """Of one layer alone the bound would change nothing: the next one bounds again."""
    x, state = torch.full((4,), 9.0, device=device), SimpleNamespace(most=5.0, least=0.0)

    def step():
        y = x + 0
        for _ in range(2):
            y = y.clamp(max=state.most)
        return y.clamp(min=state.least)

    def vary():
        state.most, state.least = 2.0, -1.0

    first, second = found(step, vary, device)
    assert first[1] == "state.most" and "by itself" not in first[2]
    assert second[1] == "state.least" and "by itself it changes nothing" in second[2]


@EMULATED
def test_a_branch_to_work_that_comes_to_nothing(device):
    x, state = torch.ones(4, device=device), SimpleNamespace(tokens=3, factor=2.0)

    def step():
        y = x + 0
        if state.tokens > 3:
            y = y * 1.0
        return y * state.factor

    def vary():
        state.tokens, state.factor = 5, 3.0

    first, *others = found(step, vary, device)
    assert first[:2] == ("frozen-host-value", "state.factor")
    assert "by itself it changes nothing" in next(one[2] for one in others if one[1] == "state.tokens")


@EMULATED
def test_a_choice_between_equal_tensors(device):
    x, ones = torch.ones(4, device=device), [torch.ones(4, device=device) for _ in range(2)]
    state = {"which": 0, "factor": 2.0}

    def step():
        y = x * ones[state["which"]]
        return y * state["factor"]

    def vary():
        state.update(which=1, factor=3.0)

    first, second = found(step, vary, device)
    assert (first[1], second[1]) == ("state['factor']", "state['which']")


@pytest.mark.parametrize(
    "bounded",
    [
        lambda x, state: x[state.begin : state.begin + 4],
        lambda x, state: torch.minimum(x[:4], torch.full((), 99 + state.begin, device=x.device)),
        lambda x, state: x[:4].clamp(max=max(99, 90 + state.begin)) + 0 * max(state.begin, 0),
    ],
    ids=["view", "tensor", "worked_out"],
)
def test_an_innocent_number_however_it_reaches_the_work(bounded, device):
    x, state = torch.ones(16, device=device), SimpleNamespace(begin=0, factor=2.0)

    def step():
        y = bounded(x, state)
        return y * state.factor

    def vary():
        state.begin, state.factor = 4, 3.0

    assert found(step, vary, device)[0][1] == "state.factor"


def test_two_that_only_together_change_something_stay_in_order(device):
    x, state = torch.full((4,), 9.0, device=device), SimpleNamespace(one=5.0, two=5.0)

    def step():
        return torch.maximum(x.clamp(max=state.one), x.clamp(max=state.two))

    def vary():
        state.one, state.two = 20.0, 30.0

    first, second = found(step, vary, device)
    assert (first[1], second[1]) == ("state.one", "state.two")
    assert "by itself" not in first[2] + second[2]


def test_numbers_that_change_something_only_together_keep_their_place(device):
    """An innocent one behind them, which nobody can try, does not come first."""
    x = torch.full((2, 6), 9.0, device=device)
    state = SimpleNamespace(one=20.0, two=30.0, rows=3)

    def step():
        both = torch.maximum(x.clamp(max=state.one), x.clamp(max=state.two))
        return both.reshape(state.rows, -1).sum()

    def vary():
        state.one, state.two, state.rows = 5.0, 5.0, 4

    assert [one[1] for one in found(step, vary, device)] == ["state.one", "state.two", "state.rows"]


def test_a_pair_that_acts_together_leaves_others_innocent(device):
    x = torch.full((4,), 9.0, device=device)
    state = SimpleNamespace(most=99.0, one=20.0, two=30.0, factor=2.0)

    def step():
        y = x.clamp(max=state.most)
        return y.clamp(max=state.one).clamp(max=state.two) * state.factor

    def vary():
        state.most, state.one, state.two, state.factor = 88.0, 5.0, 5.0, 3.0

    told = found(step, vary, device)
    assert [one[1] for one in told] == ["state.one", "state.two", "state.factor", "state.most"]
    assert ["by itself" in one[2] for one in told] == [False, False, False, True]


def test_two_objects_of_the_same_name_are_told_apart(device):
    class Layer:
        def __init__(self, number):
            self.number = number

        def bound(self, x):
            return x.clamp(max=self.number)

        def scale(self, x):
            return x * self.number

    x, one, two = torch.ones(4, device=device), Layer(99.0), Layer(2.0)

    def step():
        return two.scale(one.bound(x))

    def vary():
        one.number, two.number = 88.0, 3.0

    first, *_ = found(step, vary, device)
    assert first[1] == "self.number" and "was 2.0 at capture, is 3.0 now" in first[2]


def test_lists_of_other_lengths_are_not_mixed(device):
    """Of `shifts` (1, 1) and (4,) half would be taken from each."""
    x = torch.arange(12.0, device=device).reshape(3, 4)
    state = SimpleNamespace(shifts=(1, 1), dims=(0, 1), factor=1.0)

    def step():
        return torch.roll(x, state.shifts, state.dims) * state.factor

    def vary():
        state.shifts, state.dims, state.factor = (4,), (0,), 1.0001

    told = found(step, vary, device)
    assert told[0][1] in ("state.shifts", "state.dims")
    assert not any("by itself" in one[2] for one in told if one[1] != "state.factor")


def test_many_innocent_ones_are_asked_by_halves(device):
    x = torch.ones(4, device=device)
    state = SimpleNamespace(factor=2.0, **{name: 9.0 for name in "abcdefgh"})

    def step():
        y = x.clamp(max=state.a).clamp(max=state.b).clamp(max=state.c).clamp(max=state.d)
        y = y.clamp(max=state.e).clamp(max=state.f).clamp(max=state.g).clamp(max=state.h)
        return y * state.factor

    def vary():
        for name in "abcdefgh":
            setattr(state, name, 8.0)
        state.factor = 3.0

    told = found(step, vary, device)
    assert told[0][1] == "state.factor" and len(told) > 1
    assert all("by itself it changes nothing" in one[2] for one in told[1:])


def test_a_cause_of_another_kind_comes_before_the_innocent_number(device):
    x, kept = torch.ones(4, device=device), []
    state = SimpleNamespace(most=99.0, weight=torch.full((4,), 2.0, device=device))

    def step():
        return x.clamp(max=state.most) * state.weight

    def vary():
        kept.append(state.weight)
        state.weight, state.most = torch.full((4,), 5.0, device=device), 88.0

    first, second = found(step, vary, device)
    assert first[0] == "moved-address" and second[1] == "state.most"


def test_an_innocent_number_alone_explains_nothing(device):
    x = torch.arange(4.0, device=device).reshape(2, 2)
    state = SimpleNamespace(most=99.0, dims=[0, 1])

    def step():
        return torch.flip(x.clamp(max=state.most), state.dims)

    def vary():
        state.most, state.dims = 88.0, [0]

    told = found(step, vary, device)
    assert told[0][1] != "state.most" and "by itself it changes nothing" in told[-1][2]


def work(sort="op", shape=(4,), **scalars):
    tensor = TensorArgument("x", 64, 16, shape, (1,), False, False)
    return Event(sort, "some.op", (1, "some.op", 0), None, tuple(scalars.items()), (tensor,))


@pytest.mark.parametrize(
    ("captured", "now", "old", "can"),
    [
        (work(most=1), work(most=2), 1, True),
        (work(most=1.0), work(most=2.0), 1.0, True),
        (work(handle=1 << 40), work(handle=1 << 41), 1 << 40, False),  # it may lead somewhere
        (work(end=1, shape=(2,)), work(end=2), 1, False),
        (work("view", end=1), work("view", end=2), 1, False),
        (work("launch", n=1), work("launch", n=2), 1, False),
        (work(**{"dims[0]": 1, "dims[1]": 2}), work(**{"dims[0]": 0}), 1, False),  # of a list
    ],
)
def test_which_numbers_an_eager_pass_can_be_given(captured, now, old, can):
    assert frozen_host_value._can_be_held(captured, now, old) is can


def test_arguments_are_held_wherever_they_stand():
    schema = schema_of(torch.ops.aten.clamp.default)
    held = {"min": 1.0, "max": 2.0}
    args, kwargs = holding(schema, ("x", 0.0), {}, held)
    assert (args, kwargs) == (["x", 1.0], {"max": 2.0})
    schema = schema_of(torch.ops.aten.roll.default)
    args, kwargs = holding(schema, ("x", [1, 2]), {"dims": (0, 1)}, {"shifts[1]": 7, "dims[0]": 5})
    assert (args, kwargs) == (["x", [1, 7]], {"dims": (5, 1)})


def test_a_step_that_draws_from_an_iterator_is_not_run_once_more(device):
    """What is gone from an iterator nobody puts back."""
    x, calls = torch.ones(4, device=device), []

    def run(most):
        state = SimpleNamespace(most=99.0, factor=2.0, drawn=iter(range(1000)))
        calls.clear()

        def step():
            calls.append(next(state.drawn))
            return x.clamp(max=state.most) * state.factor

        def vary():
            state.most, state.factor = most, 3.0

        told = found(step, vary, device)
        return len(calls), [one[1] for one in told]

    (alone, _), (both, names) = run(99.0), run(88.0)
    assert alone == both and set(names) >= {"state.most", "state.factor"}


@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("factor", [2.0, 3.0])
def test_of_memory_that_is_returned_in_part_the_rest_may_be_padding(factor, is_padded, device, backend):
    """A graph of four rows, of which two are real: what it leaves in the others depends on what was there."""
    buffer, state = torch.zeros(4, device=device), SimpleNamespace(factor=2.0, pad=1.0, other=3.0)
    x, made, beside = torch.ones(4, device=device), [], torch.zeros(4, device=device)

    def step():
        beside.copy_(x * state.other)
        buffer.copy_(x * state.factor)
        buffer[2:].add_(state.pad)

    def run():
        made[0].replay()
        return buffer[:2]

    def eager():
        step()
        return buffer[:2]

    def prepare():
        made.append(capture(step, backend=backend))

    roots = {"state": state, "buffer": buffer, "beside": beside}
    engine = Engine("rows", prepare, run, eager, anchor=step, roots=roots, is_padded=is_padded)
    one = EngineAudit(engine, backend=backend)
    one.capture()
    state.factor, state.pad = factor, 5.0
    report = one.step(engine)
    names = [f.subject for f in report.findings]
    assert names == ["state.factor"] * (factor != 2.0) + ["state.pad"] * (factor != 2.0 or not is_padded)
    state.other = 7.0  # of memory of its own, which is never padding
    assert "state.other" in [f.subject for f in one.step(engine).findings]


class Slotted:
    __slots__ = ("n",)
    shared = 1

    def __init__(self):
        self.n = 1


class Computed:
    @property
    def n(self):
        return 1


COUNT = 1


def of_step():
    n, kept = 1, SimpleNamespace(n=1, table={"n": [1]}, slotted=Slotted(), computed=Computed())
    kept.layers = torch.nn.Sequential(torch.nn.Identity())
    kept.layers[0].n = 1

    def step():
        return n, kept, COUNT

    return step


@pytest.mark.parametrize(
    "path",
    [
        "n",
        "COUNT",
        "kept.n",
        "kept.table['n'][0]",
        "kept.slotted.n",
        "kept.slotted.shared",
        "kept.layers[0].n",
    ],
)
def test_a_value_is_bound_where_its_path_leads(path):
    roots = names.Reachable(of_step())
    bind = names.binder(roots, path)
    bind(2)
    assert names.plain(roots)[path] == 2
    bind(1)
    assert names.plain(roots)[path] == 1


@pytest.mark.parametrize(
    "path", ["m", "kept.computed.n", "kept.m", "kept.table['n'][<x>]", "kept.table['m'].n"]
)
def test_what_runs_code_or_is_not_there_is_not_bound(path):
    assert names.binder(names.Reachable(of_step()), path) is None


def times_count(x):
    return x * COUNT


def test_of_two_variables_with_one_name_nobody_knows_which_is_bound(device):
    """`COUNT` of the step is a closure's and innocent, that of what it calls is this module's; both have
    changed alike."""
    x = torch.ones(4, device=device)
    COUNT = 1

    def step():
        return times_count(x.clamp(max=99.0 + COUNT))

    def vary():
        nonlocal COUNT
        COUNT = globals()["COUNT"] = 5

    try:
        told = found(step, vary, device)
        assert globals()["COUNT"] == 5
    finally:
        globals()["COUNT"] = 1
    assert {one[1] for one in told} == {"COUNT"} and not any("by itself" in one[2] for one in told)


def ways(backend, subject="state.n"):
    """Of a step that was passed nothing, and whose branch on a value of this name has changed."""
    was, now = ({"eng.state.n": n, "eng.other.m": n} for n in (3, 5))
    passes = SimpleNamespace(was=was, changed=now, binder=lambda path: print)
    session = SimpleNamespace(backend=backend)
    told = Finding("frozen-host-value", subject, "", None, (3, 5))
    seen = SimpleNamespace(session=session, passes=passes)
    return frozen_host_value._ways(seen, [], [told], [])


def test_in_a_process_that_uses_a_gpu_no_value_is_mixed_with_others():
    assert ways("emulated") and not ways("cuda")


@pytest.mark.parametrize(
    ("subject", "paths"), [("state.n", ["eng.state.n"]), ("n", []), ("len(state.n)", [])]
)
def test_of_two_that_have_changed_alike_the_one_that_is_called_so_is_bound(subject, paths):
    assert [path for way in ways("emulated", subject).values() for path in way.bound] == paths


@EMULATED
def test_what_flips_with_others_is_told_by_itself(device):
    x, b = torch.ones(4, device=device), torch.ones(4, device=device)
    context = SimpleNamespace(bias=False, noop=False)

    def step():
        y = x * 2
        if context.noop:
            y = y + 0.0
        if context.bias:
            y = y + b
        return y

    def vary():
        context.bias = context.noop = True

    first, *others = found(step, vary, device)
    assert first[1] == "context.bias" and any(one[1] == "context.noop" for one in others)


@pytest.mark.parametrize("ends", ["never", "waiting", "raising"])
def test_mixed_values_leave_nothing_behind_and_are_waited_for_no_longer(ends, device, monkeypatch):
    """Of a step that asks whether its values go together: by a loop, by a lock that is then held, by a list
    from which it has taken."""
    monkeypatch.setattr(split, "LIMIT_S", 2.0)
    x, lock = torch.ones(4, device=device), threading.Lock()
    e = SimpleNamespace(factor=2.0, most=50.0, free=[0], steps=0)

    def step():
        lock.acquire()
        slot = e.free.pop()
        while ends == "never" and e.most - 48 != e.factor:
            e.steps += 1
        if ends != "never" and e.most - 48 != e.factor:
            if ends == "raising":
                raise ValueError("they do not")
            lock.acquire()
        y = x.clamp(max=e.most)
        e.free.append(slot)
        lock.release()
        return y * e.factor

    def vary():
        e.factor += 1
        e.most += 1

    assert {one[1] for one in found(step, vary, device)} == {"e.factor", "e.most"}
    assert e.free == [0] and e.steps == 0 and not lock.locked()


def test_what_a_fork_says_is_not_heard(capfd):
    def ask():
        print("heard")
        os.write(2, b"heard")
        return True

    assert split.forked(ask)
    assert capfd.readouterr() == ("", "")


def test_a_fork_that_dies_has_said_no():
    assert not split.forked(lambda: os.kill(os.getpid(), 9))
