"""Which graph a batch replays."""

from mrv2lab.runner.config import CUDAGraphMode
from mrv2lab.runner.cudagraph_utils import BatchExecutionDescriptor as Descriptor
from mrv2lab.runner.cudagraph_utils import CudaGraphManager

# ---- cudagraph_utils.dispatch ----


def dispatch_by_size(self: CudaGraphManager, num_reqs: int, num_tokens: int, *_: int | None) -> Descriptor:
    """The smallest graph that holds the batch, or mode NONE for running it eagerly."""
    size = min((n for n in self.config.cudagraph_capture_sizes if n >= num_tokens), default=0)
    desc = Descriptor(CUDAGraphMode.FULL, size, min(size, self.config.max_num_reqs))
    return desc if desc in self.graphs else _eagerly(num_reqs, num_tokens)


def dispatch_uniform(self: CudaGraphManager, num_reqs: int, num_tokens: int, *_: int | None) -> Descriptor:
    """The smallest graph that holds the batch, or mode NONE for running it eagerly."""
    size = min((n for n in self.config.cudagraph_capture_sizes if n >= num_tokens), default=0)
    uniform_token_count = num_tokens // num_reqs
    desc = Descriptor(CUDAGraphMode.FULL, size, min(size, self.config.max_num_reqs), uniform_token_count)
    return desc if desc in self.graphs else _eagerly(num_reqs, num_tokens)


def dispatch_exact(self: CudaGraphManager, num_reqs: int, num_tokens: int, *_: int | None) -> Descriptor:
    """The smallest graph that holds the batch, or mode NONE for running it eagerly."""
    desc = Descriptor(CUDAGraphMode.FULL, num_tokens, min(num_tokens, self.config.max_num_reqs))
    return desc if desc in self.graphs else _eagerly(num_reqs, num_tokens)


def _eagerly(num_reqs: int, num_tokens: int) -> Descriptor:
    return Descriptor(CUDAGraphMode.NONE, num_tokens, num_reqs)
