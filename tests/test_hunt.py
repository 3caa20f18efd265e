"""What a hunt runs, keeps and tells. Its workers are stand-ins: no vLLM, no GPU."""

import json
import os
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from mrv2lab import hunt, hunt_grid, hunt_told
from mrv2lab.cli import app
from mrv2lab.errors import BadInput
from mrv2lab.live import hunted
from mrv2lab.live.hunted import Outcome
from mrv2lab.results import provenance

KNOWN = ("full_mixed", "window_decode", "lora_frozen_grid", "breakable_graph")

WORKER = r"""
import json, os, sys
from pathlib import Path
job = json.loads(Path(sys.argv[-1]).read_text())
settings = job["settings"]
if settings["audits"]:
    if settings["asked"][0]["labels"]["model"] == "qwen2":
        sys.exit("AuditError: cannot be audited")
    print(json.dumps({"audit": ["frozen-grid: a kernel"]}))
    sys.exit()
for asked in settings["asked"]:
    with open(Path(asked["file"]).parent / "log", "a") as log:
        print(os.getpid(), *asked["labels"].values(), file=log)
    model, off = asked["labels"]["model"], asked["graphs"] == "NONE"
    if asked["labels"]["feature"] == "half":
        if model == "phi3" and not off:
            sys.exit("RuntimeError: CUDA error: device-side assert triggered")
        if model == "olmoe":
            sys.exit("AssertionError: no state")
        if model == "gemma3" and len(settings["asked"]) > 1:
            sys.exit("RuntimeError: of another engine")
        if model == "glm4" and not off:
            print("Timeout (0:02:30)!\nThread 0x1 (most recent call first):\n  File x", file=sys.stderr)
            sys.exit(1)
    verdict = "wrong" if model in ("qwen2", "qwen3") else "correct"
    found = json.dumps(asked["labels"] | {"verdict": verdict, "error": 0.5})
    Path(asked["file"]).write_text(found)
    print("\nprogress 0.9 " + found, file=sys.stderr)
print(json.dumps({"done": True}))
"""


@pytest.fixture
def workers(tmp_path, monkeypatch):
    file = tmp_path / "worker.py"
    file.write_text(WORKER)
    monkeypatch.setattr(hunt, "COMMAND", (sys.executable, str(file)))
    made = provenance(0, uses_gpu=False)
    monkeypatch.setattr(hunt.results, "provenance", lambda seed, uses_gpu, made_by=None: made)
    to = tmp_path / "to"

    def run(models, features=("plain", "half", "waves"), told=None, audits=6):
        chosen = hunt_grid.asked(models, ["full"], list(features))
        return list(hunt.run(chosen, to, 2, ([] if told is None else told).append, audits))

    run.to = to
    run.log = lambda: [line.split() for line in (to / "log").read_text().splitlines()]
    return run


def test_engines_of_a_model_share_a_worker_and_are_told_of(workers):
    told = []
    outcomes = workers(["llama", "cohere2"], told=told)
    assert [one.verdict for one in outcomes] == ["correct"] * 6
    assert len({pid for pid, *_ in workers.log()}) == 2
    assert sorted(told, key=str) == sorted(outcomes, key=str)


@pytest.mark.parametrize(
    ("model", "verdict", "said"),
    [
        ("phi3", "failed", "device-side assert"),
        ("glm4", "hang", "Thread 0x1"),
        ("gemma3", "correct", ""),  # in a process of its own
        ("olmoe", "left out", "without graphs too: exit status 1: AssertionError: no state"),
    ],
)
def test_what_a_worker_dies_at_is_seen_again_and_the_rest_is_run_by_another(workers, model, verdict, said):
    by = {one.feature: one for one in workers([model])}
    verdicts = {name: one.verdict for name, one in by.items()}
    assert verdicts == {"plain": "correct", "half": verdict, "waves": "correct"}
    half = by["half"]
    assert said in half.message + "".join(half.log_tail) and half.seen_again == (verdict != "correct")
    times = [feature for _, _, _, feature in workers.log()]
    assert times.count("half") == 3 and times.count("waves") == 1
    assert not list(workers.to.glob("*.NONE"))


