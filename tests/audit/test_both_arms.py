"""What both arms of a branch do is not left out; what they do with other operands or numbers is."""

from types import SimpleNamespace

import pytest
import torch

from mrv2lab.audit import audit

opaque = torch.ops.mkldnn._linear_pointwise  # in C++, and with an argument that it may not look at


def reduced(e, x, registered):
    """A helper of both arms, which makes its own result, as `CustomAllreduce.all_reduce` of vLLM does
    (`distributed/device_communicators/custom_all_reduce.py:243-260` of 0.23.0)."""
    out = torch.empty_like(x)
    torch.add(x, 1, out=out)
    if registered:
        return opaque(out, e.weight, None, "none", [], "")
    else:
        return opaque(out, e.weight, None, "none", [], "tanh")  # which an op without an activation ignores


def alike(e, x):
    if e.capturing:
        y = torch.empty_like(x)
        torch.mul(x, 2, out=y)
    else:
        y = torch.empty_like(x)
        torch.mul(x, 2, out=y)
    return y


def by_a_helper(e, x):
    if e.capturing:
        return reduced(e, x, registered=True)
    else:
        return reduced(e, x, registered=False)


def of_other_numbers(e, x):
    if e.capturing:
        return x * 2
    return x * 3


def of_other_operands(e, x):
    one, other = x + 1, x + 2
    if e.capturing:
        return one * 2
    return other * 2


def of_other_views(e, x):
    if e.capturing:
        return x.t() * 2
    return x * 2


def of_what_was_written(e, x):
    y = x + 1
    if e.capturing:
        return y * 2
    y.add_(1)
    return y * 2


def of_an_activation(e, x):
    if e.capturing:
        return opaque(x, e.weight, None, "none", [], "")
    return opaque(x, e.weight, None, "relu", [], "")


def asked(body, device, backend, changes):
    """A step in which a body may hang on whether it is captured, and a factor is frozen beside it."""
    x, weight = torch.linspace(-1, 1, 9, device=device).view(3, 3), -torch.eye(3, device=device)
    engine = SimpleNamespace(x=x, weight=weight, capturing=True, factor=2.0)

    def step():
        y = engine.x * 2
        return body(engine, y) * engine.factor

    def vary():
        engine.x.add_(1)
        engine.capturing = False
        engine.factor += "factor" in changes

    return audit(step, vary=vary, backend=backend)


def is_on_cuda(body, backend):
    if backend == "cuda" and body in (by_a_helper, of_an_activation):
        pytest.skip("an op of the CPU's")


@pytest.mark.parametrize("body", [alike, by_a_helper])
def test_what_the_other_arm_does_as_well_is_no_cause(body, device, backend):
    is_on_cuda(body, backend)
    assert not asked(body, device, backend, changes="").findings
    report = asked(body, device, backend, changes="factor")
    assert [(f.kind, f.subject) for f in report.findings] == [("frozen-host-value", "engine.factor")]


@pytest.mark.parametrize(
    "body", [of_other_numbers, of_other_operands, of_other_views, of_what_was_written, of_an_activation]
)
def test_what_the_other_arm_does_otherwise_is_one(body, device, backend):
    is_on_cuda(body, backend)
    report = asked(body, device, backend, changes="")
    found = [(f.kind, f.subject) for f in report.findings]
    assert found[0] == ("frozen-host-value", "e.capturing"), str(report)
    if body is not of_an_activation:  # of which nobody can tell what its arguments mean
        report = asked(body, device, backend, changes="factor")
        assert ("frozen-host-value", "e.capturing") in [(f.kind, f.subject) for f in report.findings]
