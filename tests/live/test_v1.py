"""Steps of the V1 runner, without vLLM and without a GPU: a runner of its shape on the emulator."""

import logging
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from mrv2lab.errors import AuditError
from mrv2lab.graphs import capture
from mrv2lab.live import plugin, v1
from mrv2lab.live.audit import Steps


class Mode(NamedTuple):
    name: str


NONE, FULL = Mode("NONE"), Mode("FULL")


class Batch(NamedTuple):
    """`BatchDescriptor`."""

    num_tokens: int
    num_reqs: int | None = None


@dataclass
class Context:
    """`ForwardContext`. Layers of experts count up in it."""

    attn_metadata: Any
    cudagraph_runtime_mode: Mode
    batch_descriptor: Batch
    layer: int = 0
    additional_kwargs: dict[str, Any] = field(default_factory=dict)


NOW: list[Context] = []


@contextmanager
def override(context):
    NOW.append(context)
    try:
        yield
    finally:
        NOW.pop()


class Metadata:
    """A plan of attention: whoever uses it first makes it, as FlashMLA does."""

    def __init__(self):
        self.plan = None


class Model:
    """Multiplies by a number that Python holds; `layers` of the context are used up."""

    def __init__(self):
        self.scale, self.mask = 2.0, None

    def forward(self, input_ids):
        if self.mask is not None:
            input_ids, self.mask = torch.where(self.mask[: len(input_ids)], 9.0, input_ids), None
        assert NOW[-1].layer == 0, "a context that another pass has used"
        NOW[-1].layer += 1
        if NOW[-1].attn_metadata.plan is None:
            NOW[-1].attn_metadata.plan = input_ids.sum()
        return input_ids * self.scale + NOW[-1].attn_metadata.plan

    __call__ = forward


class Wrapper:
    """`CUDAGraphWrapper`."""

    def __init__(self, runnable):
        self.runnable, self.entries = runnable, {}

    def __call__(self, **given):
        if NOW[-1].cudagraph_runtime_mode == NONE:
            return self.runnable(**given)
        key = NOW[-1].batch_descriptor
        if key not in self.entries:
            self.entries[key] = capture(lambda: self.runnable(**given), backend="emulated")
        self.entries[key].replay()
        return self.entries[key].outputs


class Runner:
    """`GPUModelRunner` of V1, as far as an audit looks at it."""

    def __init__(self, sizes=(2, 4)):
        self.model, self.buffer, self.kv_caches, self.num_built = Wrapper(Model()), torch.ones(8), [], 0
        keys = [Batch(size, size) for size in sizes]
        self.cudagraph_dispatcher = SimpleNamespace(
            get_capture_descs=lambda: [(FULL, keys)], cudagraph_mode=FULL
        )
        self.kv_cache_config = SimpleNamespace(kv_cache_groups=[])
        self.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(), kv_transfer_config=None)

    def get_model(self):
        return self.model.runnable

    def synchronize_input_prep(self):
        return nullcontext()

    def capture_model(self):
        for mode, keys in self.cudagraph_dispatcher.get_capture_descs():
            for key in keys:
                for now in (NONE, mode):
                    with override(Context(self._build_attention_metadata()[0], now, key)):
                        self.model(input_ids=self.buffer[: key.num_tokens])
        return 123

    def _build_attention_metadata(self):
        self.num_built += 1
        return Metadata(), None

    def _model_forward(self, input_ids):
        return self.model(input_ids=input_ids)

    def execute_model(self, values):
        num_tokens_unpadded = len(values)
        key = next(k for k in self.cudagraph_dispatcher.get_capture_descs()[0][1] if k[0] >= len(values))
        self.buffer[:num_tokens_unpadded] = torch.tensor(values)
        metadata, _ = self._build_attention_metadata()
        metadata.plan = None
        with override(Context(metadata, FULL, key)):
            return self._model_forward(input_ids=self.buffer[: key.num_tokens])[:num_tokens_unpadded].clone()


@pytest.fixture(autouse=True)
def vllm(monkeypatch, tmp_path, caplog):
    told = {"get_forward_context": lambda: NOW[-1], "override_forward_context": override}
    monkeypatch.setitem(sys.modules, "vllm.forward_context", SimpleNamespace(**told))
    monkeypatch.setitem(sys.modules, "vllm.config", SimpleNamespace(CUDAGraphMode=SimpleNamespace(NONE=NONE)))
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=None))
    monkeypatch.setenv("MRV2LAB_AUDIT_DIR", str(tmp_path / "reports"))
    monkeypatch.setattr(plugin.atexit, "register", lambda *args: None)
    monkeypatch.setattr(plugin.gc, "freeze", lambda: None)
    caplog.set_level(logging.INFO, "vllm.mrv2lab")


def watched(runner=None, scenario="lengths"):
    runner, steps = runner or Runner(), Steps(backend="emulated")
    assert steps.watch_capture(runner, runner.capture_model) == 123
    steps.scenario = scenario
    return runner, steps


