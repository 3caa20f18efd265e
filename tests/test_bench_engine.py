"""vLLM's engine, timed: what is started, judged and kept. The engine is a stand-in: no vLLM, no GPU."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from mrv2lab import bench_engine, timed
from mrv2lab.cli import app
from mrv2lab.errors import BadInput, RecordError
from mrv2lab.live import launch, loads
from mrv2lab.results import RECORDS, Latency, provenance
from mrv2lab.tables import EngineTable, checked
from mrv2lab.timed import Row, Timed
from mrv2lab.verdict import judge, relative_error

VOCAB = 128


class Model:
    """Logits that tell requests and steps apart; of request `spoilt` they are another one's."""

    def __init__(self):
        self.num_steps, self.spoilt = 0, None

    def compute_logits(self, number):
        columns = torch.arange(float(VOCAB)) + self.num_steps
        logits = torch.stack([torch.sin(columns * (i + 1)) for i in range(number)])
        if self.spoilt is not None and number > self.spoilt:
            logits[self.spoilt] *= -1.0
        return logits


class GPUModelRunner:
    def __init__(self):
        self.model = Model()

    def capture_model(self):
        return 3 << 20


class Graph:
    def __init__(self):
        self.num_replays = 0

    def replay(self):
        self.num_replays += 1


class LLM:
    """A step replays a graph, if there is one. Requests have a token each 2 ms, the first after 50 ms."""

    def __init__(self, runner, graph):
        worker = SimpleNamespace(worker=SimpleNamespace(model_runner=runner))
        compiled = SimpleNamespace(compilation_config=SimpleNamespace(compilation_time=7.0))
        executor = SimpleNamespace(driver_worker=worker)
        self.llm_engine = SimpleNamespace(model_executor=executor, vllm_config=compiled)
        self.runner, self.graph, self.start_up_s, self.served = runner, graph, 20.0, []

    def generate(self, prompts, params, use_tqdm):
        self.served.append((len(prompts), params.max_tokens))
        assert len({tuple(prompt["prompt_token_ids"]) for prompt in prompts}) == len(prompts)
        for step in range(params.max_tokens):
            if step and self.graph is not None:
                self.graph.replay()
            self.runner.model.num_steps = step
            self.runner.model.compute_logits(len(prompts))
        last = 1.05 + 0.002 * (params.max_tokens - 1)
        stats = SimpleNamespace(first_token_ts=1.05, last_token_ts=last, first_token_latency=0.05)
        return [SimpleNamespace(metrics=stats)] * len(prompts)


@pytest.fixture
def engine(monkeypatch, tmp_path):
    """Start one in the place of vLLM's; called with whether it has graphs, it gives rows of settings."""
    vllm = ModuleType("vllm")
    vllm.SamplingParams = SimpleNamespace
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    runner_class = type("GPUModelRunner", (GPUModelRunner,), {"__module__": "stand_in"})
    monkeypatch.setitem(sys.modules, "stand_in", SimpleNamespace(GPUModelRunner=runner_class))
    monkeypatch.setattr(loads, "RUNNERS", {"V1": "stand_in", "V2": "stand_in"})
    monkeypatch.setattr(torch.cuda, "CUDAGraph", type("Graph", (Graph,), {}))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(loads, "EVERY", 1)
    (tmp_path / "0.6B").mkdir()
    monkeypatch.setattr(loads, "LOADS", (1, 4))
    monkeypatch.setattr(loads, "RUNS", 2)
    monkeypatch.setattr(loads, "kernels_ms", lambda llm, number: 1.5)
    monkeypatch.setattr("mrv2lab.live.engine.VOCAB_SIZE", VOCAB)

    started = []

    def run(mode, graphs=True, spoilt=None, runner="V2", captures=True):
        started.clear()

        def start(settings):
            own = runner_class()
            own.model.spoilt = spoilt
            if captures:
                own.capture_model()
            started.append(LLM(own, torch.cuda.CUDAGraph() if graphs else None))
            return started[0]

        monkeypatch.setattr(loads, "start", start)
        asked = bench_engine.job(str(tmp_path), "0.6B", runner, mode, [1, 4])
        return loads.measured(asked.settings), started[0]

    run.started = started
    return run


