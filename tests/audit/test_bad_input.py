"""Steps that cannot be audited: one clear error with the line, everything put back, the machine usable."""

import functools
import importlib
import itertools
import random
import sys
import time
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from triton import JITFunction
from triton.runtime.interpreter import InterpretedFunction

from mrv2lab.audit import AuditError, audit, lines, recorder
from mrv2lab.errors import BadInput
from mrv2lab.graphs import CapturedGraph, capture, guard

programs = sys.modules["audit_programs"]


@pytest.fixture
def x(device):
    return torch.arange(4.0, device=device)


def state():
    """Everything that an audit replaces."""
    return (
        sys.gettrace(),
        InterpretedFunction.run,
        JITFunction.run,
        CapturedGraph.replay,
        torch.cuda.synchronize,
        torch.cuda.Event.synchronize,
        torch.utils._python_dispatch._get_current_dispatch_mode(),
    )


@pytest.fixture(autouse=True)
def nothing_stays_behind(x, backend):
    before = state()
    yield
    assert state() == before
    graph = capture(lambda: x + 1, backend=backend)  # captures still work, and on a GPU so does the context
    x.zero_()
    graph.replay()
    assert graph.outputs.tolist() == [1, 1, 1, 1]


def here(error):
    assert "test_bad_input.py:" in str(error.value)
    return str(error.value)


def test_random_numbers(x, backend):
    with pytest.raises(AuditError, match="draws random numbers") as error:
        audit(lambda: x * torch.rand(4, device=x.device), backend=backend)
    assert "aten.rand" in here(error)


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_random_numbers_of_the_host_are_drawn_again_in_each_pass_and_freeze(x, backend, draw):
    """Also of one that decides alone, and mostly the same: each request draws others."""
    for step in (lambda: x * draw(), lambda: x * (2 if draw() < 0.5 else 3)):
        report = audit(step, vary=lambda: x.add_(1), backend=backend)
        assert [(f.kind, f.subject) for f in report.findings] == [("frozen-host-value", "other of aten.mul")]


def test_what_python_draws_in_each_step_is_frozen_and_no_state(x, backend):
    """A coin that fell as at capture: replays in a row go on as they would, and eager steps toss it again."""
    total, kinds = torch.zeros_like(x), set()

    def step():
        total.add_(x)
        y = total * 2
        if random.random() < 0.5:
            y = y + 1
        return y

    def reset():
        total.zero_()

    for seed in range(6):
        random.seed(seed)
        kinds.add(audit(step, vary=lambda: x.add_(1), reset=reset, backend=backend).findings[0].kind)
    assert kinds == {"frozen-host-value"}


def test_coins_of_one_line_are_told_by_how_often_they_fell(x, backend):
    def step():
        y = x * 1
        for _ in range(5):
            if random.random() < 0.5:
                y = y + 1
        return y

    random.seed(1)
    found = audit(step, vary=lambda: x.add_(1), backend=backend).findings[0]
    was, now = found.change
    assert found.subject == "random.random() < 0.5" and was != now, str(found)
    assert was.startswith("true in ") and now.startswith("true in ")


def test_a_list_that_grows(x, backend):
    kept = []

    def step():
        kept.append(x.clone())
        return torch.cat(kept)

    with pytest.raises(AuditError, match="more work each time") as error:
        audit(step, backend=backend)
    here(error)


def test_dropout_that_drops_nothing_is_not_random(x, backend):
    kept = []

    def step():
        kept.append(torch.native_dropout(x, 0.0, True)[0])
        return torch.nn.functional.scaled_dot_product_attention(*[torch.stack(kept)[None, None]] * 3)

    with pytest.raises(AuditError, match="more work each time"):
        audit(step, backend=backend)


def test_a_step_that_raises(x, backend):
    def step():
        raise ValueError("no such batch\nand more")

    with pytest.raises(AuditError, match="the step raised ValueError while it was captured") as error:
        audit(step, backend=backend)
    assert here(error).endswith("no such batch")


