"""The parameters of a decode step could reach the device wrong. They are filled into a pinned host buffer
and copied asynchronously; the host runs ahead and fills in those of the next step while the copy still waits
behind the last replay. The repair, one of two in that pull request, records an event behind the copy and
waits for it before the buffer is filled again.
"""

from itertools import cycle
from types import SimpleNamespace

import torch

from mrv2lab.graphs import host

PROJECT = "RTP-LLM"
LINK = "https://github.com/alibaba/rtp-llm/pull/1254"
MECHANISM = "missing-edge"
CAUSE = "buf_h"
LINE = "buf_h.fill_(next(lengths))"
EXECUTORS = ("cuda",)  # on the emulator a copy has run before the host goes on

ROWS, CONTEXT = 4, 64
BUSY = 20_000_000  # cycles


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    buf_h = host(torch.zeros(ROWS, dtype=torch.int64), pinned=True)
    kv_lens = torch.zeros(ROWS, dtype=torch.int64, device=device)
    keys = torch.arange(1.0, CONTEXT + 1, device=device)
    copied = torch.cuda.Event()
    lengths = cycle(range(3, CONTEXT))

    def decode() -> torch.Tensor:
        torch.cuda._sleep(BUSY)  # all the other layers
        return (keys * (torch.arange(CONTEXT, device=device) < kv_lens[:, None])).sum(1)

    def fill_params() -> None:
        if fixed:
            copied.synchronize()
        buf_h.fill_(next(lengths))
        kv_lens.copy_(buf_h, non_blocking=True)
        copied.record()

    return SimpleNamespace(step=decode, vary=fill_params)
