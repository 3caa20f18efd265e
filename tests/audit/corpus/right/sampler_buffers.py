"""Temperatures and top-k thresholds live in device buffers; host copies are checked and put in an error
message only.
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class SamplingParams:
    def __init__(self, temperature, top_k):
        if not 0 < temperature < 10:
            raise ValueError(f"temperature {temperature}")
        self.temperature, self.top_k = temperature, top_k


class SamplerBuffers:
    MAX_K = 6

    def __init__(self, n, vocab):
        self.params = [SamplingParams(1.0, 3) for _ in range(n)]
        self.temperature = torch.ones(n, 1, device=DEVICE)
        self.last_kept = torch.zeros(n, 1, dtype=torch.long, device=DEVICE)

    def set(self, row, params):
        self.params[row] = params
        self.temperature[row] = params.temperature
        self.last_kept[row] = params.top_k - 1


class Sampler:
    def __init__(self, n=3, vocab=12):
        torch.manual_seed(0)
        self.logits = torch.randn(n, vocab, device=DEVICE)
        self.buffers = SamplerBuffers(n, vocab)
        self.buffers.set(0, SamplingParams(0.7, 2))

    def __call__(self):
        ks = [p.top_k for p in self.buffers.params]
        assert max(ks) <= SamplerBuffers.MAX_K, f"top_k of {ks} beyond {SamplerBuffers.MAX_K}"
        logits = self.logits / self.buffers.temperature
        best = logits.topk(SamplerBuffers.MAX_K, dim=-1).values
        threshold = best.gather(1, self.buffers.last_kept)
        return logits.masked_fill(logits < threshold, float("-inf")).softmax(-1)


def make():
    sampler = Sampler()
    k = 2

    def vary():
        nonlocal k
        k = k % 5 + 1
        sampler.logits.roll(1, 1)
        sampler.buffers.set(1, SamplingParams(0.3 * k, k))

    return {"step": sampler, "vary": vary, "reset": None}
