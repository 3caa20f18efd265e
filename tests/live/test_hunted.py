"""What a worker of a hunt serves, keeps and judges. The engine is a stand-in: no vLLM, no GPU."""

import itertools
import sys
from math import inf
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from mrv2lab import hunt_grid
from mrv2lab.live import hunted
from mrv2lab.live.engine import Graphs, without_graphs

VOCAB = 2048


class Model:
    """Logits of a request's whole context: its prompt's length, and the tokens that it was given."""

    def compute_logits(self, contexts):
        columns = torch.arange(1.0, VOCAB + 1)
        return torch.stack([torch.sin(columns * (1 + sum(c) % 97)) for c in contexts])


class Runner:
    def __init__(self, spoils):
        self.model, self.spoils = Model(), spoils
        mode = SimpleNamespace(name="FULL")
        self.cudagraph_manager = SimpleNamespace(_graphs_captured=True, cudagraph_mode=mode)

    def sample(self, hidden_states, input_batch):
        return self.model.compute_logits(hidden_states)


class LLM:
    """One request with `max_num_seqs` others at once; each step takes all that are not done."""

    def __init__(self, graphs, spoils=lambda num_reqs: False, only=(3, 4), shifted=0):
        self.graphs, self.runner, self.given = graphs, Runner(spoils), []
        self.only, self.shifted = only, shifted
        self.request_counter = SimpleNamespace(counter=7)
        worker = SimpleNamespace(worker=SimpleNamespace(model_runner=self.runner))
        executor = SimpleNamespace(driver_worker=worker)
        self.llm_engine = SimpleNamespace(model_executor=executor)

    def reset_prefix_cache(self):
        self.given.append([])  # a pass begins

    def generate(self, prompts, params, use_tqdm, lora_request=None):
        drafts = getattr(self.runner, "speculator", self.runner).cudagraph_manager._graphs_captured
        self.given[-1].append((len(prompts), drafts, lora_request))
        first = self.request_counter.counter
        self.request_counter.counter += len(prompts)
        contexts = [list(prompt["prompt_token_ids"]) for prompt in prompts]
        wanted = [len(c) + p.max_tokens for c, p in zip(contexts, params, strict=True)]
        while live := [i for i, c in enumerate(contexts) if len(c) < wanted[i]]:
            has_graph = self.runner.cudagraph_manager._graphs_captured
            if has_graph:
                self.graphs.num_replays += 1
            n, shift = len(live), self.shifted if has_graph and len(self.given) in self.only else 0
            batch = SimpleNamespace(
                req_ids=[f"{first + i}-abc" for i in live],
                positions=torch.tensor(
                    [
                        len(contexts[i])
                        - 1
                        + shift * (len(contexts[i]) > len(prompts[i]["prompt_token_ids"]))
                        for i in live
                    ]
                ),
                logits_indices=torch.arange(n),
                cu_num_logits_np=np.arange(n + 1),
                num_tokens=n,
            )
            hidden = [contexts[i] for i in live]
            if has_graph and len(self.given) in self.only and self.runner.spoils(n):
                hidden = [*hidden[:-1], [1234]]
            tokens = self.runner.sample(hidden, batch).argmax(-1).tolist()
            for i, token in zip(live, tokens, strict=True):
                contexts[i].append(token)


@pytest.fixture
def engine(monkeypatch):
    vllm = ModuleType("vllm")
    vllm.SamplingParams = SimpleNamespace
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    graphs = Graphs()
    return lambda **how: (LLM(graphs, **how), graphs)


def test_graphs_that_answer_alike_are_right(engine):
    found = hunted.observed(*engine(), {})
    assert (found["verdict"], found["error"], found["natural"]) == ("correct", 0, 0)
    assert found["replayed"] == found["steps"] > 100 and found["graphs"] == "FULL"


def test_one_wrong_request_of_one_size_is_found_and_named(engine):
    found = hunted.observed(*engine(spoils=lambda num_reqs: num_reqs == 5), {})
    assert found["verdict"] == "wrong" and found["error"] > 1 and found["usual"] == 0
    # The first batch of five requests is the fourth, and its last request is spoilt in its first step.
    assert "5 requests, 5 tokens, 1 graph: 1 wrong, request 4 at position 129" in found["first"]
    assert not found["begins_at_prompt"]


