"""Scheduler and runner in one loop: requests in, tokens out."""

from mrv2lab.errors import BadInput
from mrv2lab.graphs.work import measured
from mrv2lab.runner.config import RunnerConfig
from mrv2lab.runner.model_runner import ModelRunner, ModelRunnerOutput
from mrv2lab.runner.scheduler import Request, Scheduler


class Engine:
    """Serves requests with a `ModelRunner` that has been made ready (`warm_up_and_capture`)."""

    def __init__(self, runner: ModelRunner):
        self.runner = runner
        self.scheduler = Scheduler(runner.config)

    def add_request(self, request: Request) -> None:
        """Queue a request.

        Raises:
            BadInput: it would never fit, whatever else runs.
        """
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
        """Run one step; None if nothing is left to do but to let go of what has finished."""
        with measured() as work:
            output = self.runner.execute_model(self.scheduler.schedule())
        if output is not None:
            output.work["step"] = work.amount
            sampled = dict(zip(output.req_ids, output.sampled_token_ids, strict=True))
            self.scheduler.update_from_output(sampled, output.draft_token_ids)
        return output