# ---- in the process of an engine ----


def test_the_reference_keeps_its_answers_and_is_timed(engine, tmp_path):
    rows, llm = engine("eager", graphs=False, captures=False)
    kept = {file.name: np.load(file).shape for file in tmp_path.glob("0.6B/*")}
    assert kept == {f"logits-{n}.npy": (24, n, VOCAB) for n in (1, 4)}
    one, four = rows
    assert four.labels == {"model": "0.6B", "runner": "V2", "mode": "eager", "requests": 4}
    assert (one.verdict, four.verdict) == ("correct", "correct") and four.counts["error"] == 0
    medians = {name: taken.median for name, taken in four.ms.items()}
    load = medians.pop("load")
    wanted = {"token": 2.0, "first token": 50, "start-up": 20_000, "kernels": 1.5}  # and nothing was captured
    assert medians == pytest.approx(wanted)
    assert four.counts["requests a second"] == pytest.approx(4_000 / load)
    assert four.counts["tokens a second"] == pytest.approx(4_000 * loads.NUM_TOKENS / load)
    judged, asked = [(1, loads.NUM_FORCED)], [(1, loads.NUM_TOKENS)] * 3
    assert [one for one in llm.served if one[0] == 1] == judged * 2 + asked


def test_graphs_that_run_are_right_and_counted(engine):
    engine("eager", graphs=False)
    rows, _ = engine("full_decode_only")
    assert {row.verdict for row in rows} == {"correct"}
    assert rows[0].counts["graphs a step"] == 1 and rows[0].counts["graph MiB"] == 3
    assert rows[0].counts["compile s"] == 7 and "capture" in rows[0].ms


def test_one_wrong_request_among_several_is_seen_and_has_no_times(engine):
    engine("eager", graphs=False)
    (alone, among), llm = engine("full_decode_only", spoilt=3)
    assert (alone.verdict, among.verdict) == ("correct", "wrong")
    assert not {"token", "first token", "load", "kernels"} & among.ms.keys()
    assert "tokens a second" not in among.counts and among.counts["error"] == pytest.approx(2)
    assert (4, loads.NUM_TOKENS) not in llm.served


def test_graphs_that_never_run_are_eager(engine):
    engine("eager", graphs=False)
    rows, _ = engine("piecewise", graphs=False)
    assert {row.verdict for row in rows} == {"eager"} and "token" in rows[0].ms
    assert {row.verdict for row in engine("compiled", graphs=False)[0]} == {"correct"}


def test_without_a_reference_there_is_no_verdict(engine):
    with pytest.raises(FileNotFoundError):
        engine("piecewise")
    assert not engine.started  # it would take a minute to learn of it afterwards


def test_an_engine_of_the_other_runner_is_not_timed(engine, monkeypatch):
    monkeypatch.setattr(GPUModelRunner, "capture_model", lambda self: 0)
    monkeypatch.setitem(sys.modules, "other", SimpleNamespace(GPUModelRunner=GPUModelRunner))
    monkeypatch.setattr(loads, "RUNNERS", {"V1": "other", "V2": "other"})
    with pytest.raises(RuntimeError, match="the runner is one of stand_in, and was to be of other"):
        engine("eager", graphs=False)


def test_what_is_not_a_number_is_no_small_error():
    right = [torch.ones(2, 4)]
    assert loads.worst([torch.full((2, 4), float("nan"))], right) == float("inf")
    assert loads.worst([torch.tensor([[1.0] * 4, [1.1] * 4])], right) == pytest.approx(0.1)
    with pytest.raises(ValueError, match="zip"):
        loads.worst([], right)


