"""Assertions for tests of others: they fail where a graph is wrong, and refuse what could not fail."""

import json
import re
import subprocess
import sys
from textwrap import dedent
from threading import Thread
from types import SimpleNamespace

import pytest
import torch

from mrv2lab import testing
from mrv2lab.audit import memory
from mrv2lab.errors import BadInput
from mrv2lab.graphs import capture
from mrv2lab.testing import (
    CannotFail,
    as_sarif,
    assert_graph_equals_eager,
    assert_nodes,
    assert_replays,
)


@pytest.fixture
def engine(device):
    return SimpleNamespace(x=torch.ones(4, device=device), out=torch.zeros(4, device=device), n=2)


def test_a_right_graph_passes_and_a_frozen_number_does_not(engine, backend):
    def vary():
        engine.x.add_(1)
        engine.n += 1

    report = assert_graph_equals_eager(lambda: engine.x * 2, vary=vary, backend=backend)
    assert not report.findings
    with pytest.raises(AssertionError, match=r"frozen-host-value: engine\.n"):
        assert_graph_equals_eager(lambda: engine.x * engine.n, vary=vary, backend=backend)


def test_a_mask_hides_no_branch_that_was_lost(engine, backend):
    def step():
        logits = engine.x * 1.0
        logits[3:].fill_(-1e9)
        if engine.n > 2:
            logits[:1].mul_(50)
        return logits

    def vary():
        engine.x.add_(1)
        engine.n += 1

    with pytest.raises(AssertionError, match=r"engine\.n"):
        assert_graph_equals_eager(step, vary=vary, backend=backend)


def same_batch(engine):
    engine.n += 1
    engine.x.copy_(torch.ones(4))


VAIN = {
    "nothing": lambda e: None,
    "what nobody reads": lambda e: e.out.fill_(7),
    "the same": lambda e: e.x.copy_(e.x.clone()),
    "a count": lambda e: setattr(e, "n", e.n + 1),
    "the same batch again": same_batch,
}


@pytest.mark.parametrize("how", VAIN)
def test_inputs_that_stay_as_they_are_are_no_test(engine, backend, how):
    with pytest.raises(CannotFail, match="`vary` changes nothing that matters"):
        assert_graph_equals_eager(lambda: engine.x * 2, vary=lambda: VAIN[how](engine), backend=backend)


def test_what_reset_undoes_is_varied_again_behind_it(engine, backend):
    def vary():
        engine.n += 1
        engine.x.fill_(engine.n)

    def reset():
        engine.n = 0
        engine.x.fill_(0)

    assert_graph_equals_eager(lambda: engine.x * 2, vary=vary, reset=reset, backend=backend)
    with pytest.raises(AssertionError, match=r"frozen-host-value: engine\.n"):
        assert_graph_equals_eager(lambda: engine.x + engine.n, vary=vary, reset=reset, backend=backend)


def test_what_reset_undoes_and_vary_does_not_make_again_is_no_change(engine, backend):
    inputs = iter(range(2, 99))
    with pytest.raises(CannotFail, match="`vary` changes nothing that matters"):
        assert_graph_equals_eager(
            lambda: engine.x * 2,
            vary=lambda: engine.x.fill_(next(inputs)),
            reset=lambda: engine.x.fill_(1),
            backend=backend,
        )


def test_right_graphs_over_unusual_buffers_pass(device, backend):
    """Views of one buffer, a tensor without memory, one that repeats itself, inputs that are copied in."""
    packed, base = torch.zeros(10, device=device), torch.ones(1, device=device)
    e = SimpleNamespace(
        a=packed[:5], b=packed[5:], skeleton=torch.empty(3, device="meta"), wide=base.expand(5), pending=1.0
    )

    def vary():
        e.a.add_(1)
        base.add_(1)
        e.pending = e.pending + 1

    assert_graph_equals_eager(lambda: e.a * 2 + e.b + e.wide, vary=vary, backend=backend)
    x = torch.ones(4, device=device)
    reset = lambda: x.fill_(e.pending)  # noqa: E731
    assert_graph_equals_eager(lambda: x * 2, vary=vary, reset=reset, backend=backend)


