"""Data parallel serving with asynchronous scheduling and drafts hung after minutes under load, without an
error. The runner copies the inputs of a step from pinned buffers that it uses again for each step, and does
not wait: the next step's preparation rewrites them before the copy has run, and ranks then disagree.
Proposed repair: an event behind the copies, for which the next preparation waits.
"""

from types import SimpleNamespace

import torch

PROJECT = "vLLM"
LINK = "https://github.com/vllm-project/vllm/pull/54269"
MECHANISM = "missing-edge"
CAUSE = "pinned.copy_"
LINE = "pinned.copy_(next(batches))"
EXECUTORS = ("cuda",)  # the copy must run behind Python: the emulator copies at once

ROWS = 8


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    pinned = torch.zeros(ROWS, dtype=torch.int64).pin_memory()
    input_ids = torch.zeros(ROWS, dtype=torch.int64, device=device)
    embedding = torch.arange(100.0, device=device)
    batches = iter([torch.arange(n, n + ROWS) for n in range(1, 64, 7)])
    prepare_inputs_event = torch.cuda.Event()

    def step() -> torch.Tensor:
        torch.cuda._sleep(50_000_000)  # the model: some 30 ms
        return embedding[input_ids] * 2

    def vary() -> None:
        if fixed:
            prepare_inputs_event.synchronize()
        pinned.copy_(next(batches))
        input_ids.copy_(pinned, non_blocking=True)
        prepare_inputs_event.record()

    return SimpleNamespace(step=step, vary=vary)
