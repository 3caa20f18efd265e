"""The load that pipeline stages are measured under, on an engine that only counts."""

from types import SimpleNamespace

import pytest

from mrv2lab.live import pp


class Engine:
    """Gives every request one token a step; each step takes a millisecond."""

    def __init__(self, clock):
        self.clock, self.running, self.most = clock, {}, 0

    def add_request(self, name, prompt, sampling):
        assert len(prompt["prompt_token_ids"]) == pp.PROMPT_TOKENS
        self.running[name] = [0, sampling]
        self.most = max(self.most, len(self.running))

    def has_unfinished_requests(self):
        return bool(self.running)

    def step(self):
        self.clock.now += 1e-3
        outputs = []
        for name, (done, wanted) in list(self.running.items()):
            self.running[name][0] = done = done + 1
            if done == wanted:
                del self.running[name]
            tokens = SimpleNamespace(token_ids=range(done))
            outputs.append(SimpleNamespace(request_id=f"{name}-x", outputs=[tokens], finished=done == wanted))
        return outputs


@pytest.fixture
def engine(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(pp.time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(pp, "sampling", lambda i: 3 + i % 5)
    return Engine(clock)


def test_the_load_is_steady_and_every_request_is_timed(engine):
    speeds = pp.throughput(SimpleNamespace(llm_engine=engine))
    assert engine.most == pp.CONCURRENCY
    assert speeds["ttft_ms"] == speeds["tpot_ms"] == pytest.approx(1)
    tokens = sum(3 + i % 5 for i in range(pp.NUM_REQUESTS))
    shortest_ms = tokens / pp.CONCURRENCY  # were the engine full to the end
    assert shortest_ms < 1e3 * pp.NUM_REQUESTS / speeds["requests_per_s"] < 1.3 * shortest_ms


def test_time_to_the_first_token_is_that_of_requests_which_find_the_engine_busy(engine, monkeypatch):
    monkeypatch.setattr(pp, "NUM_REQUESTS", pp.CONCURRENCY + 20)
    step = engine.step

    def slow_at_first():  # the prompts of all that begin together
        engine.clock.now += 0.0 if engine.clock.now else 0.05
        return step()

    engine.step = slow_at_first
    speeds = pp.throughput(SimpleNamespace(llm_engine=engine))
    assert speeds["ttft_ms"] == pytest.approx(1)


def test_prompts_differ():
    assert len({tuple(pp.prompt(i)) for i in range(pp.NUM_REQUESTS)}) == pp.NUM_REQUESTS
