"""The parts of an audit, one by one."""

import collections
import ctypes
import functools
import gc
import json
import sys
import threading
import weakref
from collections import namedtuple
from dataclasses import replace
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
import triton.language as tl
from torch._subclasses.fake_tensor import FakeTensorMode

from mrv2lab.audit import (
    Engine,
    Finding,
    Place,
    audit,
    audit_eager,
    audit_engine,
    driver,
    lines,
    names,
    unwritten_read,
)
from mrv2lab.audit.atoms import MISSING, atoms_at, attribute, cpu_is_host, statements_at, summary
from mrv2lab.audit.kernel_source import of_launch, use_of
from mrv2lab.audit.lines import Lines, Positions, is_users, same
from mrv2lab.audit.memory import Cells, Saved, Shadow, put_pattern, writable
from mrv2lab.audit.recorder import Recorder, Session
from mrv2lab.audit.report import AuditReport, once
from mrv2lab.audit.results import Results, apart, is_off, mark, padding_cut, unlike
from mrv2lab.audit.stale_input import PATTERNS
from mrv2lab.bench import Chain
from mrv2lab.errors import AuditError
from mrv2lab.graphs import capture, device_of, host, new_pool
from mrv2lab.kernels.flash_mla import flash_fwd_splitkv_mla_kernel, get_mla_metadata_kernel

# ---- atoms ----


def values_here(frame_line):
    """The atoms of a line of the caller, with their values there."""
    frame = sys._getframe(1)
    return {
        atom.text: atom.value(frame, frame.f_locals)
        for atom in atoms_at(frame.f_code, frame.f_lineno + frame_line)
    }


class Meta:
    __slots__ = ("slot",)
    of_class = 7

    @property
    def computed(self):
        raise AssertionError("never run")


class Proxy:
    """Says that it is a number, and fails where it is asked which."""

    __class__ = property(lambda self: float)
    __hash__ = None

    def __eq__(self, other):
        raise RuntimeError("outside of a request")

    def __getattr__(self, name):
        raise RuntimeError("outside of a request")

    def __call__(self):
        raise AssertionError("never run")


def test_a_proxy_is_not_asked_what_it_stands_for():
    x = torch.ones(1)
    assert summary(Proxy()) == "a Proxy"
    assert attribute(Proxy(), "shape") is MISSING
    assert dict(names.walk({"proxy": Proxy(), "x": x})) == {"x": x}


def test_atoms_are_chains_of_names_with_their_values():
    class Holder:
        pass

    box = Holder()
    box.lens, box.flag, box.by_name = [3, 5], True, {"a": 1.5}
    i = 1
    seen = values_here(2)
    if True:
        _ = (box.flag, box.lens[i], box.lens[0], box.by_name["a"], len(box.lens), min(box.lens))
    assert seen["box.flag"] is True
    assert (seen["box.lens[i]"], seen["box.lens[0]"], seen["i"]) == (5, 3, 1)
    assert (seen["box.by_name['a']"], seen["len(box.lens)"], seen["box.lens"]) == (1.5, 2, (3, 5))


def test_a_local_leads_to_what_it_was_assigned_from():
    settings = {"n": 4}
    n = settings["n"]
    seen = values_here(1)
    _ = [n]
    assert seen == {"n": 4, "settings['n']": 4}


def test_what_a_compiler_works_out_with_fake_tensors_is_no_work():
    with FakeTensorMode() as tracing:
        fake = torch.ones(4)
    with Recorder(Session("emulated")) as watched:
        torch.ones(4) * 2
        with tracing:
            fake + 1
    assert [event.name for event in watched.trace.own()] == ["aten.ones", "aten.mul"]


def test_nothing_is_run_to_look_at_an_attribute():
    meta = Meta()
    assert attribute(meta, "computed") is MISSING
    assert attribute(meta, "slot") is MISSING
    meta.slot = 3
    assert attribute(meta, "slot") == 3
    assert attribute(meta, "of_class") == 7
    assert attribute(namedtuple("T", "a b")(1, 2), "b") == 2
    assert attribute(torch.zeros(2, 3), "shape") == (2, 3)
    layer = torch.nn.Linear(2, 2)
    assert attribute(layer, "weight") is layer.weight and attribute(layer, "nothing") is MISSING


def test_summaries_can_be_kept_and_compared():
    colour = Enum("Colour", "RED")
    assert summary(colour.RED) == "Colour.RED"
    assert summary(host(torch.tensor([3]))) == 3
    assert summary(host(torch.tensor([3, 4]))) == (3, 4)
    assert summary(np.int64(3)) == 3 and summary(np.arange(3)) == (0, 1, 2)
    assert summary(np.arange(100)) != summary(np.arange(100) + 1)
    assert summary(torch.int8) == "torch.int8" and summary(torch.Size([2])) == "torch.Size([2])"
    assert summary({"a": 1}) == "{'a': 1}" and summary({"a": [1]}) == "dict of length 1"
    assert summary([object()]) == "list of length 1"
    assert summary(Meta()) == "a Meta"
    with cpu_is_host(True):
        assert summary(torch.tensor([3])) == 3
    assert summary(torch.tensor([3])) == "a device tensor"


def test_two_statements_may_share_a_line(tmp_path):
    file = tmp_path / "short.py"
    file.write_text("def f(flag):\n    if flag: return 1\n    return 2\n")
    assert [type(s).__name__ for s in statements_at(str(file), 2)] == ["If", "Return"]
    assert statements_at("nowhere.py", 1) == []