def test_no_number_that_is_none_reaches_a_verdict():
    """`judge` takes no NaN for wrong, so whoever measures an error gives infinity; and `worst`, which
    would repeat one row for all, and finds no error among no rows, is given both of one load's requests."""
    assert judge([float("nan")], []) == "correct" and judge([float("inf")], []) == "wrong"
    nan, one = torch.full((2, 4), float("nan")), torch.ones(2, 4)
    zero = torch.zeros(2, 4)
    for value, reference in ((nan, one), (one, nan), (zero, zero)):
        assert relative_error(value, reference) == loads.worst([value], [reference]) == float("inf")
    assert relative_error(one, zero) > loads.worst([one], [zero]) > 1e30


def test_the_prompts_step_replays_no_graph_that_counts_and_the_first_run_none(engine, monkeypatch):
    """A graph that only the first step runs is none; the first run, still cold, is not among the times."""
    engine("eager", graphs=False)
    served = SimpleNamespace(logits=[torch.zeros(1, 1)], replays=[7, 0, 0, 0])
    monkeypatch.setattr(loads, "forced", lambda llm, graphs, number: served)
    monkeypatch.setattr(loads, "worst", lambda ours, wanted: 0.0)
    rows, _ = engine("piecewise")
    assert {row.verdict for row in rows} == {"eager"} and rows[0].counts["graphs a step"] == 0

    taken = iter([9.0, 0.002, 0.002])

    def generate(llm, number, num_tokens):
        token = next(taken)
        stats = SimpleNamespace(
            first_token_ts=0.0, last_token_ts=token * (num_tokens - 1), first_token_latency=token
        )
        return [SimpleNamespace(metrics=stats)]

    monkeypatch.setattr(loads, "generate", generate)
    ms, _ = loads.timed(None, 1)
    assert (ms["token"].p80, ms["first token"].p80) == (2.0, 2.0)


class Event:
    def __init__(self, device, ns, is_mark=False):
        self.device, self.ns, self.is_mark = SimpleNamespace(name=device), ns, is_mark

    def device_type(self):
        return self.device

    def duration_ns(self):
        return self.ns

    def is_user_annotation(self):
        return self.is_mark


def test_the_device_works_on_a_step_for_as_long_as_more_steps_add(monkeypatch):
    class Profile:
        def __init__(self, **options):
            self.events = []
            self.profiler = SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: self.events))

        def __enter__(self):
            seen.append(self)
            return self

        def __exit__(self, *exception):
            pass

    seen = []

    def generate(llm, number, num_tokens):
        prompts = [Event("CUDA", 5_000_000), Event("CPU", 10**9), Event("CUDA", 10**9, is_mark=True)]
        seen[-1].events = prompts + [Event("CUDA", 2_000_000)] * (num_tokens - 1)

    monkeypatch.setattr(loads, "profile", Profile)
    monkeypatch.setattr(loads, "generate", generate)
    assert loads.kernels_ms(None, 4) == pytest.approx(2.0)


@pytest.mark.parametrize("activities", [RuntimeError("CUPTI_ERROR_NOT_INITIALIZED"), None])
def test_what_was_timed_is_not_lost_for_want_of_a_profile(monkeypatch, capsys, activities):
    monkeypatch.setattr(loads, "_device_ns", Mock(side_effect=activities, return_value=7))
    assert loads.kernels_ms(None, 4) is None
    assert ("no profile of 4 requests: CUPTI" in capsys.readouterr().err) == (activities is not None)


# ---- which engines ----


