"""A scheduler writes what the forward pass before may still read: the streams are tied one way only."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["missing-edge"]
SUBJECTS = ["mapping"]


def make():
    schedule_stream = torch.cuda.Stream()
    mapping, values = torch.zeros(4, dtype=torch.int64, device=DEVICE), torch.arange(40.0, device=DEVICE)
    batches = iter([torch.tensor([i, i + 1, 0, 2 * i], device=DEVICE) for i in range(16)])

    def step():
        return values[mapping] * 2

    def vary():
        forward_stream, batch = torch.cuda.current_stream(), next(batches)
        with torch.cuda.stream(schedule_stream):
            mapping.copy_(batch)  # HERE
        forward_stream.wait_stream(schedule_stream)

    return {"step": step, "vary": vary, "reset": None}