def test_without_graphs_nothing_is_replayed(engine):
    llm, graphs = engine()
    with without_graphs(llm.runner):
        found = hunted.observed(llm, graphs, {})
    assert found["verdict"] == "eager" and found["replayed"] == 0


def test_another_runner_is_left_out(engine):
    llm, graphs = engine()
    del llm.runner.cudagraph_manager
    assert hunted.observed(llm, graphs, {})["verdict"] == "left out"


def test_batches_in_halves_have_the_same_requests_and_tokens(engine):
    llm, graphs = engine()
    one, halves = (hunted.serve(llm, graphs, {}, eager=True, halved=halved) for halved in (False, True))
    assert one.rows.keys() == halves.rows.keys()
    assert {row.num_reqs for row in halves.rows.values()} == {1, 2, 3, 4, 5, 6}
    assert "compute_logits" not in vars(llm.runner.model)


def _pass(*errors, replays=0):
    rows = {
        hunted.Key(0, 0, 2 + i): hunted.Row(torch.tensor([1.0 + e, 0]), i, 1, 1, 1)
        for i, e in enumerate(errors)
    }
    return hunted.Pass(rows, [replays] * len(errors))


@pytest.mark.parametrize(
    ("natural", "error", "verdict"),
    [
        ([0.001] * 20, [0.02] * 20, "correct"),  # below the floor
        ([0.001] * 20, [0.001] * 19 + [0.022], "wrong"),
        ([0.02] * 19 + [0.4], [0.02] * 19 + [1.1], "correct"),  # as a router that falls the other way
        ([0.1] * 20, [0.1] * 19 + [0.35], "wrong"),
        ([0.02] * 19 + [0.4], [0.02] * 17 + [0.45] * 3, "wrong"),  # many of them
        ([0.02] * 19 + [0.4], [0.02] * 18 + [0.45, 0.02], "correct"),  # a router at another request
        ([0.02] * 19 + [0.4], [0.02] * 18 + [1.0, 0.02], "wrong"),  # that explains no row that is far off
        ([0.001] * 20, [float("nan")] * 20, "wrong"),
    ],
)
def test_wrong_is_what_exceeds_floor_and_nature(natural, error, verdict):
    found = hunted.judged(_pass(*[0] * 20), _pass(*natural), [_pass(*error, replays=1)], {})
    assert found["verdict"] == verdict and ("first" in found) == (verdict == "wrong")


def test_without_a_reference_there_is_no_verdict():
    found = hunted.judged(_pass(0, 0), _pass(inf, 0), [_pass(0, 0)], {})
    assert found["verdict"] == "left out" and "no numbers" in found["message"]
    far = hunted.judged(_pass(0, 0), _pass(0.34, 0.34), [_pass(-1, -1, replays=1)] * 2, {})
    assert far["verdict"] == "left out" and "too far from itself" in far["message"]  # not: zeros are right
    zeros = _pass(-1, -1, replays=1)
    none = hunted.judged(_pass(-1, -1), _pass(-1, -1), [zeros, zeros], {})
    assert none["verdict"] == "left out" and "all zero" in none["message"]
    replayed = hunted.Pass(_pass(0, 0).rows, [0, 1])
    for without in ([replayed, _pass(0, 0)], [_pass(0, 0), replayed]):
        assert "also where none" in hunted.judged(*without, [_pass(0, 0)], {})["message"]
    for halved in (_pass(0), hunted.Pass()):
        found = hunted.judged(_pass(0, 0), halved, [_pass(0, 0)], {})
        assert found["verdict"] == "left out" and "at other positions" in found["message"]