def serving(runner, every=0):
    config = SimpleNamespace(enforce_eager=False)
    worker = SimpleNamespace(model_config=config, rank=0, model_runner=runner, vllm_config=runner.vllm_config)
    served = plugin.Served.of(worker, every)
    served.backend = "emulated"
    with served.capturing():
        assert runner.capture_model() == 123
    served.begin()
    return served


def test_a_step_of_each_key_is_audited_once_and_its_answer_is_that_of_the_replay():
    runner, steps = watched()
    other = Runner()
    other.capture_model()
    for values in ([1.0, 2.0], [3.0, 5.0], [1.0, 2.0, 3.0, 4.0]):
        assert runner.execute_model(values).tolist() == other.execute_model(values).tolist()
    assert [report.step for report in steps.reports.values()] == ["Model, 2 tokens", "Model, 4 tokens"]
    assert not any(report.findings for report in steps.reports.values())
    assert steps.captured() == [v1.Key(FULL, Batch(2, 2)), v1.Key(FULL, Batch(4, 4))]


def test_what_froze_in_its_graph_is_named():
    runner, steps = watched()
    runner.get_model().scale = 3.0
    runner.execute_model([1.0, 2.0])
    [report] = steps.reports.values()
    first = report.findings[0]
    assert (first.kind, first.subject) == ("frozen-host-value", "self.scale")


class WithPadding(Model):
    """Rows from the third on hold what Python said when they were captured."""

    padding = 0.0

    def forward(self, input_ids):
        return torch.cat([super().forward(input_ids)[:3], input_ids[3:] + self.padding])

    __call__ = forward


@pytest.mark.parametrize("num_real", [3, 4])
def test_rows_of_padding_are_nobodys(num_real):
    runner = Runner(sizes=(4,))
    runner.model = Wrapper(WithPadding())
    _, steps = watched(runner)
    runner.get_model().padding = 7.0
    runner.execute_model([1.0, 2.0, 3.0, 4.0][:num_real])
    [report] = steps.reports.values()
    assert [found.subject for found in report.findings] == ["self.padding"] * (num_real == 4)


@pytest.mark.parametrize("every", [0, 2])
def test_what_a_step_uses_up_in_its_model_is_there_in_each_pass_and_in_the_one_that_counts(every):
    """As the mask of image tokens is: whoever has read it sets it to None."""
    runner, masks = Runner(), []
    serving(runner, every)
    model, forward = runner.get_model(), runner.model
    runner.get_model = lambda: model
    runner.model = lambda **given: masks.append(model.mask) or forward(**given)  # asked for outside of graphs
    for _ in range(3):
        mask = model.mask = torch.ones(8, dtype=torch.bool)
        runner.execute_model([1.0, 2.0])
        assert masks and all(one is mask for one in masks)
        masks.clear()


def test_keys_of_a_model_that_takes_images_are_audited_and_not_checked():
    runner = Runner()
    runner.supports_mm_inputs = True
    served = serving(runner, every=2)
    for _ in range(5):
        runner.execute_model([1.0, 2.0])
    assert served.found == {v1.Key(FULL, Batch(2, 2)): [0]} and not served.num["checks"]


def test_metadata_of_static_sinks_is_not_made_again():
    class StaticSinkAttentionBuilder:
        pass

    runner = Runner()
    runner.attn_groups = [[SimpleNamespace(metadata_builders=[StaticSinkAttentionBuilder()])]]
    with pytest.raises(AuditError, match="static sinks"):
        watched(runner)


def test_without_a_graph_there_is_nothing_to_audit():
    runner, steps = watched()
    with override(Context(Metadata(), NONE, Batch(2, 2))):
        runner._model_forward(input_ids=runner.buffer[:2])
    assert not steps.reports


@pytest.mark.parametrize(
    "changed, why",
    [
        ({"world_size": 2}, "audited on one rank, and here are 2"),
        ({"use_ubatching": True}, "microbatches"),
        ({"data_parallel_size": 2}, "2 ranks wait for each other"),
    ],
)
def test_it_is_said_what_cannot_be_audited(changed, why):
    runner = Runner()
    runner.vllm_config.parallel_config = SimpleNamespace(**changed)
    with pytest.raises(AuditError, match=why):
        watched(runner)


def test_a_release_whose_steps_cannot_be_read_is_not_audited():
    class Other(Runner):
        def execute_model(self, values):
            return values

    with pytest.raises(AuditError, match="this vLLM has no num_tokens_unpadded"):
        watched(Other())


def test_a_server_with_it_is_audited_and_checked(caplog):
    runner = Runner()
    served = serving(runner, every=2)
    for _ in range(3):
        runner.execute_model([1.0, 2.0])
    assert "audit of Model, 2 tokens: nothing found" in caplog.text and served.num["checks"] == 1
    runner.get_model().scale = 3.0
    runner.execute_model([1.0, 2.0])
    assert "frozen-host-value: self.scale" in caplog.text