def test_an_engine_is_told_runner_and_graphs():
    v1 = bench_engine.job("/f", "8B", "V1", "breakable", [1])
    assert v1.env["VLLM_USE_V2_MODEL_RUNNER"] == "0" and v1.env["VLLM_USE_BREAKABLE_CUDAGRAPH"] == "1"
    assert v1.settings["compilation_config"] == {"mode": 0, "cudagraph_mode": "PIECEWISE"}
    v2 = bench_engine.job("/f", "8B", "V2", "full_and_piecewise", [1])
    assert v2.env["VLLM_USE_V2_MODEL_RUNNER"] == "1" and v2.env["VLLM_USE_BREAKABLE_CUDAGRAPH"] == "0"
    assert v2.settings["compilation_config"] == {"mode": 3, "cudagraph_mode": "FULL_AND_PIECEWISE"}
    assert [v2.settings[name] for name in ("is_reference", "has_graphs", "enforce_eager")] == [
        False,
        True,
        False,
    ]
    eager = bench_engine.job("/f", "8B", "V2", "eager", [])
    assert [eager.settings[name] for name in ("is_reference", "has_graphs", "enforce_eager")] == [
        True,
        False,
        True,
    ]


@pytest.fixture
def machine(monkeypatch):
    """One with vLLM and a GPU; every engine fails of which the name holds a word."""
    monkeypatch.setattr(bench_engine, "installed", lambda: "0.23.0")
    monkeypatch.setattr(bench_engine, "missing_gpus", lambda number: [])
    machine = SimpleNamespace(jobs=[], configs={}, fails="nothing")

    def run_all(jobs, *, at_once, ahead=0, command, on_progress=None):
        assert (at_once, command[-1]) == (1, "mrv2lab.live.loads")
        machine.jobs += jobs
        for job in jobs:
            config = json.loads(Path(job.settings["folder"], "config.json").read_text())
            machine.configs[job.settings["labels"]["model"]] = config
            if machine.fails in job.variant:
                yield launch.Ended(job, 1.0, crash=launch.Crash("exit status 1", "CUDA error", ()))
                continue
            one = Latency(median=2.0, p20=1.0, p80=3.0)
            rows = [
                Row(
                    labels=job.settings["labels"] | {"requests": number}, verdict="correct", ms={"token": one}
                )
                for number in job.settings["loads"]
            ]
            yield launch.Ended(job, 1.0, {"rows": [row.model_dump(mode="json") for row in rows]})

    monkeypatch.setattr(launch, "run_all", run_all)
    return machine


def test_engines_of_each_model_begin_with_the_reference(machine):
    rows = list(bench_engine.rows(["0.6B", "8B"], ["V1"], ["eager", "piecewise"]))
    assert [job.variant for job in machine.jobs] == [
        *("0.6B V2 eager", "0.6B V1 eager", "0.6B V1 piecewise"),
        *("8B V2 eager", "8B V1 eager", "8B V1 piecewise"),
    ]
    assert {row.labels["runner"] for row in rows} == {"V1"} and len(rows) == 2 * 2 * len(loads.LOADS)
    assert machine.configs["8B"]["num_hidden_layers"] == 36 and machine.configs["0.6B"]["hidden_size"] == 1024
    assert {config["num_key_value_heads"] for config in machine.configs.values()} == {8}


def test_an_engine_that_fails_has_rows_without_times(machine):
    machine.fails = "breakable"
    with pytest.warns(UserWarning, match="0.6B V2 breakable: exit status 1: CUDA error"):
        rows = list(bench_engine.rows(["0.6B"], ["V2"], ["breakable", "piecewise"]))
    assert [(row.verdict, not row.ms) for row in rows] == [("failed", True)] * 4 + [("correct", False)] * 4


def test_without_the_reference_no_other_engine_is_started(machine):
    machine.fails = "0.6B V2 eager"
    with pytest.warns(UserWarning, match="CUDA error"):
        rows = list(bench_engine.rows(["0.6B", "8B"], ["V2"], ["eager", "piecewise"]))
    assert [job.variant for job in machine.jobs] == ["0.6B V2 eager", "8B V2 eager", "8B V2 piecewise"]
    assert [row.verdict for row in rows] == ["failed"] * 8 + ["correct"] * 8


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ((["2B"], [], []), "unknown model '2B'"),
        (([], ["V3"], []), "unknown runner 'V3'"),
        (([], [], ["full"]), "unknown mode 'full'"),
    ],
)
def test_only_what_is_known_is_timed(machine, asked, told):
    with pytest.raises(BadInput, match=told):
        bench_engine.rows(*asked)