def test_what_is_written_is_a_result_too(device, backend):
    kv, slot = torch.zeros(4, device=device), torch.zeros(1, dtype=torch.long, device=device)

    def step():
        kv.index_fill_(0, slot, 1.0)
        return torch.zeros(1, device=device)  # whether all went well

    assert_graph_equals_eager(step, vary=lambda: slot.add_(1), backend=backend)


def test_memory_without_a_name_is_a_result_too(device, backend):
    """What the step returns stays as it is; a cache that no variable leads to does not."""
    slot, held = torch.zeros(1, dtype=torch.long, device=device), {}
    address = torch.zeros(4, device=device)
    held[id(slot)] = address.index_fill_

    def step():
        held[id(slot)](0, slot, 1.0)
        return torch.zeros(1, device=slot.device)

    del address
    report = assert_graph_equals_eager(step, vary=lambda: slot.add_(1), backend=backend)
    assert any("what was there in the returned value" in note for note in report.notes)


@pytest.mark.parametrize("token", memory.INTEGERS)
def test_an_answer_may_be_what_memory_is_filled_with(token, device, backend):
    """A token of 1, and a mask that is true everywhere: a pattern of the audit's."""
    x, turned = torch.eye(64, device=device)[[2, token]].split(1)
    assert_graph_equals_eager(lambda: x.argmax(-1), vary=lambda: x.copy_(turned), backend=backend)


def test_a_step_that_cannot_go_on_is_audited_all_the_same(engine, backend):
    rows = torch.eye(4, device=engine.x.device)

    def step():
        if engine.n >= 7:
            raise IndexError("no row left")
        engine.n += 1
        return rows[0] * engine.x

    report = assert_graph_equals_eager(step, vary=lambda: engine.x.add_(1), backend=backend)
    assert not report.findings


@pytest.mark.parametrize("options", [{"vary": None}, {"vary": lambda: None, "captured": False}])
def test_what_is_no_comparison_is_bad_input(engine, backend, options):
    with pytest.raises(BadInput, match="needs a function `vary`"):
        assert_graph_equals_eager(lambda: engine.x * 2, **options, backend=backend)


def test_what_the_replay_does_not_do_is_no_result(engine, backend):
    """The step returns what `vary` has prepared; the graph's own work is beside it."""

    def step():
        torch.relu(engine.out)
        return engine.x

    with pytest.raises(CannotFail, match="if the replay does nothing"):
        assert_graph_equals_eager(step, vary=lambda: engine.x.add_(1), backend=backend)


class Server:
    """Captures and replays by itself; `eager` is what it does without graphs."""

    def __init__(self, backend, device):
        self.backend, self.x, self.n, self.graph = backend, torch.ones(4, device=device), 2, None

    def eager(self):
        return self.x * 2

    def step(self):
        if self.graph is None:
            self.graph = capture(self.eager, backend=self.backend)
        self.graph.replay()
        return self.graph.outputs

    def vary(self):
        self.x.add_(1)


@pytest.mark.parametrize("options", [{}, {"twin": None}])
def test_a_step_with_graphs_of_its_own_is_not_its_own_judge(device, backend, options):
    server = Server(backend, device)
    with pytest.raises(CannotFail, match="give `twin`"):
        assert_graph_equals_eager(server.step, vary=server.vary, backend=backend, **options)


def test_beside_a_twin_it_is_judged_and_its_vary_too(device, backend):
    server, twin = Server(backend, device), lambda: Server(backend, device)
    assert_graph_equals_eager(server.step, vary=server.vary, twin=twin, backend=backend)
    with pytest.raises(CannotFail, match="changes nothing that matters"):
        assert_graph_equals_eager(server.step, vary=lambda: None, twin=twin, backend=backend)


@pytest.mark.parametrize("is_right", [True, False])
def test_a_step_that_captures_as_it_goes_is_judged_by_its_twin(is_right, device, backend):
    """It cannot be captured from outside, so no pass of an audit shows anything."""

    def make():
        held = SimpleNamespace(graph=None, number=0, scale=1.0, x=torch.ones(3, device=device))

        def model():
            return held.x * held.scale

        def step():
            held.number += 1
            if held.number == 1:
                return model()
            held.graph = held.graph or capture(model, backend=backend)
            held.graph.replay()
            return held.graph.outputs

        def vary():
            held.x.add_(1)
            held.scale += not is_right

        return SimpleNamespace(step=step, vary=vary, eager=model, held=held)

    one = make()
    if is_right:
        report = assert_graph_equals_eager(one.step, vary=one.vary, twin=make, backend=backend)
        assert any("capture inside a capture" in note for note in report.notes)
    else:
        with pytest.raises(AssertionError, match=r"held\.scale"):
            assert_graph_equals_eager(one.step, vary=one.vary, twin=make, backend=backend)


