"""What a capture read is looked at before each replay; what changes rightly is left alone."""

import warnings
from types import SimpleNamespace

import pytest
import torch

from mrv2lab.errors import BadInput
from mrv2lab.graphs import capture
from mrv2lab.guard import Frozen, FrozenWarning, guard

SCALE = 2


class Model:
    def __init__(self, device):
        self.x = torch.ones(4, device=device)
        self.w = torch.full((4,), 3.0, device=device)
        self.scale, self.steps, self.unread = 2, 0, 0
        self.meta = SimpleNamespace(n=2, lens=[1, 2], by_name={"a": 1})

    def forward(self):
        meta, shift = self.meta, 1.0
        self.steps += 1
        y = self.x * self.scale + self.w + shift
        return self.helper(y, meta) * SCALE

    def helper(self, y, meta):
        return y * meta.n + meta.by_name["a"] + len(meta.lens)


@pytest.fixture
def model(device):
    return Model(device)


@pytest.fixture
def replay(model, backend):
    with guard("refuse") as guarded:
        graph = capture(model.forward, backend=backend)
    assert len(guarded) == 1 and len(guarded[0].reads) >= 6
    graph.replay()
    return graph.replay


def change(model, **values):
    for name, value in values.items():
        setattr(model, name, value)


@pytest.mark.parametrize(
    ("do", "told"),
    [
        (
            lambda m: change(m, scale=3),
            r"self\.scale is 3, and was 2 at capture: read at .*test_guard\.py:26",
        ),
        (lambda m: change(m, w=m.w.clone()), r"self\.w lies elsewhere: read at"),
        (lambda m: change(m.meta, n=5), r"self\.meta\.n is 5"),
        (
            lambda m: change(m, meta=SimpleNamespace(n=5, lens=[1, 2], by_name={"a": 1})),
            r"self\.meta\.n is 5",
        ),
        (lambda m: m.meta.by_name.update(a=7), r"self\.meta\.by_name\['a'\] is 7"),
        (lambda m: m.meta.by_name.clear(), r"self\.meta\.by_name\['a'\] is gone"),
        (lambda m: m.meta.lens.append(3), r"len\(self\.meta\.lens\) is 3, and was 2"),
        (lambda m: globals().update(SCALE=4), r"SCALE is 4"),
        (lambda m: delattr(m, "scale"), r"self\.scale is gone"),
    ],
)
def test_what_was_read_and_is_another_now_is_told(model, replay, do, told, monkeypatch):
    monkeypatch.setitem(globals(), "SCALE", SCALE)
    do(model)
    with pytest.raises(Frozen, match=told):
        replay()


def test_what_changes_rightly_is_left_alone(model, replay):
    """Contents of buffers, what nobody read, what the capture counts itself, equal values in new objects."""
    model.x.add_(1)
    change(model, unread=5, steps=9, meta=SimpleNamespace(n=2, lens=[7, 8], by_name={"a": 1, "b": 2}))
    replay()


def test_closures_are_read_again(device, backend):
    n, x = 2, torch.ones(3, device=device)

    def step():
        return x * n

    def set_n(value):
        nonlocal n
        n = value

    with guard("refuse"):
        graph = capture(step, backend=backend)
    graph.replay()
    set_n(3)
    with pytest.raises(Frozen, match=r"n is 3, and was 2"):
        graph.replay()


def test_a_warning_comes_once_for_each_value_and_the_replay_goes_on(model, backend):
    with guard():
        graph = capture(model.forward, backend=backend)
    model.scale = 3
    with pytest.warns(FrozenWarning, match=r"self\.scale"):
        graph.replay()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph.replay()
    assert graph.num_replays == 2


def test_each_graph_has_its_own_values(model, backend):
    graphs = {}
    with guard("refuse"):
        for model.scale in (2, 3):
            graphs[model.scale] = capture(model.forward, backend=backend)
    graphs[3].replay()
    with pytest.raises(Frozen, match=r"self\.scale is 3, and was 2"):
        graphs[2].replay()


def test_names_can_be_ignored_and_graphs_from_outside_are_not_guarded(model, backend):
    before = capture(model.forward, backend=backend)
    with guard("refuse", ignore=["self.scale"]):
        graph = capture(model.forward, backend=backend)
    after = capture(model.forward, backend=backend)
    model.scale = 3
    for each in (before, graph, after):
        each.replay()


def test_a_property_is_never_run(device, backend):
    class Lazy:
        @property
        def n(self):
            asked.append(1)
            return 2

    asked, lazy, x = [], Lazy(), torch.ones(3, device=device)
    with guard("refuse"):
        graph = capture(lambda: x * lazy.n, backend=backend)
    asked.clear()
    graph.replay()
    assert not asked


@pytest.mark.gpu
def test_torchs_own_graphs_are_guarded(device):
    model = Model(torch.device("cuda"))
    with guard("refuse"):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model.forward()
    graph.replay()
    model.scale = 3
    with pytest.raises(Frozen, match=r"self\.scale"):
        graph.replay()


def test_another_mode_is_bad_input():
    with pytest.raises(BadInput, match="warn or refuse"), guard("log"):
        pass
