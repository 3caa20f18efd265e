"""With CUDA 13 copies of RMM were missing in captured graphs, and results were wrong without an error. Since
a change for speed it copies by a call for batches, on any stream but the default one, and the driver refuses
that call on a stream that captures. The refusal leaves the capture valid: the graph is made and launched
without the copy, and a caller that does not look at the status is told nothing. Right is the single copy of
before.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import is_capturing

PROJECT = "RMM"
LINK = "https://github.com/rapidsai/rmm/issues/2518"
MECHANISM = "lost-kernel"
CAUSE = "memcpy_batch_async"
LINE = "return self.driver.memcpy_batch_async(dst, src)"
EXECUTORS = ("emulated", "cuda")

SUCCESS, STREAM_CAPTURE_UNSUPPORTED = 0, 900
CUDART_VERSION, ROUTE = 13000, 6


class Driver:
    """Two ways to copy. Both say by a status whether they did."""

    def memcpy_async(self, dst: torch.Tensor, src: torch.Tensor) -> int:
        dst.copy_(src)
        return SUCCESS

    def memcpy_batch_async(self, dst: torch.Tensor, src: torch.Tensor) -> int:
        if is_capturing():
            return STREAM_CAPTURE_UNSUPPORTED
        return self.memcpy_async(dst, src)


class MemoryResource:
    """Buffers, and copies between them."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.device, self.driver = fixed, device, Driver()

    def uvector(self, size: int, fill: float = 0.0) -> torch.Tensor:
        return torch.full((size,), float(fill), device=self.device)

    def copy(self, dst: torch.Tensor, src: torch.Tensor) -> int:
        if CUDART_VERSION < 13000 or (self.fixed and is_capturing()):
            return self.driver.memcpy_async(dst, src)
        return self.driver.memcpy_batch_async(dst, src)


class LocalSearch:
    """Moves a route down the slope of its cost and keeps where it came from."""

    def __init__(self, resource: MemoryResource):
        self.resource = resource
        self.route, self.previous = resource.uvector(ROUTE), resource.uvector(ROUTE)
        self.demand = resource.uvector(ROUTE, 1)

    def cost(self, route: torch.Tensor) -> torch.Tensor:
        return ((route - self.demand) ** 2).sum()

    def run_step(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.resource.copy(self.previous, self.route)
        self.route.sub_((self.route - self.demand) * 0.3)
        return self.route, self.cost(self.previous) - self.cost(self.route)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    search = LocalSearch(MemoryResource(fixed, device))
    orders = torch.Generator().manual_seed(0)

    def vary() -> None:
        search.demand.copy_(torch.rand(ROUTE, generator=orders))

    return SimpleNamespace(step=search.run_step, vary=vary, search=search)
