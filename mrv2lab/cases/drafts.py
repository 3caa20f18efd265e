"""The shape of upstream's test of LoRA with drafts: one engine with drafts is compared with one without.

Mirrors `tests/v1/e2e/spec_decode/test_lora_with_spec_decode.py` of vLLM (#43314), where both engines serve an
adapter and neither is known to be right. What both have lost they agree about.
"""

from dataclasses import dataclass

import torch

from mrv2lab.cases.base import SEED
from mrv2lab.cases.workload import serve
from mrv2lab.runner import CUDAGraphMode, ModelRunner, Request, RunnerConfig
from mrv2lab.runner.model_runner import DummyLoRA

Tokens = tuple[int, ...]
_NUM_DRAFTS = 2


@dataclass(frozen=True)
class Compared:
    """Answers of three engines to the same prompts, each a tuple of tokens."""

    alone: list[Tokens]  # of an engine without drafts
    drafted: list[Tokens]  # of one with drafts
    expected: list[Tokens]  # of one without drafts and without graphs

    @property
    def agree(self) -> list[bool]:
        """Per prompt, what upstream's test counts: whether the answer is the same with drafts and without."""
        return [a == b for a, b in zip(self.alone, self.drafted, strict=True)]

    @property
    def right(self) -> list[bool]:
        """Per prompt, whether the engine with drafts gives the right answer."""
        return [a == b for a, b in zip(self.drafted, self.expected, strict=True)]


def compare(dummy_lora: DummyLoRA, backend: str = "auto", *, num_prompts: int) -> Compared:
    """Ask three engines, all with adapter 1, for two to nine tokens each, greedily.

    Args:
        dummy_lora: a variant of `lora_short_circuit`, or a function for the same seam.
        backend: `cuda`, `emulated` or `auto`.
    """
    generator = torch.Generator().manual_seed(SEED)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    requests = []
    for i in range(num_prompts):
        prompt = tuple(number(0, RunnerConfig.vocab_size) for _ in range(6))
        requests.append(Request(f"prompt-{i}", prompt, max_tokens=number(2, 10), lora_id=1))
    full, none = CUDAGraphMode.FULL_DECODE_ONLY, CUDAGraphMode.NONE
    engines = ((full, 0), (full, _NUM_DRAFTS), (none, 0))
    return Compared(*(_answers(requests, dummy_lora, backend, *engine) for engine in engines))


def _answers(
    requests: list[Request], dummy_lora: DummyLoRA, backend: str, mode: CUDAGraphMode, num_drafts: int
) -> list[Tokens]:
    config = RunnerConfig(
        num_layers=1,
        cudagraph_mode=mode,
        num_speculative_tokens=num_drafts,
        cudagraph_capture_sizes=tuple(n * (1 + num_drafts) for n in (1, 2, 4, 8)),
        seed=SEED,
    )
    runner = ModelRunner(config, backend, dummy_lora)
    runner.warm_up_and_capture()
    answers: dict[str, Tokens] = {request.req_id: () for request in requests}
    for step in serve(runner, [requests], config.max_num_reqs):
        for req_id, token_ids in zip(step.req_ids, step.sampled_token_ids, strict=True):
            answers[req_id] += tuple(token_ids)
    return list(answers.values())