def test_what_is_there_is_not_run_again(workers):
    workers(["llama"])
    (workers.to / hunt_grid.asked(["llama"], ["full"], ["half"])[0].file).unlink()
    before = len(workers.log())
    assert len(workers(["llama"])) == 3 and len(workers.log()) == before + 1


def test_of_what_is_wrong_there_is_an_account_with_the_audit(workers):
    found = {one.model: one for one in workers(["qwen3", "qwen2", "llama"], ["half"])}
    assert found["qwen3"].audit == ("frozen-grid: a kernel",) and not found["llama"].audit
    assert found["qwen2"].audit == ("as qwen3 full half, which looks alike", "frozen-grid: a kernel")
    told = next(workers.to.glob("qwen3*.md")).read_text()
    assert "# qwen3 full half: wrong" in told and "frozen-grid: a kernel" in told
    assert "--model qwen3 --mode full --feature half" in told and "'Qwen3ForCausalLM'" in told
    script = told.split("```python\n")[1].split("```")[0]
    assert "mrv2lab" not in script and "float16" in script and "def draw(" in script
    compile(script, "script", "exec")
    assert len(list(workers.to.glob("*.md"))) == 2


def test_audits_are_bounded_and_an_audit_may_fail(workers):
    [alone] = workers(["qwen2"], ["half"], audits=0)
    assert not alone.audit and len(list(workers.to.glob("*.md"))) == 1
    [alone] = workers(["qwen2"], ["half"])
    assert alone.audit == ("no audit: exit status 1: AuditError: cannot be audited",)


def wrong(**told):
    usual = {"model": "qwen3", "mode": "full", "feature": "plain", "release": "0.26.0"}
    return Outcome(**usual | {"verdict": "wrong"} | told)


@pytest.mark.parametrize(
    ("told", "known_in"),
    [
        (dict(graphs="FULL", begins_at_prompt=True), {"0.23.0", "0.26.0"}),
        (dict(model="mistral", graphs="FULL_DECODE_ONLY"), {"0.23.0", "0.26.0"}),
        (dict(feature="adapters_keyed"), {"0.23.0", "0.26.0", "0.33.0"}),
        (dict(mode="breakable", graphs="PIECEWISE"), {"0.23.0"}),
        (dict(model="deepseek", mode="breakable", graphs="PIECEWISE"), set()),  # there graphs break
    ],
)
def test_a_bug_explains_nothing_of_a_release_that_has_it_not(told, known_in):
    releases = ("", "0.23.0", "0.26.0", "0.33.0", "0.40.0")
    assert {
        release for release in releases if hunt_told.explained(wrong(release=release, **told))
    } == known_in


def test_each_variety_of_the_frozen_grid_has_its_page():
    pages = [hunt_told.explained(wrong(feature="adapters_keyed", release=r)) for r in ("0.23.0", "0.24.0")]
    assert pages == ["case lora_frozen_grid", "docs/findings/lora_frozen_grid.md"]


def test_heads_that_keep_the_mask_lose_none(monkeypatch):
    told = wrong(graphs="FULL", begins_at_prompt=True)
    monkeypatch.setitem(hunt_told.MODELS, "qwen3", hunt_told.MODELS["qwen3"] | {"head_dim": 128})
    assert not hunt_told.explained(told)


class Given(Exception):
    """What `vllm.LLM` is given."""


