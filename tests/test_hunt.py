"""What a hunt runs, keeps and tells. Its workers are stand-ins: no vLLM, no GPU."""

import json
import sys

import pytest
from typer.testing import CliRunner

from mrv2lab import hunt
from mrv2lab.cli import app
from mrv2lab.errors import BadInput
from mrv2lab.results import provenance

WORKER = """
import json, os, sys, time
from pathlib import Path
job = json.loads(Path(sys.argv[-1]).read_text())
settings = job["settings"]
if settings["audits"]:
    if settings["asked"][0]["labels"]["model"] == "qwen2":
        sys.exit("AuditError: cannot be audited")
    print(json.dumps({"audit": ["frozen-grid: a kernel"]}))
    sys.exit()
from mrv2lab.live.hunted import Outcome
verdicts = {"qwen3": "wrong", "qwen2": "wrong"}
for asked in settings["asked"]:
    with open(Path(asked["file"]).parent / "log", "a") as log:
        print(os.getpid(), *asked["labels"].values(), file=log)
    if asked["labels"]["model"] == "phi3" and asked["labels"]["feature"] == "half":
        sys.exit("RuntimeError: CUDA error: device-side assert triggered")
    if asked["labels"]["model"] == "glm4" and asked["labels"]["feature"] == "half":
        print("Timeout (0:02:30)!\\nThread 0x1 (most recent call first):\\n  File x", file=sys.stderr)
        sys.exit(1)
    found = Outcome(**asked["labels"], verdict=verdicts.get(asked["labels"]["model"], "correct"), error=0.5)
    found.save(Path(asked["file"]))
    print("\\nprogress 0.9 " + found.model_dump_json(), file=sys.stderr)
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

    def run(models, features=("plain", "half", "waves"), told=None):
        chosen = hunt.asked(models, ["full"], list(features))
        return list(hunt.run(chosen, to, 2, ([] if told is None else told).append))

    run.to = to
    run.log = lambda: [line.split() for line in (to / "log").read_text().splitlines()]
    return run


def test_engines_of_a_model_share_a_worker_and_are_told_of(workers):
    told = []
    outcomes = workers(["llama", "gemma3"], told=told)
    assert [one.verdict for one in outcomes] == ["correct"] * 6
    assert len({pid for pid, *_ in workers.log()}) == 2
    assert sorted(told, key=str) == sorted(outcomes, key=str)


@pytest.mark.parametrize(("model", "verdict"), [("phi3", "failed"), ("glm4", "hang")])
def test_what_a_worker_dies_at_has_failed_and_the_rest_is_run_by_another(workers, model, verdict):
    by = {one.feature: one for one in workers([model])}
    assert {name: one.verdict for name, one in by.items()} == {
        "plain": "correct", "half": verdict, "waves": "correct",
    }  # fmt: skip
    assert ("device-side assert" in by["half"].message) == (model == "phi3")
    assert len({pid for pid, *_ in workers.log()}) == 2 and len(workers.log()) == 3


def test_what_is_there_is_not_run_again(workers):
    workers(["llama"])
    (workers.to / hunt.asked(["llama"], ["full"], ["half"])[0].file).unlink()
    before = len(workers.log())
    assert len(workers(["llama"])) == 3 and len(workers.log()) == before + 1


def test_of_what_is_wrong_there_is_an_account_with_the_audit(workers):
    [found] = workers(["qwen3"], ["half"])
    assert found.audit == ("frozen-grid: a kernel",)
    [file] = workers.to.glob("*.md")
    told = file.read_text()
    assert "# qwen3 full half: wrong" in told and "frozen-grid: a kernel" in told
    assert "--model qwen3 --mode full --feature half" in told and "'Qwen3ForCausalLM'" in told
    script = told.split("```python\n")[1].split("```")[0]
    assert "mrv2lab" not in script and "float16" in script and "def draw(" in script
    compile(script, "script", "exec")
    [other] = workers(["qwen2"], ["half"])
    assert other.audit == ("no audit: exit status 1: AuditError: cannot be audited",)


def test_a_configuration_has_a_file_of_its_own(monkeypatch):
    one, other = hunt.asked(["llama"], ["full"], ["half", "plain"])
    before = one.file
    assert before != other.file and before.startswith("llama-full-half-")
    monkeypatch.setitem(hunt.FEATURES, "half", hunt.FEATURES["half"]._replace(sizes=(1,)))
    assert one.file != before


def test_there_are_two_hundred_and_ten_architectures_and_compiled_ones_are_few():
    usual = hunt.asked([], [], [])
    assert len(usual) >= 200 and len({hunt.MODELS[one.model]["model_type"] for one in usual}) >= 10
    assert {one.model for one in usual if hunt.MODES[one.mode].compilation} == set(hunt.COMPILED)
    [one] = hunt.asked(["mamba2"], ["piecewise"], ["plain"])  # named, so it is what was asked for
    assert one.timeout_s == hunt.COMPILED_TIMEOUT_S
    assert not hunt.asked(["mamba2"], ["piecewise"], [])
    with pytest.raises(BadInput, match="unknown feature 'plan'"):
        hunt.asked([], [], ["plan"])


def test_breakable_graphs_have_a_process_of_their_own():
    jobs = hunt._jobs(hunt.asked(["llama"], [], []), hunt.Path("/x"))
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
    assert ["all", "1", "1"] in rows and ["llama", "full", "1"] in rows
