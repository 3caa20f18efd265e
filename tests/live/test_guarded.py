"""The guard of a server, without vLLM and without a GPU: workers that capture on the emulator."""

import gc
import linecache
import logging
import sys
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import mrv2lab_vllm
from mrv2lab import reads
from mrv2lab.audit.recorder import Recorder, Session
from mrv2lab.errors import StaleCapture
from mrv2lab.graphs import capture
from mrv2lab.live import guarded
from mrv2lab.reads import Reads

CONTEXT = None


@pytest.fixture(autouse=True)
def server(monkeypatch, caplog, thawed):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=None))
    caplog.set_level(logging.INFO, "vllm.mrv2lab")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.weight = 2.0, torch.nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, x):
        return x * self.scale * self.weight * (CONTEXT or {}).get("factor", 1.0)


class Worker:
    """Of either runner. Captures pieces and whole graphs, one of each size."""

    def __init__(self):
        self.model_runner = SimpleNamespace(model=Model(), graphs={}, buffer=torch.ones(8))

    def compile_or_warm_up_model(self):
        global CONTEXT
        runner, CONTEXT = self.model_runner, {"factor": 1.0}
        for size in (4, 2):
            x = runner.buffer[:size]
            for kind in ("piece", "full"):
                graph = capture(lambda x=x: runner.model(x), backend="emulated")
                runner.graphs[kind, size] = graph
        CONTEXT = None
        graph.replay()
        return "warm"


def serving(mode="warn", made=None):
    made = made or Worker()
    assert mrv2lab_vllm._warm_up(made, None, mode) == "warm"
    return made, made.model_runner


def replay(runner):
    """All graphs."""
    for graph in runner.graphs.values():
        graph.replay()


def lines(caplog, level="WARNING"):
    return [record.getMessage() for record in caplog.records if record.levelname == level]


@pytest.mark.parametrize("use_ubatching", [True, False])
def test_of_microbatches_the_log_says_that_their_lines_are_not_seen(caplog, use_ubatching):
    made = Worker()
    made.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(use_ubatching=use_ubatching))
    serving(made=made)
    assert any("microbatches (enable_dbo)" in line for line in lines(caplog)) == use_ubatching


def test_what_has_changed_is_one_line_for_all_graphs(caplog, monkeypatch):
    monkeypatch.setattr(guarded, "SHARE", 1e9)  # each replay is asked
    made, runner = serving()
    [start] = lines(caplog, "INFO")
    values = made.mrv2lab_guard.checks
    assert values >= 8 and start.startswith(f"guard (warn): {values} values of 4 graphs are watched, ")
    replay(runner)
    assert lines(caplog) == []
    runner.model.scale = 3.0
    for _ in range(2):
        replay(runner)
    [line] = lines(caplog)
    assert line.startswith("guard: model.scale was 2.0 at capture, is 3.0 now (read at ")
    runner.model.weight = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    replay(runner)
    assert len(lines(caplog)) == 2 and "model.weight was at 0x" in lines(caplog)[1]
    assert made.mrv2lab_guard.told == {"model.scale", "model.weight"}


def test_what_the_warm_up_alone_had_is_left_out_and_said(caplog):
    made, runner = serving()
    assert made.mrv2lab_guard.left_out["CONTEXT"] == "changed by the warm-up"
    assert "left out (changed by the warm-up)" in caplog.text
    replay(runner)
    assert lines(caplog) == []


def test_a_guard_that_refuses_says_it_and_does_not_replay(caplog, monkeypatch):
    monkeypatch.setattr(guarded, "SHARE", 1e-9)
    _, runner = serving("refuse")
    graph = runner.graphs["full", 2]
    graph.replay()
    runner.model.scale = 3.0
    before = graph.num_replays
    for _ in range(2):
        with pytest.raises(StaleCapture, match=r"^model\.scale was 2"):
            graph.replay()
    assert graph.num_replays == before and len(lines(caplog)) == 1


def test_a_guard_that_only_warns_asks_for_a_share_of_the_time(monkeypatch):
    """By a clock of our own: a graph that took 2 of 4 units of asking is asked again after 4 / SHARE."""
    monkeypatch.setattr(guarded, "SHARE", 1 / 100)
    _, runner = serving()
    first, second = (runner.graphs[kind, 2] for kind in ("piece", "full"))
    now, asked = [0.0], []

    def ask(name):
        now[0] += 2.0
        asked.append((name, now[0]))
        return False

    monkeypatch.setattr(guarded.time, "perf_counter", lambda: now[0])
    for name, graph in (("first", first), ("second", second)):
        [(_, checks)] = graph._guards
        checks._ask_all = lambda name=name: ask(name)
        graph.replay()
    for moment in (201.0, 203.0, 403.0, 405.0):
        now[0] = moment
        first.replay()
        second.replay()
    assert asked == [("first", 2.0), ("second", 4.0), ("first", 205.0), ("second", 407.0)]


@pytest.mark.parametrize("fails", ["__init__", "__enter__", "__exit__", "watches"])
def test_a_guard_that_fails_says_so_and_the_server_goes_on(fails, caplog, monkeypatch):
    def fail(*args):
        raise ZeroDivisionError("put in")

    before = sys.gettrace()
    monkeypatch.setattr(Reads, fails, fail)
    _, runner = serving()
    assert lines(caplog)[0] == "no further graph is guarded: ZeroDivisionError: put in"
    assert len(lines(caplog)) == 1
    runner.buffer.fill_(3.0)
    replay(runner)
    assert runner.graphs["full", 2].outputs.tolist() == [6.0, 6.0]
    if fails != "__exit__":
        assert sys.gettrace() is before
    sys.settrace(before)


