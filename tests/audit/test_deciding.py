"""Of several values that change together the one that decided is named, and none that stood beside it."""

import sys

import pytest

from mrv2lab.audit import audit

programs = sys.modules["audit_programs"]


def both_by_and(w):
    y = w.x * 2
    if w.tokens > 0 and w.lora:
        y = y + 1
    return y


def on_one_line(w):
    y = w.x * 2
    if w.tokens and w.lora: y = y + 1  # fmt: skip  # noqa: E701
    return y


def by_or(w):
    y = w.x * 2
    if w.tokens > 100 or not w.lora:
        y = y + 1
    return y


def by_a_sum(w):
    y = w.x * 2
    if w.tokens + 100 * w.lora > 50:
        y = y + 1
    return y


def by_an_earlier_line(w):
    y = w.x * 2
    wanted = w.lora and w.tokens < 100
    if w.tokens > 0 and wanted:
        y = y + 1
    return y


def by_a_flag_that_is_set(w):
    y, wanted = w.x * 2, False
    for _ in range(3):
        if w.lora:
            wanted = True
    if w.tokens > 0 and wanted:
        y = y + 1
    return y


def by_an_expression(w):
    y = w.x * 2
    return y + 1 if w.tokens and w.lora else y


def by_a_call(w):
    def wanted():
        return w.lora

    y = w.x * 2
    if w.tokens > 0 and wanted():
        y = y + 1
    return y


def beside_a_call(w):
    y = w.x * 2
    if w.lora and max(w.tokens, 1) > 0 and w.x.dim() == 1:
        y = y + 1
    return y


def beside_what_nobody_can_work_out(w):
    y = w.x * 2
    if w.tokens > 0 and any(flag.on for flag in w.flags):
        y = y + 1
    return y


def beside_a_local_and_what_nobody_can_work_out(w):
    y, has_tokens = w.x * 2, w.tokens > 0
    while has_tokens and any(flag.on for flag in w.flags):
        y = y + 1
        break
    return y


def early(w):
    y = w.x * 2
    if not (w.tokens and w.lora):
        return y
    return y + 1


def by_a_loop(w):
    y = w.x * 2
    for _ in range(2):
        if w.tokens > 0 and w.lora:
            y = y + 1
    return y


def passed(w):
    scale = 4.0 if w.lora else 2.0
    return w.x * scale if w.tokens else w.x


def passed_beside_its_like(w):
    scale = w.settings["scale"]
    return w.x * scale if w.like else w.x


def passed_by_default(w):
    return w.x * ((w.tokens > 0 and w.settings["scale"]) or 1.0)


UNKNOWN = "any((flag.on for flag in w.flags))"
SUBJECTS = {
    beside_what_nobody_can_work_out: UNKNOWN,
    beside_a_local_and_what_nobody_can_work_out: UNKNOWN,
    passed_beside_its_like: "w.settings['scale']",
    passed_by_default: "w.settings['scale']",
}
STEPS = [
    both_by_and, on_one_line, by_or, by_a_sum, by_an_earlier_line, by_a_flag_that_is_set, by_an_expression,
    by_a_call, beside_a_call, beside_what_nobody_can_work_out,
    beside_a_local_and_what_nobody_can_work_out, early, by_a_loop, passed, passed_beside_its_like,
    passed_by_default,
]  # fmt: skip


def test_a_value_that_decides_from_one_side_only_has_decided(device, backend):
    """Put among the values of the other pass, each of two may or may not turn the sum; a decoy never does."""
    w = programs.Worker(device)
    w.decoy = w.one = w.other = 1

    def step():
        y = w.x * 2
        if w.decoy * 0 + w.one + w.other > 3:
            y = y + 1
        return y

    def vary():
        w.decoy, w.one, w.other = 9, 5, 5

    assert audit(step, vary=vary, backend=backend).findings[0].subject == "w.one"


@pytest.mark.parametrize("body", STEPS, ids=lambda body: body.__name__)
def test_what_decided_is_named_and_not_what_stood_beside_it(body, device, backend):
    w = programs.Worker(device)
    w.flags = [programs.Worker(device), programs.Worker(device)]
    for flag in w.flags:
        flag.on = False
    w.tokens, w.lora, w.like, w.settings = 4, False, 2.0, {"scale": 2.0}

    def vary():
        w.tokens, w.lora, w.flags[1].on = 8, True, True
        if body in SUBJECTS:
            w.like, w.settings["scale"] = 3.0, 3.0

    first = audit(lambda: body(w), vary=vary, backend=backend).findings[0]
    assert (first.kind, first.subject) == ("frozen-host-value", SUBJECTS.get(body, "w.lora"))
