"""What a hunt runs, keeps and tells. Its workers are stand-ins: no vLLM, no GPU."""

import json
import os
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

import mrv2lab_vllm
from mrv2lab import hunt, hunt_grid, hunt_told
from mrv2lab.cli import app
from mrv2lab.errors import BadInput, RecordError
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
        if model in ("mixtral", "olmo3", "gpt_oss"):
            said = {"mixtral": "CUDA error 7 (a.py:1 in f)", "olmo3": "of memory", "gpt_oss": "CUDA error"}
            told = {"verdict": "left out", "message": "RuntimeError: " + said[model]}
            if not off:
                told = {"verdict": "failed", "message": "RuntimeError: CUDA error 9 (a.py:2 in g)"}
            elif model == "gpt_oss":
                told = {"verdict": "wrong", "error": 9.0, "natural": 0.0, "usual": 0.0, "natural_usual": 0.0}
            Path(asked["file"]).write_text(json.dumps(asked["labels"] | {"release": "0.26.0"} | told))
            continue
    verdict = "wrong" if model in ("qwen2", "qwen3") else "correct"
    told = {"verdict": verdict, "error": 0.5, "usual": 0.0, "natural": 0.5 * (verdict == "correct")}
    told |= {"natural_usual": 0.0, "replayed": 1, "steps": 1, "release": "0.26.0"}
    if asked["labels"]["feature"] == "odd":
        told["begins_at_prompt"] = True
    found = json.dumps(asked["labels"] | told)
    Path(asked["file"]).write_text(found)
    print("\nprogress 0.9 " + found, file=sys.stderr)
