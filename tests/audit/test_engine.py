"""An audit of somebody else's engine: steps as they come, ops looked into, kernels inside of ops."""

import functools
import json
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from mrv2lab.audit import AuditError, AuditReport, Engine, EngineAudit, audit, audit_engine, names, ops
from mrv2lab.audit.recorder import Recorder, Session
from mrv2lab.graphs import CapturedGraph, Node, capture, host
from mrv2lab.graphs.breakable import BreakableCUDAGraphCapture, eager_break_during_capture
from mrv2lab.graphs.work import splitting

# ---- steps as they come ----


class Scale:
    """Captures graphs of two sizes; a host value is frozen in one of them."""

    def __init__(self, device, backend):
        self.x = torch.ones(4, device=device)
        self.out = {n: torch.zeros(n, device=device) for n in (2, 4)}
        self.factor, self.backend, self.graphs = 1.0, backend, {}

    def step(self, n):
        self.out[n].copy_(self.x[:n] * (self.factor if n == 4 else 2.0))

    def capture(self):
        for n in self.out:
            self.graphs[n] = capture(lambda n=n: self.step(n), backend=self.backend)

    def engine(self, n):
        def run():
            self.graphs[n].replay()

        return Engine(
            f"{n} rows", self.capture, run, lambda: self.step(n), anchor=Scale.step, roots={"scale": self}
        )


def test_graphs_are_recorded_once_and_steps_compared_one_by_one(device, backend):
    scale = Scale(device, backend)
    made = EngineAudit(scale.engine(2), backend=backend)
    made.capture()
    scale.factor = 3.0
    right, wrong = made.step(scale.engine(2)), made.step(scale.engine(4))
    assert (right.step, right.findings) == ("2 rows", ())
    assert [(f.kind, f.subject) for f in wrong.findings] == [("frozen-host-value", "self.factor")]


def test_one_element_of_a_row_is_written_and_compared(device, backend):
    """It counts as contiguous, whatever its stride is."""
    scale = Scale(device, backend)
    scale.out = {n: torch.zeros(n, 3, device=device, dtype=torch.long) for n in (2, 4)}
    scale.step = lambda n: scale.out[n][:1, 0].copy_((scale.x[:1] * scale.factor).long())
    made = EngineAudit(scale.engine(2), backend=backend)
    made.capture()
    assert made.step(scale.engine(2)).findings == ()
    scale.factor = 3.0
    assert made.step(scale.engine(2)).findings


def test_notes_are_of_their_own_step(device, backend):
    scale = Scale(device, backend)
    scale.x.zero_()
    made = EngineAudit(scale.engine(2), backend=backend)
    made.capture()
    scale.factor = 3.0
    speaking, silent = made.step(scale.engine(4)), made.step(scale.engine(2))
    assert [note.partition(":")[0] for note in speaking.notes] == ["frozen, with the same result"]
    assert not silent.notes


def test_a_note_is_made_once_of_each_value(device, backend):
    w = SimpleNamespace(x=torch.zeros(4, device=device), a=1.0, b=2.0, c=3.0, d=4.0)

    def vary():
        w.a, w.b, w.c, w.d = 5.0, 6.0, 7.0, 8.0

    report = audit(lambda: w.x * w.a + w.x * w.a * w.b + w.x * w.c * w.d, vary=vary, backend=backend)
    assert [note.split(": ")[1] for note in report.notes] == ["w.a", "w.b", "w.c"]


def test_an_engine_is_walked_as_often_however_many_results_are_wrong(device, backend, monkeypatch):
    """An engine's walk takes half a second, and a lost kernel makes hundreds of results wrong."""
    walks = Counter()
    original = names.walk

    def counted(*args):
        walks[len(outs)] += 1
        return original(*args)

    monkeypatch.setattr(names, "walk", counted)
    for size in (2, 12):
        outs = [torch.zeros(4, device=device) for _ in range(size)]
        w = SimpleNamespace(x=torch.ones(4, device=device), factor=1.0, outs=outs, graphs=[])

        def step(w=w):
            for out in w.outs:
                out.copy_(torch.round(w.x * w.factor))

        made = EngineAudit(
            engine := Engine(
                "a step",
                lambda w=w, step=step: w.graphs.append(capture(step, backend=backend)),
                lambda w=w: w.graphs[0].replay(),
                step,
                anchor=step,
                roots={"w": w},
            ),
            backend=backend,
        )
        made.capture()
        w.factor = 3.0
        assert [f.subject for f in made.step(engine).findings] == ["w.factor"]
    assert walks[2] == walks[12]


