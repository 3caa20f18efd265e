"""Of several expressions in one statement the one that issued the work is asked, not its neighbours."""

from types import SimpleNamespace

import pytest
import torch

from mrv2lab.audit import audit

# In a process that uses a GPU values of the capture are not bound, and so not asked.
EMULATED = pytest.mark.parametrize("backend", ["emulated"])


def found(step, vary, device):
    report = audit(step, vary=vary, backend="emulated" if device.type == "cpu" else "cuda")
    return [one.subject for one in report.findings]


def test_a_value_beside_a_tensor_that_another_one_chose(device):
    x, ws = torch.ones(4, device=device), [torch.full((4,), n, device=device) for n in (2.0, 3.0)]
    state = SimpleNamespace(bound=0.5, which=0)

    def step():
        w = ws[state.which]
        return torch.where(x > state.bound, w * x, x)

    def vary():
        state.bound, state.which = 0.6, 1

    first, second = found(step, vary, device)
    assert (first, second) == ("state.which", "state.bound")


def test_of_two_calls_in_a_line_each_has_its_own(device):
    x, ws = torch.ones(4, device=device), [torch.full((4,), n, device=device) for n in (2.0, 3.0)]
    state = SimpleNamespace(bound=0.5, which=0)

    def scaled(x, w):
        return x * w

    def bounded(x, least):
        return x.clamp(min=least)

    def step():
        return bounded(x, state.bound) + scaled(x, ws[state.which])

    def vary():
        state.bound, state.which = 0.6, 1

    first, second = found(step, vary, device)
    assert (first, second) == ("state.which", "state.bound")


def test_what_is_stored_stands_beside_where(device):
    x, ws = torch.zeros(2, 4, device=device), [torch.full((4,), n, device=device) for n in (2.0, 3.0)]
    state = SimpleNamespace(row=0, which=0)

    def step():
        x[state.row] = ws[state.which]
        return x.sum(0)

    def vary():
        state.row, state.which = 1, 1

    assert found(step, vary, device)[0] == "state.which"


def test_calls_of_methods_on_lines_of_their_own(device):
    x, ws = torch.ones(4, device=device), [torch.full((4,), n, device=device) for n in (2.0, 3.0)]
    state = SimpleNamespace(bound=9.0, which=0)

    def step():
        chosen = ws[state.which]
        return (
            x.neg()
            .clamp(
                min=-state.bound,
            )
            .mul(
                chosen,
            )
        )

    def vary():
        state.bound, state.which = 8.0, 1

    first, second = found(step, vary, device)
    assert (first, second) == ("state.which", "state.bound")


def test_of_two_that_have_changed_alike_the_nearer_one(device):
    x, state = torch.ones(4, device=device), SimpleNamespace(factor=2.0, most=2.0)

    def step():
        return torch.add(x * state.factor, (x * 9).clamp(max=state.most))

    def vary():
        state.factor = state.most = 3.0

    assert found(step, vary, device) == ["state.factor", "state.most"]


@EMULATED
def test_a_local_variable_beside_one_that_a_branch_chose(device):
    x, ws = torch.ones(4, device=device), [torch.full((4,), n, device=device) for n in (2.0, 3.0)]
    state = SimpleNamespace(which=False, other=False, most=9.0)

    def step():
        if state.other:  # noqa: SIM108
            v = ws[0]
        else:
            v = x
        if state.which:  # noqa: SIM108
            w = ws[1]
        else:
            w = ws[0]
        return (x + v).clamp(max=1.0) + x.clamp(max=state.most) + x * w

    def vary():
        state.which, state.other, state.most = True, True, 8.0

    assert found(step, vary, device)[0] == "state.which"


def test_a_number_beside_one_that_a_branch_chose(device):
    x, state = torch.ones(4, device=device), SimpleNamespace(which=False, other=False)

    def step():
        if state.other:  # noqa: SIM108
            most = 9.0
        else:
            most = 8.0
        if state.which:  # noqa: SIM108
            factor = 3.0
        else:
            factor = 2.0
        return x.clamp(max=most) + x.mul(factor)

    def vary():
        state.which = state.other = True

    assert {*found(step, vary, device)} == {"state.which", "state.other"}


@EMULATED
def test_two_tensors_of_one_op_each_chosen_by_another(device):
    x, ones = torch.ones(4, device=device), [torch.ones(4, device=device) for _ in range(2)]
    ws, state = [x, x * 2], SimpleNamespace(same=0, which=0)

    def step():
        return ones[state.same] * ws[state.which]

    def vary():
        state.same = state.which = 1

    assert found(step, vary, device) == ["state.which", "state.same"]


@EMULATED
def test_where_the_first_that_a_line_names_changes_nothing_the_next_is_asked(device):
    x, ws = torch.ones(4, device=device), [torch.full((4,), n, device=device) for n in (2.0, 3.0)]
    state = SimpleNamespace(request=0, which=0)

    def step():
        request, w = state.request, ws[state.which]
        return (x * w, request)[0]

    def vary():
        state.request = state.which = 1

    assert found(step, vary, device) == ["state.which", "state.request"]


def test_a_number_of_two_that_have_changed_and_of_which_either_will_do(device):
    """Each alone leaves the larger one what it is, and the op gets another number all the same."""
    x, state = torch.ones(4, device=device), SimpleNamespace(a=2.0, b=2.0)

    def step():
        return x * max(state.a, state.b)

    def vary():
        state.a = state.b = 3.0

    report = audit(step, vary=vary, backend="emulated" if device.type == "cpu" else "cuda")
    assert report.findings and "by itself" not in str(report)