print(json.dumps({"done": True}))
"""


@pytest.fixture
def workers(tmp_path, monkeypatch):
    file = tmp_path / "worker.py"
    file.write_text(WORKER)
    monkeypatch.setattr(hunt, "COMMAND", (sys.executable, str(file)))
    made = provenance(0, uses_gpu=False).model_copy(update={"gpu": "GPU", "vllm": "0.26.0"})
    monkeypatch.setattr(hunt.results, "provenance", lambda seed, uses_gpu, made_by=None: made)
    monkeypatch.setattr(hunt, "installed", lambda: "0.26.0")
    monkeypatch.setattr(hunt, "missing_gpus", lambda number: ["an NVIDIA GPU"])
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
        ("mixtral", "left out", "without graphs too: RuntimeError: CUDA error 7 (a.py:1 in f)"),
        ("olmo3", "failed", "error 9 (a.py:2 in g); without graphs left out RuntimeError: of memory"),
        ("gpt_oss", "failed", "error 9 (a.py:2 in g); without graphs wrong"),
        ("olmoe", "left out", "without graphs too: exit status 1: AssertionError: no state"),
    ],
)
def test_what_a_worker_dies_at_is_seen_again_and_the_rest_is_run_by_another(workers, model, verdict, said):
    by = {one.feature: one for one in workers([model])}
    verdicts = {name: one.verdict for name, one in by.items()}
    assert verdicts == {"plain": "correct", "half": verdict, "waves": "correct"}
    half = by["half"]
    assert said in half.message + "".join(half.log_tail) and half.seen_again == (verdict != "correct")
    assert ("RuntimeError: of another engine" in str(half)) == (model == "gemma3")
    assert ("of another engine" in half.once) == (model == "gemma3")
    assert ("without graphs" in half.message) == (model in ("olmoe", "mixtral", "olmo3", "gpt_oss"))
    times = [feature for _, _, _, feature in workers.log()]
    assert times.count("half") == 3 and times.count("waves") == 1
    assert not list(workers.to.glob("*.NONE"))


def test_the_words_of_a_failure_are_without_numbers_and_places_and_hangs_are_alike():
    def words(message, verdict="failed"):
        return hunt._words(Outcome(model="m", mode="full", feature="plain", verdict=verdict, message=message))

    assert words("E: size 3 (a.py:7 in <listcomp>)") == words("E: size 40 (b.py:9 in f)") != words("E: shape")
    assert words("timeout after 9 s: x", "hang") == words("exit status 1: y", "hang") != words("hung")


def test_failures_with_other_words_are_seen_again_for_themselves(workers):
    chosen = hunt_grid.asked(["phi3"], ["full"], ["half", "plain"])
    workers.to.mkdir()
    for one, said in zip(chosen, ("this", "that"), strict=True):
        failed = Outcome(**one.model_dump(), release="0.26.0", verdict="failed", message=said)
        failed.save(workers.to / one.file)
    half, plain = workers(["phi3"], ["half", "plain"])
    assert (plain.verdict, plain.once, half.verdict) == ("correct", "that", "failed")


def test_a_file_of_something_else_is_refused(workers):
    [one] = hunt_grid.asked(["llama"], ["full"], ["plain"])
    [there] = workers(["llama"], ["plain"])
    for changed in ({"model": "qwen3"}, {"release": "0.23.0"}):
        there.model_copy(update=changed).save(workers.to / one.file)
        with pytest.raises(RecordError, match=f"of another {next(iter(changed))}; remove it"):
            workers(["llama"], ["plain"])


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


def test_wrong_at_a_prompt_looks_otherwise_and_what_is_open_is_audited_first(workers, monkeypatch):
    monkeypatch.setattr(hunt, "explained", lambda outcome: "a page" if outcome.feature == "half" else "")
    found = {one.feature: one for one in workers(["qwen3"], ["half", "waves"], audits=1)}
    assert found["waves"].audit and not found["half"].audit
    alike = [Outcome(model=name, mode="full", feature="odd", verdict="wrong", release="0.26.0",
                     begins_at_prompt=name == "llama") for name in ("llama", "phi3")]  # fmt: skip
    chosen = hunt_grid.asked(["llama", "phi3"], ["full"], ["odd"])
    for one, outcome in zip(chosen, alike, strict=True):
        outcome.save(workers.to / one.file)
    assert [one.audit for one in workers(["llama", "phi3"], ["odd"])] == [("frozen-grid: a kernel",)] * 2


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
        (dict(feature="adapters_keyed", graphs="FULL_DECODE_ONLY"), {"0.23.0", "0.26.0", "0.33.0"}),
        # no full graph served the step, or the graphs were pieces, of which nothing is known
        (dict(feature="adapters_keyed", graphs="FULL_DECODE_ONLY", begins_at_prompt=True), set()),
        (dict(feature="adapters_keyed", graphs="PIECEWISE"), set()),
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
    keyed = wrong(feature="adapters_keyed", graphs="FULL_DECODE_ONLY")
    pages = [hunt_told.explained(keyed.model_copy(update={"release": r})) for r in ("0.23.0", "0.24.0")]
    assert pages == ["case lora_frozen_grid", "docs/findings/lora_frozen_grid.md"]


def test_what_its_own_audit_denies_is_not_explained():
    page = "docs/findings/window_decode.md"
    head, other = "audit of MistralForCausalLM, 1 tokens (cuda, 240 nodes): 1 finding", "stale-input: slots"
    for audit, told in (
        ((head, "frozen-host-value: max_seqlen_k", "    was 1024 at capture"), page),
        ((head, other, "    was written once"), ""),
        (("as qwen3 full half, which looks alike", head, other), page),  # another's says nothing of this one
        (("nothing found in 12 steps",), page),
        (("no audit: exit status 1: AuditError: x",), page),
    ):
        assert hunt_told.explained(wrong(model="mistral", graphs="FULL_DECODE_ONLY", audit=audit)) == told


def test_what_has_another_explanation_does_not_look_alike(workers, monkeypatch):
    monkeypatch.setattr(hunt, "explained", lambda outcome: outcome.model)
    found = workers(["qwen3", "qwen2"], ["half"])
    assert [one.audit[0].partition(":")[0] for one in found] == ["frozen-grid", "no audit"]


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


def test_pages_tell_which_releases_were_tried():
    """Two lists: the audit's, and the records of hunts."""
    root, hunted_with = Path(__file__).parents[1], hunt_told.hunted_releases()
    first, *_, last = mrv2lab_vllm.TRIED
    pages = {
        "README.md": f"{first} to {last} were tried",
        "docs/audit_vllm.md": f"{first}.0 to {last}.0 were tried",
    }
    pages["docs/hunt.md"] = f"{' and '.join(hunted_with)} were read for it"
    assert [page for page, told in pages.items() if told not in (root / page).read_text()] == []
    assert {release.rpartition(".")[0] for release in hunted_with} <= {*mrv2lab_vllm.TRIED}


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


