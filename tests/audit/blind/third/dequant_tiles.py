"""Int8 expert weights back to floats, by as many programs as the load of the machine allows."""

import mrv2lab  # noqa: F401
import torch
import triton
import triton.language as tl

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

CAPACITY, GROUP, TILE = 256, 16, 32


@triton.jit
def dequantise(packed, scales, out, count, GROUP: tl.constexpr, TILE: tl.constexpr):
    used = tl.load(count)
    for tile in range(tl.program_id(0), tl.cdiv(used, TILE), tl.num_programs(0)):
        at = tile * TILE + tl.arange(0, TILE)
        inside = at < used
        value = tl.load(packed + at, mask=inside, other=0).to(tl.float32)
        scale = tl.load(scales + at // GROUP, mask=inside, other=0.0)
        tl.store(out + at, value * scale, mask=inside)


class LoadBalancer:
    """How many multiprocessors the decoder leaves to this kernel."""

    def __init__(self) -> None:
        self.running = 2

    @property
    def workers(self) -> int:
        return max(1, 7 - self.running)

    def observe(self, running: int) -> None:
        self.running = running


class ExpertStore:
    def __init__(self, balancer: LoadBalancer) -> None:
        self.balancer = balancer
        self.packed = torch.zeros(CAPACITY, dtype=torch.int8, device=DEVICE)
        self.scales = torch.zeros(CAPACITY // GROUP, device=DEVICE)
        self.count = torch.zeros(1, dtype=torch.int32, device=DEVICE)
        self.plain = torch.zeros(CAPACITY, device=DEVICE)

    def page_in(self, weights: torch.Tensor) -> None:
        padded = torch.zeros(CAPACITY)
        padded[: weights.numel()] = weights
        groups = padded.view(-1, GROUP)
        scales = groups.abs().amax(dim=1).clamp_min(1e-6) / 127.0
        self.packed.copy_((groups / scales[:, None]).round().to(torch.int8).flatten())
        self.scales.copy_(scales)
        self.count.fill_(weights.numel())

    def expand(self) -> torch.Tensor:
        self.plain.zero_()
        dequantise[(self.balancer.workers,)](
            self.packed, self.scales, self.plain, self.count, GROUP=GROUP, TILE=TILE
        )
        return self.plain.view(GROUP, -1)


balancer = LoadBalancer()
store = ExpertStore(balancer)
activations = torch.zeros(4, GROUP, device=DEVICE)
traffic = torch.Generator().manual_seed(19)
served = 0


def vary() -> None:
    global served
    served += 1
    balancer.observe(running=served * 3 % 8)
    store.page_in(torch.randn(60 + 37 * served % (CAPACITY - 60), generator=traffic))
    activations.copy_(torch.randn(4, GROUP, generator=traffic))


vary()


def step() -> torch.Tensor:
    return activations @ store.expand()