@pytest.mark.parametrize(("number", "options"), [(19, {}), (21, {}), (17, {"speculative_config": {}})])
def test_an_answer_that_graphs_lose_or_add_is_not_passed_over(number, options):
    without, asked = _pass(*[0] * 20), {"engine": options}
    for ways in ([20, number], [number, 20]):
        found = hunted.judged(without, without, [_pass(*[0] * n, replays=1) for n in ways], asked)
        assert found["verdict"] == "failed" and "too few or too many" in found["message"]


def test_a_draft_that_is_taken_leaves_no_row_of_its_own():
    without, asked = _pass(*[0] * 20), {"engine": {"speculative_config": {}}}
    ways = [_pass(*[0] * number, replays=1) for number in (18, 20)]
    assert hunted.judged(without, without, ways, asked)["verdict"] == "correct"


@pytest.mark.parametrize("only", [(3,), (4,)])
def test_one_way_with_graphs_is_enough_to_be_wrong(engine, only):
    found = hunted.observed(*engine(spoils=lambda num_reqs: num_reqs == 1, only=only), {})
    assert found["verdict"] == "wrong" and found["error"] > 1
    found = hunted.observed(*engine(shifted=5000, only=only), {})
    assert found["verdict"] == "failed" and "too few or too many" in found["message"]
    ways = [_pass(*[0.01 * (way in only)] * 20, replays=1) for way in (3, 4)]
    found = hunted.judged(_pass(*[0] * 20), _pass(*[0] * 20), ways, {})
    assert found["usual"] == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("replays", "sizes", "verdict"),
    [
        ([0, 1, 1, 0, 0], [1], "correct"),  # the first has the prompt
        ([0, 1, 0, 0], [1], "eager"),
        ([1, 0, 0, 0], [1], "eager"),
        ([1, 0, 0, 0], [0], "correct"),  # no decode fits what is captured
        ([0, 0, 0, 0], [0], "eager"),
    ],
)
def test_each_way_replays_in_half_of_the_decodes_that_fit(replays, sizes, verdict):
    zeros = [0] * len(replays)
    without, other = _pass(*zeros), _pass(*zeros, replays=1)
    way = hunted.Pass(without.rows, replays)
    for ways in ([way, other], [other, way]):
        found = hunted.judged(without, without, ways, {"sizes": sizes})
        assert found["verdict"] == verdict and found["replayed"] == len(replays) + sum(replays)


def test_a_wrong_step_with_more_tokens_than_requests_begins_at_a_prompt():
    way = _pass(0, 1, replays=1)
    way.rows = {key: row._replace(num_tokens=9) for key, row in way.rows.items()}
    found = hunted.judged(_pass(0, 0), _pass(0, 0), [way], {})
    assert found["begins_at_prompt"] and "1 request, 9 tokens, 1 graph" in found["first"]


def test_it_serves_whole_and_in_halves_without_graphs_of_drafts_and_then_with(engine):
    llm, graphs = engine()
    manager = SimpleNamespace(_graphs_captured=True)
    llm.runner.speculator = SimpleNamespace(cudagraph_manager=manager)
    passes = []
    serve = hunted.serve
    adapters = ["one", "two", None]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hunted, "serve", lambda *a, **how: passes.append(serve(*a, **how)) or passes[-1])
        hunted.observed(llm, graphs, {"requests": adapters, "batches": [5]})
    assert [[call[:2] for call in calls] for calls in llm.given] == [
        [(5, False)], [(3, False), (2, False)], [(5, True)], [(3, True), (2, True)]
    ]  # fmt: skip
    assert [calls[0][2] for calls in llm.given[:2]] == [
        ["one", "two", None, "one", "two"],
        ["two", "one", None],
    ]
    assert [set(seen.steps) for seen in passes] == [{0}, {0}, {1}, {1}]


GOOD = {"error": 0.01, "usual": 0.01, "natural": 0.0, "natural_usual": 0.0, "replayed": 1, "steps": 2}


