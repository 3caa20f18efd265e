"""A module keeps an intermediate tensor in an attribute, and the reader of that attribute saw what had been
put there before the replay, not what the replay computed. The forward assigns the attribute in Python: it
did so once, at capture, and a replay assigns nothing. The way out is a buffer that the forward copies into
and nobody replaces.
"""

from types import SimpleNamespace

import torch

PROJECT = "PyTorch"
LINK = "https://github.com/pytorch/pytorch/issues/114844"
MECHANISM = "left-behind"
CAUSE = "self.x"
LINE = "self.x = hidden"
EXECUTORS = ("emulated", "cuda")

ROWS, INNER = 2, 4


class Model:
    """Two layers; what lies between them is kept for whoever asks."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed = fixed
        self.weight = torch.arange(ROWS * INNER, dtype=torch.float32, device=device).view(ROWS, INNER)
        self.x = torch.zeros(ROWS, INNER, device=device)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = inputs @ self.weight
        if self.fixed:
            self.x.copy_(hidden)
        else:
            self.x = hidden
        return hidden.sum(1)

    def forget(self) -> None:
        """What a caller does who wants no intermediate of an earlier request."""
        if self.fixed:
            self.x.zero_()
        else:
            self.x = torch.zeros_like(self.x)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    model = Model(fixed, device)
    inputs = torch.ones(ROWS, ROWS, device=device)
    kept: list[torch.Tensor] = []

    def vary() -> None:
        kept.append(model.x.clone())
        model.forget()
        inputs.fill_(1.0 + len(kept))

    def finish() -> torch.Tensor:
        return torch.stack([*kept[1:], model.x])  # the first is of the start-up

    return SimpleNamespace(step=lambda: model.forward(inputs), vary=vary, finish=finish, model=model)
