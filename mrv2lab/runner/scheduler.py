"""Which request gets how many tokens in the next step: continuous batching over a block pool.

Mirrors, in the smallest form, `vllm/v1/core/sched/`. A prompt is scheduled whole, then in each step the
newest token and the drafts that follow it.
"""

from dataclasses import dataclass, field

from mrv2lab.runner.block_table import NULL_BLOCK
from mrv2lab.runner.config import RunnerConfig
from mrv2lab.runner.sampler import SamplingParams


@dataclass(frozen=True)
class Request:
    """What a user asks for."""

    req_id: str
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    lora_id: int = 0  # 0: the base model
    sampling: SamplingParams = field(default_factory=SamplingParams)


@dataclass
class SchedulerOutput:
    """One step's work. Mirrors `vllm.v1.core.sched.output.SchedulerOutput`."""

    num_scheduled_tokens: dict[str, int]
    new_requests: list[Request] = field(default_factory=list)
    new_block_ids: dict[str, list[int]] = field(default_factory=dict)
    finished_req_ids: list[str] = field(default_factory=list)
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


class Scheduler:
    """First come, first served, within requests, tokens, blocks and adapter slots."""

    def __init__(self, config: RunnerConfig):
        self.config = config
        first = NULL_BLOCK + 1
        self.free_blocks = list(range(first, first + config.max_num_reqs * config.max_num_blocks))
        self.waiting: list[Request] = []
        self.running: dict[str, Request] = {}
        self.blocks: dict[str, list[int]] = {}
        self.num_sampled: dict[str, int] = {}
        self.spec_token_ids: dict[str, list[int]] = {}
        self.in_flight: set[str] = set()
        self.finished: list[str] = []

    def schedule(self) -> SchedulerOutput:
        """Plan a step: newest token and drafts of each running request, then the prompts that still fit. A
        request that is in flight waits: its newest token is not known yet.
        """
        drafts, self.spec_token_ids = self.spec_token_ids, {}
        output = SchedulerOutput(
            {r: 1 + len(drafts.get(r, ())) for r in self.running if r not in self.in_flight},
            finished_req_ids=self.finished,
            scheduled_spec_decode_tokens=drafts,
        )
        self.finished = []
        while self.waiting and self._fits(self.waiting[0], output.total_num_scheduled_tokens):
            self._start(self.waiting.pop(0), output)
        self.in_flight |= output.num_scheduled_tokens.keys()
        return output

    def _fits(self, request: Request, num_tokens: int) -> bool:
        loras = {r.lora_id for r in (*self.running.values(), request)} - {0}
        return (
            len(self.running) < self.config.max_num_reqs
            and num_tokens + len(request.prompt_token_ids) <= self.config.max_num_tokens
            and len(loras) <= self.config.max_loras
        )

    def _start(self, request: Request, output: SchedulerOutput) -> None:
        num_tokens = len(request.prompt_token_ids) + request.max_tokens + self.config.num_lookahead_tokens
        blocks = [self.free_blocks.pop(0) for _ in range(-(-num_tokens // self.config.block_size))]
        self.running[request.req_id] = request
        self.blocks[request.req_id] = output.new_block_ids[request.req_id] = blocks
        self.num_sampled[request.req_id] = 0
        output.new_requests.append(request)
        output.num_scheduled_tokens[request.req_id] = len(request.prompt_token_ids)

    def update_from_output(
        self, sampled_token_ids: dict[str, list[int]], draft_token_ids: dict[str, list[int]] | None = None
    ) -> None:
        """Note what each request got, and what the speculator proposes to follow; let go of what is finished.
        Tokens beyond what a request has asked for are taken away.
        """
        self.in_flight -= sampled_token_ids.keys()
        for req_id, token_ids in sampled_token_ids.items():
            del token_ids[self.running[req_id].max_tokens - self.num_sampled[req_id] :]
            self.num_sampled[req_id] += len(token_ids)
            if self.num_sampled[req_id] == self.running[req_id].max_tokens:
                del self.running[req_id]
                self.free_blocks += self.blocks.pop(req_id)
                self.finished.append(req_id)
        drafts = draft_token_ids or {}
        self.spec_token_ids = {req_id: drafts[req_id] for req_id in drafts.keys() & self.running.keys()}
