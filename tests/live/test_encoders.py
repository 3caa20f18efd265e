"""Graphs of an encoder of images, without vLLM and without a GPU: a manager of its shape on the emulator."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mrv2lab.audit import AuditReport
from mrv2lab.graphs import CapturedGraph, capture
from mrv2lab.live import encoders, v2
from mrv2lab.live.audit import Steps
from mrv2lab.live.rung import ENVIRONMENT
from tests.live.qwen_vl import make_qwen_vl
from tests.live.test_v1 import FULL, NONE, Model, Runner, serving, vllm  # noqa: F401 - a fixture


@dataclass
class Held:
    """`BudgetGraphMetadata`."""

    graph: CapturedGraph
    input_buffers: dict[str, torch.Tensor]
    output_buffer: torch.Tensor


class SupportsEncoderCudaGraph:
    """vLLM's protocol, and the method of it that few models have of their own."""

    def postprocess_encoder_output(self, outputs):
        return outputs


class Seeing(Model, SupportsEncoderCudaGraph):
    """A model that takes images: squares them, and takes away their mean."""

    def prepare(self, images):
        lengths = torch.tensor([0, *(len(image) for image in images)]).cumsum(0)
        return {"pixels": torch.cat(images), "cu_seqlens": lengths}

    def encoder_cudagraph_forward(self, values):
        pixels, bounds = values.pop("pixels"), values.pop("cu_seqlens")
        rows = torch.arange(len(pixels))
        same = ((rows < bounds[1:, None]) & (rows >= bounds[:-1, None])).float()
        mean = (same @ pixels) / same.sum(1).clamp(min=1)
        return (pixels - same.T @ mean).square() * self.scale


