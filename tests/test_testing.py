"""Assertions for tests of others: they fail where a graph is wrong, and refuse what could not fail."""

import json
import subprocess
import sys
from textwrap import dedent
from types import SimpleNamespace

import pytest
import torch

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


@pytest.mark.parametrize("vary", [lambda e: None, lambda e: e.out.fill_(7), lambda e: e.x.copy_(e.x.clone())])
def test_inputs_that_stay_as_they_are_are_no_test(engine, backend, vary):
    with pytest.raises(CannotFail, match="`vary` changes nothing"):
        assert_graph_equals_eager(lambda: engine.x * 2, vary=lambda: vary(engine), backend=backend)


def test_numbers_of_pythons_may_be_all_that_changes(engine, backend):
    """A right step does not hang on them; the wrong one that the test is there for did."""

    def vary():
        engine.n += 1

    assert_graph_equals_eager(lambda: engine.x * 2, vary=vary, backend=backend)


def test_what_the_replay_does_not_do_is_no_result(engine, backend):
    """The step returns what `vary` has prepared; the graph's own work is beside it."""

    def step():
        torch.relu(engine.out)
        return engine.x

    with pytest.raises(CannotFail, match="if the replay does nothing"):
        assert_graph_equals_eager(step, vary=lambda: engine.x.add_(1), backend=backend)


def test_a_step_with_graphs_of_its_own_is_not_its_own_judge(engine, backend):
    made = []

    def step():
        if not made:
            made.append(capture(lambda: engine.x * engine.n, backend=backend))
        made[0].replay()
        return made[0].outputs

    with pytest.raises(CannotFail, match="give `twin`"):
        assert_graph_equals_eager(step, vary=lambda: engine.x.add_(1), backend=backend)


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
    with pytest.raises(CannotFail):
        assert_nodes(graph)


def test_replays(engine, backend):
    graph = capture(lambda: engine.x * 2, backend=backend)
    with assert_replays(at_least=2):
        graph.replay()
        graph.replay()
    with pytest.raises(AssertionError, match="1 graphs were replayed, not 2"), assert_replays(at_least=2):
        graph.replay()
    with pytest.raises(CannotFail), assert_replays(at_least=0):
        pass


@pytest.mark.gpu
def test_graphs_of_torchs_own():
    x, kept = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(kept):
        x * 2
    assert_nodes(kept, contains="elementwise")
    with assert_replays():
        kept.replay()
    plain = torch.cuda.CUDAGraph()
    with torch.cuda.graph(plain):
        x * 2
    with pytest.raises(BadInput, match="keep_graph=True"):
        assert_nodes(plain, contains="elementwise")


WRONG = """
    import torch
    from mrv2lab.testing import assert_graph_equals_eager

    class Engine:
        scale, x = 2, torch.ones(4)
        def step(self): return self.x * self.scale
        def next(self):
            self.x.add_(1)
            self.scale += 1

    engine = Engine()

    def test_wrong(): assert_graph_equals_eager(engine.step, vary=engine.next, backend="emulated")
    def test_right(): pass
"""


def test_findings_are_properties_of_the_test_and_sarif(tmp_path):
    (tmp_path / "test_wrong.py").write_text(dedent(WRONG))
    asked = [
        "-q",
        "-p",
        "mrv2lab.testing",
        "-p",
        "no:cacheprovider",
        "--junit-xml=junit.xml",
        "--sarif=found.sarif",
    ]
    told = subprocess.run(
        [sys.executable, "-m", "pytest", *asked, "test_wrong.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "1 failed, 1 passed" in told.stdout, told
    assert '<property name="mrv2lab"' in (tmp_path / "junit.xml").read_text()
    (run,) = json.loads((tmp_path / "found.sarif").read_text())["runs"]
    (result,) = run["results"]
    at = result["locations"][0]["physicalLocation"]
    assert result["ruleId"] == "frozen-host-value" == run["tool"]["driver"]["rules"][0]["id"]
    assert (at["artifactLocation"]["uri"], at["region"]["startLine"]) == ("test_wrong.py", 7)


def test_a_finding_without_a_place_has_no_location(tmp_path):
    (run,) = as_sarif([{"kind": "diverged", "subject": "step", "evidence": "differs"}], tmp_path)["runs"]
    assert "locations" not in run["results"][0]


def test_the_plugin_loads_without_torch():
    code = "import sys, mrv2lab.testing; print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
