"""Step3-VL with encoder graphs: an image's embedding, kept in the cache, came to stand for another image.
What a graph of the encoder returns lies in a buffer that its next replay overwrites, so it is to be cloned
before it is kept. For an image without local patches a shortcut returns the buffer itself. Proposed
repair: a clone there too.
"""

from types import SimpleNamespace

import torch

PROJECT = "vLLM"
LINK = "https://github.com/vllm-project/vllm/pull/52115"
MECHANISM = "overwritten-output"
CAUSE = "parts[0]"
LINE = "return parts[0]"
EXECUTORS = ("emulated", "cuda")

TOKENS, PIXELS, HIDDEN = 4, 6, 3


def postprocess(output: torch.Tensor, patches: list[torch.Tensor], fixed: bool) -> torch.Tensor:
    """The embedding of an image, to be kept: its local patches and the whole."""
    parts = [*patches, output]
    if len(parts) > 1:
        return torch.cat(parts)
    if fixed:
        return parts[0].clone()
    return parts[0]


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    numbers = torch.Generator().manual_seed(0)
    pixels = torch.ones(TOKENS, PIXELS, device=device)
    weight = torch.linspace(-1, 1, PIXELS * HIDDEN, device=device).reshape(PIXELS, HIDDEN)
    engine = SimpleNamespace(output=None, served=0, cache=[])

    def encode() -> torch.Tensor:
        engine.output = (pixels @ weight).relu()
        return engine.output

    def keep() -> list[torch.Tensor]:
        engine.cache.append(postprocess(engine.output, [], fixed))
        return engine.cache

    def vary() -> None:
        if engine.served:
            keep()
        engine.served += 1
        pixels.copy_(torch.rand(TOKENS, PIXELS, generator=numbers))

    return SimpleNamespace(step=encode, vary=vary, finish=keep, engine=engine)
