"""Audits of the engine without an engine: how they are asked for, what becomes of them, what is recorded."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from mrv2lab.audit import AuditReport, Finding, Place
from mrv2lab.cli import app
from mrv2lab.errors import AuditError, BadInput, RecordError
from mrv2lab.live import audited, launch, scenarios
from mrv2lab.live.attend import Crash, Ended
from mrv2lab.live.audit import Steps
from mrv2lab.live.audited import AUDITED, without_places
from mrv2lab.live.models import make_qwen3
from mrv2lab_vllm import TRIED

REPORT = AuditReport(
    "Model, 4 tokens", "cuda",
    (Finding("lost-kernel", "planner", "1 more", Place("/a/site/vllm/third_party/x.py", 3, "f")),), 7,
)  # fmt: skip


@pytest.fixture
def engine_here(monkeypatch):
    monkeypatch.setattr(audited, "check", lambda case, release=None: None)


def test_each_variant_of_a_case_is_a_job(engine_here):
    assert [job.variant for job in audited.jobs_of("lora_short_circuit")] == ["zero_mapping", "forced_launch"]
    with pytest.raises(BadInput, match="possible"):
        audited.jobs_of("lora_device_assert")


def test_options_of_the_engine_are_json_or_text(engine_here):
    job = audited.job_of_model("model", [], ["block_size=64", "attention_backend=FLASHMLA", "a=[1]"])
    assert job.settings["options"] == {"block_size": 64, "attention_backend": "FLASHMLA", "a": [1]}
    with pytest.raises(BadInput, match="name=value"):
        audited.job_of_model("model", [], ["block_size"])


def test_what_the_caller_has_set_for_the_engine_counts(engine_here, monkeypatch):
    assert audited.job_of_model("model", [], []).env["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    assert audited.job_of_model("model", [], []).env["VLLM_USE_V2_MODEL_RUNNER"] == "0"


def test_reports_come_back_from_the_process(monkeypatch):
    job = launch.Job("a", "b")

    def run_all(jobs, *, at_once, command, on_progress):
        assert command == audited.WORKER
        return iter([Ended(job, 1.0, document={"reports": [json.loads(REPORT.to_json())]})])

    monkeypatch.setattr(launch, "run_all", run_all)
    [engine] = audited.run([job], at_once=1, on_progress=print)
    assert engine.read() == [REPORT] and (engine.case, engine.variant) == ("a", "b")


def test_an_engine_that_does_not_serve_is_an_error(monkeypatch):
    ended = Ended(launch.Job("a", "b"), 1.0, crash=Crash("exit status 1", "CUDA error", ()))
    monkeypatch.setattr(launch, "run_all", lambda jobs, **options: iter([ended]))
    with pytest.raises(audited.EngineAuditFailed, match="a b: exit status 1: CUDA error"):
        audited.run([ended.job], at_once=1, on_progress=print)


def test_places_begin_at_the_package():
    [finding] = without_places(REPORT).findings
    assert str(finding.where) == "vllm/third_party/x.py:3 in f"


def test_so_do_those_in_words():
    word = "n was 1; read at {}vllm/v1/x.py:3 in f, and at /else/where.py:4 in g"
    [finding], told = REPORT.findings, word.format("/a/site-packages/")
    report = without_places(replace(REPORT, findings=(replace(finding, evidence=told),), notes=(told,)))
    assert [report.findings[0].evidence, *report.notes] == [word.format("")] * 2


def test_what_is_no_record_is_refused(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(RecordError, match="mrv2lab audit vllm"):
        audited.load(tmp_path / "x.json")


MUST_FIND = {
    "zero_mapping": {
        ("frozen-host-value", "no_lora_flag_cpu"),
        ("lost-kernel", "_lora_shrink_kernel"),
        ("lost-kernel", "_lora_expand_kernel"),
    },
    "one_slot": {("frozen-host-value", "grid"), ("frozen-grid", "_lora_expand_kernel")},
    "unrouted": {("silent-eager", "DeepseekV3ForCausalLM, 8 tokens")},
    "whole_graph": {("frozen-host-value", "attn_metadata")},
    "shared_state": {
        ("frozen-host-value", "sched_meta.tile_scheduler_metadata"),
        ("lost-kernel", "get_mla_metadata_kernel"),
    },
}

LOST = (
    "zero_mapping",
    "whole_graph",
    "shared_state",
)  # of `whole_graph` the kernel is the GPU's FlashAttention


def test_recorded_audits_found_what_was_taken_out_and_nothing_else():
    kept = audited.load()
    assert {(a.case, a.variant) for a in kept.audits} == {(c, v) for c in AUDITED for v in AUDITED[c]}
    for engine in kept.audits:
        reports = engine.read()
        found = {(f.kind, f.subject) for report in reports for f in report.findings}
        assert found >= MUST_FIND.get(engine.variant, set())
        assert bool(found) == (engine.variant in MUST_FIND), engine.variant
        assert ("lost-kernel" in {kind for kind, _ in found}) == (engine.variant in LOST), engine.variant
        first = "silent-eager" if engine.variant == "unrouted" else "frozen-host-value"  # the cause
        assert {r.findings[0].kind for r in reports if r.findings} <= {first}
    assert str(kept.provenance.gpu).startswith("NVIDIA H")


@pytest.mark.parametrize("slip", [["--scenario", "length"], ["--engine", "max_model_len"]])
def test_a_slip_is_told_where_there_is_no_engine_either(slip, monkeypatch):
    monkeypatch.setattr("mrv2lab.cli.find_spec", lambda name: None)
    said = CliRunner().invoke(app, ["audit", "model", "folder", *slip])
    assert said.exit_code == 2
    assert slip[1] in said.output
    assert "GPU" not in said.output


def test_what_a_checkpoint_needs_is_said(monkeypatch):
    monkeypatch.setattr("mrv2lab.live.rung.torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("mrv2lab.cli.find_spec", lambda name: None)
    told = CliRunner().invoke(app, ["audit", "model", "folder"])
    assert "needs vllm (0.23, 0.24, 0.25, 0.26 were tried) and an NVIDIA GPU" in told.output


@pytest.mark.parametrize(("release", "told"), [("0.33.0", 1), ("0.26.0", 0)])
def test_a_release_that_no_audit_was_tried_with_is_told(monkeypatch, release, told):
    monkeypatch.setattr("mrv2lab.cli.find_spec", lambda name: True)
    monkeypatch.setattr(audited, "check", lambda case, release: None)
    monkeypatch.setattr("mrv2lab.live.releases.installed", lambda: release)
    monkeypatch.setattr("mrv2lab.cli._audit_engines", lambda jobs, *args, **how: None)
    said = CliRunner().invoke(app, ["audit", "model", "folder"])
    assert said.exit_code == 0 and said.stderr.count(f"tried with vllm {', '.join(TRIED)};") == told


# ---- steps and scenarios ----


def runner(*captured, manager_mode="FULL"):
    descs = {}
    for desc in captured:
        descs.setdefault(desc.cg_mode, []).append(desc)
    manager = SimpleNamespace(_capture_descs=descs, cudagraph_mode=SimpleNamespace(name=manager_mode))
    config = SimpleNamespace()
    return SimpleNamespace(cudagraph_manager=manager, vllm_config=config, model=REPORT)


class Mode(NamedTuple):
    name: str


def desc(mode, num_tokens, num_reqs=None, **more):
    return SimpleNamespace(cg_mode=Mode(mode), num_tokens=num_tokens, num_reqs=num_reqs, **more)


def test_a_step_is_called_what_sets_it_apart():
    full, piecewise = desc("FULL", 4, 4, num_active_loras=2), desc("PIECEWISE", 4)

    def name(steps, desc):
        return steps._name(SimpleNamespace(desc=desc, model=steps.runner.model))

    assert name(Steps(runner(full), scenario="lengths"), full) == "AuditReport, 4 tokens, 2 active adapters"
    both = Steps(runner(full, piecewise), scenario="prefill")
    assert name(both, piecewise) == "AuditReport, 4 tokens, PIECEWISE, scenario prefill"


@pytest.mark.parametrize(
    "steps, why",
    [
        (Steps(), "it captures nothing"),
        (Steps(runner(manager_mode="NONE")), "cudagraph_mode is NONE, captured: nothing"),
        (Steps(runner(desc("FULL", 1))), "captured: FULL; no step served was given a graph"),
    ],
)
def test_an_engine_of_which_no_step_was_audited_is_an_error(steps, why, monkeypatch):
    monkeypatch.setattr(scenarios, "run", lambda engine, names, tell: [])
    llm = SimpleNamespace(llm_engine=SimpleNamespace(model_config=SimpleNamespace(max_model_len=100)))
    with pytest.raises(AuditError, match=why):
        audited._serve(llm, steps, [], ["lengths"])


class Served:
    """Stands in for `vllm.LLM`: keeps what it is asked."""

    def __init__(self, prefix_caching=False):
        cache = SimpleNamespace(enable_prefix_caching=prefix_caching)
        model = SimpleNamespace(is_multimodal_model=False)
        config = SimpleNamespace(cache_config=cache, model_config=model)
        self.llm_engine, self.asked = SimpleNamespace(vllm_config=config, model_config=model), []

    def generate(self, prompts, params, use_tqdm, lora_request):
        self.asked.append(([len(prompt["prompt_token_ids"]) for prompt in prompts], lora_request))


@pytest.fixture
def served(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=dict))

    def serve(name, adapters=(), llm=None, longest=600):
        engine = scenarios.Engine(llm or Served(), (1, 2, 4), (1, 2, 8), adapters, longest)
        told = []
        assert scenarios.run(engine, [name], told.append) == []
        return [(lengths, who, what) for (lengths, who), what in zip(engine.llm.asked, told, strict=True)]

    return serve


def test_scenarios_meet_every_size(served):
    assert [lengths for lengths, *_ in served("lengths")] == [[5], [5, 130], [5, 130, 600, 600]]
    assert [lengths for lengths, *_ in served("shrinking")] == [[5, 130, 600], [5]]
    assert [(lengths, what) for lengths, _, what in served("prefill")] == [([2], "prefill"), ([8], "prefill")]


def test_of_prompts_that_are_asked_twice_the_second_time_is_audited(served):
    asked = served("prefix", llm=Served(prefix_caching=True))
    assert [what for *_, what in asked] == [None, "prefix"] * 3
    assert all(one[0] == two[0] for one, two in zip(asked[::2], asked[1::2], strict=True))


def test_adapters_come_and_go(served):
    assert [who for _, who, _ in served("lengths", ["a", "b"])] == [["a"], ["a"] * 2, ["a"] * 4]
    mixed = [(who, what) for _, who, what in served("adapters", ["a", "b"])]
    assert mixed[:3] == [(who, "adapters") for who in (["a"], ["a", "b"], ["a", "b", None, "a"])]
    assert mixed[3:] == [([None] * number, "adapters unused") for number in (1, 2, 4)]  # by themselves
    assert served("lengths")[0][1] is None


def test_each_request_brings_an_image_that_no_other_has(served, monkeypatch):
    kind = SimpleNamespace(get_placeholder_str=lambda modality, i: f"<{modality}>")
    utils = SimpleNamespace(get_model_cls=lambda config: kind)
    monkeypatch.setitem(sys.modules, "vllm.model_executor.model_loader.utils", utils)
    llm, asked = Served(), []
    llm.llm_engine.model_config.is_multimodal_model = True
    llm.llm_engine.model_config.skip_tokenizer_init = False
    llm.generate = lambda prompts, *args, **kwargs: asked.append(prompts)
    engine = scenarios.Engine(llm, (1, 2), (1, 2), (), 600)
    assert scenarios.run(engine, ["images"], lambda name: None) == []
    assert [len(prompts) for prompts in asked] == [1, 2] * len(scenarios.SIDES)
    every = [one for prompts in asked for one in prompts]
    assert {one["prompt"] for one in every} == {"<image> what?"}
    assert len({one["multi_modal_data"]["image"].tobytes() for one in every}) == len(every)
    llm.llm_engine.model_config.skip_tokenizer_init = True
    with pytest.raises(BadInput, match="skip_tokenizer_init=false"):
        scenarios.run(engine, ["images"], lambda name: None)


def test_a_scenario_that_the_engine_does_not_support_is_told():
    engine = scenarios.Engine(Served(), (), (), (), 600)
    told = scenarios.run(engine, scenarios.chosen(["all"]), lambda name: None)
    assert [line.partition(" ")[0] for line in told] == ["adapters", "prefix", "images"]
    with pytest.raises(BadInput, match="adapters needs an adapter: --lora FOLDER"):
        scenarios.run(engine, ["adapters"], lambda name: None)
    with pytest.raises(BadInput, match=r"unknown scenario 'lenghts'.*did you mean 'lengths'"):
        scenarios.chosen(["lenghts"])


@pytest.mark.live
def test_a_checkpoint_is_audited_with_the_engines_own_defaults(tmp_path):
    """Among them that the KV cache takes most of the GPU: it could not be copied then."""
    job = audited.job_of_model(str(make_qwen3(tmp_path / "model")), [], [])
    [engine] = audited.run([job], at_once=1, on_progress=lambda *_: None)
    reports = engine.read()
    assert [report.step for report in reports] == [f"Qwen3ForCausalLM, {n} tokens" for n in (1, 2, 4)]
    assert not any(report.findings for report in reports) and all(report.num_nodes for report in reports)
