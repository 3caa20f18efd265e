"""What torch's own switches do to ops: a graph keeps what they were when it was captured."""

import functools
from types import MethodType, SimpleNamespace

import pytest
import torch

from mrv2lab.audit import audit, names
from mrv2lab.graphs import capture


@pytest.fixture(autouse=True)
def put_back():
    dtype, is_on, of_cpu = (
        torch.get_default_dtype(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"),
    )  # fmt: skip
    yield
    torch.set_default_dtype(dtype)
    torch.set_autocast_enabled("cpu", is_on)
    torch.set_autocast_dtype("cpu", of_cpu)


def told(step, vary):
    return [
        (one.kind, one.subject, one.change) for one in audit(step, vary=vary, backend="emulated").findings
    ]


class Doubling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.relu else result


# ---- a replay does not ask for them again ----


def test_a_replay_has_the_default_dtype_of_its_capture():
    x = torch.arange(1, 6) * 30_000
    graph = capture(lambda: x / 2, backend="emulated")
    graph.replay()
    before = graph.outputs.clone()
    torch.set_default_dtype(torch.float16)
    graph.replay()
    assert graph.outputs.equal(before) and torch.get_default_dtype() is torch.float16


def test_a_replay_has_the_default_dtype_of_each_op():
    x = torch.arange(4) * 3

    def step():
        first = x / 2
        torch.set_default_dtype(torch.float64)
        second = x / 2
        torch.set_default_dtype(torch.float32)
        return first, second

    graph = capture(step, backend="emulated")
    torch.set_default_dtype(torch.bfloat16)
    graph.replay()
    assert [one.dtype for one in graph.outputs] == [torch.float32, torch.float64]
    assert [one.tolist() for one in graph.outputs] == [[0.0, 1.5, 3.0, 4.5]] * 2


def test_autocast_that_is_switched_on_later_does_not_reach_a_replay():
    torch.manual_seed(0)
    a, b = torch.randn(4, 64), torch.randn(64, 4)
    graph = capture(lambda: torch.mm(a, b), backend="emulated")
    torch.set_autocast_enabled("cpu", True)
    graph.replay()
    torch.set_autocast_enabled("cpu", False)
    assert graph.outputs.equal(torch.mm(a, b))


# ---- and an audit names them ----


def test_the_default_dtype_that_an_op_in_cpp_asks_for_is_named():
    x = torch.arange(1, 6) * 30_000

    def vary():
        x.add_(7)
        torch.set_default_dtype(torch.float16)

    change = torch.float32, torch.float16
    assert told(lambda: (x / 2).double(), vary) == [("frozen-host-value", "torch's default dtype", change)]


@pytest.mark.parametrize("is_kept_off", [False, True])
def test_autocast_is_named_where_it_reaches_a_step(is_kept_off):
    torch.manual_seed(0)
    a, b = torch.randn(4, 64), torch.randn(64, 4)

    def step():
        with torch.autocast("cpu", enabled=torch.is_autocast_enabled("cpu") and not is_kept_off):
            return torch.mm(a, b).float()

    def vary():
        a.normal_()
        torch.set_autocast_enabled("cpu", True)

    found = told(step, vary)
    assert found == [] if is_kept_off else found[0][:2] == ("frozen-host-value", "torch's autocast on cpu")


def test_what_sets_and_puts_back_a_default_dtype_is_right():
    x = torch.arange(1, 6) * 30_000

    def step():
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        try:
            return x / 2
        finally:
            torch.set_default_dtype(before)

    def vary():
        x.add_(7)
        torch.set_default_dtype(torch.float16)

    assert told(step, vary) == []


def test_a_mode_that_vary_enters_is_named_and_stays_entered():
    x, mode = torch.ones(4), Doubling()

    depth = torch._C._len_torch_function_stack()
    try:
        found = told(lambda: torch.relu(x), lambda: (x.add_(1), mode.__enter__()))
        stack = torch.overrides._get_current_function_mode_stack()
        assert stack and {type(one) for one in stack[depth:]} == {Doubling}
    finally:
        while torch._C._len_torch_function_stack() > depth:
            torch._C._pop_torch_function_stack()
    assert found[0][:2] == ("frozen-host-value", "torch's function modes")


def test_grad_mode_is_named_where_a_step_asks_for_it():
    x = torch.ones(4)
    was = torch.is_grad_enabled()
    try:
        found = told(
            lambda: x.clamp(max=0.5) if torch.is_grad_enabled() else x * 4,
            lambda: (x.add_(1), torch.set_grad_enabled(False)),
        )
    finally:
        torch.set_grad_enabled(was)
    assert found[0][:2] == ("frozen-host-value", "torch's grad mode")


# ---- one value, which no line shows ----


def test_the_only_value_that_vary_has_changed_explains_work_of_a_library():
    torch.manual_seed(0)
    p, x = torch.nn.Parameter(torch.ones(4)), torch.rand(4)
    optimizer = torch.optim.SGD([p], lr=0.1)

    def step():
        p.grad = x
        optimizer.step()

    def vary():
        x.add_(1)
        optimizer.param_groups[0]["weight_decay"] = 0.5

    subject = "optimizer.param_groups[0]['weight_decay']"
    assert told(step, vary)[0] == ("frozen-host-value", subject, (0, 0.5))


@pytest.mark.parametrize("others", [0, 1])
def test_of_two_values_that_vary_has_changed_none_is_named(others):
    x, switch = torch.ones(4), SimpleNamespace(on=False, other=0)
    ask = functools.partial(getattr, switch)

    def step():
        return x * (3 if ask("on") else 1)

    def vary():
        switch.on = True
        switch.other += others

    (found,) = audit(step, vary=vary, backend="emulated").findings
    assert found.subject == "other of aten.mul"
    assert (".on from False to True" in found.evidence) is (others == 0)


def test_a_method_that_an_object_gets_of_its_own_is_named():
    x, module = torch.ones(4), torch.nn.Linear(4, 4).requires_grad_(False)

    def native(self, x):
        return torch.nn.functional.relu(x) * 3

    def vary():
        x.add_(1)
        module.forward = MethodType(native, module)

    assert told(lambda: module(x), vary)[0][:2] == ("frozen-host-value", "module.forward")


def test_long_values_are_told_by_their_ends():
    x, held = torch.ones(4), SimpleNamespace(text="a" * 5000)

    def step():
        return x * (2 if held.text == "a" * 5000 else 3)

    report = audit(step, vary=lambda: setattr(held, "text", "b" * 5000), backend="emulated")
    assert report.findings[0].subject == "held.text" and len(report.findings[0].evidence) < 700


def test_a_scripted_module_can_be_walked():
    class Twice(torch.nn.Module):
        def forward(self, x):
            return x * 2.0

    module, x = torch.jit.script(Twice()), torch.ones(4)
    walked = dict(names.leaves({"module": module, "behind": [3.0]}, code=True))
    assert walked["behind[0]"] == 3.0 and any(path.startswith("module") for path in walked)
    assert told(lambda: module(x), lambda: x.add_(1)) == []