def test_a_step_that_raises_at_other_inputs_only(x, backend):
    bad = []

    def step():
        assert not bad
        return x * 2

    with pytest.raises(AuditError, match="raised AssertionError when it was run eagerly") as error:
        audit(step, vary=lambda: bad.append(1), backend=backend)
    here(error)


def test_a_step_that_captures_is_refused(x, backend):
    with pytest.raises(AuditError, match="the step cannot be captured"):
        audit(lambda: capture(lambda: x + 1, backend=backend), backend=backend)


@pytest.mark.gpu
def test_what_cuda_refuses_is_named_by_its_line(monkeypatch):
    """As of an op that we do not know for one that waits."""
    monkeypatch.setattr(guard, "_LOOKS_AT_VALUES", set())
    x = torch.ones(2, 2, device="cuda")
    with pytest.raises(AuditError, match="CUDA refused the capture") as error:
        audit(lambda: torch.linalg.svdvals(x), backend="cuda")  # its values pass through the host
    here(error)
    assert torch.ones(2, device="cuda").sum().item() == 2


def test_a_kernel_that_was_defined_for_a_gpu(x):
    kernel = JITFunction(programs.scale_kernel.fn)
    with pytest.raises(AuditError, match=r"scale_kernel was defined for a GPU at .*; import") as error:
        audit(lambda: kernel[1,](x.cpu(), x.cpu(), 2.0, 4, BLOCK=4), backend="emulated")
    here(error)


def test_a_wrapped_kernel_that_was_defined_for_a_gpu(x):
    kernel = torch.library.wrap_triton(JITFunction(programs.scale_kernel.fn))
    with pytest.raises(AuditError, match=r"scale_kernel was defined for a GPU at"):
        audit(lambda: kernel[1,](x.cpu(), x.cpu(), 2.0, 4, BLOCK=4), backend="emulated")


def test_work_without_end(x, backend, monkeypatch):
    monkeypatch.setattr(recorder, "MAX_EVENTS", 200)

    def step():
        while True:
            torch.zeros(1, device=x.device)

    with pytest.raises(AuditError, match=r"does not end: 200 ops, the last aten.zeros") as error:
        audit(step, backend=backend)
    here(error)