def test_equal_values():
    assert same(float("nan"), float("nan")) and same((1, 2), (1, 2))
    assert not same(1, True) and not same(1, 1.0) and not same(1, 2)


# ---- lines ----


def test_the_same_moment_of_two_passes_has_the_same_number():
    def inner(n):
        return n + 1

    def step(twice):
        inner(1)
        if twice:
            inner(2)
        return inner(3)

    positions, passes = Positions(), []
    for twice in (True, False):
        with Lines(positions) as seen:
            step(twice)
        passes.append(seen.values)
    extra = set(passes[0]) - set(passes[1])
    assert set(passes[1]) < set(passes[0])
    lines = {positions.place(p).source for p in extra}
    assert lines == {"inner(2)", "return n + 1"}


def test_an_anchor_makes_different_ways_comparable():
    def anchor():
        return 1 + 1

    def long_way():
        return anchor()

    positions, passes = Positions(), []
    for call in (anchor, long_way):
        with Lines(positions, anchor) as seen:
            call()
        passes.append({p for p in seen.values if positions.place(p).function == "anchor"})
    assert passes[0] == passes[1] != set()


def test_what_happened_since_an_anchor_was_called_last(device, backend):
    n, x = [0], torch.ones(4, device=device)

    def anchor():
        n[0] += 1
        if n[0] == 1:
            n.append("in the first pass only")
        return x * n[0]

    def engine():
        for _ in range(3):
            y = anchor()
        return y + 1

    session = Session(backend, anchor=anchor)
    with Recorder(session) as recorder:
        engine()
    assert recorder.trace.lines.num_passes == 3
    last = recorder.trace.last_pass()
    assert [event.name for event in last.own()] == ["aten.mul", "aten.add"]
    assert dict(next(last.own()).scalars)["other"] == 3
    assert len(list(recorder.trace.own())) == 4
    earlier = {session.positions.place(p).source for p in set(recorder.trace.values) - set(last.values)}
    assert 'n.append("in the first pass only")' in earlier and "return x * n[0]" not in earlier


def test_code_of_torch_and_of_the_library_is_not_the_users():
    assert is_users(test_equal_values.__code__)
    assert not is_users(torch.nn.Module.__call__.__code__)
    assert not is_users(json.dumps.__code__)
    assert not is_users(audit.__code__)
    beside = Path(torch.__file__).parents[1] / "torchvision/models.py"  # is not torch's
    assert is_users(compile("0", str(beside), "exec"))


def test_capturing_and_reading_the_nodes_are_no_lines_of_the_users(backend, device):
    session, x = Session(backend), torch.ones(4, device=device)
    capture(lambda: x + 1, backend=backend)  # torch imports sympy on the way, once
    with Recorder(session):
        capture(lambda: x + 1, backend=backend)
    assert {key[1].co_filename for key in session.positions._keys[1:]} == {__file__}


# ---- names ----


GLOBAL = torch.zeros(1)


def test_paths_to_tensors(request):
    layer, table = torch.nn.Linear(2, 2), {"a": [torch.zeros(1)]}

    class Step:
        def __init__(self):
            self.x = torch.ones(1)

        def __call__(self):
            return self.x

    found = dict(names.walk(names.roots(lambda: (layer, table))))
    assert set(found) == {"layer.weight", "layer.bias", "table['a'][0]"}
    assert set(dict(names.walk(names.roots(Step())))) == {"self.x"}
    assert set(dict(names.walk(names.roots(lambda: lambda: GLOBAL)))) == {"GLOBAL"}

    class Slotted:
        __slots__ = ("never", "set")

    class Holding:
        """What a class holds for all objects."""

        recent: ClassVar = collections.deque([torch.ones(1)])
        steps = ([torch.zeros(1)], {"k": torch.zeros(2)})

    holding = Holding()
    found = set(dict(names.walk(names.roots(lambda: holding))))
    assert {name.partition("holding")[2] or name for name in found} == {
        ".recent[0]", ".steps[0][0]", ".steps[1]['k']",
    }  # fmt: skip

    class Compiled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, x):
            return x * self.weight

    compiled = torch.fx.symbolic_trace(Compiled())
    with FakeTensorMode():
        compiled.example, compiled.graph.example = torch.ones(1), torch.ones(1)
    assert set(dict(names.walk(names.roots(lambda: compiled)))) == {"compiled.weight"}
    tested = SimpleNamespace(config=request.config, weight=torch.ones(1))  # leads to every test
    assert set(dict(names.walk({"tested": tested}))) == {"tested.weight"}
    slotted = Slotted()
    slotted.set = torch.zeros(1)
    assert set(dict(names.walk(names.roots(lambda: slotted)))) == {"slotted.set"}

    def inner():
        return table

    assert set(dict(names.walk(names.roots(lambda: inner())))) == {"table['a'][0]"}
    assert names.step_name(Step()).endswith("Step")


def test_arguments_that_nobody_has_named_are_numbered():
    x, y = torch.ones(1), torch.zeros(1)
    found = names.roots(functools.partial(torch.add, x, y, alpha=3))  # written in C++, without a signature
    assert {name: found[name] for name in ("args[0]", "args[1]", "alpha")} == {
        "args[0]": x,
        "args[1]": y,
        "alpha": 3,
    }


def test_a_tensor_covers_its_memory_and_not_a_byte_more():
    whole = torch.zeros(8)
    address = whole.data_ptr()
    assert names.covers(whole[6:], address) and names.covers(whole, address + 31)
    assert not names.covers(whole, address - 1) and not names.covers(whole, address + 32)
    assert not names.covers(torch.zeros(8, device="meta"), 0)