def test_a_twin_that_replays_the_graph_too_is_none(device, backend):
    """Engines whose graph is a variable of a module: all replay that one."""
    graphs = []

    class Engine(Server):
        def step(self):
            if not graphs:
                graphs.append(capture(self.eager, backend=backend))
            graphs[0].replay()
            return graphs[0].outputs

    def twin():
        made = Engine(backend, device)
        made.eager = made.step
        return made

    server = Engine(backend, device)
    with pytest.raises(CannotFail, match="`twin` replays graphs as well"):
        assert_graph_equals_eager(server.step, vary=server.vary, twin=twin, backend=backend)
    with pytest.raises(CannotFail, match="gives the same engine each time"):
        assert_graph_equals_eager(server.step, vary=server.vary, twin=lambda: server, backend=backend)


@pytest.mark.parametrize(("number", "told"), [(float("nan"), "no finite number"), (0.0, "zeros only")])
def test_inputs_that_hide_what_is_frozen_are_no_test(engine, backend, number, told):
    def vary():
        engine.x.fill_(number)
        engine.n += 1

    with pytest.raises(CannotFail, match=f"`vary` leaves {told} in the returned value"):
        assert_graph_equals_eager(lambda: engine.x * engine.n, vary=vary, backend=backend)


def test_a_token_may_be_zero_and_what_cannot_show_is_a_note(engine, backend):
    logits = torch.tensor([0.0, 1.0, 0.0], device=engine.x.device)

    def vary():
        logits.copy_(torch.tensor([1.0, 0.0, 0.0]))
        engine.x.zero_()

    report = assert_graph_equals_eager(
        lambda: (logits.argmax(), logits * 3, engine.x * 2, engine.out + 1), vary=vary, backend=backend
    )
    assert [note.partition(":")[0] for note in report.notes if "vary()" in note] == [
        "vary() leaves zeros only in the returned value[2]",
        "vary() leaves what was there in the returned value[3]",
    ]


def test_what_is_made_once_and_kept_is_no_check_unless_a_reset_says_so(engine, backend):
    """A stale plan: the replay and the eager pass use the same one. Only `x` shows, so all seems right."""
    engine.plan = None

    def step():
        if engine.plan is None:
            engine.plan = torch.full_like(engine.x, engine.n)
        return engine.x * engine.plan

    def vary():
        engine.x.add_(1)
        engine.n += 1

    with pytest.raises(CannotFail, match=r"engine\.n was read in the first pass alone.*give a `reset`"):
        assert_graph_equals_eager(step, vary=vary, backend=backend)
    with pytest.raises(AssertionError, match=r"audit of .*: \d finding"):
        reset = lambda: setattr(engine, "plan", None)  # noqa: E731
        assert_graph_equals_eager(step, vary=vary, reset=reset, backend=backend)
    engine.plan = None
    assert_graph_equals_eager(step, vary=vary, reset=lambda: None, backend=backend)  # kept on purpose
    engine.plan, also = None, lambda: setattr(engine, "n", engine.n + 1)
    with pytest.raises(CannotFail, match=r"was read in the first pass alone"):  # not that `vary` is to blame
        assert_graph_equals_eager(step, vary=also, backend=backend)


def test_notes_are_properties_too(engine, backend, monkeypatch):
    told = []
    monkeypatch.setattr(testing, "_now", [told])
    both = lambda: (engine.x * 2, engine.out + 1)  # noqa: E731
    report = assert_graph_equals_eager(both, vary=lambda: engine.x.add_(1), backend=backend)
    assert told == [("mrv2lab-note", note) for note in report.notes] and report.notes


def in_a_thread(function):
    thread = Thread(target=function)
    thread.start()
    thread.join()


