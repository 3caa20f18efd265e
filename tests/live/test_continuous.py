"""Audits of continuous batching, without a GPU: a `ModelRunner` of its shape on the emulator."""

from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from mrv2lab.cli import app
from mrv2lab.errors import AuditError, BadInput
from mrv2lab.graphs import capture
from mrv2lab.live import continuous
from mrv2lab.live.audited import values_of
from mrv2lab.live.continuous import Batches
from mrv2lab.live.v2 import lacking

VOCAB = 16


class Model:
    """Looks a token up, and scales."""

    def __init__(self):
        self.table = torch.eye(VOCAB).roll(1, 1)  # the token that follows
        self.scale = 2.0

    def __call__(self, input_ids, **more):
        return SimpleNamespace(logits=self.table[input_ids] * self.scale)


class Buffers:
    """`ContinuousBatchingIOs`."""

    compute_stream, use_block_table = None, False

    def __init__(self):
        self.input_ids, self.output_ids = torch.zeros(2, 1, 8, dtype=torch.int32)
        self.num_request_in_batch = 1
        self.logits_indices = torch.zeros(1, dtype=torch.long)
        self.cache, self.graphs, self.size = torch.zeros(8, VOCAB), {}, 0

    def get_cb_kwargs(self):
        return self.input_ids, self.output_ids, self.output_ids

    def get_graph(self):
        return self.graphs.get(self.size)

    def set_graph(self, graph):
        self.graphs[self.size] = graph


class Runner:
    """`ModelRunner`: what is captured also writes the cache."""

    def __init__(self, replays=True):
        self.inputs_and_outputs, self.replays, self.made = Buffers(), replays, []

    def supports_logits_to_keep(self, model):
        return True

    def _get_forward_fn(self, use_block_table):
        return self._forward_process_and_sample, self.replays

    def compute_batch(self, model, batch_data):
        args = self.inputs_and_outputs.get_cb_kwargs()
        batch_data["logits_to_keep"] = batch_data["logits_indices"]
        forward_fn, replays = self._get_forward_fn(self.inputs_and_outputs.use_block_table)
        graph = self.inputs_and_outputs.get_graph() if replays else None
        if graph is not None:
            graph.replay()
        elif replays:
            self._capture_graph(forward_fn, None, model, batch_data, *args)
        else:
            forward_fn(model, batch_data, *args)

    def _capture_graph(self, forward_fn, compute_stream, *args):
        forward_fn(*args)
        graph = capture(lambda: forward_fn(*args), backend="emulated")
        self.inputs_and_outputs.set_graph(graph)

    def _forward_process_and_sample(self, model, batch_data, carry_over_ids, prev_output_ids, output_ids):
        logits = model(**batch_data).logits[0]
        self.inputs_and_outputs.cache[: len(logits)] = logits
        tokens = logits[batch_data["logits_to_keep"]].argmax(-1)
        output_ids[0, : len(tokens)].copy_(tokens)

    def serve(self, model, prompt):
        buffers = self.inputs_and_outputs
        buffers.size = size = len(prompt)
        buffers.input_ids[0, :size] = torch.tensor(prompt)
        buffers.logits_indices.fill_(size - 1)
        batch = {"input_ids": buffers.input_ids[:, :size], "logits_indices": buffers.logits_indices}
        batch["read_index"] = [torch.zeros(0)]
        self.compute_batch(model, batch)
        return buffers.output_ids[0, :1].tolist()


@pytest.fixture
def watched():
    """A class of such runners whose batches are audited, and the audits."""
    batches = Batches("emulated")
    told = {
        "_capture_graph": batches.capture_graph(Runner._capture_graph),
        "compute_batch": batches.compute_batch(Runner.compute_batch),
    }
    return type("Watched", (Runner,), told), batches


PROMPTS = [[1, 2], [3, 4], [5, 6, 7], [8, 9], [1, 3, 5]]


def test_the_first_replay_of_each_graph_is_audited_and_tokens_stay(watched):
    cls, batches = watched
    model, alone, runner = Model(), Runner(), cls()
    made = [runner.serve(model, prompt) for prompt in PROMPTS]
    assert made == [alone.serve(model, prompt) for prompt in PROMPTS] == [[3], [5], [8], [10], [6]]
    assert [report.step for report in batches.reports] == [
        "Model, 2 tokens, 0 read",
        "Model, 3 tokens, 0 read",
    ]
    assert [report.findings for report in batches.reports] == [(), ()] and not batches.failed


def test_a_number_that_froze_is_named(watched):
    cls, batches = watched
    model, runner = Model(), cls()
    runner.serve(model, [1, 2])
    model.scale = -3.0  # then another token follows
    assert runner.serve(model, [3, 4]) == [5]  # the graph's, as without an audit
    (report,) = batches.reports
    (finding, *_) = report.findings
    assert (finding.kind, finding.subject) == ("frozen-host-value", "self.scale")


def test_what_a_model_counts_is_put_back(watched):
    class Counting(Model):
        number = 0

        def __call__(self, input_ids, **more):
            self.number += 1
            return SimpleNamespace(logits=self.table.roll(self.number % 3, 1)[input_ids] * self.scale)

    cls, batches = watched
    alone, model, runner = Counting(), Counting(), cls()
    served = Runner()
    assert [runner.serve(model, p) for p in PROMPTS] == [served.serve(alone, p) for p in PROMPTS]
    assert model.number == alone.number and not batches.failed


