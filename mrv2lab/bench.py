"""How long device work takes. Only ever asked on a GPU: the emulator has no speed."""

from collections.abc import Callable

import triton

from mrv2lab.errors import BadInput
from mrv2lab.graphs import resolve
from mrv2lab.results import Latency


def measure(fn: Callable[[], object], backend: str) -> Latency:
    """Time `fn` with CUDA events, the L2 cache cleared before each run (`triton.testing.do_bench`).

    Args:
        fn: zero-argument callable that issues device work; it is run many times.
        backend: must be `cuda`.

    Raises:
        BadInput: on the emulated backend, whose times would mean nothing.
    """
    if resolve(backend) != "cuda":
        raise BadInput("latency is measured on a GPU only; the emulator models capture, and no speed")
    median, p20, p80 = triton.testing.do_bench(fn, warmup=100, rep=400, quantiles=[0.5, 0.2, 0.8])
    return Latency(median=median, p20=p20, p80=p80)
