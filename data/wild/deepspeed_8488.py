"""Every SDXL image after the first was denoised with the pooled embeddings and time ids of the first prompt.
The pipeline returns a plausible image, so nothing reports an error. Before a replay the arguments of the
call are copied into those of the capture, but only arguments that are tensors; SDXL passes these two in a
dict. The repair walks dicts, lists and tuples.
"""

from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import torch

PROJECT = "DeepSpeed"
LINK = "https://github.com/deepspeedai/DeepSpeed/pull/8488"
MECHANISM = "stale-input"
CAUSE = "text_embeds"
LINE = "if isinstance(value, torch.Tensor):"
EXECUTORS = ("emulated", "cuda")

DIM = 4


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    def call(number: float) -> dict[str, Any]:
        """The arguments of one call."""
        sample, text_embeds = (torch.full((DIM,), number + i, device=device) for i in range(2))
        return {"sample": sample, "added_cond_kwargs": {"text_embeds": text_embeds}}

    static_kwargs = call(1.0)
    numbers = count(2)

    def tensors(kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
        for value in kwargs.values():
            if isinstance(value, torch.Tensor):
                yield value
            elif fixed:
                yield from tensors(value)

    def unet() -> torch.Tensor:
        return static_kwargs["sample"] * static_kwargs["added_cond_kwargs"]["text_embeds"]

    def vary() -> None:
        for static, given in zip(tensors(static_kwargs), tensors(call(next(numbers))), strict=True):
            static.copy_(given)

    return SimpleNamespace(step=unet, vary=vary, static_kwargs=static_kwargs)