class Manager:
    """`EncoderCudaGraphManager`, as far as an audit looks at it."""

    def __init__(self, model, budgets=(4, 8), nested=False):
        self.model, self.budgets, self.nested = model, budgets, nested
        self.budget_graphs: dict[Any, Any] = {}
        self.graph_hits, self.paths = 0, []

    def capture(self):
        held = self.budget_graphs.setdefault("default", {}) if self.nested else self.budget_graphs
        for budget in self.budgets:
            values = self.model.prepare([torch.ones(budget // 2)] * 2)
            output = self.model.encoder_cudagraph_forward({**values})

            def run(values=values, output=output):
                output.copy_(self.model.encoder_cudagraph_forward({**values}))

            held[budget] = Held(capture(run, backend="emulated"), values, output)

    def _get_per_item_out_tokens(self, mm_kwargs):
        return [len(image) for image in mm_kwargs["images"]]

    def _run_budget_graph(self, mm_kwargs, token_budget, path="default"):
        self.paths.append(path)
        held = self.budget_graphs["default"] if self.nested else self.budget_graphs
        graph_meta = held[token_budget]
        for name, value in self.model.prepare(mm_kwargs["images"]).items():
            buffer = graph_meta.input_buffers[name]
            buffer.fill_(value[-1] if name == "cu_seqlens" else 0)
            buffer[: len(value)] = value
        graph_meta.graph.replay()
        self.graph_hits += 1
        return graph_meta.output_buffer


class Seer(Runner):
    """Makes its manager while it captures, as V1's does."""

    encoder_cudagraph_manager = None

    def __init__(self, kind=Seeing, **how):
        super().__init__()
        self.model.runnable, self.how = kind(), how

    def capture_model(self):
        made = super().capture_model()
        self.encoder_cudagraph_manager = Manager(self.get_model(), **self.how)
        self.encoder_cudagraph_manager.capture()
        return made

    def encode(self, *images):
        tokens = sum(map(len, images))
        budget = next(one for one in (4, 8) if one >= tokens)
        return self.encoder_cudagraph_manager._run_budget_graph({"images": images}, budget)[:tokens].clone()


def watched(**how):
    runner, steps = Seer(**how), Steps(backend="emulated")
    assert steps.watch_capture(runner, runner.capture_model) == 123
    steps.scenario = "images"
    return runner, steps


IMAGES = torch.tensor([1.0, 3.0, 5.0]), torch.tensor([2.0, 4.0])
RIGHT = torch.tensor([4.0, 0.0, 4.0, 1.0, 1.0]) * 2


@pytest.mark.parametrize("nested", [False, True])
def test_each_budget_is_audited_once_and_its_answer_is_that_of_the_replay(nested):
    runner, steps = watched(nested=nested)
    assert torch.equal(runner.encode(*IMAGES), RIGHT)
    assert torch.equal(runner.encode(IMAGES[1]), RIGHT[3:])
    runner.encode(*IMAGES)
    assert [key for _, key in steps.reports] == [(8, FULL), (4, FULL)]
    assert [report.findings for report in steps.reports.values()] == [(), ()]
    first = next(iter(steps.reports.values()))
    assert first.step == "Seeing, 8 tokens, encoder, scenario images" and first.num_nodes > 5
    assert runner.encoder_cudagraph_manager.graph_hits == 3  # what an audit replays counts for nobody
    assert steps.left_out() == []


def test_what_a_warm_up_encodes_is_not_audited_and_gets_what_it_was_given():
    runner, steps = watched(nested=True)
    steps.scenario, manager = None, runner.encoder_cudagraph_manager
    manager._run_budget_graph({"images": IMAGES}, 8, path="given")
    assert not steps.tried and manager.paths == ["given"]


def test_what_froze_in_its_graph_is_named():
    runner, steps = watched()
    runner.encoder_cudagraph_manager.model.scale = 3.0
    assert torch.equal(runner.encode(*IMAGES), RIGHT)
    (report,) = steps.reports.values()
    assert report.findings[0].kind == "frozen-host-value"
    assert report.findings[0].subject == "self.scale"
    assert runner.encode(*IMAGES).tolist() == RIGHT.tolist()  # the graph is there again


class Merging(Seeing):
    """Its rows are not those of images yet."""

    def postprocess_encoder_output(self, outputs):
        return super().postprocess_encoder_output(outputs)


NOT = "graphs of the encoder are not audited"


def test_what_is_not_audited_is_told(monkeypatch):
    runner, steps = watched()
    runner.vllm_config.parallel_config.tensor_parallel_size = 2
    assert steps.left_out() == [f"{NOT} on tensor parallel ranks"]
    runner.vllm_config.parallel_config.tensor_parallel_size = 1
    monkeypatch.delattr(Manager, "_get_per_item_out_tokens")
    assert steps.left_out() == [f"{NOT}: Manager has no _get_per_item_out_tokens"]
    runner.encoder_cudagraph_manager = None
    assert steps.left_out() == []
    runner.vllm_config.compilation_config = SimpleNamespace(cudagraph_mm_encoder=True)
    told = "cudagraph_mm_encoder does nothing here: this runner makes no graphs of an encoder"
    assert steps.left_out() == [told]


def test_a_server_whose_encoder_alone_has_graphs_is_audited(caplog):
    runner = Seer()
    runner.cudagraph_dispatcher.get_capture_descs = lambda: []
    served = serving(runner)
    runner.encode(*IMAGES)
    assert [*served.found.values()] == [[0]] and "nothing is audited" not in caplog.text


@pytest.mark.parametrize("at", [0, 3])
def test_each_row_of_each_image_counts(at):
    """Wrong in the first row of the first image, and in the first one of the second."""
    runner, steps = watched(kind=Marked)
    runner.get_model().at = at
    runner.encode(*IMAGES)
    [report] = steps.reports.values()
    assert report.findings and report.findings[0].subject == "self.at"


class Marked(Seeing):
    """Adds to one row."""

    at = 1

    def encoder_cudagraph_forward(self, values):
        made = super().encoder_cudagraph_forward(values)
        made[self.at] += 9.0
        return made


def test_graphs_inside_of_a_model_are_told():
    class ModelState:
        def capture_inner_cudagraphs(self):
            pass

    class Decoding(ModelState):
        def capture_inner_cudagraphs(self):
            pass

    states = {
        kind.__name__: v2.left_out(SimpleNamespace(model_state=kind())) for kind in (ModelState, Decoding)
    }
    told = "graphs inside of the model are not audited, and replayed in both passes"
    assert states == {"ModelState": "", "Decoding": f"{told}: Decoding.capture_inner_cudagraphs"}
    assert v2.left_out(SimpleNamespace()) == ""


def test_rows_that_a_model_alone_knows_are_left_alone():
    runner, steps = watched(kind=Merging)
    runner.encode(*IMAGES)
    why = "their rows are none of items yet, Merging makes those of them (postprocess_encoder_output)"
    assert steps.left_out() == [f"{NOT}: {why}"] and not steps.reports


@pytest.mark.parametrize("key", [("default", (8, ("wide",))), ("global", 8)])
def test_parts_of_an_encoder_are_left_alone(key):
    runner, steps = Seer(nested=True), Steps(backend="emulated")

    def capture_model():
        Seer.capture_model(runner)
        (path, axis), held = key, runner.encoder_cudagraph_manager.budget_graphs
        held.setdefault(path, {})[axis] = held["default"][8]
        return 123

    steps.watch_capture(runner, capture_model)
    steps.scenario = "images"
    runner.encode(*IMAGES)
    assert steps.left_out() == [f"{NOT}: those of Seeing are of several paths or axes"] and not steps.reports


@pytest.mark.parametrize("name", ["graph", "input_buffers", "output_buffer"])
def test_what_a_graph_is_kept_without_is_told(name):
    runner, steps = watched()
    for held in runner.encoder_cudagraph_manager.budget_graphs.values():
        delattr(held, name)
    assert steps.left_out() == [f"{NOT}: Manager has no {name}"]


class Once(Seeing):
    """Between two batches somebody takes away what it has left."""

    def encoder_cudagraph_forward(self, values):
        if self.scale == 2.5:  # behind the capture
            assert not hasattr(self, "left")
            self.left = values["pixels"]
        return super().encoder_cudagraph_forward(values)


def test_what_a_model_leaves_is_put_back_before_each_pass():
    runner, steps = watched(kind=Once)
    runner.get_model().scale = 2.5
    runner.encode(*IMAGES)
    [report] = steps.reports.values()
    assert report.findings[0].subject == "self.scale" and not hasattr(runner.get_model(), "left")


class Padded(Seeing):
    """Rows behind the images hold what Python says."""

    padding = 0.0

    def encoder_cudagraph_forward(self, values):
        rows = torch.arange(len(values["pixels"]))
        is_padding = rows >= values["cu_seqlens"][-1]
        return torch.where(is_padding, self.padding, super().encoder_cudagraph_forward(values))


def test_rows_behind_the_images_are_nobodys():
    runner, steps = watched(kind=Padded)
    runner.get_model().padding = 7.0
    runner.encode(*IMAGES)
    [report] = steps.reports.values()
    assert report.findings == ()


def test_a_model_without_an_encoder_has_no_anchor_of_one():
    assert encoders.anchors(Runner()) == []


@pytest.fixture(autouse=True)
def modes(monkeypatch, vllm):  # noqa: F811
    monkeypatch.setattr(sys.modules["vllm.config"], "CUDAGraphMode", SimpleNamespace(NONE=NONE, FULL=FULL))


@pytest.mark.live
@pytest.mark.parametrize("program", ["sound", "short"])
def test_vllms_own_encoder(tmp_path, program):
    """Its attention is captured for sequences as long as they can get, or for those of the dummy images."""
    env = os.environ | ENVIRONMENT | {"VLLM_USE_V2_MODEL_RUNNER": "0"}  # in 0.23.0 V2 has no such graphs
    folder = make_qwen_vl(tmp_path / "model")
    command = [sys.executable, "-m", "tests.live.encoder_bound", program, str(folder)]
    told = json.loads(subprocess.run(command, env=env, capture_output=True, check=True).stdout)
    reports = [AuditReport.of(report) for report in told["reports"] if "encoder," in report["step"]]
    assert len(reports) > 1 and told["left_out"] == []
    found = [finding for report in reports for finding in report.findings]
    if program == "sound":
        assert not found
    else:
        first = found[0]
        assert first.kind == "frozen-host-value" and "max_seqlen" in first.subject
