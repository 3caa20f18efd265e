"""Online calibration of a drafter: its temperature and bias follow the target, one update a batch."""

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

BATCH, VOCAB = 6, 10


class DraftCalibration(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.zeros(()))
        self.bias = nn.Parameter(torch.zeros(VOCAB))

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return (logits + self.bias) * torch.exp(-self.log_temperature)


class OnlineTuner:
    def __init__(self) -> None:
        self.calibration = DraftCalibration().to(DEVICE)
        self.optimiser = torch.optim.SGD(self.calibration.parameters(), lr=0.5, momentum=0.8)
        self.draft = torch.zeros(BATCH, VOCAB, device=DEVICE)
        self.target = torch.zeros(BATCH, VOCAB, device=DEVICE)
        self.updates = 0
        self.last_loss: torch.Tensor | None = None

    def update(self) -> torch.Tensor:
        self.optimiser.zero_grad(set_to_none=True)
        logits = self.calibration(self.draft)
        loss = F.kl_div(logits.log_softmax(-1), self.target.softmax(-1), reduction="batchmean")
        loss.backward()
        self.optimiser.step()
        self.updates += 1
        self.last_loss = loss.detach()
        return self.last_loss

    def describe(self) -> str:
        return f"{self.updates} updates of {sum(p.numel() for p in self.calibration.parameters())} numbers"

    def forget(self) -> None:
        with torch.no_grad():
            for parameter in self.calibration.parameters():
                parameter.zero_()
                momentum = self.optimiser.state[parameter].get("momentum_buffer")
                if momentum is not None:
                    momentum.zero_()


tuner = OnlineTuner()
batches = torch.Generator().manual_seed(43)
history: list[str] = []


def load() -> None:
    target = 2.0 * torch.randn(BATCH, VOCAB, generator=batches)
    tuner.target.copy_(target)
    tuner.draft.copy_(
        0.5 * target + 0.3 * torch.randn(BATCH, VOCAB, generator=batches) + torch.arange(VOCAB) / 8
    )


load()
tuner.update()
tuner.forget()


def step() -> tuple[torch.Tensor, ...]:
    loss = tuner.update()
    calibrated = tuner.calibration(tuner.draft).detach()
    return loss, calibrated, tuner.calibration.bias.detach()


def vary() -> None:
    history.append(tuner.describe())
    load()


def reset() -> None:
    tuner.forget()
