"""Mamba hybrids with drafts and asynchronous scheduling used wrong numbers of accepted tokens. They are
copied to pinned host memory without waiting, and the next step reads them there for its metadata. Nothing
makes the host wait between the two, so that it may read those of an earlier step. Repaired with an event
behind the copy, for which the reader waits.
"""

from types import SimpleNamespace

import torch

PROJECT = "vLLM"
LINK = "https://github.com/vllm-project/vllm/pull/36013"
MECHANISM = "missing-edge"
CAUSE = "num_accepted_tokens_cpu"
LINE = "state_index.copy_(num_accepted_tokens_cpu.clone())"
EXECUTORS = ("cuda",)  # the copy must run behind Python: the emulator copies at once

ROWS = 4


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    num_accepted_tokens_cpu = torch.zeros(ROWS, dtype=torch.int64).pin_memory()
    num_accepted_tokens_event = torch.cuda.Event()
    num_accepted_tokens = torch.ones(ROWS, dtype=torch.int64, device=device)
    state_index = torch.zeros(ROWS, dtype=torch.int64, device=device)
    drafts = torch.arange(ROWS, device=device)

    def step() -> torch.Tensor:
        torch.cuda._sleep(50_000_000)  # the model: some 30 ms
        num_accepted_tokens.copy_((drafts + state_index) % 5 + 1)
        return num_accepted_tokens * 10 + state_index

    def vary() -> None:
        num_accepted_tokens_cpu.copy_(num_accepted_tokens, non_blocking=True)
        num_accepted_tokens_event.record()
        drafts.add_(1)
        if fixed:
            num_accepted_tokens_event.synchronize()
        state_index.copy_(num_accepted_tokens_cpu.clone())

    return SimpleNamespace(step=step, vary=vary)
