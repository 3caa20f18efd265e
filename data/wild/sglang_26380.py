"""Flaky GSM8K scores with overlapped scheduling. The scheduler prepares the next batch on a stream of its
own and writes buffers that the forward pass of the batch before still reads: its stream waited for the
scheduler's, but not the other way round. Repaired by letting the scheduler's stream wait for the forward
pass before it writes.
"""

from types import SimpleNamespace

import torch

PROJECT = "SGLang"
LINK = "https://github.com/sgl-project/sglang/pull/26380"
MECHANISM = "missing-edge"
CAUSE = "mapping.copy_"
LINE = "mapping.copy_(upload)"
EXECUTORS = ("cuda",)  # a race of two streams: the emulator has one

ROWS = 8


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    schedule_stream = torch.cuda.Stream(device)
    mapping = torch.zeros(ROWS, dtype=torch.int64, device=device)
    values = torch.arange(100.0, device=device)
    batches = [torch.randperm(100, generator=torch.Generator().manual_seed(n))[:ROWS] for n in range(16)]
    uploads = iter([batch.to(device) for batch in batches])

    def step() -> torch.Tensor:
        torch.cuda._sleep(50_000_000)  # the layers before: some 30 ms
        return values[mapping] * 2

    def vary() -> None:
        forward_stream, upload = torch.cuda.current_stream(), next(uploads)
        if fixed:
            schedule_stream.wait_stream(forward_stream)
        with torch.cuda.stream(schedule_stream):
            mapping.copy_(upload)
        forward_stream.wait_stream(schedule_stream)

    return SimpleNamespace(step=step, vary=vary)