def test_what_another_thread_replays_does_not_count(engine, monkeypatch):
    """Neither an audit's replays, which would be taken off, nor those of torch's own graphs."""
    graph = capture(lambda: engine.x * 2, backend="emulated")

    def audit():
        assert_graph_equals_eager(graph_less, vary=lambda: engine.out.add_(1), backend="emulated")

    graph_less = lambda: engine.out + 1  # noqa: E731
    with assert_replays():
        in_a_thread(audit)
        graph.replay()
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: None)
    with pytest.raises(AssertionError, match="0 graphs"), assert_replays():
        in_a_thread(lambda: torch.cuda.CUDAGraph.replay(SimpleNamespace()))


def test_nodes(engine, backend):
    graph = capture(lambda: torch.relu(engine.x * 2), backend=backend)
    name = graph.nodes[-1].label
    assert_nodes(graph, contains=name, lacks="lora_shrink")
    assert_nodes(graph, contains={name: sum(name in node.label for node in graph.nodes)})
    for contains, told in (("lora_shrink", "no lora_shrink"), ({name: 7}, "instead of 7")):
        with pytest.raises(AssertionError, match=told):
            assert_nodes(graph, contains=contains)
    with pytest.raises(AssertionError, match="instead of 0"):
        assert_nodes(graph, lacks=[name])
    in_other_case = {"lacks": name.swapcase()}
    of_none = ({"contains": {"lora_shrink": 0}}, {"contains": {"lora_shrink": float("nan")}}, in_other_case)
    for vain in ({}, {"contains": ""}, {"contains": [""]}, {"lacks": [""]}, *of_none):
        with pytest.raises(CannotFail):
            assert_nodes(graph, **vain)


def test_names_are_whole_and_an_empty_graph_holds_and_lacks_nothing():
    softmax = {"void at::native::(anonymous namespace)::softmax_kernel<float, 4>(int)": 1}
    for part in ("softmax_kernel<float", "at::native::(anonymous namespace)::softmax_kernel"):
        assert_nodes(softmax, contains=part)
        with pytest.raises(AssertionError, match="instead of 0"):
            assert_nodes(softmax, lacks=part)
    with pytest.raises(AssertionError, match="no softmax_kernel_backward; near: softmax_kernel; its nodes"):
        assert_nodes(softmax, contains="softmax_kernel_backward")
    for fragment in ("a", "softmax", "kernel<float", "softmax_kernel<flo", "SOFTMAX_kernel"):
        with pytest.raises(AssertionError, match=f"no {fragment}; near: .*softmax_kernel"):
            assert_nodes(softmax, contains=fragment)
        with pytest.raises(AssertionError, match="0 instead of 1"):
            assert_nodes(softmax, contains={fragment: 1})
        with pytest.raises(CannotFail, match=f"no {fragment} in the graph, but .*: names are whole"):
            assert_nodes(softmax, lacks=fragment)
    with pytest.raises(AssertionError, match="empty"):
        assert_nodes({}, lacks="softmax")
    with pytest.raises(BadInput, match="not NoneType"):
        assert_nodes(None, contains="softmax")


def test_replays_of_an_audit_are_not_the_engines(engine, backend):
    with pytest.raises(AssertionError, match="0 graphs"), assert_replays():
        assert_graph_equals_eager(lambda: engine.x * 2, vary=lambda: engine.x.add_(1), backend=backend)


def test_replays(engine, backend):
    graph = capture(lambda: engine.x * 2, backend=backend)
    with assert_replays(at_least=2):
        graph.replay()
        graph.replay()
    with pytest.raises(AssertionError, match="1 graphs were replayed, not 2"), assert_replays(at_least=2):
        graph.replay()
    for vain in (0, 0.5, float("nan")):
        with pytest.raises(CannotFail), assert_replays(at_least=vain):
            pass


def test_while_an_audit_runs_nothing_else_counts(monkeypatch):
    """Not a replay of torch's own graphs, which only the audit can have asked for."""
    replayed = []
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: replayed.append(graph))
    graph = SimpleNamespace()
    with pytest.raises(AssertionError, match="0 graphs"), assert_replays(), testing._an_audit():
        torch.cuda.CUDAGraph.replay(graph)
    with assert_replays():
        torch.cuda.CUDAGraph.replay(graph)
    assert replayed == [graph, graph]


