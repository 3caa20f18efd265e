"""Selective state space layer, chunk by chunk. The state goes to and fro between two buffers, since the scan
may not write what it still reads."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH, LENGTH, CHUNK, CHANNELS, STATES = 2, 16, 4, 6, 5
gen = torch.Generator().manual_seed(31)


class StateBuffers:
    def __init__(self) -> None:
        self.pair = [torch.zeros(BATCH, CHANNELS, STATES, device=DEVICE) for _ in range(2)]
        self.current = 0

    @property
    def source(self) -> torch.Tensor:
        return self.pair[self.current]

    @property
    def target(self) -> torch.Tensor:
        return self.pair[1 - self.current]

    def swap(self) -> None:
        self.current = 1 - self.current


class SelectiveScan:
    def __init__(self) -> None:
        self.log_a = torch.rand(CHANNELS, STATES, generator=gen).to(DEVICE)
        self.w_b = (torch.randn(CHANNELS, STATES, generator=gen) * 0.4).to(DEVICE)
        self.w_c = (torch.randn(CHANNELS, STATES, generator=gen) * 0.4).to(DEVICE)
        self.w_dt = (torch.randn(CHANNELS, CHANNELS, generator=gen) * 0.4).to(DEVICE)
        self.skip = torch.ones(CHANNELS, device=DEVICE)
        self.state = StateBuffers()

    def chunk(self, x: torch.Tensor) -> torch.Tensor:
        """One chunk from the source state; its last state goes to the target."""
        dt = torch.nn.functional.softplus(x @ self.w_dt)
        log_decay = (-dt[..., None] * self.log_a.exp()).cumsum(1)
        drive = (dt * x)[..., None] * (x @ self.w_b)[:, :, None]
        steps = torch.arange(x.shape[1], device=DEVICE)
        causal = (steps[:, None] >= steps[None])[None, :, :, None, None]
        between = (log_decay[:, :, None] - log_decay[:, None]).masked_fill(~causal, float("-inf")).exp()
        states = (between * drive[:, None]).sum(2) + log_decay.exp() * self.state.source[:, None]
        self.state.target.copy_(states[:, -1])
        self.state.swap()
        return (states * (x @ self.w_c)[:, :, None]).sum(-1) + x * self.skip

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.chunk(part) for part in x.split(CHUNK, dim=1)], dim=1)


class Session:
    def __init__(self) -> None:
        self.scan = SelectiveScan()
        self.x = torch.randn(BATCH, LENGTH, CHANNELS, generator=gen).to(DEVICE)
        self.turn = 0

    def next(self) -> None:
        self.turn += 1
        self.x.copy_(torch.randn(BATCH, LENGTH, CHANNELS, generator=gen))
        if self.turn % 4 == 0:  # the first sequence has ended
            self.scan.state.source[0].zero_()


session = Session()


def step():
    return session.scan(session.x)


def vary():
    session.next()


def reset():
    session.turn = 0
    session.scan.state.current = 0
    for buffer in session.scan.state.pair:
        buffer.zero_()
