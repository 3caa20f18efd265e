from collections import OrderedDict
from contextlib import contextmanager
from types import SimpleNamespace

import torch
from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKEND = "cuda" if torch.cuda.is_available() else "emulated"


class Planner:
    def __init__(self, longest=6, rate=0.2):
        self.controls = torch.zeros(longest, device=DEVICE)
        self.state = torch.zeros(2, device=DEVICE)
        self.target = torch.zeros((), device=DEVICE)
        self.rate = rate

    def cost(self, controls):
        position, speed = self.state[0], self.state[1]
        cost = 0.05 * controls.square().sum()
        for u in controls:
            speed = speed + 0.3 * u
            position = position + 0.3 * speed
            cost = cost + (position - self.target).square()
        return cost

    def improve(self, horizon):
        controls = self.controls[:horizon].detach().requires_grad_()
        (grad,) = torch.autograd.grad(self.cost(controls), [controls])
        with torch.no_grad():
            self.controls[:horizon].sub_(self.rate * grad)
            return self.controls[:horizon].clone()

    @contextmanager
    def preserved(self):
        saved = self.controls.clone()
        yield
        self.controls.copy_(saved)


class Controller:
    def __init__(self, keep=2):
        self.planner, self.keep = Planner(), keep
        self.plans = OrderedDict()
        self.horizon, self.tick, self.captures = 3, 0, 0

    def plan(self, horizon):
        if horizon not in self.plans:
            with self.planner.preserved():
                self.planner.improve(horizon)
            self.plans[horizon] = graphs.capture(lambda: self.planner.improve(horizon), backend=BACKEND)
            self.captures += 1
            while len(self.plans) > self.keep:
                self.plans.popitem(last=False)
        self.plans.move_to_end(horizon)
        return self.plans[horizon]

    def control(self):
        graph = self.plan(self.horizon)
        graph.replay()
        return graph.outputs

    def eager(self):
        return self.planner.improve(self.horizon)

    def sense(self):
        self.horizon = (3, 4, 6, 3)[self.tick % 4]
        self.tick += 1
        self.planner.state.copy_(torch.tensor([0.3 * self.tick, -0.1]))
        self.planner.target.fill_(1.0 + 0.2 * self.tick)


def make_engine():
    controller = Controller()
    return SimpleNamespace(
        step=controller.control, vary=controller.sense, eager=controller.eager, reset=controller.plans.clear
    )
