"""Several statements on a line: when it begins, what the earlier ones bind holds what it held before."""

import ast
from types import SimpleNamespace

import torch

from mrv2lab.audit import audit
from mrv2lab.audit.branches import _deciding_on


def subjects(step, vary, device):
    report = audit(step, vary=vary, backend="emulated" if device.type == "cpu" else "cuda")
    return [one.subject for one in report.findings]


def test_the_variable_of_a_loop_whose_body_stands_beside_it(device):
    x, state = torch.ones(4, device=device), SimpleNamespace(factors="2,3")

    def step():
        y = x
        for factor in state.factors.split(","): y = y * float(factor)  # noqa: E701  # fmt: skip
        return y

    def vary():
        state.factors = "2,5"

    assert subjects(step, vary, device)[0] == "state.factors"


def test_a_loop_that_turns_as_often_and_goes_through_something_else(device):
    x, state = torch.ones(4, device=device), SimpleNamespace(factors="2,3", most=50.0)

    def step():
        y = x.clamp(max=state.most)
        for factor in state.factors.split(","): y = y * float(factor)  # noqa: E701  # fmt: skip
        return y

    def vary():
        state.factors, state.most = "2,5", 60.0

    assert subjects(step, vary, device)[0] == "state.factors"


def test_a_tensor_bound_by_a_condition(device):
    x, state = torch.ones(4, device=device), SimpleNamespace(which=0)
    ws = [x * 2, x * 3]

    def step():
        if (w := ws[state.which]) is not None:
            return x * w

    def vary():
        state.which = 1

    assert subjects(step, vary, device)[0] == "state.which"


def test_a_call_of_unpacked_arguments_on_a_line_of_its_own(device):
    x, state = torch.ones(4, device=device), SimpleNamespace(most=2.0, beside=0.5)

    def step():
        bounds = 0.0, 2 * state.most
        return torch.add(x.clamp(max=state.beside), (
            x.mul(9.0)
            .clamp(
                *bounds)
        ))  # fmt: skip

    def vary():
        state.most, state.beside = 3.0, 0.6

    assert {*subjects(step, vary, device)} == {"state.most", "state.beside"}


def test_only_the_heads_around_it_decide_whether_something_runs():
    [loop] = ast.parse("for x in make(n):\n    if late: use(x)").body
    [branch] = loop.body
    make, use = loop.iter, branch.body[0].value
    assert [*_deciding_on(loop, make)] == []
    assert [*_deciding_on(branch, use)] == [branch.test]
    assert [*_deciding_on(loop, use)] == [make, branch.test]