def test_a_name_from_the_functions_that_run():
    class Box:
        pass

    box = Box()
    box.inner = torch.zeros(4)
    view = box.inner[1:]
    assert names.in_frames(view.data_ptr(), sys._getframe()) == "box.inner"
    assert names.in_frames(view.data_ptr(), sys._getframe(), apart_from=box.inner.data_ptr()) is None


KNOWN = torch.zeros(4)


def test_a_library_that_only_called_for_the_audit_gives_no_names():
    def function_of(file, name):
        made = {"__name__": name}
        exec(compile("def call(fn, held=None):\n    return fn()", file, "exec"), made)
        return made["call"]

    def look():
        return names.in_frames(address, sys._getframe())

    address = KNOWN.data_ptr()

    library = function_of("/site-packages/library.py", "library")
    called = function_of(driver.__file__, driver.__name__)
    inside = library(look, SimpleNamespace(inner=KNOWN))  # not in an assert, which keeps what it was made of
    outside = library(lambda: called(look), SimpleNamespace(inner=KNOWN))
    assert (inside, outside) == ("held.inner", None)


# ---- memory ----


def test_a_shadow_knows_what_was_written():
    tensor = torch.empty(4, 4)
    shadow = Shadow(tensor)
    shadow.note_write(tensor[:2])
    shadow.note_write(tensor[2:, ::2])
    assert shadow.is_written(tensor[:2]) and shadow.is_written(tensor[3, ::2])
    assert not shadow.is_written(tensor[2:])
    shadow.note_write(tensor.view(torch.int16)[:1])  # another type: which elements, cannot be told
    assert shadow.is_written(tensor)


def test_cells_change_what_a_replay_finds_in_new_memory(device, backend):
    cells, numbers = Cells(device), []
    graph = capture(
        lambda: [numbers.append(cells.fill(t := torch.empty(2, device=device))), t][1], backend=backend
    )
    seen = []
    for which in (0, 1):
        cells.set(set(numbers), which)
        graph.replay()
        seen.append(graph.outputs.tolist())
    assert seen == [[1037.25, 1037.25], [-523.5, -523.5]]
    assert any(cells.holds(address) for node in graph.nodes for address in node.addresses)


def test_what_was_saved_comes_back_in_reverse_order():
    x, saved = torch.zeros(4), Saved()
    saved.save(x)
    x[:2] = 1
    saved.save(x[:2])
    x[:] = 9
    saved.restore()
    assert x.tolist() == [0, 0, 0, 0]


# ---- kernels ----


def test_a_kernels_source_says_what_it_does_with_its_pointers():
    planner, main = use_of(get_mla_metadata_kernel.fn), use_of(flash_fwd_splitkv_mla_kernel.fn)
    assert {"parts_ptr", "num_splits_ptr"} <= planner.written and "seq_lens_ptr" not in planner.written
    assert {"partial_ptr", "lse_ptr"} <= main.written and not {"q_ptr", "k_cache_ptr"} & main.written
    assert {"parts_ptr", "block_table_ptr"} <= main.indexes and "k_cache_ptr" not in main.indexes


def test_of_a_kernel_without_source_everything_is_written():
    namespace = {}
    exec("def kernel(a_ptr, b_ptr): pass", namespace)
    assert use_of(namespace["kernel"]).written == {"a_ptr", "b_ptr"}


def test_a_loop_bound_is_an_index_and_what_a_device_function_is_given_is_written():
    def add_up(sums_ptr, value):
        pass

    def kernel(count_ptr, x_ptr, y_ptr, sums_ptr, scratch):
        add_up(sums_ptr, 0)  # a device function, which may store
        total = scratch.load()
        for _ in range(tl.load(count_ptr)):
            total += tl.load(x_ptr)
        tl.store(y_ptr, total)

    use = use_of(kernel)
    assert (use.written, use.indexes) == ({"y_ptr", "sums_ptr"}, {"count_ptr"})


def test_what_a_loop_carries_round_and_round_is_an_index():
    def kernel(next_ptr, x_ptr, y_ptr):
        d = c = b = a = 0
        for _ in range(5):
            tl.store(y_ptr + d, tl.load(x_ptr + d))
            d = c
            c = b
            b = a
            a = tl.load(next_ptr)

    use = use_of(kernel)
    assert (use.written, use.indexes) == ({"y_ptr"}, {"next_ptr"})


def test_of_a_kernel_that_inductor_wrote_its_names_tell():
    jit = SimpleNamespace(__name__="triton_poi_fused_add_0", arg_names=["in_ptr0", "in_out_ptr0", "xnumel"])
    name, parameters, use = of_launch(SimpleNamespace(fn=jit))
    assert (name, parameters) == (jit.__name__, jit.arg_names)
    assert "in_out_ptr0" in use.written and "in_ptr0" not in use.written and use.indexes == {"in_ptr0"}


def test_modules_that_inductor_wrote_are_not_the_users():
    users, inductors = (
        compile("", f"/cache/ab/{name}.py", "exec") for name in ("model", "c" + "a5" * 25 + "z")
    )
    assert is_users(users) and not is_users(inductors)


# ---- results ----