@pytest.mark.parametrize(("feature", "mode"), [("waves", "breakable"), ("half", "full_and_piecewise")])
def test_the_script_starts_the_engine_that_was_hunted(monkeypatch, tmp_path, feature, mode):
    def llm(*args, **given):
        raise Given(args, given, dict(os.environ))

    for name in ("vllm", "vllm.model_executor", "vllm.model_executor.model_loader",
                 "vllm.model_executor.model_loader.dummy_loader"):  # fmt: skip
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["vllm"].LLM = llm
    sys.modules["vllm"].SamplingParams = None
    sys.modules["vllm.model_executor.model_loader.dummy_loader"].DummyModelLoader = type("Loader", (), {})
    monkeypatch.setattr("mrv2lab.live.engine.await_turn", lambda: None)
    one = hunt_grid.Configuration(model="qwen3", mode=mode, feature=feature)
    job = hunt._job([one], tmp_path)
    with pytest.raises(Given) as hunted_with:
        hunted.start(job.settings["asked"][0], tmp_path)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(sys, "argv", ["script"])
    with pytest.raises(Given) as told:
        exec(hunt_told.script(one), {})
    (_, hunted_given, _), (_, given, environment) = hunted_with.value.args, told.value.args
    for each in (hunted_given, given):
        del each["model"]
    assert given == hunted_given
    assert job.env.items() - environment.items() <= {("OMP_NUM_THREADS", "2")}


def test_a_release_that_no_hunt_was_tried_with_is_told(monkeypatch):
    monkeypatch.setattr(hunt, "missing_gpus", lambda number: [])
    monkeypatch.setattr(hunt, "installed", lambda: "0.33.0")
    with pytest.warns(UserWarning, match=r"hunts were tried with vllm 0\.23\.0, 0\.26\.0; this is 0\.33\.0"):
        hunt.check()
    monkeypatch.setattr(hunt, "installed", lambda: "0.26.0")
    hunt.check()


def test_what_is_known_is_explained_and_counted():
    known = [
        wrong(graphs="FULL", begins_at_prompt=True),
        wrong(mode="breakable", release="0.23.0", graphs="PIECEWISE"),
        wrong(model="mistral", graphs="FULL_DECODE_ONLY"),
    ]
    still_open = [
        wrong(graphs="FULL"),
        wrong(graphs="FULL_DECODE_ONLY", begins_at_prompt=True),
        wrong(mode="breakable", release="0.26.0"),
    ]
    assert all(map(hunt_told.explained, known)) and not any(map(hunt_told.explained, still_open))
    assert not hunt_told.explained(known[0].model_copy(update={"verdict": "correct"}))
    assert hunt_told.table(known + still_open)[-1] == ["all", "", "6", "3"]
    assert "; explained by docs/findings/full_mixed.md" in hunt_told.lines(known + still_open)[0]
    assert "explained" not in hunt_told.lines(known + still_open)[-1]


def test_the_page_tells_what_was_recorded():
    page = (Path(__file__).parents[1] / "docs/hunt.md").read_text()
    steps = replayed = 0
    for file in hunt_told.recorded():
        outcomes = hunt_told.load(file).outcomes
        told = Counter(one.verdict for one in outcomes)
        pages = Counter(hunt_told.explained(one) for one in outcomes if one.verdict == "wrong")
        named = Counter[str]()
        for of, number in pages.items():
            named[of and Path(of.split()[-1]).stem] += number
        known = ", ".join(f"{name} {named[name]}" for name in KNOWN if named[name])
        counts = [told[verdict] for verdict in ("correct", "wrong", "failed", "left out")]
        row = [outcomes[0].release, len(outcomes), *counts, known, pages[""]]
        assert f"| {' | '.join(map(str, row))} |" in page
        steps += sum(one.steps for one in outcomes if one.verdict == "correct")
        replayed += sum(one.replayed for one in outcomes if one.verdict == "correct")
    assert f"in {replayed:,} of {steps:,} steps" in page