@pytest.mark.parametrize(
    "forged",
    [
        {"error": 0.66},
        {"usual": 0.66},
        {"natural": None},
        {"error": "Infinity", "natural": "Infinity"},
        {"error": "NaN"},
        {"natural": -1.0},
        {"replayed": 0},
        {"replayed": 3},
        {"replayed": -1},
        {"seconds": -1.0},
        {"message": "RuntimeError"},
        {"verdict": "wrong"},
    ],
)
def test_an_outcome_that_contradicts_itself_is_refused(forged):
    outcome = {"model": "m", "mode": "full", "feature": "plain", "verdict": "correct"} | GOOD
    hunted.Outcome.model_validate(outcome)
    with pytest.raises(ValidationError):
        hunted.Outcome.model_validate(outcome | forged)


def test_an_engine_that_breaks_where_it_captures_has_failed():
    def capture_model():
        raise RuntimeError("1 validation error for X\n  Value error, not with this")

    def told(function, starting=True):
        try:
            function()
        except Exception as error:
            return hunted._raised(error, starting)

    found = told(capture_model)
    assert found["verdict"] == "failed"
    assert found["message"].startswith("RuntimeError: Value error, not with this (live/test_hunted.py:")
    assert found["message"].endswith(" in capture_model)") and len(found["log_tail"]) == 2
    assert told(lambda: {}[1])["verdict"] == "left out"
    assert told(lambda: {}[1], starting=False)["verdict"] == "failed"
    assert hunted.short("/x/site-packages/vllm/v1/a.py") == "vllm/v1/a.py"


@pytest.mark.parametrize("then", ["serves", "leaves a group", "fails", "fails on the device"])
def test_a_worker_goes_on_only_where_nothing_is_left_behind(engine, monkeypatch, tmp_path, then):
    chosen = hunt_grid.asked(["llama"], [], [])[:2]
    asked = [one.job_settings() | {"file": str(tmp_path / one.file)} for one in chosen]
    results, closed = [], []
    llm, graphs = engine()

    def fail(*given, **how):
        raise RuntimeError("CUDA error" if then == "fails on the device" else "no adapter")

    if then.startswith("fails"):
        llm.generate = fail
    monkeypatch.setattr(hunted, "start", lambda asked, folder: llm)
    monkeypatch.setattr(hunted, "_end", lambda llm, graphs: closed.append(1))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: then == "leaves a group")
    monkeypatch.setattr(hunted, "die_with_parent", lambda: None)
    monkeypatch.setattr(hunted, "claim_stdout", lambda: None)
    monkeypatch.setattr(hunted, "tell_result", lambda document, to: results.append(document))
    monkeypatch.setattr(hunted, "Watched", lambda: SimpleNamespace(watch=lambda runner: None, graphs=graphs))
    job = SimpleNamespace(settings={"audits": False, "asked": asked})
    monkeypatch.setattr(hunted, "read_job", lambda spec: job)
    for name in itertools.accumulate(["vllm", "v1", "worker", "gpu", "model_runner"], "{}.{}".format):
        monkeypatch.setitem(sys.modules, name, sys.modules.get(name) or ModuleType(name))
    sys.modules["vllm.v1.worker.gpu.model_runner"].GPUModelRunner = Runner
    hunted.main("SPEC")
    number = 2 if then in ("serves", "fails") else 1
    kept = [hunted.Outcome.read(file, "", "") for file in tmp_path.glob("*.json")]
    assert len(kept) == len(closed) == number and results
    assert {one.verdict for one in kept} == {"failed" if then.startswith("fails") else "correct"}
    assert then != "fails" or kept[0].message.startswith("RuntimeError: no adapter (live/test_hunted.py:")


@pytest.mark.parametrize("started", [True, False])
def test_the_next_engine_gets_another_pool_and_no_group_of_an_engine(monkeypatch, started):
    ended = []
    for name in ("vllm", "vllm.distributed", "vllm.platforms"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    platform = type("Platform", (), {"_global_graph_pool": "of the last one"})
    sys.modules["vllm.distributed"].cleanup_dist_env_and_memory = lambda: ended.append("group")
    sys.modules["vllm.platforms"].current_platform = platform()
    monkeypatch.setattr(hunted, "close", lambda llm, graphs: ended.append("engine"))
    hunted._end("llm" if started else None, Graphs())
    assert ended == ["engine" if started else "group"] and platform._global_graph_pool is None
