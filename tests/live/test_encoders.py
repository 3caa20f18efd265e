"""Graphs of an encoder of images, without vLLM and without a GPU: a manager of its shape on the emulator."""

import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mrv2lab.graphs import CapturedGraph, capture
from mrv2lab.live import audited, encoders
from mrv2lab.live.audit import Steps
from tests.live.qwen_vl import make_qwen_vl
from tests.live.test_v1 import FULL, NONE, Runner, vllm  # noqa: F401 - a fixture


@dataclass
class Held:
    """`BudgetGraphMetadata`."""

    graph: CapturedGraph
    input_buffers: dict[str, torch.Tensor]
    output_buffer: torch.Tensor


class Seeing:
    """A model that takes images: squares them, and takes away their mean."""

    def __init__(self):
        self.scale = 2.0

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
        self.graph_hits = 0

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

    def _run_budget_graph(self, mm_kwargs, token_budget):
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
    def __init__(self, **how):
        super().__init__()
        self.encoder_cudagraph_manager = Manager(Seeing(), **how)

    def capture_model(self):
        made = super().capture_model()
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
    assert first.step == "Seeing, 8 tokens, images, scenario images" and first.num_nodes > 5
    assert runner.encoder_cudagraph_manager.graph_hits == 3  # what an audit replays counts for nobody
    assert steps.left_out() == []


def test_what_froze_in_its_graph_is_named():
    runner, steps = watched()
    runner.encoder_cudagraph_manager.model.scale = 3.0
    assert torch.equal(runner.encode(*IMAGES), RIGHT)
    (report,) = steps.reports.values()
    assert report.findings[0].kind == "frozen-host-value"
    assert report.findings[0].subject == "self.scale"
    assert runner.encode(*IMAGES).tolist() == RIGHT.tolist()  # the graph is there again


def test_what_is_not_audited_is_told(monkeypatch):
    runner, steps = watched()
    runner.vllm_config.parallel_config.tensor_parallel_size = 2
    assert "tensor parallel ranks" in steps.left_out()[0]
    runner.vllm_config.parallel_config.tensor_parallel_size = 1
    monkeypatch.delattr(Manager, "_get_per_item_out_tokens")
    assert steps.left_out() == [
        "graphs of the encoder are not audited: Manager has no _get_per_item_out_tokens"
    ]
    runner.encoder_cudagraph_manager = None
    assert steps.left_out() == [] and encoders.anchors(runner) == []


def test_one_part_of_an_encoder_is_left_alone():
    runner, steps = watched()
    manager = runner.encoder_cudagraph_manager
    asked = []
    manager._run_budget_graph = lambda images, budget, **more: asked.append(more)
    encoders.watch(steps)
    parts = [{"path": "global"}, {"axis_keys": (2,)}]
    for part in parts:
        manager._run_budget_graph({"images": IMAGES}, 8, **part)
    assert asked == parts and not steps.reports


@pytest.fixture(autouse=True)
def modes(monkeypatch, vllm):  # noqa: F811
    monkeypatch.setattr(sys.modules["vllm.config"], "CUDAGraphMode", SimpleNamespace(NONE=NONE, FULL=FULL))


@pytest.mark.live
def test_vllms_own_encoder(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")  # the other one has no such graphs in 0.23.0
    folder = make_qwen_vl(tmp_path / "model")
    options = ["skip_tokenizer_init=false", 'compilation_config={"cudagraph_mm_encoder": true}']
    options += ["max_model_len=1024", "kv_cache_memory_bytes=67108864"]  # it is copied for each pass
    job = audited.job_of_model(str(folder), [], options, ["images"])
    (one,) = audited.run([job], at_once=1, on_progress=lambda *told: None)
    reports = [report for report in one.read() if "images," in report.step]
    assert reports and all(not report.findings for report in reports)
