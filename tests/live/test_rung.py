"""The rung `vllm` without vLLM: what is asked of the machine, and what becomes of a worker's end."""

import pytest
import torch
from typer.testing import CliRunner

from mrv2lab.cases import CASES, get
from mrv2lab.cli import app
from mrv2lab.errors import BadInput
from mrv2lab.graphs.work import Amount
from mrv2lab.live import launch, releases, rung
from mrv2lab.live.attend import Crash, Ended
from mrv2lab.live.engine import Served
from mrv2lab.live.pp import EXECUTOR
from mrv2lab.live.run import Seen, Variant, latency, run
from mrv2lab.live.variants import VARIANTS
from mrv2lab.live.work import CountedStep
from mrv2lab.results import provenance, recorded
from mrv2lab.upstream import probes
from mrv2lab.upstream.releases import TARGET

ANSWER = {"verdict": "correct", "errors": [0.0], "step_modes": ["graph"]}


@pytest.fixture
def everything_here(monkeypatch):
    monkeypatch.setattr(rung, "missing", lambda case, release: [])


@pytest.fixture
def jobs(monkeypatch, everything_here):
    """Workers that answer at once; the list of their jobs."""
    seen = []

    def run_all(jobs, *, at_once, ahead, on_progress):
        seen.extend(jobs)
        on_progress(jobs[0], 0.5, "serving")
        return (Ended(job, 1.0, document=ANSWER) for job in jobs)

    monkeypatch.setattr(launch, "run_all", run_all)
    return seen


def crashed(reason, message, *log_tail, job=("lora_device_assert", "unwritten")):
    return Ended(launch.Job(*job), 1.0, crash=Crash(reason, message, log_tail))


def test_every_variant_of_the_target_release_runs_in_the_engine():
    stated = {
        name: {v for v, variant in probes.get(name).variants.items() if variant.release == TARGET}
        for name, case in CASES.items()
        if "vllm" in case.rungs
    }
    assert {case: set(variants) for case, variants in VARIANTS.items()} == stated


def test_a_case_without_variants_for_the_engine_is_told_where_they_go():
    with pytest.raises(BadInput, match=r"^rung vllm of no_case needs its variants in .*live/variants.py$"):
        rung.missing("no_case")
    assert releases.variants("no_case", TARGET) == {}


def test_a_variant_of_another_release_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(rung, "missing", lambda case, release: [])
    with pytest.raises(
        BadInput, match="on rung vllm 'keyed_short'; possible: eager, one_slot, default_setting"
    ):
        get("lora_frozen_grid").run("keyed_short", rung="vllm")


@pytest.mark.parametrize(
    "num_gpus, version, words", [(0, None, "GPU"), (1, None, "vllm 0.23.0"), (1, "9", "9")]
)
def test_what_is_missing_is_said(monkeypatch, num_gpus, version, words):
    def installed(name):
        if version is None:
            raise releases.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    monkeypatch.setattr(releases, "version", installed)
    assert words in " ".join(rung.missing("lora_short_circuit"))
    with pytest.raises(BadInput, match="recorded runs: mrv2lab live"):
        get("lora_short_circuit").run("eager", rung="vllm")


def test_a_pipeline_needs_two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(releases, "version", lambda name: "0.23.0")
    assert rung.missing("lora_short_circuit") == []
    assert rung.missing("pp_eager_fallback") == ["2 NVIDIA GPUs"]


