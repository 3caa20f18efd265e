"""Int8 KV cache with per-layer scales recalibrated while serving."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SLOTS, DIM, ROWS, CTX = 48, 16, 4, 12


class KVScales:
    """Scale held on the device for kernels and mirrored for backends that take floats."""

    def __init__(self, k=0.03, v=0.02):
        self.k_scale = torch.tensor(k, device=DEVICE)
        self.v_scale = torch.tensor(v, device=DEVICE)
        self.k_scale_float, self.v_scale_float = k, v

    def set(self, k, v):
        self.k_scale.fill_(k)
        self.v_scale.fill_(v)
        self.k_scale_float, self.v_scale_float = k, v


class QuantAttention:
    def __init__(self, gen):
        self.scales = KVScales()
        self.wkv = (torch.randn(DIM, 2 * DIM, generator=gen) / 4).to(DEVICE)
        self.k_cache = torch.zeros(SLOTS, DIM, dtype=torch.int8, device=DEVICE)
        self.v_cache = torch.zeros(SLOTS, DIM, dtype=torch.int8, device=DEVICE)

    @staticmethod
    def _quant(x, scale):
        return (x / scale).round().clamp(-127, 127).to(torch.int8)

    def write(self, x, slots):
        k, v = (x @ self.wkv).chunk(2, dim=-1)
        self.k_cache.index_copy_(0, slots, self._quant(k, self.scales.k_scale))
        self.v_cache.index_copy_(0, slots, self._quant(v, self.scales.v_scale))

    def read(self, q, gather):
        k = self.k_cache[gather].float()
        v = self.v_cache[gather].float()
        # the key scale folds into the softmax scale
        scores = torch.einsum("td,tsd->ts", q, k) * self.scales.k_scale * DIM**-0.5
        return torch.einsum("ts,tsd->td", scores.softmax(-1), v) * self.scales.v_scale_float


class Calibrator:
    """Tracks the amax of recent values and republishes scales every third batch."""

    def __init__(self, attn):
        self.attn = attn
        self.calls = 0
        self.amax = 2.5

    def tick(self):
        self.calls += 1
        self.amax = 0.7 * self.amax + 0.3 * (2.0 + self.calls)
        if self.calls % 3 == 0:
            self.attn.scales.set(k=self.amax / 120.0, v=self.amax / 100.0)


class Runner:
    def __init__(self):
        gen = torch.Generator().manual_seed(31)
        self.attn = QuantAttention(gen)
        self.calibrator = Calibrator(self.attn)
        self.x = torch.zeros(CTX, DIM, device=DEVICE)
        self.q = torch.zeros(ROWS, DIM, device=DEVICE)
        self.slots = torch.zeros(CTX, dtype=torch.long, device=DEVICE)
        self.gather = torch.zeros(ROWS, CTX, dtype=torch.long, device=DEVICE)
        self.gen = torch.Generator().manual_seed(32)
        self.fill()

    def fill(self):
        slots = torch.randperm(SLOTS, generator=self.gen)[:CTX]
        self.slots.copy_(slots)
        self.gather.copy_(torch.stack([slots[torch.randperm(CTX, generator=self.gen)] for _ in range(ROWS)]))
        self.x.copy_(torch.randn(CTX, DIM, generator=self.gen))
        self.q.copy_(torch.randn(ROWS, DIM, generator=self.gen))

    def run(self):
        self.attn.write(self.x, self.slots)
        return self.attn.read(self.q, self.gather)


runner = Runner()


def step():
    return runner.run()


def vary():
    runner.calibrator.tick()
    runner.fill()
