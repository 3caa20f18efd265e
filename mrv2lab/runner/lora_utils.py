"""Which numbers of adapters graphs are captured for. Mirrors `vllm/v1/worker/gpu/lora_utils.py`.

Since 0.24 (#35536) a graph's key says how many adapters its batch uses. Before, no key did.
"""

from collections.abc import Sequence

from mrv2lab.runner.config import RunnerConfig


def get_captured_lora_counts(max_loras: int, specialize: bool) -> list[int]:
    """Sizes of grids: powers of 2 and `max_loras` + 1, or that one alone. Mirrors `vllm/lora/utils.py`."""
    counts = range(1, max_loras + 2) if specialize else [max_loras + 1]
    return [n for n in counts if n & (n - 1) == 0 or n == max_loras + 1]


def get_lora_capture_cases(config: RunnerConfig) -> list[int]:
    """Numbers of adapters that have graphs of their own, 0 first."""
    return [0, *get_captured_lora_counts(config.max_loras, config.specialize_active_lora)]


def effective_num_loras(cases: Sequence[int], num_active_loras: int) -> int:
    """The smallest of `cases` that holds so many, else the largest. Mirrors `_resolve_effective_loras`."""
    return min((n for n in cases if n >= num_active_loras), default=max(cases))
