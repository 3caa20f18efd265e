"""Two host staging buffers alternate by parity, but outside the step: the step sees one static device
buffer.
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class DoubleStaging:
    def __init__(self, n):
        make = lambda: torch.zeros(n, dtype=torch.long)  # noqa: E731
        self.host = [graphs.host(make()), graphs.host(make())]
        self.device = make().to(DEVICE)
        self.step_index = 0

    @property
    def active(self):
        return self.host[self.step_index & 1]

    def submit(self, values):
        self.step_index += 1
        staged = self.active
        staged.copy_(torch.tensor(values))
        self.device.copy_(staged, non_blocking=True)


class Decoder:
    def __init__(self):
        torch.manual_seed(0)
        self.staging = DoubleStaging(4)
        self.embed = torch.randn(10, 6, device=DEVICE)
        self.rnn = torch.nn.GRUCell(6, 6, device=DEVICE).requires_grad_(False)
        self.state = torch.zeros(4, 6, device=DEVICE)

    def step(self):
        if self.staging.active.shape != self.staging.device.shape:
            raise ValueError("staging of another size")
        x = self.embed[self.staging.device]
        self.state.copy_(self.rnn(x, self.state))
        return self.state @ self.embed.T


def make():
    decoder = Decoder()
    last = [1, 2, 3, 4]
    decoder.staging.submit(last)

    def vary():
        last[:] = [(3 * t + 1) % 10 for t in last]
        decoder.staging.submit(last)

    return {"step": decoder.step, "vary": vary, "reset": None}