def test_a_telling_that_fails_is_a_line(caplog, monkeypatch):
    _, runner = serving()
    monkeypatch.setattr(guarded.Checks, "told", lambda *args: 1 / 0)
    runner.model.scale = 3.0
    runner.graphs["full", 2].replay()
    assert lines(caplog) == ["a graph is not guarded any more: ZeroDivisionError: division by zero"]


def test_a_value_of_a_library_is_watched_and_said_if_left_out(caplog, monkeypatch):
    source = (
        "calls, scale = 0, 2.0\ndef step(x):\n    global calls\n    calls = calls + 1\n    return x * scale\n"
    )
    file = "/site-packages/vllm/library.py"
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    library = type(sys)("library")
    exec(compile(source, file, "exec"), vars(library))
    monkeypatch.setitem(sys.modules, "library", library)
    monkeypatch.setattr(Model, "forward", lambda self, x: library.step(x))
    made, runner = serving()
    assert "calls" in made.mrv2lab_guard.left_out
    library.scale = 3.0
    runner.graphs["full", 2].replay()
    [line] = lines(caplog)
    assert line.startswith("guard: scale was 2.0 at capture, is 3.0 now") and "library.py:5 in step" in line


def test_captures_share_what_they_know_and_keep_no_memory(monkeypatch):
    """All objects are looked through once; what has come since then is not held until the warm-up ends."""
    looked, original, kept, alive = [], reads._memory, [], []
    monkeypatch.setattr(reads, "_memory", lambda: looked.append(1) or original())

    def forward(self, x):
        """As pieces do, it is handed what an earlier capture has made."""
        kept.append(x * 2)
        given = kept[0]
        return given * self.scale

    def warm_up(self):
        warm_up_as_ever(self)
        reference = weakref.ref(kept.pop(0))
        alive.append(reference() is not None)
        return "warm"

    warm_up_as_ever = Worker.compile_or_warm_up_model
    monkeypatch.setattr(Model, "forward", forward)
    monkeypatch.setattr(Worker, "compile_or_warm_up_model", warm_up)
    made, _ = serving()
    assert looked == [1] and alive == [False]
    reference = weakref.ref(made.model_runner.model)
    del made, _
    gc.unfreeze()
    gc.collect()
    assert reference() is None


def test_a_weight_is_found_by_its_name_in_each_graph_though_no_line_tells_it(caplog):
    made = Worker()
    made.model_runner.model.forward = made.model_runner.model.weight.mul
    _, runner = serving(made=made)
    runner.model.weight = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    for graph in runner.graphs.values():
        [(_, checks)] = graph._guards
        assert [watch.name for watch in checks.watches if checks.is_changed(watch)] == ["model.weight"]


class Graph:
    """`torch.cuda.CUDAGraph`, as far as a guard looks at it."""

    def __init__(self):
        self.num_replays, self.is_captured = 0, False

    def capture_begin(self, pool=None):
        pass

    def capture_end(self):
        self.is_captured = True

    def replay(self):
        self.num_replays += 1


@pytest.mark.parametrize("error", [None, ZeroDivisionError("put in")])
def test_a_graph_of_torch_is_guarded_and_what_cannot_be_read_stops_no_capture(error, monkeypatch, caplog):
    def addresses():
        if error:
            raise error
        return [model.weight.data_ptr()]

    class OfTorch(Worker):
        def compile_or_warm_up_model(self):
            graph = self.model_runner.graphs["full", 2] = torch.cuda.CUDAGraph()
            graph.capture_begin(pool=1)
            self.model_runner.model(self.model_runner.buffer)
            graph.capture_end()
            return "warm"

    monkeypatch.setattr(torch.cuda, "CUDAGraph", type("Graph", (Graph,), {}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("mrv2lab.guard._addresses_under_way", addresses)
    made = OfTorch()
    model = made.model_runner.model
    _, runner = serving(made=made)
    graph = runner.graphs["full", 2]
    model.scale = 3.0
    graph.replay()
    assert graph.is_captured and graph.num_replays == 1
    word = "no further graph is guarded: ZeroDivisionError" if error else "guard: model.scale was 2.0"
    assert [line.startswith(word) for line in lines(caplog)] == [True]


def test_an_audit_that_is_attached_as_well_hears_none_of_the_guards_work():
    session, made = Session("emulated"), Worker()
    warm_up = made.compile_or_warm_up_model

    def watched():
        with Recorder(session):
            return warm_up()

    made.compile_or_warm_up_model = watched
    serving(made=made)
    assert made.mrv2lab_guard.checks >= 8
    heard = {
        place.file for n in range(1, len(session.positions._keys)) if (place := session.positions.place(n))
    }
    assert any("test_guarded" in file for file in heard) and not any("reads.py" in file for file in heard)


def test_a_fake_tensor_is_not_asked_where_it_lies(recwarn):
    with FakeTensorMode():
        fake = torch.ones(2)
    made = Worker()
    made.model_runner.model.fake = fake
    serving(made=made)
    assert not recwarn.list
