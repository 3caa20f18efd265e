"""An EMA teacher with warm-up of its decay, one update for each step of the student."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZE = 10


@dataclass(frozen=True)
class EmaConfig:
    decay: float = 0.95
    inv_gamma: float = 2.0
    power: float = 0.75
    start_after: int = 1


class Student:
    def __init__(self) -> None:
        self.params = torch.zeros(SIZE, device=DEVICE)
        self.set(0)

    def set(self, turn: int) -> None:
        self.params.copy_(torch.sin(torch.arange(SIZE, dtype=torch.float32) * 0.5 + turn))


class EmaTeacher:
    def __init__(self, student: Student, config: EmaConfig) -> None:
        self.student, self.config = student, config
        self.shadow = student.params.clone()
        self.updates = torch.zeros((), device=DEVICE)
        self.num_calls = 0

    def clear(self) -> None:
        self.shadow.copy_(self.student.params)
        self.updates.zero_()

    def decay(self) -> torch.Tensor:
        c = self.config
        effective = (self.updates - c.start_after).clamp(min=0)
        return (1 - (1 + effective / c.inv_gamma) ** -c.power).clamp(max=c.decay)

    def update(self) -> torch.Tensor:
        self.num_calls += 1
        self.updates.add_(1)
        self.shadow.add_((self.student.params - self.shadow) * (1 - self.decay()))
        return self.shadow


class Loop:
    def __init__(self) -> None:
        self.student = Student()
        self.teacher = EmaTeacher(self.student, EmaConfig())
        self.turn = 0
        self.history: list[int] = []

    def train(self) -> None:
        self.turn += 1
        self.history.append(self.teacher.num_calls)
        self.student.set(self.turn)

    def restart(self) -> None:
        self.turn = 0
        self.history = []
        self.student.set(0)
        self.teacher.clear()


def make_engine():
    loop = Loop()
    return SimpleNamespace(step=loop.teacher.update, vary=loop.train, reset=loop.restart)


_engine = make_engine()
step, vary, reset = _engine.step, _engine.vary, _engine.reset
