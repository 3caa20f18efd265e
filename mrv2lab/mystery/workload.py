"""What every mystery serves: requests that come and go, so that all sizes and paths are used.

Prompts that fit no graph, decode steps that fill a graph and such that are padded, and one short prompt that
joins three running requests and fits a graph of eight tokens. All tokens are forced.
"""

from collections.abc import Iterator

import torch

from mrv2lab.mystery.engine import CONFIG
from mrv2lab.runner import Engine, ModelRunner, ModelRunnerOutput, Request, SamplingParams

SEED = 0

# step of arrival, prompt tokens, tokens to sample, adapter (0: none)
_REQUESTS = ((0, 6, 13, 11), (0, 13, 4, 12), (0, 9, 12, 0), (0, 5, 10, 13), (6, 5, 6, 12), (9, 14, 5, 13))


def requests() -> list[tuple[int, Request]]:
    """Each with the step at which it arrives."""
    generator = torch.Generator().manual_seed(SEED)

    def tokens(n: int) -> tuple[int, ...]:
        return tuple(torch.randint(CONFIG.vocab_size, (n,), generator=generator).tolist())

    made = []
    for i, (step, prompt, length, lora_id) in enumerate(_REQUESTS):
        prompt_token_ids, forced = tokens(prompt), SamplingParams(forced_token_ids=tokens(length))
        made.append((step, Request(f"request-{i}", prompt_token_ids, length, lora_id, forced)))
    return made


class Serving:
    """An engine at work; requests are added when their step comes."""

    def __init__(self, runner: ModelRunner):
        self.engine, self.waiting, self.num_steps = Engine(runner), requests(), 0

    def arrive(self) -> None:
        """Queue what arrives before the next step."""
        while self.waiting and self.waiting[0][0] <= self.num_steps:
            self.engine.add_request(self.waiting.pop(0)[1])

    def steps(self) -> Iterator[ModelRunnerOutput]:
        while True:
            self.arrive()
            output = self.engine.step()
            if output is None:
                return
            self.num_steps += 1
            yield output
