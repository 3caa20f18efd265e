"""A guard that stays on: what is right is silent, each kind of change is named, and nothing is kept alive."""

import gc
import linecache
import subprocess
import sys
import threading
import warnings
import weakref
from contextvars import ContextVar
from copy import deepcopy
from decimal import Decimal
from enum import Enum, IntEnum
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mrv2lab.errors import BadInput, StaleCapture
from mrv2lab.graphs import capture, host, session
from mrv2lab.graphs.cuda import CudaGraph
from mrv2lab.graphs.emulated import EmulatedGraph
from mrv2lab.guard import guard

pytestmark = pytest.mark.usefixtures("nothing_before")

SCALE = 2.0
TABLE = None


class Model(torch.nn.Module):
    """Reads something of each kind."""

    def __init__(self, device):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4, device=device).requires_grad_(False)
        self.buffer = torch.ones(4, device=device)
        self.scale, self.use_bias, self.calls = 1.0, True, 0
        self.config = SimpleNamespace(alpha=0.5, options={"beta": 2}, powers=[1, 2, 3])
        self.lens = host(torch.tensor([2, 3]))

    def forward(self, x):
        self.calls += 1
        config = self.config
        y = self.layer(x) * self.scale + self.buffer * config.alpha
        y = y * config.options["beta"] + config.powers[1]
        if self.use_bias:
            y = y + 1
        return y[: int(self.lens[0])]


@pytest.fixture
def model(device):
    return Model(device)


@pytest.fixture
def x(device):
    return torch.ones(4, device=device)


@pytest.fixture
def guarded(model, x, backend):
    """A graph of the model, with its guard."""
    model(x)
    with guard("warn") as found:
        graph = capture(lambda: model(x), backend=backend)
    return SimpleNamespace(guard=found, graph=graph)