def test_of_tests_that_have_not_failed_nothing_is_written(tmp_path):
    told = [("mrv2lab", '{"kind": "diverged", "subject": "step", "evidence": "differs"}')]
    kept = testing._Sarif(tmp_path / "found.sarif", tmp_path)
    kept.pytest_runtest_logreport(SimpleNamespace(failed=False, user_properties=told))
    assert not kept.found
    kept.pytest_runtest_logreport(SimpleNamespace(failed=True, user_properties=told))
    assert len(kept.found) == 1


def test_an_empty_graph_that_is_emulated_replays_nothing():
    graph = capture(lambda: None, backend="emulated")
    with pytest.raises(AssertionError, match="0 graphs"), assert_replays():
        graph.replay()


@pytest.mark.gpu
def test_graphs_of_torchs_own():
    x, kept = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(kept):
        x * 2
    assert_nodes(kept, contains="vectorized_elementwise_kernel")
    with assert_replays():
        kept.replay()
    plain = torch.cuda.CUDAGraph()
    with torch.cuda.graph(plain):
        x * 2
    with pytest.raises(BadInput, match="keep_graph=True"):
        assert_nodes(plain, contains="elementwise")


WRONG = """
    import threading

    import pytest
    import torch
    from mrv2lab.testing import assert_graph_equals_eager

    class Engine:
        def __init__(self): self.scale, self.x = 2, torch.ones(4)
        def step(self): return self.x * self.scale
        def next(self):
            self.x.add_(1)
            self.scale += 1

    def check():
        engine = Engine()
        assert_graph_equals_eager(engine.step, vary=engine.next, backend="emulated")

    @pytest.fixture
    def checked(): check()

    def test_wrong(record_property):
        record_property("of its own", 7)
        check()

    def test_set_up(checked): pass

    def test_expected():
        with pytest.raises(AssertionError): check()

    @pytest.mark.parametrize("scale", [1, 0])
    def test_in_a_thread(scale):
        engine = Engine()
        vary = lambda: engine.next() if scale else None
        target = lambda: assert_graph_equals_eager(engine.step, vary=vary, backend="emulated")
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
"""


def test_findings_are_properties_of_the_test_and_sarif(tmp_path):
    """From another process, as of pytest-xdist; in one it is the same without the way between."""
    (tmp_path / "of mine").mkdir()
    (tmp_path / "of mine" / "test_wrong#1.py").write_text(dedent(WRONG))
    without = ("-p", "no:cacheprovider", "-p", "no:nbval")
    asked = ["-q", "-p", "mrv2lab.testing", *without, "--junit-xml=junit.xml"]
    told = subprocess.run(
        [sys.executable, "-m", "pytest", *asked, "-n", "1", "--sarif=out/found.sarif", "of mine"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    # in a thread: wrong and vain
    assert re.search("3 failed, 1 passed.*1 error", told.stdout), told
    assert (tmp_path / "junit.xml").read_text().count('<property name="mrv2lab"') >= 3
    (run,) = json.loads((tmp_path / "out/found.sarif").read_text())["runs"]
    (result,) = run["results"]  # one line, and the test that expects it has not failed
    at = result["locations"][0]["physicalLocation"]
    assert result["ruleId"] == "frozen-host-value" == run["tool"]["driver"]["rules"][0]["id"]
    assert (at["artifactLocation"]["uri"], at["region"]["startLine"]) == ("of%20mine/test_wrong%231.py", 10)


def test_what_lies_elsewhere_has_a_whole_address(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finding = {"kind": "diverged", "subject": "step", "evidence": "differs", "line": 1}
    found = [finding | {"file": "made.py"}, finding | {"file": "/else where/made.py"}]
    (run,) = as_sarif(found, tmp_path)["runs"]
    uris = [r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in run["results"]]
    assert uris == ["made.py", "file:///else%20where/made.py"]


def test_a_finding_without_a_place_has_no_location(tmp_path):
    (run,) = as_sarif([{"kind": "diverged", "subject": "step", "evidence": "differs"}], tmp_path)["runs"]
    assert "locations" not in run["results"][0]


def test_the_plugin_loads_without_torch():
    code = "import sys, mrv2lab.testing; print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