def test_lines_without_end(x, backend, monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINES", 500)

    def step():
        n = 0
        while True:
            n += 1

    with pytest.raises(AuditError, match="does not end: 500 lines") as error:
        audit(step, backend=backend)
    here(error)


def test_waiting_without_end(x, backend, monkeypatch):
    monkeypatch.setattr(lines, "MAX_WAIT_S", 0.2)
    ready = [True]

    def step():
        while not ready:
            time.sleep(0.001)
        return x + 1

    with pytest.raises(AuditError, match="does not end: no work on the device for") as error:
        audit(step, vary=ready.clear, backend=backend)
    here(error)


def test_a_machine_too_busy_to_go_on_is_not_blamed_on_the_step(x, backend, monkeypatch):
    clock = itertools.count(0, lines.MAX_WAIT_S + 1)
    busy = SimpleNamespace(monotonic=lambda: next(clock), thread_time=lambda: 0.0)
    monkeypatch.setattr(lines, "time", busy)

    def step():
        total = 0
        for n in range(100):
            total += n
        return x + total

    assert audit(step, backend=backend).findings == ()


def test_what_an_import_runs_is_not_of_the_step(x, backend, monkeypatch, tmp_path):
    monkeypatch.setattr(lines, "MAX_LINES", 500)
    monkeypatch.syspath_prepend(tmp_path)
    for number in range(9):  # each pass may import, and finds it new
        (tmp_path / f"imported_{number}.py").write_text(
            "def run():\n    for n in range(1000):\n        n += 1\n\nrun()\n"
            "class Own:\n    run()\ntry:\n    import not_there_at_all\nexcept ImportError:\n    run()\n"
        )
    numbers = itertools.count()

    def step():
        importlib.import_module(f"imported_{next(numbers)}")
        return x + 1

    assert audit(step, backend=backend).findings == ()
    with pytest.raises(AuditError, match="500 lines"):
        audit(lambda: [n + 1 for n in range(1000)] and x + step_of_many(), backend=backend)


def test_two_files_of_the_same_content_are_imported(x, backend, monkeypatch, tmp_path):
    """Their code is equal, and each ends: what the step does behind them is seen."""
    monkeypatch.syspath_prepend(tmp_path)
    for number in range(4):
        (tmp_path / f"empty_{number}.py").write_text("")
    scale = [2.0]
    modules = [f"empty_{number}" for number in range(4)]

    def step():
        while modules:
            importlib.import_module(modules.pop())
        return scaled()

    def scaled():
        return x * scale[0]

    report = audit(step, vary=lambda: scale.__setitem__(0, 3.0), backend=backend)
    assert [one.subject for one in report.findings] == ["scale[0]"]


def step_of_many():
    total = 0
    for n in range(1000):
        total += n
    return total


def test_a_batch_that_the_step_fetches_for_itself(x, backend):
    batches = iter([x * i for i in range(9)])

    def step():
        batch = next(batches)
        return batch * 2

    with pytest.raises(AuditError, match=r"other results each time, see aten\.mul") as error:
        audit(step, backend=backend)
    here(error)


def test_memory_without_end(x, backend, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": -(1 << 40)}))

    def step():
        for _ in range(100):
            y = torch.zeros(1, device=x.device)
        return y

    with pytest.raises(AuditError, match="half of the memory") as error:
        audit(step, backend=backend)
    here(error)


@pytest.mark.parametrize(
    "name, value, takes",
    [
        ("vary", 5, "vary is 5; it takes a function without arguments"),
        ("rows", 3, "rows is 3; it takes a function that returns how many rows are real"),
        ("twin", SimpleNamespace(step=None), "twin is .*; it takes a function that makes a fresh engine"),
        ("vary", lambda n, m=2: n, r"<lambda>\(\) asks for n; vary takes a function"),
        ("beside", len, "beside is .*; it takes a list of functions"),
        ("beside", [1], "beside is .*; it takes a list of functions"),
        ("beside", [lambda n: n], "beside is .*; it takes a list of functions"),
        ("inputs", torch.ones(2), "inputs is .*; it takes a list of the static input tensors"),
        ("inputs", iter(()), "inputs is .*; it takes a list of the static input tensors"),
        ("in_flight", -1, "in_flight is -1; it is how many steps later"),
        ("in_flight", "2", "in_flight is '2'; it is how many steps later"),
    ],
)
def test_an_argument_of_another_kind(name, value, takes, x, backend):
    with pytest.raises(BadInput, match=takes):
        audit(lambda: x * 2, backend=backend, **{name: value})


def test_what_is_called_may_be_wrapped_around_what_asks_for_more(x, backend):
    @functools.wraps(torch.add)
    def with_batch():
        return x * 2

    @functools.wraps(lambda batch, scale: batch)
    def with_any(*batch, **scale):
        return x * 2

    for step in (with_batch, with_any):
        assert not audit(step, vary=lambda: x.add_(1), backend=backend).findings


def test_inputs_are_any_that_can_be_gone_through_again(x, backend):
    inputs = torch.nn.ParameterList([torch.nn.Parameter(x)])
    for given in (inputs, {"x": x}.values(), (x, x)):
        report = audit(lambda: x * 2, vary=lambda: x.add_(1), inputs=given, backend=backend)
        assert not report.findings


@pytest.mark.parametrize("step", [None, torch.ones(400)])
def test_a_step_that_is_no_function(step, backend):
    with pytest.raises(BadInput, match=r"^step is .*; it takes a function without arguments$") as error:
        audit(step, backend=backend)
    assert len(str(error.value)) < 120


@pytest.mark.parametrize("given", [2.0, None, -1, "2", torch.ones(900)])
def test_rows_that_are_no_number(given, x, backend):
    with pytest.raises(BadInput, match=r"rows\(\) returned .*; it is how many rows are real"):
        audit(lambda: x * 2, vary=lambda: x.add_(1), rows=lambda: given, backend=backend)


def test_rows_that_raise(x, backend):
    with pytest.raises(AuditError, match=r"at .*test_bad_input.*: TypeError: unsupported operand"):
        audit(lambda: x * 2, vary=lambda: x.add_(1), rows=lambda: None + 1, backend=backend)


def test_rows_as_a_tensor_or_of_numpy(x, backend):
    for given in (torch.tensor(2), np.int64(2), 0):
        report = audit(lambda: x * 2, vary=lambda: x.add_(1), rows=lambda given=given: given, backend=backend)
        assert not report.findings


def test_an_unknown_backend(x):
    with pytest.raises(BadInput, match="unknown backend 'tpu'"):
        audit(lambda: x, backend="tpu")


def test_a_tracer_that_was_there_comes_back(x, backend):
    def tracer(frame, event, argument):
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        audit(lambda: x * 2, backend=backend)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)


def test_buffers_hold_afterwards_what_they_held_after_vary(x, backend):
    total = torch.zeros(4, device=x.device)

    def step():
        total.add_(x)

    audit(step, vary=lambda: x.fill_(5.0), backend=backend)
    assert x.tolist() == [5, 5, 5, 5]
    assert total.tolist() == [0, 1, 2, 3]  # the warm-up's, as an engine leaves it


def test_a_buffer_that_is_written_in_part_and_then_whole_is_put_back(x, backend):
    total = torch.zeros(4, device=x.device)

    def step():
        total[:2].add_(1)
        total.add_(x)

    audit(step, backend=backend)
    assert total.tolist() == [1, 2, 2, 3]


def test_vary_and_reset_are_called_when_it_is_said(x, backend):
    calls = []
    audit(
        lambda: calls.append("step") or x * 2,
        vary=lambda: calls.append("vary"),
        reset=lambda: calls.append("reset"),
        backend=backend,
    )
    begun, compared = ["reset", "step", "step", "vary"], ["reset", "reset", "step", "reset", "step"]
    looked = ["reset"]  # at what it undoes of what vary has done
    assert calls == begun + looked + compared + 5 * ["vary", "reset", "step", "reset"]


def test_a_vary_that_raises_is_named(x, backend):
    def vary():
        raise ValueError("no such batch")

    with pytest.raises(AuditError, match=r"ValueError when the inputs were varied at .*no such batch"):
        audit(lambda: x * 2, vary=vary, backend=backend)


def test_a_step_without_device_work_is_refused(backend):
    books = []
    with pytest.raises(AuditError, match="does no work on the device"):
        audit(lambda: books.append(1), backend=backend)


def test_a_reset_that_writes_device_memory_is_no_work_of_the_step(x, backend):
    position = torch.zeros(1, dtype=torch.int64, device=x.device)

    def step():
        position.add_(1)
        return x * position

    assert not audit(step, vary=lambda: x.add_(1), reset=position.zero_, backend=backend).findings


def test_a_result_without_data_is_passed_over(x, backend):
    shape = torch.empty(4, device="meta")
    assert not audit(lambda: (x + 1, shape), backend=backend).findings


def test_without_vary_what_shows_at_the_same_inputs_is_found(x, backend):
    used = []

    def step():
        if not used:
            used.append(1)
            x.mul_(2)
        return x + 1

    report = audit(step, reset=used.clear, backend=backend)
    assert [f.kind for f in report.findings] == ["frozen-host-value", "lost-kernel"]
    assert report.findings[1].subject == "aten.mul_"


def test_a_buffer_that_changes_its_size_has_moved():
    x, out = torch.zeros(4), torch.zeros(4)

    def vary():
        x.resize_(9)

    report = audit(lambda: torch.mul(x, 2, out=out), vary=vary, backend="emulated")
    assert [(f.kind, f.subject) for f in report.findings] == [("moved-address", "x")]


def test_a_tensor_of_neither_memory_is_named():
    x, nowhere, out = torch.ones(4), torch.ones(4, device="meta"), torch.zeros(4)
    with pytest.raises(AuditError, match="got a tensor on meta"):
        audit(lambda: (out.copy_(x * 2), nowhere * 2), vary=lambda: x.add_(1), backend="emulated")
