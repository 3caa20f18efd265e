"""An engine with two stages, timed: what a stage does with its time, a steady load, what is asked of which
engine. No vLLM, no GPU and no clock."""

from types import SimpleNamespace

import pytest

from mrv2lab import bench_stages
from mrv2lab.bench_engine import MODES
from mrv2lab.errors import BadInput
from mrv2lab.live import launch, stages
from mrv2lab.live.stages import AT_ONCE, merged, shares, steady
from mrv2lab.timed import Row


def test_spans_that_overlap_or_touch_are_one():
    assert merged([(5, 7), (0, 2), (1, 3), (3, 4)]) == [(0, 4), (5, 7)]
    assert merged([]) == []


def test_nccl_counts_only_where_nothing_else_runs():
    told = shares(kernels=[(0, 20), (60, 80)], passing=[(10, 50), (90, 100)])
    assert told == pytest.approx({"computes": 0.4, "hands over": 0.4, "idle": 0.2})
    assert shares([], []) == {}


class Engine:
    """Each step gives each running request a token; request `i` has `i % 3 + 2` of them."""

    def __init__(self):
        self.running, self.most, self.num_steps = {}, 0, 0

    def add_request(self, name, prompt, sampling):
        self.running[name] = []

    def has_unfinished_requests(self):
        return bool(self.running)

    def step(self):
        self.most, self.num_steps = max(self.most, len(self.running)), self.num_steps + 1
        outputs = []
        for name, tokens in [*self.running.items()]:
            tokens.append(0)
            finished = len(tokens) == int(name) % 3 + 2
            if finished:
                del self.running[name]
            text = SimpleNamespace(token_ids=list(tokens))
            outputs.append(SimpleNamespace(request_id=f"{name}-x", outputs=[text], finished=finished))
        return outputs


def test_as_many_requests_are_under_way_as_were_asked_for_until_none_is_left(monkeypatch):
    monkeypatch.setattr(stages, "sampling", lambda i: None)
    engine = Engine()
    told = steady(SimpleNamespace(llm_engine=engine), AT_ONCE + 40)
    assert engine.most == AT_ONCE and not engine.running
    assert told.keys() == {"load", "first token", "token", "requests"}
    num_tokens = sum(i % 3 + 2 for i in range(AT_ONCE + 40))
    assert told["requests"] == pytest.approx(num_tokens / engine.num_steps)


def test_each_way_is_a_mode_and_the_reference_is_eager():
    jobs = {way: bench_stages.job("folder", way) for way in bench_stages.WAYS}
    assert [way for way, job in jobs.items() if job.settings["is_reference"]] == ["eager"]
    assert [way for way, job in jobs.items() if not job.settings["has_graphs"]] == ["eager"]
    assert jobs["small_steps"].settings["options"]["max_num_batched_tokens"] < AT_ONCE * 64
    assert {bench_stages.WAYS[way].mode for way in jobs} <= MODES.keys()


@pytest.mark.parametrize("crashed", ["eager", "piecewise"])
def test_without_a_reference_there_is_nothing_to_hold_others_against(crashed, monkeypatch):
    def run(job, *, command):
        row = Row(labels=job.settings["labels"], verdict="correct", ms={}).model_dump(mode="json")
        if job.variant == crashed:
            return launch.Ended(job, 0.0, crash=launch.Crash("SIGKILL", "no room", ()))
        return launch.Ended(job, 0.0, {"rows": [row]})

    monkeypatch.setattr(launch, "run", run)
    with pytest.warns(UserWarning, match="no room"):
        rows = list(bench_stages._rows(["piecewise", "no_async"]))
    verdicts = {str(row.labels["way"]): row.verdict for row in rows}
    assert verdicts[crashed] == "failed"
    assert len(verdicts) == (1 if crashed == "eager" else 3)


def test_a_way_that_is_none_and_a_machine_without_gpus_are_refused():
    with pytest.raises(BadInput, match="fast"):
        bench_stages.rows(["fast"])
    if stages.torch.cuda.device_count() < 2:
        with pytest.raises(BadInput, match="2 NVIDIA GPUs"):
            bench_stages.rows(["eager"])
