"""Replays of a captured exchange went on before the peer had put its data. A wait in the graph lets
through once the signal of the peer is at least 1. The value to wait for is that of the capture, and
nothing takes the signal back, so that from the second replay on the one of the replay before is enough.
Repaired by setting it to zero behind the wait, in the graph. Here a wait that would not end takes what was
taken last.
"""

from types import SimpleNamespace

import torch

PROJECT = "torchcomms"
LINK = "https://github.com/meta-pytorch/torchcomms/pull/1177"
MECHANISM = "not-rearmed"
CAUSE = "signal"
LINE = "has_come = signal >= 1"
EXECUTORS = ("emulated", "cuda")

SIZE = 4


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    window, taken = (torch.zeros(SIZE, device=device) for _ in range(2))
    signal = torch.zeros(1, dtype=torch.int64, device=device)
    puts = iter((1, 2, 3, 4, 5, 6, 7, 8, 9))
    is_late = iter((False, True, False, True) * 2)

    def wait_signal() -> torch.Tensor:
        has_come = signal >= 1
        taken.copy_(torch.where(has_come, window, taken))
        if fixed:
            signal.zero_()
        return taken + 0

    def vary() -> None:
        window[: SIZE // 2] = next(puts)  # the peer has begun to put
        if not next(is_late):
            window[SIZE // 2 :] = window[0]
            signal.fill_(1)

    return SimpleNamespace(step=wait_signal, vary=vary, requests=4)
