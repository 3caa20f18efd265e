"""A scheduler waits for the forward pass before it writes what that reads."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")


def make():
    schedule_stream = torch.cuda.Stream()
    mapping, values = torch.zeros(4, dtype=torch.int64, device=DEVICE), torch.arange(40.0, device=DEVICE)
    batches = iter([torch.tensor([i, i + 1, 0, 2 * i], device=DEVICE) for i in range(16)])

    def step():
        return values[mapping] * 2

    def vary():
        forward_stream, batch = torch.cuda.current_stream(), next(batches)
        schedule_stream.wait_stream(forward_stream)
        with torch.cuda.stream(schedule_stream):
            mapping.copy_(batch)
        forward_stream.wait_stream(schedule_stream)

    return {"step": step, "vary": vary, "reset": None}