@pytest.mark.parametrize("behind", [False, True])
def test_an_error_of_the_runners_own_capture_is_raised_once(behind, watched, monkeypatch):
    cls, batches = watched
    original, calls = Runner._capture_graph, []

    def failing(self, *args):
        calls.append(1)
        if behind:
            original(self, *args)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(cls, "_capture_graph", batches.capture_graph(failing))
    with pytest.raises(RuntimeError, match="out of memory"):
        cls().serve(Model(), [1, 2])
    assert len(calls) == 1 and not batches.failed


def test_each_pass_is_told_which_logits_to_keep(watched):
    cls, _ = watched
    runner, seen = cls(), []

    class Taking(Model):
        def __call__(self, input_ids, **more):
            seen.append(more.keys())
            return super().__call__(input_ids)

    model = Taking()
    for prompt in PROMPTS[:2]:
        runner.serve(model, prompt)
    assert all("logits_to_keep" in keys for keys in seen)


def test_what_cannot_be_audited_is_told_and_served(watched):
    cls, batches = watched
    model, runner = Model(), cls()
    runner.serve(model, [1, 2])
    model.table = None  # no eager pass can be made
    assert runner.serve(model, [3, 4]) == [5]
    assert not batches.reports and "2 tokens" in batches.failed[0]


def test_log_probabilities_are_compared_as_what_they_are():
    """Their bits lie in a row of integers; what stands behind the requests that are real is padding."""
    ids = torch.zeros(2, 4, dtype=torch.int32)
    ids[1, :2] = torch.tensor([0.5, -1.0]).view(torch.int32)
    buffers = SimpleNamespace(num_request_in_batch=2)
    pair = SimpleNamespace(device_io=buffers)
    for one in (buffers, SimpleNamespace(io_pairs=[None, pair], current_pair=1)):
        made = continuous._made(one, ids)
        assert made["tokens"].tolist() == [0, 0] and made["logprobs"].tolist() == [0.5, -1.0]
    assert list(continuous._made(buffers, ids[:1])) == ["tokens"]


def test_a_capture_that_cannot_be_watched_is_made_and_told(watched, monkeypatch):
    cls, batches = watched

    def capture_of(audit):
        raise AuditError("no")

    monkeypatch.setattr(continuous.EngineAudit, "capture", capture_of)
    runner, model = cls(), Model()
    assert [runner.serve(model, prompt) for prompt in PROMPTS[:2]] == [[3], [5]]
    assert batches.failed == ["a capture: no"] and not batches.reports


def test_a_runner_that_replays_nothing_is_left_alone(watched):
    cls, batches = watched
    runner = cls(replays=False)
    assert [runner.serve(Model(), prompt) for prompt in PROMPTS[:2]] == [[3], [5]]
    assert not batches.reports and not batches.failed


def test_a_runner_of_another_release_is_told():
    class Other(Runner):
        def compute_batch(self, model, data):
            graph = model
            return graph

    assert lacking(Runner, continuous.READ) == ""
    assert lacking(Other, continuous.READ) == "batch_data in compute_batch"
    assert lacking(type("None", (), {}), continuous.READ) == "compute_batch"


@pytest.mark.skipif(find_spec("transformers") is None, reason="make source installs transformers")
def test_the_runner_of_the_installed_transformers_can_be_read():
    from transformers.generation.continuous_batching.model_runner import ModelRunner

    assert lacking(ModelRunner, continuous.READ) == ""


def test_without_transformers_that_is_told(monkeypatch):
    monkeypatch.setattr(continuous, "RUNNER", "transformers_of_nobody")
    with (
        pytest.raises(BadInput, match="continuous batching of transformers is not here"),
        continuous.attached(),
    ):
        pass


@pytest.mark.parametrize(
    ("option", "made"), [("a=1", ("a", 1)), ("a=true", ("a", True)), ("a=fifo", ("a", "fifo"))]
)
def test_options_are_values_or_texts(option, made):
    assert values_of([option], "vllm.LLM") == dict([made])
    with pytest.raises(BadInput, match=r"name=value, an argument of vllm\.LLM"):
        values_of(["a"], "vllm.LLM")


def test_each_round_serves_other_tokens_of_the_same_lengths():
    one, two = (continuous._prompts(3, turn, 100) for turn in (0, 1))
    assert list(map(len, one)) == list(map(len, two)) == [5, 130, 33] and one != two


def test_the_command_needs_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    told = CliRunner().invoke(app, ["audit", "transformers", "folder"])
    assert told.exit_code == 2 and "an NVIDIA GPU" in told.output


@pytest.mark.parametrize("failed", [[], ["Model, 2 tokens: it raised"]])
def test_the_command_prints_reports_and_fails_on_what_could_not_be_audited(failed, monkeypatch, watched):
    cls, batches = watched
    runner, model = cls(), Model()
    for prompt in PROMPTS[:2]:
        runner.serve(model, prompt)
    batches.failed += failed
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(continuous, "audit_checkpoint", lambda *args: batches)
    told = CliRunner().invoke(app, ["audit", "transformers", "folder"])
    assert told.exit_code == len(failed) * 2
    assert "audit of Model, 2 tokens, 0 read" in told.output and all(one in told.output for one in failed)
    assert "not replayed" not in told.output
    runner.serve(model, PROMPTS[2])  # captured, and no more
    told = CliRunner().invoke(app, ["audit", "transformers", "folder"])
    assert "1 graph captured, and not replayed" in told.output
