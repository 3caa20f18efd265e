"""Scheduler and runner in one loop: requests in, tokens out."""

from collections import deque
from operator import add

from mrv2lab.errors import BadInput
from mrv2lab.graphs.work import Amount, measured
from mrv2lab.runner.config import RunnerConfig
from mrv2lab.runner.model_runner import ModelRunner, ModelRunnerOutput
from mrv2lab.runner.scheduler import Request, Scheduler


class Engine:
    """Serves requests with a `ModelRunner` that has been made ready (`warm_up_and_capture`). As many batches
    may be in flight as there are pipeline stages, if nothing else is said.
    """

    def __init__(self, runner: ModelRunner, max_concurrent_batches: int | None = None):
        self.runner = runner
        self.scheduler = Scheduler(runner.config)
        self.max_concurrent_batches = max_concurrent_batches or runner.pp_group.world_size
        self.batch_queue: deque[ModelRunnerOutput] = deque()  # in flight, the oldest first

    def add_request(self, request: Request) -> None:
        """Queue a request. BadInput: it would never fit, whatever else runs."""
        config: RunnerConfig = self.runner.config
        length = len(request.prompt_token_ids) + request.max_tokens + config.num_lookahead_tokens
        if not request.prompt_token_ids or length > config.max_model_len:
            raise BadInput(
                f"request {request.req_id!r}: prompt, output and drafts need {length} positions, prompt at "
                f"least 1; possible: at most max_model_len={config.max_model_len}"
            )
        if len(request.prompt_token_ids) > config.max_num_tokens:
            raise BadInput(
                f"request {request.req_id!r}: a prompt of {len(request.prompt_token_ids)} tokens; "
                f"possible: at most max_num_tokens={config.max_num_tokens}"
            )
        self.scheduler.waiting.append(request)

    @property
    def num_unfinished(self) -> int:
        """Requests that are waiting or running."""
        return len(self.scheduler.waiting) + len(self.scheduler.running)

    def step(self) -> ModelRunnerOutput | None:
        """Start what may be in flight, then wait for the oldest batch; None if there is none.

        As `EngineCore.step_with_batch_queue` (vLLM 0.23.0, v1/engine/core.py:484-598), which returns to its
        caller between two starts. There, too, `VllmConfig.max_concurrent_batches` is the number of stages,
        and one more with async scheduling, which is not mirrored.
        """
        while len(self.batch_queue) < self.max_concurrent_batches and self._start_batch():
            pass
        if not self.batch_queue:
            return None
        output = self.batch_queue.popleft()
        with measured() as work:
            self.runner.update_pp_decode_requests(output)
        output.work["step"] = Amount(*map(add, output.work["step"], work.amount))
        sampled = dict(zip(output.req_ids, output.sampled_token_ids, strict=True))
        self.scheduler.update_from_output(sampled, output.draft_token_ids)
        return output

    def _start_batch(self) -> bool:
        """Start another batch; False if there is nothing to do but to let go of what has finished."""
        with measured() as work:
            output = self.runner.execute_model(self.scheduler.schedule())
        if output is None:
            return False
        output.work["step"] = work.amount
        self.batch_queue.append(output)
        return True
