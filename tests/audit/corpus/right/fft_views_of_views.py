"""A filter in frequency space, through views of views of a complex work buffer."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Filter:
    def __init__(self, n=8):
        torch.manual_seed(0)
        self.x = torch.randn(2, n, device=DEVICE)
        self.gain = torch.ones(n // 2 + 1, device=DEVICE)
        self.work = torch.empty(2, n // 2 + 1, dtype=torch.complex64, device=DEVICE)

    def step(self):
        self.work.copy_(torch.fft.rfft(self.x))
        pairs = torch.view_as_real(self.work)
        pairs.unbind(-1)[0].mul_(self.gain)
        pairs.select(-1, 1).mul_(self.gain)
        return torch.fft.irfft(self.work, n=self.x.shape[-1]), self.work.abs()


def make():
    filter = Filter()

    def vary():
        filter.gain[2:].mul_(0.5)
        filter.x.add_(1)

    return {"step": filter.step, "vary": vary, "reset": None}