def test_differences_are_relative_and_know_padding_and_nan():
    a = torch.tensor([1.0, float("nan"), 4.0])
    assert apart(a, a.clone()) == 0.0
    assert apart(torch.tensor([3.0, 3.0]), torch.tensor([3.0, 4.0])) == 0.2  # of the norm, 5
    a_row = apart(torch.tensor([[1.0, 0.0], [0.5, 0.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    assert a_row == 0.5  # one row of many is enough
    small = apart(torch.tensor([[1.0], [2e-3]]), torch.tensor([[1.0], [1e-3]]))
    assert small == pytest.approx(1e-3 / 0.05, rel=0.01)  # a row of next to nothing is no measure
    masked = apart(torch.tensor([3.0, 3.0, -1e9]), torch.tensor([3.0, 4.0, -1e9]))
    assert masked == 0.2  # what a mask holds is no measure
    assert apart(torch.tensor([3.0, -1.001e9]), torch.tensor([3.0, -1e9])) < 0.01  # unless it differs itself
    assert apart(torch.tensor([1.0]), torch.tensor([float("nan")])) == float("inf")
    assert apart(torch.ones(4, 2), torch.ones(3, 2)) == float("inf")
    assert padding_cut(torch.ones(4, 2), torch.ones(3, 2)).shape == (3, 2)
    assert padding_cut(torch.ones(4, 2), torch.ones(3, 3)).shape == (4, 2)  # another thing, not padding
    assert apart(torch.ones(2, 2), torch.ones(3, 2)) == float("inf")
    assert is_off(torch.tensor([1.00001]), torch.tensor([1.0])) == 0.0
    assert is_off(torch.tensor([1.001]), torch.tensor([1.0])) > 0.0
    assert is_off(torch.tensor([3]), torch.tensor([2])) == 0.5
    half = torch.tensor([1.0], dtype=torch.float16)
    assert is_off(half * 1.003, half) == 0.0
    assert is_off(half * 1.02, half) > 0.0


def test_of_memory_that_held_something_the_change_is_the_measure():
    weights = torch.full((1, 4), 100.0)
    right, wrong = weights + 1.0, weights + 1.01
    assert is_off(wrong, right) == 0.0  # a part in ten thousand
    assert is_off(wrong, right, weights) == pytest.approx(0.01, rel=0.01)
    rounded = torch.nextafter(right, weights)
    assert is_off(rounded, right, weights) == 0.0
    by_one_unit = torch.nextafter(weights, right)
    assert is_off(by_one_unit, weights, weights) == 0.0  # nothing changed, and rounding explains it


def test_large_integers_and_complex_numbers_are_told_apart():
    large = torch.tensor([1 << 60])
    assert apart(large, large.clone()) == 0.0
    assert is_off(large + 1, large) > 0.0
    waves = torch.polar(torch.ones(4), torch.arange(4.0))
    assert is_off(waves * (1 + 1e-6), waves) == 0.0
    assert is_off(waves * 1j, waves, waves + 1) > 0.1


def test_what_lies_elsewhere_each_time_is_named_by_its_birth():
    paths = [("o.acts[0]", 30), ("o.acts[1]", 10), ("o.acts[2]", 20), ("o.last", 30)]
    assert names.by_birth(paths, [10, 20, 30]) == {
        "o.acts[0]": "o.acts[*]",
        "o.acts[2]": "o.acts[*], 1 before the newest",
        "o.acts[1]": "o.acts[*], 2 before the newest",
        "o.last": "o.last",
    }


def test_plain_values_of_many_types_are_compared():
    def told(*values):
        return Results({}, [], dict(enumerate(values)))

    class Color(Enum):
        RED = 1
        BLUE = 2

    same = told({1, 2}, np.arange(3), float("nan"), Color.RED, slice(1), np.float64("nan"))
    again = told({2, 1}, np.arange(3), float("nan"), Color.RED, slice(1), np.float64("nan"))
    other = told({1, 3}, np.arange(4), 0.0, Color.BLUE, slice(2), 1)
    assert unlike(same, again) == set()
    assert unlike(same, other) == set(range(6))


# ---- report ----


def finding(**changes):
    fields = {
        "kind": "lost-kernel",
        "subject": "<kernel>",
        "evidence": "1 & 0",
        "where": Place(__file__, 1, "f"),
    }
    return Finding(**fields | changes)


def test_a_report_as_text_html_and_json():
    report = AuditReport("step", "emulated", (finding(),), 3)
    assert report.kinds == {"lost-kernel"}
    assert str(report).splitlines()[:2] == [
        "audit of step (emulated, 3 nodes): 1 finding",
        "lost-kernel: <kernel>",
    ]
    assert "test_parts.py:1 in f" in str(report)
    assert "&lt;kernel&gt;" in report._repr_html_() and "1 &amp; 0" in report._repr_html_()
    document = json.loads(report.to_json())
    assert document["findings"][0]["where"]["line"] == 1
    assert document["findings"][0]["source"].startswith('"""The parts')
    nothing = AuditReport("step", "emulated", (), 0)._repr_html_()
    assert "nothing found" in nothing and "<table" not in nothing


def test_a_report_comes_back_from_its_json():
    report = AuditReport("step", "emulated", (finding(), finding(where=None)), 3)
    assert AuditReport.of(json.loads(report.to_json())) == report


def test_of_findings_with_one_subject_the_first_stays():
    first, again, other = finding(evidence="a"), finding(evidence="b"), finding(subject="x")
    assert once([first, again, other]) == (first, other)


# ---- somebody else's capture ----


def test_an_engine_of_ones_own(device, backend):
    x, flag, graphs = torch.ones(4, device=device), [], []

    def step():
        return x * 3 if flag else x * 2

    engine = Engine(
        "engine",
        capture=lambda: (step(), graphs.append(capture(step, backend=backend))),
        run=lambda: graphs[0].replay() or graphs[0].outputs,
        eager=step,
        vary=lambda: flag.append(1),
        anchor=step,
        roots={"x": x},
    )
    report = audit_engine(engine, backend=backend)
    assert (report.findings[0].kind, report.findings[0].subject) == ("frozen-host-value", "flag")


@pytest.mark.parametrize("replays", [True, False])
def test_an_engine_that_replays_nothing(device, backend, replays):
    x = torch.ones(4, device=device)

    def step():
        return x * 2

    report = audit_engine(Engine("quiet", step, step, step, replays=replays), backend=backend)
    assert report.kinds == ({"silent-eager"} if replays else set())
    if replays:
        assert report.findings[0].subject == "quiet" and report.findings[0].where.source == "return x * 2"


def test_an_engine_that_does_nothing_at_all_is_not_eager(device, backend):
    x, last = torch.ones(4, device=device), []

    def step():
        return x * 2

    engine = Engine("idle", lambda: last.append(step()), lambda: last[0], step, vary=lambda: x.fill_(3))
    (found,) = audit_engine(engine, backend=backend).findings
    assert (found.kind, found.subject) == ("lost-kernel", "aten.mul")


def test_what_no_rule_explains_has_diverged(device, backend):
    x, graphs = torch.ones(4, device=device), []
    engine = Engine(
        "odd",
        capture=lambda: graphs.append(capture(lambda: x * 2, backend=backend)),
        run=lambda: graphs[0].replay() or graphs[0].outputs + 1,
        eager=lambda: x * 2,
    )
    (found,) = audit_engine(engine, backend=backend).findings
    assert (found.kind, found.subject) == ("diverged", "the returned value")


@pytest.mark.parametrize("name", ["x", "y"])
def test_what_has_diverged_is_named_by_what_is_written(device, backend, name):
    found, graphs = {"x": torch.ones(4, device=device), "y": torch.ones(4, device=device)}, []

    def step():
        found[name].mul_(2)

    def run():
        graphs[0].replay()
        found[name].add_(1)

    engine = Engine(
        "odd", lambda: graphs.append(capture(step, backend=backend)), run, step, roots=dict(found)
    )
    (diverged,) = audit_engine(engine, backend=backend).findings
    assert (diverged.kind, diverged.subject) == ("diverged", name)


def test_an_eager_step_that_reads_what_nobody_wrote(device, backend):
    def step():
        y = torch.empty(4, device=device)
        y[:2] = 1
        return y + 1

    (found,) = audit_eager("step", step, backend=backend).findings
    assert (found.kind, found.subject, found.where.source) == (
        "unwritten-read",
        "y",
        "y = torch.empty(4, device=device)",
    )
    assert audit(step, captured=False, backend=backend).findings == (found,)


def test_of_several_allocations_those_are_named_that_a_result_depends_on(device, backend):
    def step():
        a, b = torch.empty(4, device=device), torch.zeros(4, device=device)
        a.fill_(1)
        c = torch.empty(4, device=device)
        d = torch.empty(4, device=device)
        return a + b + c + d

    findings = audit_eager("step", step, backend=backend).findings
    assert [f.subject for f in findings] == ["c", "d"]


@pytest.mark.parametrize("culprits", [{3}, {0, 1, 17, 18}, set(range(2, 14)), set()])
def test_those_responsible_are_found_in_order_by_halving(culprits):
    asked = []

    def shows(group):
        asked.append(group)
        return bool(culprits & group)

    found = unwritten_read.responsible({n: str(n) for n in range(19)}, shows)
    assert found == [str(n) for n in sorted(culprits)[:8]]  # more would be no help
    assert len(asked) <= 1 + 2 * 5 * len(culprits)


def test_an_eager_step_may_return_a_sparse_tensor(device, backend):
    x = torch.eye(3, device=device)
    assert audit(lambda: x.to_sparse() * 2, captured=False, backend=backend).findings == ()


def test_an_eager_step_that_cannot_be_repeated(device, backend):
    with pytest.raises(AuditError, match=r"other results each time, see aten.rand"):
        audit_eager("step", lambda: torch.rand(4, device=device), backend=backend)


# ---- cost ----


def test_an_audit_costs_a_few_captures(backend):
    """By calls of Python functions, which no other process changes; `mrv2lab bench growth` takes the time."""

    def calls(work):
        seen = []
        sys.setprofile(lambda frame, event, argument: seen.append(None) if event == "call" else None)
        try:
            work()
        finally:
            sys.setprofile(None)
        return len(seen)

    chains = [Chain(num_nodes, device_of(backend)) for num_nodes in (1, 100, 400)]
    first, small, large = (
        calls(lambda chain=chain: audit(chain.step, vary=chain.vary, backend=backend)) for chain in chains
    )
    assert large - first < 4.3 * (small - first)
    same = Chain(400, device_of("emulated"))  # where a capture is Python all through
    unit = calls(lambda: capture(same.step, backend="emulated").replay())
    assert large - first < 5 * unit  # most of it are the requests behind the first


@pytest.mark.gpu
def test_an_audit_keeps_its_copies_out_of_the_devices_memory():
    x, pool = torch.ones(1 << 23, device="cuda"), new_pool("cuda")
    first = capture(lambda: x + 1.0, backend="cuda", pool=pool)
    assert first.nodes and pool.num_bytes
    audit(lambda: x + 1.0, vary=lambda: x.add_(1.0), backend="cuda")  # what is loaded on first use
    gc.collect()
    torch.cuda.empty_cache()
    (x + 1.0).sum().item()  # what an eager pass takes is there
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    audit(lambda: x + 1.0, vary=lambda: x.add_(1.0), backend="cuda")
    taken = torch.cuda.max_memory_reserved() - before
    assert taken < 1.25 * pool.num_bytes  # a graph of its own, and no copy of a result


def test_an_import_is_passed_over_whether_it_succeeds_or_not(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "mrv2lab_good.py").write_text("def f():\n    return 1\n\n\nx = f()\n")
    (tmp_path / "mrv2lab_bad.py").write_text("import mrv2lab_good\nmrv2lab_good.f()\n1 / 0\n")

    def step():
        with pytest.raises(ZeroDivisionError):
            __import__("mrv2lab_bad")
        good = __import__("mrv2lab_good")
        return good.f()

    positions = Positions()
    with Lines(positions) as seen:
        step()
    ran = {(positions.place(p).function, positions.place(p).line) for p in seen.values}
    assert [line for function, line in ran if function == "f"] == [2]
    assert "<module>" not in {function for function, _ in ran}
    assert max(line for function, line in ran if function == "step") == step.__code__.co_firstlineno + 4


# ---- lines by sys.monitoring, which is there from Python 3.12 on ----


class Monitoring:
    """As much of `sys.monitoring` as is asked for; this test sends the events."""

    DISABLE = "disable"
    events = SimpleNamespace(LINE=1, PY_START=2, PY_RESUME=4, PY_RETURN=8, PY_YIELD=16, PY_UNWIND=32)

    def __init__(self):
        self.callbacks, self.local, self.tools = {}, {}, {}

    def get_tool(self, number):
        return self.tools.get(number)

    def use_tool_id(self, number, name):
        self.tools[number] = name

    def free_tool_id(self, number):
        del self.tools[number]

    def register_callback(self, number, event, callback):
        self.callbacks[event] = callback

    def set_events(self, number, events):
        self.events_now = events

    def set_local_events(self, number, code, events):
        self.local[code] = events

    def restart_events(self):
        self.restarted = True


@pytest.fixture
def monitoring(monkeypatch):
    made = Monitoring()
    monkeypatch.setattr(sys, "monitoring", made, raising=False)
    monkeypatch.setattr(lines, "MONITORS", True)
    return made


def run_monitored(monitoring, end="PY_RETURN"):
    """Send the events of a call of this function, as Python would, the line of the `if` among them."""
    code, events = sys._getframe().f_code, monitoring.events
    answer = monitoring.callbacks[events.PY_START](code, 0)
    if monitoring.local.get(code):
        monitoring.callbacks[events.LINE](code, code.co_firstlineno + 5)
    monitoring.callbacks[getattr(events, end)](code, 0, None)
    return answer


def start_monitored(monitoring):
    """The same without an end."""
    code, events = sys._getframe().f_code, monitoring.events
    monitoring.callbacks[events.PY_START](code, 0)
    monitoring.callbacks[events.LINE](code, code.co_firstlineno + 2)


def test_monitored_lines_are_those_of_one_thread(monitoring):
    with lines.Lines(lines.Positions()) as seen:
        run_monitored(monitoring)
        assert len(seen.values) == 1 and seen.current == lines.ROOT
        thread = threading.Thread(target=run_monitored, args=(monitoring,))
        thread.start()
        thread.join()
        assert len(seen.values) == 1
    assert not monitoring.tools and monitoring.restarted and monitoring.events_now == 0
    assert set(monitoring.local.values()) == {0} and set(monitoring.callbacks.values()) == {None}


@pytest.mark.parametrize("end", ["PY_RETURN", "PY_YIELD", "PY_UNWIND"])
def test_a_call_that_has_ended_in_any_way_is_no_caller(monitoring, end):
    with lines.Lines(lines.Positions()) as seen:
        run_monitored(monitoring, end)
        assert seen.current == lines.ROOT and len(seen.values) == 1
        run_monitored(monitoring)
        assert len(seen.values) == 1  # at the same position


def test_calls_whose_end_nobody_told_are_forgotten_at_the_next_line(monitoring):
    code, events = sys._getframe().f_code, monitoring.events
    with lines.Lines(lines.Positions()) as seen:
        monitoring.callbacks[events.PY_START](code, 0)
        monitoring.callbacks[events.LINE](code, code.co_firstlineno + 1)
        outer = seen.current
        start_monitored(monitoring)
        assert seen.positions.parent(seen.current) == outer
        monitoring.callbacks[events.LINE](code, code.co_firstlineno + 2)
        assert seen.positions.parent(seen.current) == lines.ROOT


def test_what_is_foreign_is_not_monitored(monitoring):
    with lines.Lines(lines.Positions()) as seen:
        start = monitoring.callbacks[monitoring.events.PY_START]
        assert start(torch.nn.Module.forward.__code__, 0) == monitoring.DISABLE
        seen.paused = True
        assert start(run_monitored.__code__, 0) is None and not monitoring.local


def test_two_results_that_one_variable_has_held_keep_their_paths(device, backend):
    x = torch.ones(4, device=device)

    def scaled(factor):
        y = x * factor
        return y

    report = audit(lambda: (scaled(2), scaled(3)), vary=lambda: x.add_(1), in_flight=1, backend=backend)
    assert [(f.kind, f.subject) for f in report.findings] == [
        ("overwritten-output", f"the returned value[{i}]") for i in range(2)
    ]
    assert all(finding.where.source == "y = x * factor" for finding in report.findings)


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("num_turns", [1, 2, 3])
@pytest.mark.parametrize("by", ["step", "vary", "reset"])
def test_results_that_take_turns_may_be_read_until_theirs_comes_again(
    device, backend, by, num_turns, in_flight
):
    """Graphs, each with a result of its own. `by` says who moves the turn on."""
    x, held = torch.ones(4, device=device), SimpleNamespace(turn=0, graphs={})

    def step():
        if held.turn not in held.graphs:
            held.graphs[held.turn] = capture(lambda: x * 2, backend=backend)
        graph = held.graphs[held.turn]
        held.turn = (held.turn + (by != "vary")) % num_turns
        graph.replay()
        return graph.outputs

    def vary():
        x.add_(1)
        held.turn = (held.turn + (by == "vary")) % num_turns

    reset = (lambda: setattr(held, "turn", 0)) if by == "reset" else None
    for _ in range(num_turns):
        step()
        held.turn = (held.turn + (by == "vary")) % num_turns
    report = audit(step, vary=vary, reset=reset, in_flight=in_flight, backend=backend)
    wrong = ["overwritten-output"] if num_turns <= in_flight else []
    assert [f.kind for f in report.findings] == wrong, str(report)
    assert bool(x.eq(2).all()), "what vary has written in between is put back"


@pytest.mark.parametrize("which", [0, 1])
def test_a_later_result_may_be_the_very_number_that_an_earlier_one_is_marked_with(device, backend, which):
    marked = torch.zeros(4, dtype=torch.int64)
    mark([marked], which)
    x, number = torch.zeros(4, dtype=torch.int64, device=device), int(marked[0])
    report = audit(lambda: x * 0 + number, vary=lambda: x.add_(1), in_flight=1, backend=backend)
    assert [f.kind for f in report.findings] == ["overwritten-output"], str(report)


def test_a_result_that_is_copied_beside_a_graph_is_overwritten_where_it_is_copied(device, backend):
    x, landing, made = torch.ones(4, device=device), torch.zeros(4, device=device), []

    def step():
        if not made:
            made.append(capture(lambda: x * 3, backend=backend))
        made[0].replay()
        landing.copy_(made[0].outputs)
        return landing

    step()
    report = audit(step, vary=lambda: x.add_(1), in_flight=1, backend=backend)
    (found,) = report.findings
    assert (found.kind, found.where.source) == ("overwritten-output", "landing.copy_(made[0].outputs)")


def test_where_nothing_is_returned_nobody_knows_what_is_read_later(device, backend):
    x, out = torch.ones(4, device=device), torch.zeros(4, device=device)

    def step():
        out.copy_(x * 2)

    report = audit(step, vary=lambda: x.add_(1), in_flight=1, backend=backend)
    assert not report.findings and any("(in_flight): not asked" in note for note in report.notes)


def test_padding_is_what_is_written_in_part_and_an_input_that_is_not_written_is_stale(device, backend):
    x, w = torch.ones(4, 4, device=device), torch.rand(4, 4, device=device)
    report = audit(lambda: x @ w, vary=lambda: x[:2].add_(1), rows=lambda: 2, inputs=[x, w], backend=backend)
    assert [(f.kind, f.subject) for f in report.findings] == [("stale-input", "w")], str(report)


def test_views_of_one_memory_and_a_single_number_may_be_stale(device, backend):
    memory, scale = torch.ones(8, device=device), torch.ones((), device=device)
    held = SimpleNamespace(x=memory[:4], y=memory[4:])
    inputs = [held.x, held.y, scale]
    report = audit(
        lambda: held.x + held.y * scale, vary=lambda: held.x.add_(1), inputs=inputs, backend=backend
    )
    assert [(f.kind, f.subject) for f in report.findings] == [
        ("stale-input", "held.y"),
        ("stale-input", "scale"),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_of_a_part_of_a_buffer_it_is_told_that_it_is_one(dtype, device, backend):
    held = SimpleNamespace(memory=torch.zeros(8, device=device).view(dtype))

    def part(number):
        return held.memory.view(torch.float32)[4 * number : 4 * number + 4]

    step, inputs = lambda: part(0) + part(1), [part(0), part(1)]
    (found,) = audit(step, vary=lambda: part(0).add_(1), inputs=inputs, backend=backend).findings
    assert (found.kind, found.subject) == ("stale-input", "a part of held.memory")
    assert "has written none of it" in found.evidence and found.where.function == "<lambda>"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a pool lends them there, to others as well")
def test_weights_that_a_step_takes_and_gives_back():
    """Sharded ones are whole while they are used."""
    whole, shard, x = (torch.ones(4) for _ in range(3))
    memory = whole.untyped_storage()
    memory.resize_(0)

    def step():
        memory.resize_(16)
        whole.copy_(shard)
        y = x * whole
        memory.resize_(0)
        return y

    assert not audit(step, vary=lambda: x.add_(1), backend="emulated").findings


def test_an_input_that_vary_binds_anew_has_moved(device, backend):
    held = SimpleNamespace(x=torch.ones(4, device=device))
    step, inputs = lambda: held.x * 2, [held.x]
    report = audit(step, vary=lambda: vars(held).update(x=held.x + 1), inputs=inputs, backend=backend)
    assert [(f.kind, f.subject) for f in report.findings] == [("moved-address", "held.x")]


@pytest.mark.parametrize("has_twin", [False, True])
@pytest.mark.parametrize("kind", ["given back", "sparse", "quantized", "nested", "meta"])
def test_what_has_no_memory_of_its_own_is_held_beside_the_step(kind, has_twin, device, backend):
    def odd():
        match kind:
            case "given back":
                tensor = torch.ones(1 << 22, device=device)
                tensor.untyped_storage().resize_(0)
                return tensor
            case "sparse":
                return torch.eye(3, device=device).to_sparse()
            case "quantized":
                return torch.quantize_per_tensor(torch.ones(4), 0.5, 0, torch.qint8)
            case "nested":
                return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        return torch.ones(4, device="meta")

    def make():
        held, x = SimpleNamespace(odd=odd()), torch.ones(4, device=device)
        step = lambda: x * (2 if held.odd is not None else 3)  # noqa: E731 - has no name to tell
        return SimpleNamespace(step=step, vary=lambda: x[:2].add_(1), rows=lambda: 2, x=x)

    one, twin = make(), make if has_twin else None
    for how in ({}, {"rows": one.rows, "inputs": [one.x]}):
        report = audit(one.step, vary=one.vary, twin=twin, backend=backend, **how)
        assert not report.findings and not any("cannot be audited" in note for note in report.notes)


@pytest.mark.parametrize(
    "held, made",
    [
        ([0, 3, 9], [0, 3]),
        ([5, 6, 8], [5, 6]),
        ([4, 4, 4], [0, 4]),
        ([0, 0, 0], [0, 0]),
        ([-1, 2, 2], [0, 2]),
        ([-2, -1, -1], [0, 0]),
        ([[2, 128], [2, 256], [7, 7]], [[2, 7], [7, 128]]),
        (3, [0, 3]),
    ],
)
def test_integers_stay_among_what_a_tensor_holds(held, made, device):
    """They may be indices, and on a GPU one that leads nowhere ends the process."""
    for which, value in zip(PATTERNS, made, strict=True):
        tensor = torch.tensor(held, device=device)
        mask = np.zeros(tensor.shape, bool)
        mask[-1 if tensor.dim() else ()] = True
        put_pattern(tensor, mask, which)
        assert tensor.tolist() == ([*held[:2], value] if tensor.dim() else value)


@pytest.mark.skipif(sys.platform != "linux", reason="it is Linux that tells")
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_what_may_only_be_read_is_told_from_what_is_kept_free(tmp_path, device):
    """A GPU's memory has addresses that the host keeps free: nobody may read there, and a GPU may write."""
    np.ones(4, np.float32).tofile(tmp_path / "weights")
    mapped = torch.from_numpy(np.memmap(tmp_path / "weights", np.float32, "r"))
    own = torch.ones(4, device=device)
    assert writable([own, mapped]) == [own]
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    free = libc.mmap(None, ctypes.c_size_t(4096), 0, 0x22, -1, ctypes.c_long(0))  # private, of no file
    kept = torch.frombuffer((ctypes.c_byte * 4096).from_address(free), dtype=torch.uint8)
    assert writable([kept]) == [kept]


@pytest.mark.skipif(torch.cuda.is_available(), reason="NumPy writes to the host's memory alone")
def test_what_numpy_writes_is_written():
    """No op tells of it: what changes without one counts as written, all of that memory."""
    x, batch = torch.ones(4, 2), [4]

    def vary():
        batch[0] = batch[0] % 3 + 1
        x.numpy()[: batch[0]] += 1
        x.numpy()[batch[0] :] = 0

    assert not audit(lambda: x * 2, vary=vary, inputs=[x], backend="emulated").findings

    def make():
        x, batch = torch.ones(4, 2), [4]

        def vary():
            batch[0] = batch[0] % 3 + 1
            x[: batch[0]] += 1
            x.numpy()[batch[0] :] = batch[0]

        return SimpleNamespace(step=lambda: x + x.sum(0), vary=vary, rows=lambda: batch[0])

    for twin in (None, make):
        one = make()
        report = audit(one.step, vary=one.vary, rows=one.rows, twin=twin, backend="emulated")
        assert not report.findings and any("vary() has written x behind its" in note for note in report.notes)


def test_a_draft_that_is_replayed_twice_has_written_over_its_first_result(device, backend):
    x, state, made = torch.rand(4, device=device), torch.zeros(4, device=device), []

    def draft():
        state.copy_(torch.tanh(state + 1))
        return state * 2

    def step():
        if not made:
            draft()
            made.append(capture(draft, backend=backend))
        state.copy_(x)
        drafts = []
        for _ in range(2):
            made[0].replay()
            drafts.append(made[0].outputs)
        return torch.cat(drafts)

    report = audit(step, vary=lambda: x.mul_(2), backend=backend)
    assert [f.kind for f in report.findings] == ["overwritten-output"], str(report)


def test_a_look_keeps_nothing_that_the_step_has_let_go_of(backend):
    """What a frame holds lives as long as the frame, and so would memory on a device."""
    made, x = [], torch.ones(4, device=device_of(backend))

    def step():
        result = x + 1.0
        made.append(weakref.ref(result))
        return result * 2.0

    gc.collect()
    gc.disable()
    try:
        audit(step, vary=lambda: x.add_(1.0), backend=backend)
        kept = [number for number, one in enumerate(made) if one() is not None]
    finally:
        gc.enable()
    assert len(made) > 5 and not kept


def test_graphs_of_its_own_are_asked_beside_a_twin_that_replays_none():
    report = AuditReport("step", "emulated", (), 0, own_graphs=True)
    both = replace(
        report, has_twin=True, notes=("both fresh engines replay graphs: give the twin an `eager`",)
    )
    assert report.is_blind and both.is_blind and not replace(report, has_twin=True).is_blind