def test_a_file_is_of_this_code_machine_and_environment(monkeypatch):
    [one] = hunt_grid.asked(["llama"], ["full"], ["half"])
    hunt_grid._stack.cache_clear()
    names = [one.file]
    monkeypatch.setenv("TRITON_CACHE_DIR", "/x")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")  # a hunt sets it itself
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    hunt_grid._stack.cache_clear()
    assert one.file == names[0]
    for name in ("VLLM_ATTENTION_BACKEND", "CUDA_LAUNCH_BLOCKING", "TORCHINDUCTOR_X", "TRITON_X", "NCCL_X"):
        monkeypatch.setenv(name, "1")
        assert one.file == names[-1]  # of a process it stays the same
        hunt_grid._stack.cache_clear()
        names.append(one.file)
    for owner, name in ((hunt_grid.results, "nvidia_smi"), (hunt_grid.results, "version_or_none"),
                        (hunt_grid.sources, "of")):  # fmt: skip
        monkeypatch.setattr(owner, name, lambda *given, **how: "another")
        hunt_grid._stack.cache_clear()
        names.append(one.file)
    hunt_grid._stack.cache_clear()
    assert len(set(names)) == 9


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
    nowhere = ask(app, ["hunt", "vllm", *named])
    assert nowhere.exit_code == 2 and nowhere.stdout.splitlines()[-1] == "2 configurations"
    assert nowhere.stderr.startswith("mrv2lab: nothing was run; name a folder with --to")
    refused = ask(app, ["hunt", "vllm", "--to", str(workers.to), *named])
    assert refused.exit_code == 2 and "this needs an NVIDIA GPU" in refused.stderr
    monkeypatch.setattr(hunt, "check", lambda: None)
    record = tmp_path / "record.json"
    found = ask(app, ["hunt", "vllm", "--to", str(workers.to), *named, "--save", str(record)])
    assert found.exit_code == 1 and "qwen3 full half: wrong; error 0.5" in found.stdout
    assert (hunt_told.load(record).reused, hunt_told.load(record).asked) == (0, 2)
    ask(app, ["hunt", "vllm", "--to", str(workers.to), *named, "--save", str(record)])
    shown = ask(app, ["hunt", "recorded", str(record)])
    assert shown.exit_code == 0 and shown.stdout.startswith("recorded: GPU, vllm 0.26.0")
    assert "2 outcomes of these had been found before" in shown.stdout and "wrong; " not in shown.stdout
    every = ask(app, ["hunt", "recorded", str(record), "--all"]).stdout
    assert every.startswith(shown.stdout.split("open: wrong")[0])
    assert "wrong; error 0.5, natural 0\n  qwen3 full half\n" in every
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert ["all", "1", "1", "1"] in rows and ["llama", "full", "1"] in rows


def test_a_failure_alone_is_exit_status_1(workers, monkeypatch):
    monkeypatch.setattr(hunt, "check", lambda: None)
    named = ["--to", str(workers.to), "--mode", "full", "--feature", "half", "--model"]
    assert CliRunner().invoke(app, ["hunt", "vllm", *named, "phi3"]).exit_code == 1
    assert CliRunner().invoke(app, ["hunt", "vllm", *named, "llama"]).exit_code == 0


FORGED = {
    "twice": "a configuration twice",
    "release": "an outcome of another release",
    "gpu": "a hunt without a GPU",
    "reused": "more outcomes reused",
    "asked": "2 configurations were asked for",
    "unknown": "no hunt has qwen3 full plane",
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_record_that_contradicts_itself_is_refused(forged, tmp_path):
    made = provenance(0, uses_gpu=False).model_copy(update={"gpu": "GPU", "vllm": "0.26.0"})
    one = Outcome(model="qwen3", mode="full", feature="plain", verdict="eager", release="0.26.0")
    given = {"provenance": made, "outcomes": [one], "reused": 1, "asked": 1}
    hunt_told.Hunted(**given)
    if forged == "twice":
        given["outcomes"] = [one, one]
    if forged == "asked":
        given["asked"] = 2
    if forged == "unknown":
        given["outcomes"] = [one.model_copy(update={"feature": "plane"})]
    if forged == "release":
        given["outcomes"] = [one.model_copy(update={"release": "0.23.0"})]
    if forged == "gpu":
        given["provenance"] = made.model_copy(update={"gpu": None})
    if forged == "reused":
        given["reused"] = 2
    file = tmp_path / "hunt.json"
    file.write_text(hunt_told.Hunted.model_construct(**given).to_json())
    with pytest.raises(RecordError, match=FORGED[forged]) as told:
        hunt_told.load(file)
    assert len(str(told.value).splitlines()) == 1