def test_what_is_found_is_not_noted_as_well(device, backend):
    """A twin is served further requests, with inputs that are not zero."""

    def make():
        w = SimpleNamespace(x=torch.zeros(4, device=device), n=0)

        def vary():
            w.n += 1
            w.x.fill_(w.n // 3)

        return SimpleNamespace(step=lambda: w.x * w.n, vary=vary)

    one = make()
    report = audit(one.step, vary=one.vary, twin=make, backend=backend)
    assert ([f.subject for f in report.findings], report.notes) == (["w.n"], ()), str(report)


def test_a_scratch_ring_is_told_to_change_what_is_written_alone(device, backend):
    w = SimpleNamespace(x=torch.ones(4, device=device), i=0, ring=torch.zeros(2, 4, device=device))

    def step(returned):
        w.ring[w.i].copy_(w.x)
        return (w.ring[w.i] + 1, w.ring * 2)[returned]

    for returned, is_told in ((0, True), (1, False)):
        w.i = 0
        step_ = functools.partial(step, returned)
        report = audit(step_, vary=lambda: setattr(w, "i", 1), backend=backend)
        assert [found.subject for found in report.findings] == ["w.i"] * (not is_told), str(report)
        told = "memory that the step works with differs, and what it returns does not: w.ring"
        assert any(told in note for note in report.notes) is is_told, str(report)


@pytest.mark.parametrize("way", ["unread", "kept", "both"])
def test_what_others_read_or_a_later_step_is_no_memory_to_work_with(way, device, backend):
    """Written beside what is returned: nobody reads it here, or it is added to, or a scratch buffer too."""
    w = SimpleNamespace(x=torch.ones(4, device=device), n=1.0)
    w.side, w.scratch = torch.zeros(4, device=device), torch.zeros(4, device=device)

    def step():
        if way != "unread":
            w.side.add_(w.x * w.n)
            y = w.side * 0 + w.x
        else:
            w.side.copy_(w.x * w.n)
            y = w.x * 2
        if way == "both":
            w.scratch.copy_(w.x * w.n)
            y = y + w.scratch * 0
        return y

    report = audit(step, vary=lambda: setattr(w, "n", 2.0), backend=backend)
    assert [found.subject for found in report.findings][:1] == ["w.n"], str(report)


def test_numbers_that_change_at_the_same_inputs_and_what_cannot_be_looked_into_are_noted(device, backend):
    x, turns = torch.zeros(4, device=device), iter(range(99))
    report = audit(lambda: (x * next(turns), iter([x])), vary=lambda: x.zero_(), backend=backend)
    assert not report.findings
    assert any(
        note.startswith("two eager passes at the same inputs differ: aten.mul") for note in report.notes
    )
    assert any("the returned value[1] (a list_iterator)" in note for note in report.notes)


def test_state_of_a_fresh_step_is_made_outside_of_what_is_looked_at(device, backend):
    x, counter = torch.ones(4, device=device), torch.zeros(1, device=device)
    graphs = []
    engine = Engine(
        "step", lambda: graphs.append(capture(lambda: x * 2, backend=backend)),
        lambda: (graphs[0].replay(), graphs[0].outputs)[1], lambda: x * 2, fresh=lambda: counter.add_(1),
    )  # fmt: skip
    made = EngineAudit(engine, backend=backend)
    made.capture()
    assert not made.step(engine).findings
    assert counter.item() >= 3  # the replay, and two eager passes


def test_a_graph_that_is_made_without_a_capture_belongs_to_none(device, backend):
    x = torch.ones(4, device=device)
    with Recorder(Session(backend)) as seen:
        graph = capture(lambda: x + 1, backend=backend)
        Nodes("of somebody else")
    assert [made.graph for made in seen.captures] == [graph]


def test_work_beside_the_graph_is_not_lost(device, backend):
    x, factors, graphs = torch.ones(4, device=device), [2.0], []

    def scaled():
        return x * factors[-1]

    def run():
        graphs[0].replay()
        return graphs[0].outputs.neg()

    engine = Engine(
        "step", lambda: graphs.append(capture(scaled, backend=backend)), run, lambda: scaled().neg(),
        vary=lambda: factors.append(3.0), anchor=scaled,
    )  # fmt: skip
    assert audit_engine(engine, backend=backend).kinds == {"frozen-host-value"}


# ---- ops that Python implements ----


@pytest.fixture
def library():
    made = torch.library.Library("mrv2lab_test", "FRAGMENT")
    yield made
    made._destroy()


def test_a_python_op_is_looked_into(library, device, backend):
    flag = host(torch.tensor([True]))

    def double_unless(x: torch.Tensor) -> torch.Tensor:
        if flag.item():
            return x.clone()
        return x * 2

    library.define("double_unless(Tensor x) -> Tensor")
    library.impl("double_unless", double_unless, "CUDA" if backend == "cuda" else "CPU")
    library.impl("double_unless", lambda x: torch.empty_like(x), "Meta")
    x = torch.ones(4, device=device)
    report = audit(
        lambda: torch.ops.mrv2lab_test.double_unless(x), vary=lambda: flag.fill_(False), backend=backend
    )
    first = report.findings[0]
    assert (first.kind, first.subject, first.where.function) == ("frozen-host-value", "flag", "double_unless")
    assert [f.subject for f in report.findings if f.kind == "lost-kernel"] == ["aten.mul"]


def test_the_lines_of_a_python_op_are_seen(library, device, backend):
    def double(x):
        return x * 2

    library.define("double(Tensor x) -> Tensor")
    library.impl("double", double, "CUDA" if backend == "cuda" else "CPU")
    x = torch.ones(4, device=device)

    def step():
        return torch.ops.mrv2lab_test.double(x)

    with Recorder(Session(backend)) as seen:
        step()
    (work,) = [event for event in seen.trace.own() if event.is_work]
    assert work.name == "aten.mul" and seen.trace.place(work).source == "return x * 2"


def test_a_capture_that_breaks_inside_ops_is_seen_to_its_end(library, device, backend):
    state, x, out = {"scale": 2.0, "shift": 1.0}, torch.ones(4, device=device), torch.zeros(4, device=device)

    @eager_break_during_capture
    def attention(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(x + state["shift"])  # runs at every step, and is right

    library.define("attention(Tensor x, Tensor(a!) out) -> ()")
    library.impl("attention", attention, "CUDA" if backend == "cuda" else "CPU")

    def step():
        torch.ops.mrv2lab_test.attention(x + 1, out)
        torch.ops.mrv2lab_test.attention(out * state["scale"], out)
        return out * 3

    def make():
        with BreakableCUDAGraphCapture(backend=backend) as graphs:
            state["result"] = step()
        state["graphs"] = graphs

    def run():
        state["graphs"].replay()
        return state["result"]

    def audited(**changes):
        engine = Engine("step", make, run, step, vary=lambda: state.update(changes), anchor=step)
        return audit_engine(engine, backend=backend)

    assert audited(shift=5.0).findings == ()
    report = audited(scale=4.0)
    assert [(f.kind, f.subject) for f in report.findings] == [("frozen-host-value", "state['scale']")]
    assert report.num_nodes == 3


def test_a_broken_out_op_that_raises_is_named_and_leaves_nothing_behind(library, device, backend):
    @eager_break_during_capture
    def fails(x: torch.Tensor) -> None:
        raise ZeroDivisionError

    library.define("fails(Tensor x) -> ()")
    library.impl("fails", fails, "CUDA" if backend == "cuda" else "CPU")
    x = torch.ones(4, device=device)

    def make():
        with BreakableCUDAGraphCapture(backend=backend):
            torch.ops.mrv2lab_test.fails(x + 1)

    engine = Engine("step", make, make, lambda: x + 1)
    with pytest.raises(AuditError, match=r"raised ZeroDivisionError while it was captured at .* in fails"):
        audit_engine(engine, backend=backend)
    assert not _get_current_dispatch_mode_stack() and x.tolist() == [1] * 4


def test_on_a_gpu_an_op_in_which_nothing_is_seen_may_have_done_something(library, monkeypatch):
    monkeypatch.setattr(Session, "on_device", lambda self, tensor: True)
    library.define("clear(Tensor(a!) x, Tensor like, bool seen) -> ()")
    library.impl("clear", lambda x, like, seen: [None, seen and x.zero_()][0], "CPU")
    session, x, y, read = Session("emulated"), torch.ones(4), torch.ones(4), torch.ones(4)
    session.backend = "cuda"
    with Recorder(session) as pass_:
        torch.ops.mrv2lab_test.clear(x, read, False)
        torch.ops.mrv2lab_test.clear(y, read, True)
    hidden, visible, inside = pass_.trace.own()
    assert [event.sort for event in (hidden, visible, inside)] == ["op", "view", "op"]
    assert pass_.trace.get(hidden.key) is hidden
    to_be_put_back = [tensor.data_ptr() for tensor, _ in pass_.saved.items()]
    assert to_be_put_back == [x.data_ptr(), y.data_ptr()]


@pytest.mark.gpu
def test_work_inside_an_op_that_torch_knows_nothing_of(library):
    driver = pytest.importorskip("cuda.bindings.driver")
    state, x = {"skip": True}, torch.ones(4, device="cuda")

    def clear(x: torch.Tensor) -> None:
        driver.cuMemsetD8Async(x.data_ptr(), 0, x.nbytes, torch.cuda.current_stream().cuda_stream)

    library.define("clear(Tensor(a!) x) -> ()")
    library.impl("clear", clear, "CUDA")

    def step():
        y = x * 2
        if not state["skip"]:
            torch.ops.mrv2lab_test.clear(y)
        return y

    report = audit(step, vary=lambda: state.update(skip=False), backend="cuda")
    assert [(f.kind, f.subject) for f in report.findings] == [
        ("frozen-host-value", "state['skip']"),
        ("lost-kernel", "mrv2lab_test.clear"),
    ]


def test_ops_that_nobody_can_look_into_are_named(device, backend):
    x = torch.eye(2, device=device)

    def step():
        return torch.ops.inductor._mm_plus_mm(x, x, x, x, torch.empty_like(x)) + 1

    report = audit(step, backend=backend)
    assert (report.findings, report.opaque) == ((), ("inductor._mm_plus_mm",))
    assert str(report).splitlines()[-1].startswith("opaque: inductor._mm_plus_mm: in C++")
    assert "<p>opaque: inductor._mm_plus_mm" in report._repr_html_()
    assert AuditReport.of(json.loads(report.to_json())) == report


@pytest.mark.parametrize(
    ("dtype", "schema", "is_refused"),
    [
        (torch.int32, "Tensor plan", True),
        (torch.int32, "Tensor(a!) plan", False),  # it writes the plan
        (torch.float32, "Tensor plan", False),  # garbage that can be no address
    ],
)
def test_an_op_that_nobody_knows_is_not_given_integers_which_no_replay_has_computed(
    library, device, backend, dtype, schema, is_refused, monkeypatch
):
    monkeypatch.setattr(ops, "is_python_op", lambda *_: False)  # as if it were in C++
    library.define(f"jump({schema}, Tensor x) -> Tensor")
    for key in ("CUDA" if backend == "cuda" else "CPU", "Meta"):
        library.impl("jump", lambda plan, x: x.clone(), key)
    x, state = torch.ones(4, device=device), {}

    def step():
        plan = x.to(dtype) + 1
        state["graph"] = capture(lambda: state.update(plan=plan + 1), backend=backend)
        return torch.ops.mrv2lab_test.jump(state["plan"], x)

    report = audit(step, captured=False, backend=backend)
    found = [(f.kind, f.subject) for f in report.findings]
    assert found == ([("unwritten-read", "state['plan']")] if is_refused else [])


# ---- kernels that ops in C++ launch ----


class Nodes(CapturedGraph):
    """A graph of which only the nodes are known."""

    def __init__(self, *names):
        super().__init__(None, tuple(Node(name, (1, 1, 1), ()) for name in names))

    def _replay(self):
        raise AssertionError("replayed")


class Planned:
    """An op plans when it is given no plan: what it then launches, Python does not see.

    `is_checked` goes up in the same call, and decides nothing.
    """

    def __init__(self, device):
        self.x = torch.ones(4, device=device)
        self.floor, self.limit = torch.zeros(1, device=device), torch.full((1,), 1.5, device=device)
        self.plan, self.is_checked = self.limit, True

    def __call__(self):
        if not self.is_checked:
            self.is_checked = True
        return torch.clamp(self.x, min=self.floor, max=self.plan)

    def fresh(self):
        self.plan, self.is_checked = None, False


class PlannedByAFlag(Planned):
    """Here the flag decides what the op is given."""

    def __call__(self):
        plan = self.limit
        if not self.is_checked:
            plan = None
        return torch.clamp(self.x, min=self.floor, max=plan)


@pytest.mark.parametrize(
    ("make", "subjects"), [(Planned, ["self.plan"]), (PlannedByAFlag, ["self.is_checked", "plan"])]
)
def test_a_kernel_that_only_a_fresh_capture_holds_is_lost_and_its_reason_named(
    make, subjects, device, backend
):
    step = make(device)
    graphs = []

    def run():
        graphs[0].replay()
        return graphs[0].outputs

    def afresh():
        return Nodes("attention", "planner", *graphs[0].kernels().elements())

    engine = Engine(
        "step", lambda: graphs.append(capture(step, backend=backend)), run, step,
        vary=lambda: step.x.fill_(2.0), anchor=make.__call__, roots={"step": step},
        fresh=step.fresh, afresh=afresh,
    )  # fmt: skip
    report = audit_engine(engine, backend=backend)
    frozen = [f for f in report.findings if f.kind == "frozen-host-value"]
    assert [f.subject for f in frozen] == subjects  # the reason first
    assert "aten.clamp then left out: attention, planner" in frozen[0].evidence
    found = Counter((f.kind, f.subject) for f in report.findings)
    assert found["lost-kernel", "planner"] == found["lost-kernel", "attention"] == 1
    lost = next(f for f in report.findings if f.subject == "planner")
    assert "1 more when captured at these inputs" in lost.evidence and "torch.clamp" in lost.where.source


# ---- memory ----


def test_what_a_graph_reads_is_not_lent_anew_while_it_is_audited(device, backend):
    class Step:
        def __init__(self):
            self.table = torch.tensor([3, 1, 2, 0], device=device)
            self.rows = torch.randn(4, 4, device=device)

        def __call__(self):
            return self.rows[self.table]

        def vary(self):
            self.table = self.table.flip(0)  # the old one has no owner left
            self.noise = [torch.full((4,), 1 << 40, device=device) for _ in range(64)]

    step = Step()
    report = audit(step, vary=step.vary, backend=backend)
    assert report.kinds == {"moved-address"}


def test_memory_that_only_a_capture_allocated_is_looked_at_too(device, backend):
    class Step:  # its table is too small when the capture begins
        def __init__(self):
            self.x, self.size, self.table = torch.ones(8, device=device), 2, torch.zeros(2, device=device)

        def __call__(self):
            if self.table.numel() < self.size:
                self.table = torch.empty(8, device=device)
            self.table[:4].copy_(self.x[:4])
            return self.table * 2

    step, graphs = Step(), []

    def make():
        step.size = 8
        graphs.append(capture(step, backend=backend))

    engine = Engine(
        "step", make, lambda: (graphs[0].replay(), graphs[0].outputs)[1], step, roots={"step": step}
    )
    (found,) = audit_engine(engine, backend=backend).findings
    assert (found.kind, found.subject) == ("unwritten-read", "self.table")


# ---- steps that replay graphs of their own ----


class Runner:
    """Has graphs for two sizes and runs any other one eagerly."""

    def __init__(self, device, backend):
        self.x, self.out, self.size = torch.ones(4, device=device), torch.zeros(4, device=device), 2
        self.graphs = {n: capture(lambda n=n: self.model(n), backend=backend) for n in (2, 4)}

    def model(self, n):
        self.out[:n].copy_(self.x[:n] * 2)

    def step(self):
        if self.size in self.graphs:
            self.graphs[self.size].replay()
        else:
            self.model(self.size)
        return self.out


@pytest.mark.parametrize("size, kinds", [(4, []), (3, ["silent-eager"])])
def test_a_step_with_graphs_of_its_own_is_asked_whether_it_still_replays(device, backend, size, kinds):
    runner = Runner(device, backend)
    report = audit(runner.step, vary=lambda: setattr(runner, "size", size), backend=backend)
    assert [finding.kind for finding in report.findings] == kinds
    assert all(finding.change == (2, 3) and "in model" in finding.evidence for finding in report.findings)


class Layers:
    """Has two graphs of ten layers each, and one line that normalizes in them and behind them."""

    def __init__(self, device, backend):
        self.x, self.sizes, self.num_beside = torch.ones(4, device=device), (1, 2), 1
        self.graphs = {n: capture(lambda n=n: self.half(n), backend=backend) for n in self.sizes}
        self.logprobs = self.attends_between = False

    def norm(self, y):
        return y * 1.5

    def half(self, n):
        y = self.x
        for _ in range(10):
            y = self.norm(y)
        return y + n

    def attend(self):
        with splitting():
            return [self.norm(self.x) for _ in range(8)]

    def step(self):
        y = self.x
        for n in (1, 2):
            if n in self.sizes:
                self.graphs[n].replay()
                y = y + self.graphs[n].outputs
            elif n == 2 and self.attends_between:
                self.attend()
            else:
                y = y + self.half(n)
        for _ in range(self.num_beside):
            y = self.norm(y)
        return y.exp().log().sin().cos() if self.logprobs else y


@pytest.mark.parametrize(
    "changes, kinds",
    [
        ({"sizes": (1,)}, ["silent-eager"]),
        ({"sizes": ()}, ["silent-eager"]),
        ({"num_beside": 40}, []),  # as before, and more of it
        ({"logprobs": True}, []),  # in place of nothing that a graph did
        ({"sizes": (1,), "attends_between": True}, []),
    ],
    ids=str,
)
def test_a_step_with_graphs_of_its_own_is_asked_how_much_it_does_beside_them(device, backend, changes, kinds):
    layers = Layers(device, backend)
    report = audit(layers.step, vary=lambda: vars(layers).update(changes), backend=backend)
    assert [finding.kind for finding in report.findings] == kinds, str(report)


def test_of_a_step_with_graphs_of_its_own_it_is_said_that_little_was_asked(device, backend):
    scale, graphs, x = [2.0], {}, torch.ones(4, device=device)

    def step():
        if not graphs:
            graphs[0] = capture(lambda: x * scale[0], backend=backend)
        graphs[0].replay()
        return graphs[0].outputs

    def vary():
        scale[0] = 3.0  # wrong from here on, and nobody has a step without graphs to compare with

    report = audit(step, vary=vary, backend=backend)
    assert report.own_graphs and str(report).splitlines()[1].startswith(
        "replays graphs of its own: only asked"
    )
    assert "<p>replays graphs of its own" in report._repr_html_()
    assert AuditReport.of(json.loads(report.to_json())).own_graphs
    assert not audit(lambda: x * scale[0], backend=backend).own_graphs


def test_of_a_composite_op_its_parts_are_seen_in_inference_mode_too(device, backend):
    x, weight = torch.ones(2, 4, device=device), torch.ones(3, 4, device=device)
    seen = []
    for mode in (torch.inference_mode, torch.no_grad):
        with Recorder(Session(backend)) as pass_, mode():
            torch.nn.functional.linear(x, weight)
        seen.append([event.name for event in pass_.trace.own() if event.is_work])
    assert seen[0] == seen[1] != ["aten.linear"]


def test_an_engine_that_addresses_memory_by_what_nobody_wrote_cannot_be_captured(device, backend):
    """Whoever attaches audits to a server goes on without them, so this is an error like others."""
    x = torch.ones(4, device=device)

    def step():
        return x[torch.empty(2, dtype=torch.int64, device=device)]

    def prepare():
        step()
        capture(step, backend=backend)

    engine = Engine("step", prepare, step, step)
    with pytest.raises(
        AuditError, match=r"stopped while it was captured: unwritten-read: .* takes addresses"
    ):
        EngineAudit(engine, backend=backend).capture()
