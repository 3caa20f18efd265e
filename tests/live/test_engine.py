"""What stands between a model and its sampler, on a runner that only counts: no vLLM and no GPU."""

import json
import sys
from collections import namedtuple
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from mrv2lab.live import engine, models
from mrv2lab.live.engine import Graphs, Watcher, runner_of, serve, without_graphs

NUM_REQS, VOCAB = 3, 8


class Model:
    """Two rows of logits a request where tokens are drafted, else one: row after row one larger."""

    def __init__(self, num_drafts):
        self.rows = NUM_REQS * (1 + num_drafts)

    def compute_logits(self, hidden_states, scale=1.0):
        return scale * (hidden_states + torch.arange(float(self.rows))[:, None].expand(self.rows, VOCAB))


class Runner:
    """A step replays two graphs where the manager says that some were captured; it keeps the tokens."""

    def __init__(self, graphs, num_drafts=0):
        self.model, self.graphs = Model(num_drafts), graphs
        self.cudagraph_manager = SimpleNamespace(_graphs_captured=True)
        self.tokens = []

    def step(self, n):
        if self.cudagraph_manager._graphs_captured:
            self.graphs.num_replays += 2
        self.tokens.append(self.model.compute_logits(torch.full((1, 1), float(n))).argmax(dim=-1).tolist())


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(engine, "VOCAB_SIZE", VOCAB)


@pytest.fixture
def graphs():
    return Graphs()


def llm_of(runner):
    worker = SimpleNamespace(worker=SimpleNamespace(model_runner=runner))
    return SimpleNamespace(llm_engine=SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker)))


def watched(runner, *, eager, every=1):
    watcher = Watcher(runner, runner.graphs, NUM_REQS, every=every)
    runner.graphs.num_replays = 9  # of what came before
    watcher.start(eager=eager)
    for n in range(4):
        runner.step(n)
    return watcher.stop()


@pytest.mark.parametrize("was_captured", [True, False])
def test_inside_no_step_finds_a_graph_and_afterwards_all_is_as_it_was(graphs, was_captured):
    runner = Runner(graphs)
    runner.cudagraph_manager._graphs_captured = was_captured
    with pytest.raises(KeyError), without_graphs(runner):
        assert runner.cudagraph_manager._graphs_captured is False
        raise KeyError
    assert runner.cudagraph_manager._graphs_captured is was_captured


def test_the_reference_replays_no_graph_and_the_run_as_many_as_the_engine_does(graphs):
    runner = Runner(graphs)
    assert watched(runner, eager=False).replays == [2, 2, 2, 2]
    assert watched(runner, eager=True).replays == [0, 0, 0, 0]
    assert watched(runner, eager=False).replays == [2, 2, 2, 2]


def test_every_request_is_given_the_same_token_whatever_the_model_says(graphs):
    runner = Runner(graphs)
    watched(runner, eager=False)
    assert runner.tokens == [[31 * n % VOCAB] * NUM_REQS for n in range(1, 5)]


def test_logits_are_kept_as_the_model_gave_them(graphs):
    served = watched(Runner(graphs), eager=False)
    assert [logits[:, 0].tolist() for logits in served.logits] == [[n, n + 1, n + 2] for n in range(4)]
    assert len(served.step_ms) == 4 and min(served.step_ms) >= 0