def test_a_record_names_no_folder_of_this_machine(monkeypatch, tmp_path):
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    one = Outcome(
        model="qwen3", mode="full", feature="plain", verdict="failed", message=f"at {tmp_path}/vllm/a.py:1"
    )
    assert [it.message for it in hunt_told.without_places([one])] == ["at vllm/a.py:1"]


def test_explanations_are_there():
    root = Path(__file__).parents[1]
    for page in {known.page for known in hunt_told.EXPLAINED}:
        assert (root / page).exists() or (root / "mrv2lab/cases" / f"{page.split()[-1]}.py").exists()


def test_a_configuration_has_a_file_of_its_own(monkeypatch):
    one, other = hunt_grid.asked(["llama"], ["full"], ["half", "plain"])
    before = one.file
    assert before != other.file and before.startswith("llama-full-half-")
    monkeypatch.setitem(hunt_grid.FEATURES, "half", hunt_grid.FEATURES["half"]._replace(sizes=(1,)))
    assert one.file != before


def test_there_are_two_hundred_and_ten_architectures_and_compiled_ones_are_few(monkeypatch):
    usual = hunt_grid.asked([], [], [])
    assert len(usual) >= 200 and len({hunt_grid.MODELS[one.model]["model_type"] for one in usual}) >= 10
    assert {one.model for one in usual if hunt_grid.MODES[one.mode].compilation} == set(hunt_grid.COMPILED)
    [one] = hunt_grid.asked(["mamba2"], ["piecewise"], ["plain"])  # named, so it is what was asked for
    assert one.timeout_s == hunt_grid.COMPILED_TIMEOUT_S
    assert not hunt_grid.asked(["mamba2"], ["piecewise"], [])
    monkeypatch.setattr(hunt_grid, "installed", lambda: "0.23.0")
    known = hunt_grid.asked([], ["breakable"], [])
    assert {one.feature for one in known if one.model != "deepseek"} == {"plain"}
    assert {one.feature for one in known} == {"plain", "fp8_kv", "prefix", "chunked", "waves"}
    assert 200 <= len(hunt_grid.asked([], [], [])) < len(usual)
    with pytest.raises(BadInput, match="unknown feature 'plan'"):
        hunt_grid.asked([], [], ["plan"])


def test_breakable_graphs_have_a_process_of_their_own():
    jobs = hunt._jobs(hunt_grid.asked(["llama"], [], []), hunt.Path("/x"))
    for job in jobs:
        modes = {asked["labels"]["mode"] for asked in job.settings["asked"]}
        assert (modes == {"breakable"}) == (job.env["VLLM_USE_BREAKABLE_CUDAGRAPH"] == "1")
        assert len(job.settings["asked"]) <= hunt.EACH and job.env["VLLM_USE_V2_MODEL_RUNNER"] == "1"
        json.dumps(job.settings)


# ---- the command ----


def test_the_command_lists_refuses_keeps_and_shows(workers, monkeypatch, tmp_path):
    ask = CliRunner().invoke
    assert "3 configurations" in ask(app, ["hunt", "vllm", "--list", "--feature", "ngram", "--feature", "mtp",
                                          "--feature", "flash_mla"]).stdout  # fmt: skip
    named = ["--model", "qwen3", "--model", "llama", "--mode", "full", "--feature", "half"]
    refused = ask(app, ["hunt", "vllm", "--to", str(workers.to), *named])
    assert refused.exit_code == 2 and "this needs vllm and an NVIDIA GPU" in refused.stderr
    monkeypatch.setattr(hunt, "check", lambda: None)
    record = tmp_path / "record.json"
    found = ask(app, ["hunt", "vllm", "--to", str(workers.to), *named, "--save", str(record)])
    assert found.exit_code == 1 and "qwen3 full half: wrong; error 0.5" in found.stdout
    shown = ask(app, ["hunt", "recorded", str(record)])
    assert shown.exit_code == 0 and "recorded: CPU" in shown.stdout
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert ["all", "1", "1", "1"] in rows and ["llama", "full", "1"] in rows