def test_a_variant_is_a_job_with_its_environment(jobs):
    [outcome] = rung.run_variants("breakable_graph", ["breakable"], rung.Options(at_once=1))
    assert outcome.verdict == "correct"
    [job] = jobs
    assert job.env["VLLM_USE_BREAKABLE_CUDAGRAPH"] == "1" and job.env["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert job.settings == {"engines_at_once": 1}


def test_what_plain_attention_does_under_breakable_graphs_is_the_stock_release():
    variant = VARIANTS["breakable_graph"]["whole_graph"]
    assert variant.edits == () and variant.env == {"VLLM_USE_BREAKABLE_CUDAGRAPH": "1"}


def test_progress_comes_with_the_name_of_the_variant(jobs):
    told = []
    options = rung.Options(on_progress=lambda *words: told.append(words))
    list(rung.run_variants("breakable_graph", ["breakable"], options))
    assert told == [("breakable", 0.5, "serving")]


def test_workers_are_told_which_executor_to_use(jobs):
    list(rung.run_variants("pp_eager_fallback", ["eager"], rung.Options(executor="ray")))
    assert [job.env[EXECUTOR] for job in jobs] == ["ray"]


def test_an_executor_needs_its_library(monkeypatch):
    monkeypatch.setattr(rung, "find_spec", lambda name: None)
    assert rung.checked_executor("mp") == "mp"
    with pytest.raises(BadInput, match="pip install ray"):
        rung.checked_executor("ray")
    with pytest.raises(BadInput, match="possible"):
        rung.checked_executor("slurm")
    monkeypatch.setattr(rung, "find_spec", lambda name: object())
    assert rung.checked_executor("ray") == "ray"


TOKENS = [[5, 6], [7, 8]]  # of two requests in two steps


def test_what_v1_answers_stands_beside_every_verdict_and_changes_none(monkeypatch, everything_here):
    answered = {"v1": TOKENS, "zero_mapping": [[5, 6], [0, 0]], "forced_launch": TOKENS}

    def run_all(jobs, *, at_once, ahead, on_progress):
        envs = {job.variant: job.env["VLLM_USE_V2_MODEL_RUNNER"] for job in jobs}
        assert envs == {"v1": "0", "zero_mapping": "1", "forced_launch": "1"}
        for job in jobs:
            on_progress(job, 0.5, "serving")
        return (Ended(job, 1.0, document=ANSWER | {"tokens": answered[job.variant]}) for job in jobs)

    monkeypatch.setattr(launch, "run_all", run_all)
    told = []
    options = rung.Options(on_progress=lambda *words: told.append(words[0]))
    found = list(rung.run_variants("lora_short_circuit", ["zero_mapping", "forced_launch"], options))
    assert told == ["zero_mapping", "forced_launch"]  # it is none of the variants
    assert [outcome.metrics["equal_to_v1"] for outcome in found] == [0.5, 1.0]
    assert [outcome.verdict for outcome in found] == ["correct", "correct"]


def test_one_variant_by_itself_costs_one_engine(jobs):
    list(rung.run_variants("lora_short_circuit", ["eager"], rung.Options()))
    assert [job.variant for job in jobs] == ["eager"]


def test_where_v1_fails_verdicts_come_without_its_answers(monkeypatch, everything_here):
    def run_all(jobs, *, at_once, ahead, on_progress):
        crash = Crash("exit status 1", "torch.OutOfMemoryError: CUDA out of memory.", ())
        right = ANSWER | {"tokens": TOKENS}
        return (
            Ended(j, 1.0, **({"crash": crash} if j.variant == "v1" else {"document": right})) for j in jobs
        )

    monkeypatch.setattr(launch, "run_all", run_all)
    with pytest.warns(UserWarning, match="lora_short_circuit: the V1 runner has no answers .*OutOfMemory"):
        found = list(rung.run_variants("lora_short_circuit", ["eager", "forced_launch"], rung.Options()))
    assert [(outcome.verdict, outcome.metrics) for outcome in found] == [("correct", {})] * 2


def test_a_variant_with_another_model_is_not_compared_with_v1(monkeypatch, everything_here):
    right = ANSWER | {"tokens": TOKENS}
    monkeypatch.setattr(
        launch, "run_all", lambda jobs, **unused: (Ended(job, 1.0, document=right) for job in jobs)
    )
    found = list(rung.run_variants("breakable_graph", ["full_graph", "whole_graph"], rung.Options()))
    assert [outcome.metrics for outcome in found] == [{"equal_to_v1": 1.0}, {}]


@pytest.mark.parametrize("tokens", [[], [[5, 6]], [[5, 6], [7]]])
def test_other_steps_are_not_compared(tokens):
    assert rung.equal_to_v1(tokens, TOKENS) == {}


ASSERTED = "RuntimeError: Triton Error [CUDA]: device-side assert triggered"
LOOK_UP = (
    '[rank0]:   File "/a/site-packages/vllm/lora/layers/vocal_parallel_embedding.py", line 119, in forward'
)
POINTERS = (
    "an illegal memory access was encountered",
    "operation not supported on global/shared address space",
)
IN_CAPTURE = (
    'File "<vllm/v1/worker/gpu/spec_decode/autoregressive/cudagraph_utils.py, edited>", line 5, in capture'
)


def test_the_stated_crash_is_one_and_leaves_the_end_of_the_log():
    outcome = rung.outcome(crashed("exit status 1", ASSERTED, LOOK_UP))
    assert (outcome.verdict, outcome.message) == ("crash", ASSERTED)
    place = 'File "lora/layers/vocal_parallel_embedding.py", line 119, in forward'
    assert outcome.log_tail == [f"[rank0]:   {place}"]


@pytest.mark.parametrize("words", POINTERS)
def test_a_wild_pointer_has_several_words(words):
    job, message = ("flashmla_lazy_init", "captured_reused"), f"torch.AcceleratorError: CUDA error: {words}"
    assert rung.outcome(crashed("exit status 1", message, IN_CAPTURE, job=job)).verdict == "crash"
    assert rung.outcome(crashed("exit status 1", message, LOOK_UP, job=job)).verdict == "failed"
    assert rung.outcome(crashed("exit status 1", message, IN_CAPTURE)).verdict == "failed"


@pytest.mark.parametrize(
    "reason, message",
    [
        ("timeout after 300 s", ASSERTED),
        ("more than 24 GiB of memory", ASSERTED),
        ("SIGKILL", "CUDA"),
        ("exit status 0 without a result", "a warning"),
        ("exit status 1", "NameError: name 'RunnerConfg' is not defined"),
        ("exit status 1", "MemoryError"),
        ("exit status 1", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 14.00 GiB."),
        ("exit status 1", "torch.AcceleratorError: CUDA error: out of memory"),
        ("exit status 1", "RuntimeError: No CUDA GPUs are available"),
        ("exit status 1", "RuntimeError: CUDA driver version is insufficient for CUDA runtime version"),
        ("exit status 1", "AssertionError: CUDA_HOME not set"),
        ("exit status 1", "ValueError: CUDAGraphMode.FULL is not supported"),
        ("exit status 1", "ModuleNotFoundError: No module named 'vllm'"),
        ("exit status 1", "AttributeError: 'GPUModelRunner' object has no attribute 'x'"),
    ],
)
def test_any_other_end_says_nothing_about_the_bug(reason, message):
    outcome = rung.outcome(crashed(reason, message, LOOK_UP))
    assert (outcome.verdict, outcome.message) == ("failed", f"{reason}: {message}")


def test_one_worker_that_fails_does_not_cost_the_others_their_verdicts(monkeypatch, everything_here):
    def run_all(jobs, *, at_once, ahead, on_progress):
        oom = Crash("exit status 1", "torch.OutOfMemoryError: CUDA out of memory.", (LOOK_UP,))
        ends = {"unwritten": {"crash": oom}}
        return (Ended(job, 1.0, **ends.get(job.variant, {"document": ANSWER})) for job in jobs)

    here = provenance(0, uses_gpu=False)
    monkeypatch.setattr("mrv2lab.cases.base.provenance", lambda seed, **kwargs: here)
    monkeypatch.setattr(launch, "run_all", run_all)
    result = CliRunner().invoke(app, ["live", "lora_device_assert"])
    assert result.exit_code == 1
    assert [line.split()[2] for line in result.stdout.splitlines() if "must be crash" in line] == ["failed"]
    assert result.stdout.count("correct") == 2
    assert "unwritten failed: exit status 1: torch.OutOfMemoryError: CUDA out of memory." in result.stdout
    assert 'vocal_parallel_embedding.py", line 119' in result.stdout


def observe(value, nodes=200):
    def counted(nodes):
        work = {"target": Amount(nodes, 0 if nodes else 100), "step": Amount(ops=10 if nodes else 110)}
        return [[CountedStep(work, fits=True)] * 9]

    def seen(folder, graphs):
        times = [float(n) for n in range(9)]
        served = Served([torch.full((2, 4), value)] * 9, [int(nodes > 0)] * 9, times, counted(nodes))
        reference = Served([torch.ones(2, 4)] * 9, [0] * 9, [1.0] * 9, counted(0))
        return Seen(served, reference, {}, {"graphs": 1.0}, {"requests_per_s": 5.0})

    return seen


@pytest.mark.parametrize(
    "value, nodes, verdict",
    [
        (1.0, 200, "correct"),
        (1.01, 200, "correct"),
        (1.1, 200, "wrong"),
        (1.0, 1, "eager"),
        (1.0, 0, "eager"),
    ],
)
def test_an_engine_is_judged_by_its_logits_and_a_wrong_one_has_no_speed(tmp_path, value, nodes, verdict):
    outcome = run(Variant(observe(value, nodes)), tmp_path, watch=False)
    assert outcome.verdict == verdict
    has_speed = verdict != "wrong"
    assert (outcome.latency_ms is not None) == has_speed == ("requests_per_s" in outcome.metrics)


def drafting(drafted):
    served = Served([torch.ones(2, 4)] * 9, [1] * 9, [1.0] * 9, drafted=drafted)
    reference = Served([torch.ones(2, 4)] * 9, [0] * 9, [1.0] * 9, drafted=[torch.ones(2, 3)] * 9)
    return lambda folder, graphs: Seen(served, reference, {}, {})


def test_a_draft_that_went_wrong_is_wrong_though_no_logits_show_it(tmp_path):
    right, wrong = [torch.ones(2, 3)] * 9, [torch.ones(2, 3)] * 8 + [torch.zeros(2, 3)]
    assert run(Variant(drafting(right)), tmp_path, watch=False).verdict == "correct"
    outcome = run(Variant(drafting(wrong)), tmp_path, watch=False)
    assert (outcome.verdict, outcome.errors) == ("wrong", [0.0] * 8 + [1.0])


def test_the_likeliest_tokens_are_told(tmp_path):
    outcome = run(Variant(observe(1.0)), tmp_path, watch=False)
    assert outcome.tokens == [[0, 0]] * 9


def test_latency_leaves_the_first_steps_out():
    made = latency(Served(step_ms=[900.0, 800.0, 700.0, 2.0, 2.0, 2.0, 2.0]))
    assert (made.p20, made.median, made.p80) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_recorded_run_showed_what_its_variant_states(name):
    runs = recorded(name, "vllm")
    assert {run.variant for run in runs} == set(VARIANTS[name])
    assert [run.variant for run in runs if not run.as_expected] == []
    assert all(run.provenance.vllm == "0.23.0" and run.provenance.gpu for run in runs)
    assert not [run.variant for run in runs if run.verdict == "wrong" and "requests_per_s" in run.metrics]


@pytest.mark.live
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_shows_its_stated_verdict_in_the_engine(name):
    if lacks := rung.missing(name):
        pytest.fail(f"asked for live tests, but this machine lacks {' and '.join(lacks)}")
    runs = list(get(name).run_all(rung="vllm"))
    assert [(run.variant, run.verdict) for run in runs if not run.as_expected] == []
