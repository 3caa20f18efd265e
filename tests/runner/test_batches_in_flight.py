"""As many batches in flight as there are stages: the same answers, and what breaks if they share memory."""

from collections import deque
from functools import lru_cache

import pytest
import torch

from mrv2lab.cases.workload import no_adapters
from mrv2lab.runner import CUDAGraphMode, Engine, ModelRunner, Request, RunnerConfig
from mrv2lab.runner.pp_executor import run_stages
from mrv2lab.runner.pp_utils import PPGroup
from mrv2lab.runner.scheduler import Scheduler
from mrv2lab.runner.sequence import IntermediateTensors, copy_same_keys

SMALL = {
    "hidden_size": 32, "intermediate_size": 32, "vocab_size": 64, "num_layers": 3, "max_num_reqs": 3,
    "max_num_tokens": 8,  # one prompt in a batch: so not all requests end up in the same
    "cudagraph_capture_sizes": (1, 2),
}  # fmt: skip
GRAPHS = (CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL_AND_PIECEWISE)


def requests():
    """Four of unequal length; nothing is forced."""
    prompts = [tuple((7 * i + 3 * j + 1) % 64 for j in range(5 + i % 3)) for i in range(4)]
    return [Request(f"r{i}", prompt, 4 + i % 4) for i, prompt in enumerate(prompts)]


def engine_of(backend, mode, pp_group=None, max_concurrent_batches=None):
    config = RunnerConfig(**SMALL, cudagraph_mode=mode)
    runner = ModelRunner(config, backend, no_adapters, pp_group=pp_group)
    runner.warm_up_and_capture()
    engine = Engine(runner, max_concurrent_batches)
    for request in requests():
        engine.add_request(request)
    return engine


def tokens_of(steps):
    """For each request the tokens that it got."""
    tokens = {}
    for step in steps:
        for req_id, new in zip(step.req_ids, step.sampled_token_ids, strict=True):
            tokens.setdefault(req_id, []).extend(new)
    return tokens


def logits_of(steps):
    """For each request what its tokens were chosen by, [num_tokens, vocab_size]."""
    rows = {}
    for step in steps:
        for req_id, row in zip(step.req_ids, step.logits.cpu(), strict=True):
            rows.setdefault(req_id, []).append(row)
    return {req_id: torch.stack(of_request) for req_id, of_request in rows.items()}


@lru_cache(maxsize=2)
def reference(backend):
    """One process that has the whole model, and runs it eagerly."""
    steps = list(iter(engine_of(backend, CUDAGraphMode.NONE).step, None))
    return tokens_of(steps), logits_of(steps)


def largest_error(steps, backend):
    _, wanted = reference(backend)
    return max(((rows - wanted[r]).norm() / wanted[r].norm()).item() for r, rows in logits_of(steps).items())


class Sending:
    """Tensors on their way; they arrive in memory of their own, when somebody waits for that."""

    def __init__(self, tensors):
        self.tensors, self.arrived = tensors, None

    def wait(self):
        if self.arrived is None:
            self.arrived = self.land()
        return self.arrived

    def land(self):
        return IntermediateTensors({name: tensor.clone() for name, tensor in self.tensors.items()})


class IntoOneBuffer(Sending):
    """Wrong: at once, and for all batches in the same memory, as if received where graphs read."""

    def __init__(self, tensors):
        super().__init__(tensors)
        self.wait()

    def land(self):
        copy_same_keys(self.buffer, self.tensors)
        return self.buffer[: len(self.tensors["residual"])]


class First(PPGroup):
    """A first stage that lets the last one work when it waits for tokens; both are in this process."""

    def __init__(self, sending=Sending, *, waits=True):
        super().__init__(0, 2)
        self.sending, self.waits = sending, waits
        self.tensors, self.tokens = deque(), deque()  # under way to the last stage, and back
        self.log, self.steps = [], []

    def isend_tensor_dict(self, intermediate_tensors):
        self.tensors.append(self.sending(intermediate_tensors))
        return [self.tensors[-1].wait] if self.waits else []

    def receive(self, num_reqs):
        self.log.append("run")
        return self.wait

    def wait(self):
        self.log.append("take")
        while not self.tokens:
            self.steps.append(self.last.step())
        return self.tokens.popleft()


class Last(PPGroup):
    def __init__(self, first):
        super().__init__(1, 2)
        self.first = first

    def recv_tensor_dict(self):
        return self.first.tensors.popleft().wait()

    def broadcast(self, token_ids):
        self.first.tokens.append(token_ids)


def serve_pair(first, backend, mode, max_concurrent_batches=None):
    """The steps of the last stage. Both stages must have seen the same tokens."""
    front = engine_of(backend, mode, first, max_concurrent_batches)
    first.last = engine_of(backend, mode, Last(first), max_concurrent_batches)
    IntoOneBuffer.buffer = front.runner.make_empty_intermediate_tensors(SMALL["max_num_tokens"])
    seen = list(iter(front.step, None))
    steps = first.steps + list(iter(first.last.step, None))
    assert tokens_of(seen) == tokens_of(steps)
    return steps


@pytest.mark.parametrize("mode", [CUDAGraphMode.NONE, *GRAPHS])
def test_two_in_flight_answer_as_one_at_a_time_and_as_eager(mode, backend):
    for at_most, log in ((1, ["run", "take"] * 2), (None, ["run", "run", "take", "run"])):
        first = First()
        steps = serve_pair(first, backend, mode, at_most)
        assert tokens_of(steps) == reference(backend)[0]
        assert largest_error(steps, backend) < 1e-4
        assert first.log[:4] == log
        assert any(step.num_replays for step in steps) == (mode in GRAPHS)


@pytest.mark.parametrize("fault", [{"sending": IntoOneBuffer}, {"waits": False}])
def test_memory_that_batches_in_flight_share_is_right_for_one_batch_only(fault, backend):
    assert largest_error(serve_pair(First(**fault), backend, CUDAGraphMode.FULL, 1), backend) < 1e-4
    assert largest_error(serve_pair(First(**fault), backend, CUDAGraphMode.FULL), backend) > 0.1


def test_a_request_in_flight_is_not_scheduled_again():
    scheduler = Scheduler(RunnerConfig(**SMALL))
    scheduler.waiting += requests()
    planned = [list(scheduler.schedule().num_scheduled_tokens) for _ in range(2)]
    assert planned == [["r0"], ["r1"]]
    scheduler.update_from_output({"r0": [5]})
    assert scheduler.schedule().num_scheduled_tokens == {"r0": 1, "r2": 7}


def serve_stage(pp_group, backend, mode):
    engine = engine_of(backend, mode, pp_group)
    most, steps = 0, []
    for step in iter(engine.step, None):
        step.logits = step.logits.cpu()
        most = max(most, 1 + len(engine.batch_queue))
        steps.append(step)
    return most, steps


def test_three_processes_hold_three_and_answer_the_same(backend):
    stages = run_stages(serve_stage, backend, CUDAGraphMode.FULL, backend=backend, num_stages=3)
    assert [most for most, _ in stages] == [3, 3, 3]
    assert [tokens_of(steps) for _, steps in stages] == [reference(backend)[0]] * 3
    assert largest_error(stages[-1][1], backend) < 1e-4