def test_without_the_engine_the_command_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(bench_engine, "installed", lambda: "not installed")
    told = CliRunner().invoke(app, ["bench", "engine", "--model", "0.6B"])
    assert told.exit_code == 2
    assert told.stderr == "mrv2lab: bench engine needs vllm 0.23.0 or 0.26.0 and an NVIDIA GPU\n"


def test_what_has_been_timed_is_kept_when_the_rest_is_cut_off(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")

    def cut_off(jobs, *, at_once, ahead=0, command, on_progress=None):
        if len(jobs) > 1:
            raise KeyboardInterrupt
        return all_of(jobs, at_once=at_once, command=command)

    all_of = launch.run_all
    monkeypatch.setattr(launch, "run_all", cut_off)
    told = CliRunner().invoke(
        app, ["bench", "engine", "--model", "8B", "--save", str(tmp_path / "part.json")]
    )
    assert f"4 rows timed, kept in {tmp_path / 'part.json'}" in told.stderr
    kept = timed.load(tmp_path / "part.json")
    assert kept.provenance.seconds is None  # as `record` knows it is not all
    assert [row.labels["requests"] for row in kept.rows] == [1, 8, 32, 128]
    assert {"bench_engine.py", "live/loads.py", "live/rung.py"} <= kept.provenance.sources.keys()
    assert "live/lora.py" not in kept.provenance.sources


# ---- parts and tables ----


def row(mode, number, token, verdict="correct", runner="V2", model="8B", **ms):
    times = {"token": token, "first token": 10 * token, "load": 100 * token} | ms
    labels = {"model": model, "runner": runner, "mode": mode, "requests": number}
    found = {name: Latency(median=taken, p20=taken, p80=taken) for name, taken in times.items()}
    return Row(labels=labels, verdict=verdict, ms=found)


def part(*rows, command="bench engine", seconds=3.0, gpu="a GPU", what="engine", **by_whom):
    by = provenance(0, uses_gpu=False, made_by={"live/loads.py": "1"})
    by = by.model_copy(update={"command": command, "seconds": seconds, "gpu": gpu} | by_whom)
    return Timed(provenance=by, what=what, rung="vllm", rows=list(rows))


def test_parts_of_other_models_make_one_record(tmp_path):
    first = part(row("eager", 1, 8.0), row("piecewise", 1, 4.0), command="one")
    second = part(row("eager", 1, 2.0, model="1.7B"), command="two")
    told = joined(tmp_path, first, second)
    assert told.exit_code == 0 and "2.00x" in told.stdout
    kept = timed.load(tmp_path / "all.json")
    assert [row.ms["token"].median for row in kept.rows] == [8.0, 4.0, 2.0]
    assert (kept.provenance.command, kept.provenance.seconds) == ("one; two", 6.0)


def test_a_part_that_was_cut_off_stays_so(tmp_path):
    first, second = part(row("eager", 1, 8.0)), part(row("eager", 1, 2.0, model="1.7B"), seconds=None)
    assert joined(tmp_path, first, second).exit_code == 0
    assert timed.load(tmp_path / "all.json").provenance.seconds is None


@pytest.mark.parametrize("verdict", ["wrong", "failed"])
def test_a_ratio_of_what_is_not_right_is_not_shown(verdict):
    one = Row(labels={"attached": "guard", "requests": 1}, verdict=verdict, ms={}, counts={"of off": 1.0})
    with pytest.raises(RecordError, match="with a ratio, of off"):
        checked(part(one, what="server"))


@pytest.mark.parametrize("name", ["findings", "told", "apart", "given up"])
def test_what_has_found_something_is_not_right(name):
    ms = {"token": timed.latency([1.0])}
    one = Row(labels={"attached": "guard", "requests": 1}, verdict="correct", ms=ms, counts={name: 1.0})
    with pytest.raises(RecordError, match=f"with {name} 1"):
        checked(part(one, what="server"))
    assert checked(part(one.model_copy(update={"counts": {name: 0.0}}), what="server"))


def test_no_ratio_is_of_engines_that_ran_apart(tmp_path):
    told = joined(tmp_path, part(row("eager", 1, 8.0)), part(row("piecewise", 1, 4.0)))
    words = "model 8B: in two parts, and ratios are of ways that ran in one"
    assert told.exit_code == 2 and words in told.stderr and not (tmp_path / "all.json").exists()


def test_modes_of_a_runner_are_timed_in_one(tmp_path):
    """As the figure that compares them takes it: of a batch with so many adapters."""
    labels = [{"mode": mode, "batch": batch, "adapters": 0} for mode, batch in [("full", 1), ("eager", 1)]]
    eager, full, other = (
        part(row("", 1, 8.0, step=1.0).model_copy(update={"labels": one}), what="runner")
        for one in [*labels, labels[0] | {"batch": 8}]
    )
    told = joined(tmp_path, eager, full)
    words = "batch 1, adapters 0: in two parts, and ratios are of ways that ran in one"
    assert told.exit_code == 2 and words in told.stderr
    assert joined(tmp_path, eager, other).exit_code == 0


@pytest.mark.parametrize(("what", "way"), [("stages", "way"), ("server", "attached")])
def test_no_ratio_is_of_ways_that_ran_apart(tmp_path, what, way):
    one, other = (
        row("", 1, token).model_copy(update={"labels": {way: name, "requests": 1}})
        for name, token in [("off", 8.0), ("guard", 4.0)]
    )
    told = joined(tmp_path, part(one, what=what), part(other, what=what))
    words = f"{what}: in two parts, and ratios are of ways that ran in one"
    assert told.exit_code == 2 and words in told.stderr and not (tmp_path / "all.json").exists()


@pytest.mark.parametrize(
    ("differs", "told"),
    [
        ({"gpu": "another"}, "gpu"),
        ({"what": "x"}, "what was timed"),
        ({"driver": "another"}, "driver"),
        ({"sources": {"live/loads.py": "2"}}, "sources"),
    ],
)
def test_parts_of_two_machines_make_none(differs, told):
    with pytest.raises(BadInput, match=f"they differ in {told}"):
        timed.joined([part(row("eager", 1, 8.0)), part(row("eager", 1, 8.0), **differs)])


def joined(tmp_path, *parts):
    files = [tmp_path / f"{number}.json" for number in range(len(parts))]
    for made, file in zip(parts, files, strict=True):
        file.write_text(made.to_json())
    return CliRunner().invoke(app, ["bench", "join", *map(str, files), "--save", str(tmp_path / "all.json")])


def guarded(verdict):
    times = dict.fromkeys(("off", "on", "asked"), Latency(median=1.0, p20=1.0, p80=1.0))
    one = Row(labels={"nodes": 100}, verdict=verdict, ms=times if verdict == "correct" else {})
    return part(one, what="guard")


def test_no_later_part_takes_a_verdict_back(tmp_path):
    told = joined(tmp_path, guarded("wrong"), guarded("correct"))
    words = "nodes 100: wrong in one part and correct in a later one"
    assert told.exit_code == 2 and words in told.stderr and not (tmp_path / "all.json").exists()
    told = joined(tmp_path, guarded("failed"), guarded("correct"))
    assert told.exit_code == 0  # what has failed has shown nothing


def test_parts_of_two_commits_make_one_record_if_their_code_is_the_same(tmp_path):
    rows = row("eager", 1, 8.0), row("eager", 8, 8.0, model="1.7B")
    later = {"commit": "another", "date": datetime(2030, 1, 1, tzinfo=UTC)}
    assert joined(tmp_path, part(rows[0]), part(rows[1], **later)).exit_code == 0
    assert timed.load(tmp_path / "all.json").provenance.commit == "another"
    untold = {"sources": {}}
    told = joined(tmp_path, part(rows[0], **untold), part(rows[1], **untold, **later))
    assert told.exit_code == 2 and told.stderr.endswith("they differ in commit\n")


NAN = float("nan")
EVEN, OUTSIDE = Latency(median=2.0, p20=1.0, p80=3.0), Latency(median=1.0, p20=5.0, p80=6.0)
TIMES = ("token", "first token", "load")
CONTRADICTIONS = {
    "bounds": ({"ms": dict.fromkeys(TIMES, OUTSIDE)}, "token ms not between its bounds"),
    "no first token": ({"ms": {"token": EVEN}}, "without first token ms"),
    "error": ({"counts": {"error": 1.176}}, "error 1.176"),
    "NaN": ({"counts": {"error": NAN}}, "error nan"),
    "wrong": ({"verdict": "wrong"}, "with token ms"),
    "failed": ({"verdict": "failed"}, "with token ms"),
    "order": ({"labels": {"mode": "x", "model": "y"}}, "its labels do not begin with model, runner"),
}


@pytest.mark.parametrize(("changed", "told"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_times_that_contradict_themselves_are_not_shown(changed, told):
    spoilt = row("eager", 1, 8.0).model_copy(update=changed)
    with pytest.raises(RecordError, match=told) as raised:
        checked(part(row("eager", 8, 8.0), spoilt))
    assert "\n" not in str(raised.value)


def test_times_of_no_gpu_and_one_row_twice_are_not_shown(tmp_path):
    once = row("eager", 1, 8.0)
    with pytest.raises(RecordError, match="on no GPU"):
        checked(part(once, gpu=None))
    with pytest.raises(RecordError, match="two such rows"):
        checked(part(once, once))
    told = joined(tmp_path, part(once.model_copy(update={"ms": {"token": EVEN}})))
    assert told.exit_code == 2 and "without first token ms" in told.stderr
    (tmp_path / "timed-x.json").write_text(part(once, gpu=None).to_json())
    told = CliRunner().invoke(
        app, ["report", str(tmp_path / "timed-x.json"), "--output", str(tmp_path / "r.html")]
    )
    assert told.exit_code == 2 and told.stderr.count("\n") == 1 and "on no GPU" in told.stderr


@pytest.mark.parametrize("file", sorted(RECORDS.glob("timed-*.json")), ids=lambda file: file.name)
def test_what_is_recorded_does_not_contradict_itself(file):
    checked(timed.load(file))


def test_ratios_are_to_the_eager_engine_and_of_what_is_right_alone():
    table = EngineTable(
        part(
            row("eager", 1, 8.0, kernels=2.0), row("eager", 8, 9.0),
            row("piecewise", 1, 4.0, kernels=3.0), row("piecewise", 8, 1.0, verdict="wrong"),
            row("eager", 1, 16.0, runner="V1"),
            row("breakable", 1, 1.0, verdict="failed"),
        )
    )  # fmt: skip
    told = [" ".join(line) for line in table.rows()]
    assert told[0] == "model runner mode what 1 8"
    assert told[1:5] == [
        *("8B V2 eager token 1.00x 1.00x", "8B V2 eager first token 1.00x 1.00x"),
        *("8B V2 eager load 1.00x 1.00x", "8B V2 eager at work 25% -"),
    ]
    assert told[5] == "8B V2 piecewise token 2.00x -" and told[8] == "8B V2 piecewise at work 75% -"
    assert told[9] == "8B V1 eager token 0.50x -" and not any("breakable" in line for line in told)
