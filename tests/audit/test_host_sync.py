"""What waits is named, not what stands beside it on the same line."""

from types import SimpleNamespace

import pytest
import torch

from mrv2lab.audit import audit
from mrv2lab.errors import AuditError


def write_at(w):
    w.y[5] = 2.0
    return w.y


def write_behind_an_ellipsis(w):
    w.y[..., -1] = float("-inf")
    return w.y


def first_of_a_line(w):
    n = w.n.item(); y = w.x * float("2")  # fmt: skip  # noqa: E702
    return y * n


def second_operand(w):
    return w.x * 2 if float("2") > 1 and w.n > 1 else w.x


def inside_of_an_expression(w):
    return w.x * (int(2.5) + w.n.item())


def chosen_by_a_mask(w):
    return w.x[w.x > 2] * float(2)


def as_a_bound(w):
    y = w.x
    for _ in range(w.n):
        y = y * 2
    return y


def over_several_lines(w):
    return w.x * (
        w.n
        .item()
    )  # fmt: skip


SUBJECTS = {
    write_at: "w.y[5]", write_behind_an_ellipsis: "w.y[..., -1]", first_of_a_line: "w.n",
    second_operand: "w.n > 1", inside_of_an_expression: "w.n", chosen_by_a_mask: "w.x[w.x > 2]",
    as_a_bound: "range(w.n)", over_several_lines: "w.n",
}  # fmt: skip
ON_A_GPU_TOO = {first_of_a_line, second_operand, inside_of_an_expression, over_several_lines, as_a_bound}


@pytest.mark.parametrize("body", SUBJECTS, ids=lambda body: body.__name__)
def test_what_waits_is_named(body, device, backend):
    if backend == "cuda" and body not in ON_A_GPU_TOO:
        pytest.skip("other ops may wait there")
    w = SimpleNamespace(x=torch.ones(8, device=device), y=torch.zeros(8, device=device))
    w.n = torch.tensor([3], device=device)
    [found] = audit(lambda: body(w), backend=backend).findings
    assert (found.kind, found.subject) == ("host-sync", SUBJECTS[body])


def test_all_that_waits_is_told_at_once_and_what_the_step_wrote_is_put_back(device, backend):
    n, m = torch.tensor([3], device=device), torch.tensor([1.0, 2.0], device=device)
    count = torch.zeros(1, device=device)

    def step():
        count.add_(1)
        y = m * n.item()
        if m.sum() > 2:
            y = y + m.tolist()[0]
        torch.cuda.synchronize()
        return y[y > 1].sum()

    found = audit(step, backend=backend).findings
    assert {f.kind for f in found} == {"host-sync"}
    assert [f.subject for f in found] == ["n", "m.sum() > 2", "m", "torch.cuda.synchronize()", "y[y > 1]"]
    assert [f.where.line for f in found] == sorted(f.where.line for f in found)
    assert count.item() == 1  # by the warm-up


@pytest.mark.parametrize("write", [False, True])
def test_of_a_list_as_an_index_it_is_said_that_the_list_is_copied(write, device, backend):
    x, wanted = torch.ones(8, 4, device=device), [3, 1, 5]

    def step():
        if not write:
            return x[wanted] * 2
        x[wanted] = 1.0
        return x

    if backend == "cuda":  # torch sees it itself, below its dispatcher
        with pytest.raises(AuditError, match=r"cannot be captured at .*x\[wanted\].*: .* is pinned"):
            audit(step, backend=backend)
        return
    [found] = audit(step, backend=backend).findings
    assert (found.kind, found.subject) == ("host-sync", "x[wanted]")
    assert "copies an index of shape [3] from the host" in found.evidence
    assert "wait for a device tensor" not in found.evidence