def test_of_drafted_positions_no_logits_are_kept(graphs):
    served = watched(Runner(graphs, num_drafts=1), eager=False, every=4)
    assert [logits[:, 0].tolist() for logits in served.logits] == [[n, n + 2, n + 4] for n in range(4)]
    assert {tuple(logits.shape) for logits in served.logits} == {(NUM_REQS, VOCAB // 4)}


def test_the_model_computes_its_own_logits_again_afterwards(graphs):
    runner = Runner(graphs)
    watched(runner, eager=False)
    assert "compute_logits" not in vars(runner.model)
    assert runner.model.compute_logits(torch.zeros(1, 1))[:, 0].tolist() == [0, 1, 2]


class Drafting(Runner):
    """One whose speculator leaves the number of the step behind for each request."""

    def __init__(self, graphs):
        super().__init__(graphs, num_drafts=1)
        self.speculator = SimpleNamespace(hidden_states=torch.zeros(8, 2), propose=self.propose)

    def propose(self, n):
        self.speculator.hidden_states[:NUM_REQS] = n
        return torch.zeros(NUM_REQS, 1)


@pytest.mark.parametrize("keep_drafts", [True, False])
def test_what_drafts_compute_is_kept_if_asked_for(graphs, keep_drafts):
    runner = Drafting(graphs)
    watcher = Watcher(runner, graphs, NUM_REQS)
    watcher.start(eager=False, keep_drafts=keep_drafts)
    for n in range(2):
        runner.step(n)
        runner.speculator.propose(n)
    drafted = watcher.stop().drafted
    assert [kept.tolist() for kept in drafted] == [[[n] * 2] * NUM_REQS for n in range(2 * keep_drafts)]
    assert runner.speculator.propose == runner.propose


@pytest.mark.parametrize(("eager", "replays"), [(True, 0), (False, 2)])
def test_serving_watches_the_runner_of_the_engine(graphs, monkeypatch, eager, replays):
    runner = Runner(graphs)
    llm = llm_of(runner)
    llm.asked = ("FULL", [4])
    assert runner_of(llm) is runner
    monkeypatch.setattr(
        engine, "generate", lambda llm, lengths, lora_request: runner_of(llm).step(len(lengths))
    )
    monkeypatch.setattr(
        engine, "Meter", lambda runner, telling, mode, sizes: nullcontext(SimpleNamespace(steps=["step"]))
    )
    served = serve(llm, graphs, range(NUM_REQS), eager=eager)
    assert served.replays == [replays] and len(served.logits) == 1 and served.counted == [["step"]]


def test_the_graph_to_look_at_is_the_largest_full_one_or_else_the_first_piece(graphs):
    def llm(full):
        return llm_of(SimpleNamespace(cudagraph_manager=SimpleNamespace(graphs=full)))

    graphs.made += ["piece", "other piece"]
    Desc = namedtuple("Desc", ["num_tokens", "num_active_loras"], defaults=[0])
    assert graphs.of_largest_size(llm({Desc(8): "largest", Desc(4): "smaller"})) == "largest"
    assert graphs.of_largest_size(llm({})) == "piece"
    keyed = llm({Desc(n, key): f"{n}, {key}" for n in (8, 4) for key in (0, 1, 2)})
    assert graphs.of_largest_size(keyed) == "8, 2" and graphs.of_largest_size(keyed, 1) == "8, 1"
    assert graphs.of_largest_size(keyed, 3) == "8, 2"


def test_memory_of_private_pools_alone_is_counted(graphs, monkeypatch):
    segments = [((0, 0), 1 << 20), ((0, 1), 3 << 20), ((2, 0), 1 << 19)]
    found = [{"segment_pool_id": pool, "total_size": size} for pool, size in segments]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: found)
    assert graphs.pool_mib() == 3.5


def test_prompts_are_as_long_as_they_should_be_and_differ():
    made = [request["prompt_token_ids"] for request in engine.requests((3, 1, 4))]
    assert [len(tokens) for tokens in made] == [3, 1, 4]
    assert len({tuple(tokens[:1]) for tokens in made}) == 3


class Written:
    """Stands for a model of transformers: saved, it is its config."""

    def __init__(self, config):
        self.config = config

    def to(self, dtype):
        return self

    def save_pretrained(self, folder):
        models.write_config(folder, self.config)


def test_every_model_has_as_many_positions_as_the_engine_asks_for(tmp_path, monkeypatch):
    """With fewer the engine would not start."""
    asked = {}
    llm = SimpleNamespace(LLM=lambda **settings: asked.update(settings) or SimpleNamespace())
    monkeypatch.setitem(sys.modules, "vllm", llm)
    transformers = SimpleNamespace(Qwen3Config=dict, Qwen3ForCausalLM=Written)
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    engine.make_engine("a folder", "FULL", (1, 2))
    for make in (models.make_qwen3, models.make_qwen3_config, models.make_mla_config):
        config = json.loads((make(tmp_path / make.__name__) / "config.json").read_text())
        assert config["max_position_embeddings"] >= asked["max_model_len"]


def test_no_graph_has_been_replayed_before_the_first():
    assert Graphs().num_replays == 0
