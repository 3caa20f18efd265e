"""Audits of the engine without an engine: how they are asked for, what becomes of them, what is recorded."""

import json

import pytest

from mrv2lab.audit import AuditReport, Finding, Place
from mrv2lab.errors import BadInput, RecordError
from mrv2lab.live import audited, launch
from mrv2lab.live.attend import Crash, Ended
from mrv2lab.live.audit_worker import AUDITED, without_places
from mrv2lab.results import load

REPORT = AuditReport(
    "Model, 4 tokens", "cuda",
    (Finding("lost-kernel", "planner", "1 more", Place("/a/site/vllm/third_party/x.py", 3, "f")),), 7,
)  # fmt: skip


@pytest.fixture
def engine_here(monkeypatch):
    monkeypatch.setattr(audited, "check", lambda case: None)


def test_each_variant_of_a_case_is_a_job(engine_here):
    assert [job.variant for job in audited.jobs_of("lora_short_circuit")] == ["zero_mapping", "forced_launch"]
    with pytest.raises(BadInput, match="possible"):
        audited.jobs_of("lora_device_assert")


def test_options_of_the_engine_are_json_or_text(engine_here):
    job = audited.job_of_model("model", None, ["block_size=64", "attention_backend=FLASHMLA", "a=[1]"])
    assert job.settings["options"] == {"block_size": 64, "attention_backend": "FLASHMLA", "a": [1]}
    with pytest.raises(BadInput, match="name=value"):
        audited.job_of_model("model", None, ["block_size"])


def test_reports_come_back_from_the_process(monkeypatch):
    job = launch.Job("a", "b")

    def run_all(jobs, *, at_once, command, on_progress):
        assert command == audited.WORKER
        return iter([Ended(job, 1.0, document={"reports": [json.loads(REPORT.to_json())]})])

    monkeypatch.setattr(launch, "run_all", run_all)
    [[report]] = audited.run([job], at_once=1, on_progress=print)
    assert report == REPORT


def test_an_engine_that_does_not_serve_is_an_error(monkeypatch):
    ended = Ended(launch.Job("a", "b"), 1.0, crash=Crash("exit status 1", "CUDA error", ()))
    monkeypatch.setattr(launch, "run_all", lambda jobs, **options: iter([ended]))
    with pytest.raises(audited.EngineAuditFailed, match="a b: exit status 1: CUDA error"):
        audited.run([ended.job], at_once=1, on_progress=print)


def test_places_begin_at_the_package():
    [finding] = without_places(REPORT).findings
    assert str(finding.where) == "vllm/third_party/x.py:3 in f"


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
    "shared_state": {
        ("frozen-host-value", "sched_meta.have_initialized"),
        ("lost-kernel", "get_mla_metadata_kernel"),
    },
}


def test_recorded_audits_found_what_was_taken_out_and_nothing_else():
    kept = audited.load()
    assert {(a.case, a.variant) for a in kept.audits} == {(c, v) for c in AUDITED for v in AUDITED[c]}
    for engine in kept.audits:
        reports = engine.read()
        found = {(f.kind, f.subject) for report in reports for f in report.findings}
        assert found >= MUST_FIND.get(engine.variant, set())
        assert bool(found) == (engine.variant in MUST_FIND), engine.variant
        assert {r.findings[0].kind for r in reports if r.findings} <= {"frozen-host-value"}  # the cause first
    assert kept.provenance.gpu == load(next(audited.FILE.parent.glob("results/*/vllm-*.json"))).provenance.gpu