def told(graph):
    """What a replay warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph.replay()
    return [str(one.message) for one in caught if issubclass(one.category, StaleCapture)]


def no_scale(model):
    model.scale = 2.0


def other_config(model):
    model.config = SimpleNamespace(alpha=0.25, options=model.config.options, powers=model.config.powers)


def other_weight(model):
    model.layer.weight = torch.nn.Parameter(model.layer.weight.clone(), requires_grad=False)


def other_layer(model):
    model.layer = torch.nn.Linear(4, 4, device=model.buffer.device)


BETA = "model.config.options['beta']"
CHANGES = {
    "attribute": (no_scale, "model.scale was 1.0 at capture, is 2.0 now"),
    "holder rebound upstream": (other_config, "model.config.alpha was 0.5 at capture, is 0.25 now"),
    "entry": (lambda m: m.config.options.update(beta=3), f"{BETA} was 2 at capture, is 3 now"),
    "entry gone": (lambda m: m.config.options.clear(), f"{BETA} was 2 at capture, is gone now"),
    "item": (lambda m: m.config.powers.insert(0, 7), "model.config.powers[1] was 2 at capture, is 1 now"),
    "branch": (lambda m: setattr(m, "use_bias", False), "model.use_bias was True at capture, is False now"),
    "host tensor": (lambda m: m.lens.fill_(1), "model.lens[0] was 2 at capture, is 1 now"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "words"), CHANGES.values(), ids=CHANGES)
def test_a_change_is_named_with_the_line_that_read_it(guarded, model, change, words):
    assert told(guarded.graph) == []
    assert guarded.guard.left_out == {"model.calls": "changed by the capture itself"}
    change(model)
    (text,) = told(guarded.graph)
    assert (
        text.startswith(f"{words} (read at ") and text.endswith(" in forward)") and "test_guard.py:" in text
    )
    assert told(guarded.graph) == []  # once for each value


@pytest.mark.parametrize("change", [other_weight, other_layer])
def test_what_no_line_of_the_users_reads_is_named_by_the_graphs_addresses(guarded, model, change):
    kept = model.layer.weight, model.layer
    change(model)
    first = told(guarded.graph)[0]
    assert (
        first == f"model.layer.weight was at 0x{kept[0].data_ptr():x} at capture, is at 0x{at(model):x} now"
    )


def at(model):
    return model.layer.weight.data_ptr()


def test_a_tensor_whose_name_is_gone_and_its_memory_freed_is_named(guarded, model):
    del model.buffer
    (text,) = told(guarded.graph)
    assert "model.buffer was at 0x" in text and "is gone now, and what the graph uses is freed" in text


def test_a_local_variable_that_is_freed_is_told(device, backend):
    """Nobody can look at a function's variables from outside; the graph's memory is watched all the same."""

    def build():
        x = torch.ones(4, device=device)
        return capture(lambda: x * 2, backend=backend)

    with guard():
        graph = build()
    (text,) = told(graph)
    assert text.startswith("x was at 0x") and "what the graph uses is freed" in text
    assert told(graph) == []


def test_a_global_is_named(device, backend, monkeypatch):
    monkeypatch.setitem(globals(), "TABLE", torch.ones(4, device=device))
    with guard():
        graph = capture(lambda: TABLE * SCALE, backend=backend)
    assert told(graph) == []
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    monkeypatch.setitem(globals(), "TABLE", torch.ones(4, device=device))
    texts = told(graph)
    assert texts[1].startswith("SCALE was 2.0 at capture, is 3.0 now (read at ")
    assert texts[0].startswith("TABLE was at 0x")


def test_a_variable_of_an_outer_function_is_named(x, backend):
    scale = 2.0

    def step():
        return x * scale

    def vary():
        nonlocal scale
        scale += 1

    with guard():
        graph = capture(step, backend=backend)
    vary()
    (text,) = told(graph)
    assert text.startswith("scale was 2.0 at capture, is 3.0 now")


def test_work_in_the_context_itself_is_read_as_well(model, x, backend):
    """As with `torch.cuda.graph`, where there is no function."""
    model.gain, model.shift = 3.0, 1.0
    with guard():
        with session(backend=backend) as recording:
            y = model(x)
            out = y * model.gain
        graph = recording.graph(out)
        # fmt: off
        with session(backend=backend) as recording: out = y + model.shift  # noqa: E701
        # fmt: on
        on_one_line = recording.graph(out)
    model.gain, model.shift = 4.0, 2.0
    (text,) = told(graph)
    assert text.startswith("model.gain was 3.0 at capture, is 4.0 now")
    (text,) = told(on_one_line)
    assert text.startswith("model.shift was 1.0 at capture, is 2.0 now")


def test_a_local_variable_stands_for_what_another_function_has_read(x, backend):
    context = ContextVar("context")
    context.set(SimpleNamespace(scale=2.0))

    def current():
        return context.get()

    def step():
        now = current()
        return x * now.scale

    with guard():
        graph = capture(step, backend=backend)
    context.set(SimpleNamespace(scale=2.0))
    assert told(graph) == []
    context.set(SimpleNamespace(scale=3.0))
    (text,) = told(graph)
    assert text.startswith("context.get().scale was 2.0 at capture, is 3.0 now")


def test_what_a_function_reads_is_watched_once_the_function_is_gone(model, x, backend):
    with guard() as found:
        graph = capture(lambda: x * model.scale, backend=backend)
    gc.collect()
    assert told(graph) == [] and found.left_out == {}
    model.scale = 2.0
    (text,) = told(graph)
    assert text.startswith("model.scale was 1.0 at capture, is 2.0 now")


def test_each_of_several_captures_watches_what_was_there_before_them(model, x, backend):
    with guard():
        graphs = [capture(lambda: model(x), backend=backend) for _ in range(2)]
    layer = model.layer
    other_layer(model)
    first, last = (text.partition(" was")[0] for text in told(graphs[1]))
    assert layer and (first, last) == ("model.layer.weight", "model.layer.bias")


# ---- what makes no noise ----


def test_new_contents_and_other_objects_with_the_same_values_are_silent(guarded, model, x):
    x.fill_(7)
    model.buffer.mul_(2)
    model.layer.weight.zero_()
    model.config = SimpleNamespace(alpha=0.5, options={"beta": 2, "gamma": 3}, powers=[0, 2])
    model.unused = 3
    assert told(guarded.graph) == []


def test_a_test_that_comes_to_the_same_is_silent(x, backend):
    w = SimpleNamespace(step=7, limit=100)

    def step():
        if w.step >= w.limit:
            return x * 2
        return x * 3

    with guard():
        graph = capture(step, backend=backend)
    w.step = 8
    assert told(graph) == []
    w.step = 100
    (text,) = told(graph)
    assert text.startswith("w.step was 7 at capture, is 100 now")


def test_what_the_capture_itself_changes_is_listed_and_left_out(x, backend):
    w = SimpleNamespace(index=0)

    def step():
        w.index = w.index + 1
        return x * 2

    with guard() as found:
        graph = capture(step, backend=backend)
    assert found.left_out == {"w.index": "changed by the capture itself"}
    assert "left out, changed by the capture itself: w.index" in found.report()
    w.index = 9
    assert told(graph) == []


def test_what_is_allowed_is_left_out(model, x, backend):
    with guard(allow=["model.scale", "model.config.*"]) as found:
        graph = capture(lambda: model(x), backend=backend)
    model.scale, model.config.alpha = 2.0, 0.25
    assert told(graph) == []
    assert found.left_out["model.config.alpha"] == found.left_out["model.scale"] == "allowed"


def test_what_a_graph_has_made_is_not_watched(x, backend):
    """An engine keeps what a piece of its model gives in one name, for the next piece, and for every size."""
    w = SimpleNamespace(hidden=None)

    def first():
        w.hidden = x * 2

    def last():
        return w.hidden + 1

    with guard():
        graphs = [capture(step, backend=backend) for step in (first, last, first)]
    assert [told(graph) for graph in graphs] == [[], [], []]


# ---- modes ----


def test_a_refused_replay_does_not_run(model, x, backend):
    with guard("refuse"):
        graph = capture(lambda: model(x), backend=backend)
    graph.replay()
    model.scale = 2.0
    for _ in range(2):  # as often as it is asked
        with pytest.raises(StaleCapture, match=r"^model\.scale was 1\.0 at capture, is 2\.0 now \(read at "):
            graph.replay()
    assert graph.num_replays == 1
    model.scale = 1.0
    graph.replay()
    assert graph.num_replays == 2


def test_off_leaves_the_graph_as_it_is(model, x, backend):
    with guard("off") as found:
        graph = capture(lambda: model(x), backend=backend)
    assert type(graph) in (EmulatedGraph, CudaGraph) and found.checks == 0
    model.scale = 2.0
    assert told(graph) == []


def test_an_unknown_mode_is_refused():
    with pytest.raises(BadInput, match="possible: warn, refuse, off"):
        guard("on")


# ---- what it keeps ----


def test_nothing_is_kept_alive(device, backend):
    objects = {"model": Model(device), "x": torch.ones(4, device=device)}
    model = objects["model"]
    with guard() as found:
        graph = capture(lambda: objects["model"](objects["x"]), backend=backend)
    held = [weakref.ref(one) for one in (*objects.values(), model.layer, model.buffer)]
    objects.clear()
    del model
    gc.collect()
    assert [reference() for reference in held] == [None] * 4
    assert found.checks
    of_graph = weakref.ref(graph)
    del graph
    assert of_graph() is None and found.checks == 0  # without a collection of garbage


@pytest.mark.parametrize("mode", ["off", "warn"])
def test_what_a_capture_makes_and_drops_is_not_kept_until_it_ends(x, backend, mode):
    """Its memory is used again in the capture, or graphs would take more of it than without a guard."""
    w, gone = SimpleNamespace(last=None), []

    def step():
        y = x * 2
        w.last = y
        made = weakref.ref(y)
        y = w.last = w.last + y
        gone.append(made() is None)
        return y

    with guard(mode):
        capture(step, backend=backend)
    assert gone == [True]


def test_a_capture_that_fails_leaves_nothing(model, backend):
    def step():
        model(torch.ones(4, device=model.buffer.device))
        raise RuntimeError("stop")

    with guard() as found, pytest.raises(RuntimeError, match="stop"):
        capture(step, backend=backend)
    assert found.checks == 0 and found._reads is None


def test_several_graphs_have_values_of_their_own(model, x, backend):
    with guard() as found:
        first = capture(lambda: model(x), backend=backend)
        model.scale = 2.0
        second = capture(lambda: model(x), backend=backend)
    assert [text.partition(" (")[0] for text in told(first)] == ["model.scale was 1.0 at capture, is 2.0 now"]
    assert told(second) == []
    model.use_bias = False
    for graph in (first, second):
        assert [len(told(graph)) for _ in range(2)] == [1, 0]  # told once, of each graph
    assert "2 graphs" in found.report() and "model.use_bias was True" in found.report()


def test_a_replay_in_another_thread_is_guarded_and_a_capture_there_is_not(guarded, model, x, backend):
    heard = []
    model.scale = 2.0
    with guard() as found:
        threads = [
            threading.Thread(target=lambda: heard.extend(told(guarded.graph))),
            threading.Thread(target=lambda: capture(lambda: model(x), backend=backend)),
        ]
        for thread in threads:
            thread.start()
            thread.join()
    assert len(heard) == 1 and heard[0].startswith("model.scale was 1.0")
    assert found.checks == 0


def test_the_line_that_asks_for_a_capture_is_no_part_of_it(x, backend):
    w = SimpleNamespace(graphs=[], step=lambda: x * 2)
    with guard():
        w.graphs.append(capture(w.step, backend=backend))
    w.step = None
    assert told(w.graphs[0]) == []


def test_a_bound_replay_is_guarded_and_keeps_its_graph(model, x, backend):
    with guard():
        replay = capture(lambda: model(x), backend=backend).replay
    replay()
    model.scale = 2.0
    (text,) = told(SimpleNamespace(replay=replay))
    assert text.startswith("model.scale was 1.0")


@pytest.mark.gpu
@pytest.mark.parametrize("keep_graph", [True, False])
def test_a_graph_of_torch_is_guarded_whenever_it_was_made(keep_graph):
    model, x = Model("cuda"), torch.ones(4, device="cuda")
    model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=keep_graph)
    with guard("warn") as found, torch.cuda.graph(graph):
        out = model(x)
    assert told(graph) == [] and found.checks > 5  # the graph itself is named on the same line
    model.scale = 2.0
    other_weight(model)
    texts = told(graph)
    assert texts[0].startswith("model.scale was 1.0 at capture, is 2.0 now (read at ")
    assert texts[1].startswith("model.layer.weight was at 0x")
    torch.testing.assert_close(out, out.clone())
    reference = weakref.ref(graph)
    del graph
    assert reference() is None


@pytest.mark.gpu
def test_a_failed_capture_of_torch_is_told_as_without_a_guard():
    x, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="captur"), guard("warn") as found, torch.cuda.graph(graph):
        (x * 2).sum().item()
    assert found.checks == 0


# ---- values of each kind ----

NAN = float("nan")


class Box:
    """Unlike a SimpleNamespace it can be held weakly."""

    def __init__(self, **values):
        vars(self).update(values)


Size = IntEnum("Size", {"SMALL": 100})
Color = Enum("Color", ["RED", "BLUE"])
KINDS = {
    "another kind of thing": (2.0, torch.full((4,), 3.0)),
    "an array": (2.0, np.ones(4)),
    "an array for a list": ([2.0], np.ones(4)),
    "sign of zero": (0.0, -0.0),
    "type": (2, 2.0),
    "type of what is no number": (2.0, np.float64(2.0)),
    "truth for a number": (1, True),
    "type in a list": ([2, 3], [2, 3.0]),
    "type in a dictionary": ({"a": 2}, {"a": 2.0}),
    "slice": (slice(0, 2), slice(0, 3)),
    "range": (range(2), range(3)),
    "bytes": (b"ab", b"ac"),
    "bytearray": (bytearray(b"ab"), bytearray(b"ac")),
    "decimal": (Decimal("0.5"), Decimal("0.25")),
    "layout of memory": (torch.contiguous_format, torch.channels_last),
    "device": (torch.device("cpu"), torch.device("meta")),
    "beside an object": ([object(), 2], [object(), 3]),
    "NaN": (NAN, 1.0),
    "number of numpy": (np.int32(2), np.int32(3)),
    "enum": (Color.RED, Color.BLUE),
    "set": ({1, 2}, {1, 3}),
    "size": (torch.Size([2]), torch.Size([3])),
}


def reads_value(w, x, backend):
    def step():
        return x * 2 if str(w.value) else x

    with guard() as found:
        graph = capture(step, backend=backend)
    return graph, found


@pytest.mark.parametrize(("before", "after"), KINDS.values(), ids=KINDS)
def test_another_value_of_each_kind_is_told_and_an_equal_one_is_not(x, backend, before, after):
    w = Box(value=before)
    graph, found = reads_value(w, x, backend)
    w.value = deepcopy(before)
    assert told(graph) == [] and found.checks
    w.value = after
    (text,) = told(graph)
    assert text.startswith("w.value was ")


def test_a_container_with_another_nan_is_the_same(x, backend):
    w = Box(value=[NAN, {"a": NAN}])
    graph, _ = reads_value(w, x, backend)
    w.value = [float("nan"), {"a": float("nan")}]
    assert told(graph) == []


def test_a_container_that_is_changed_where_it_lies_is_told(x, backend):
    w = Box(value=[1, [2]])
    graph, _ = reads_value(w, x, backend)
    w.value[1][0] = 3
    (text,) = told(graph)
    assert text.startswith("w.value was [1, [2]] at capture, is [1, [3]] now")


def test_a_container_that_holds_itself_is_compared(x, backend):
    w = Box(value=[1])
    w.value.append(w.value)
    graph, _ = reads_value(w, x, backend)
    assert told(graph) == []
    w.value[0] = 2
    assert len(told(graph)) == 1


def test_a_number_that_leads_to_the_model_keeps_nothing_alive(x, backend):
    class Scale(float):
        pass

    w = Box(value=Scale(2.0), other=[Scale(2.0)])
    owner = w.value.owner = w.other[0].owner = torch.nn.Linear(2, 2)
    with guard():
        graph = capture(lambda: x * w.value * len(str(w.other)), backend=backend)
    reference, w.value, w.other = weakref.ref(owner), Scale(2.0), [Scale(2.0)]
    del owner
    gc.collect()
    assert reference() is None and told(graph) == []
    w.value = Scale(3.0)
    assert len(told(graph)) == 1


def test_a_function_is_told_from_one_that_comes_to_lie_at_its_address(x, backend):
    w = Box(act=lambda y: y * 2)

    def step():
        act = w.act
        return act(x)

    with guard():
        graph = capture(step, backend=backend)
    address = id(w.act)
    del w.act
    gc.collect()
    kept = []
    while id(kept[-1] if kept else None) != address and len(kept) < 1000:
        kept.append(lambda y: y * 3)
    w.act = kept[-1]
    (text,) = told(graph)
    assert text.startswith("w.act was ")


def test_a_tensor_that_is_turned_where_it_lies_is_told(x, backend):
    w = Box(value=torch.arange(16.0, device=x.device).reshape(4, 4))
    with guard():
        graph = capture(lambda: x @ w.value, backend=backend)
    kept, w.value = w.value, w.value[:2]  # a batch that is padded: the rows lie as they did
    assert told(graph) == []
    w.value = kept.t()
    (text,) = told(graph)
    at = f"at 0x{kept.data_ptr():x}"
    assert text.startswith(f"w.value was {at} at capture, is there with strides (1, 4) now")


def test_another_partial_function_is_told(x, backend):
    w = Box(act=partial(torch.mul, other=2.0))
    with guard():
        graph = capture(lambda: w.act(x), backend=backend)
    assert told(graph) == []
    w.act = partial(torch.mul, other=4.0)
    (text,) = told(graph)
    assert text.startswith("w.act was ")


@pytest.mark.parametrize("key", ["lambda", "w-0"])
def test_an_attribute_whose_name_no_source_can_write_is_watched(x, backend, key):
    args = Box(**{key: torch.ones_like(x), "scale": 2.0})
    with guard():
        graph = capture(lambda: x * vars(args)[key] * args.scale, backend=backend)
    assert told(graph) == []
    setattr(args, key, torch.ones_like(x))
    args.scale = 3.0
    assert {text.partition(" was")[0] for text in told(graph)} == {"args.scale", f"args.{key}"}


def test_a_private_attribute_is_watched(x, backend):
    class Private:
        def __init__(self):
            self.__scale = 2.0

        def step(self):
            return x * self.__scale

        def vary(self):
            self.__scale = 3.0

    private = Private()
    with guard():
        graph = capture(private.step, backend=backend)
    private.vary()
    (text,) = told(graph)
    assert text.startswith("private._Private__scale was 2.0 at capture, is 3.0 now")


@pytest.mark.parametrize("is_loop", [False, True])
def test_a_value_that_the_head_of_a_branch_binds_is_watched(x, backend, is_loop):
    w = Box(value=3)

    def step():
        if not is_loop and (v := w.value) > 2:
            return x * v
        while (v := w.value) > 2:
            return x * v

    with guard():
        graph = capture(step, backend=backend)
    w.value = 4
    (text,) = told(graph)
    assert text.startswith("w.value was 3 at capture, is 4 now")


def test_what_a_test_comes_to_is_compared_with_its_type(x, backend):
    w = Box(value=2)
    with guard():
        graph = capture(lambda: x * (w.value + 1), backend=backend)
    w.value = 2.0
    assert len(told(graph)) == 1


@pytest.mark.parametrize("key", [0.5, Size.SMALL, "a"])
def test_an_entry_of_a_large_dictionary_is_watched(x, backend, key):
    w = Box(key=key, table={**dict.fromkeys(range(20), 0), key: 2})
    with guard():
        graph = capture(lambda: x * w.table[w.key], backend=backend)
    assert told(graph) == []
    w.table[key] = 3
    assert len(told(graph)) == 1


# ---- several graphs, several guards ----


def test_two_models_of_one_name_and_value_are_both_told(x, backend):
    models = [Box(scale=2.0), Box(scale=2.0)]
    with guard():
        graphs = [capture(lambda m=m: x * m.scale, backend=backend) for m in models]
    for model, graph in zip(models, graphs, strict=True):
        model.scale = 3.0
        assert len(told(graph)) == 1


def test_both_of_two_guards_are_asked(model, x, backend):
    before = sys.gettrace()
    with guard("refuse", allow=["model.use_bias"]) as outer, guard("warn", allow=["model.scale"]):
        graph = capture(lambda: model(x), backend=backend)
    assert sys.gettrace() is before
    model.use_bias = False
    assert [text.partition(" was")[0] for text in told(graph)] == ["model.use_bias"]
    model.scale = 2.0
    with pytest.raises(StaleCapture, match=r"^model\.scale was "):
        graph.replay()
    with outer:
        alone = capture(lambda: model(x), backend=backend)
    model.use_bias = True
    assert [text.partition(" was")[0] for text in told(alone)] == []
    model.scale = 3.0
    with pytest.raises(StaleCapture, match=r"^model\.scale was "):
        alone.replay()


def test_weights_of_a_frozen_heap_are_watched_too_and_it_stays_frozen(thawed, model, x, backend):
    """vLLM's V1 runner freezes what there is while it captures, so that no collection comes in between."""

    def step():
        assert gc.get_freeze_count()
        return model(x)

    gc.freeze()
    with guard():
        graph = capture(step, backend=backend)
        assert gc.get_freeze_count()
        with pytest.raises(ZeroDivisionError):
            capture(lambda: x / (1 // 0), backend=backend)
    assert gc.get_freeze_count()
    model.buffer = model.buffer.clone()
    assert any(text.startswith("model.buffer") for text in told(graph))


def test_a_step_that_freezes_the_heap_is_watched(thawed, x, backend):
    def made():
        k = 2.0

        def set_k(value):
            nonlocal k
            k = value

        def step():
            gc.freeze()
            return x * k

        return step, set_k

    step, set_k = made()
    with guard():
        graph = capture(step, backend=backend)
    set_k(9.0)
    assert len(told(graph)) == 1


def test_with_warnings_as_errors_each_value_is_told(model, x, backend):
    with guard():
        graph = capture(lambda: model(x), backend=backend)
    model.scale, model.use_bias = 2.0, False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("scale", "use_bias"):
            with pytest.raises(StaleCapture, match=f"^model.{name} was "):
                graph.replay()
        graph.replay()


def test_a_namespace_that_cannot_be_held_weakly_is_not_said_to_be_gone(x, backend):
    w = SimpleNamespace(scale=2.0)
    with guard() as found:
        graph = capture(lambda: x * w.scale, backend=backend)
    w.scale = 3.0
    assert told(graph) == []
    assert found.left_out == {"w.scale": "no longer in reach"}


def test_names_of_libraries_are_not_listed(x, backend):
    namespace, source = {"count": 0}, "def step():\n    global count\n    count = count + 1\n"
    file = "/site-packages/library.py"
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    exec(compile(source, file, "exec"), namespace)
    w = Box(count=0)

    def step():
        w.count = w.count + 1
        namespace["step"]()
        return x * 2

    with guard() as found:
        capture(step, backend=backend)
    assert list(found.left_out) == ["w.count"]


def test_a_name_with_brackets_is_allowed_as_it_is_written(model, x, backend):
    with guard(allow=["model.lens[0]"]) as found:
        capture(lambda: model(x), backend=backend)
    assert found.left_out["model.lens[0]"] == "allowed"


def test_memory_whose_name_is_gone_is_watched_after_a_refusal(device, backend):
    w, kept = Box(scale=2.0), []

    def build():
        x = torch.ones(4, device=device)
        kept.append(x.untyped_storage())
        return capture(lambda: x * w.scale, backend=backend)

    with guard("refuse"):
        graph = build()
    w.scale = 3.0
    with pytest.raises(StaleCapture, match=r"^w\.scale was "):
        graph.replay()
    w.scale = 2.0
    graph.replay()
    kept.clear()
    with pytest.raises(StaleCapture, match="freed"):
        graph.replay()


def test_the_pages_example_warns_as_it_says(tmp_path):
    page = Path(__file__).parents[1] / "docs" / "guard.md"
    program, told = page.read_text().partition("```python\n")[2].split("```\n\n```\n", 1)
    (tmp_path / "model.py").write_text(program)
    command = [sys.executable, "model.py"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
    assert told.partition("```")[0].strip() in found.replace(f"{tmp_path}/", "")
