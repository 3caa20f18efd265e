"""Joint-space controller of a small fleet of simulated arms.

Safety features are a Flag set kept in a context variable, so that a
supervisor may tighten them for the ticks it is responsible for.
"""

import enum
from contextvars import ContextVar

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Safety(enum.Flag):
    NONE = 0
    JOINT_LIMIT = enum.auto()
    TORQUE_LIMIT = enum.auto()
    DAMPING = enum.auto()


active_safety: ContextVar[Safety] = ContextVar("active_safety", default=Safety.JOINT_LIMIT)


class Supervisor:
    """Escalates the safety set after consecutive reports of human presence."""

    LADDER = (
        Safety.JOINT_LIMIT,
        Safety.JOINT_LIMIT | Safety.DAMPING,
        Safety.JOINT_LIMIT | Safety.DAMPING | Safety.TORQUE_LIMIT,
    )

    def __init__(self):
        self.level = 0

    def report(self, human_near):
        self.level = min(self.level + 1, 2) if human_near else max(self.level - 1, 0)
        active_safety.set(self.LADDER[self.level])


class ArmFleet:
    def __init__(self, arms=8, joints=7, seed=17):
        self.rng = torch.Generator(device=DEVICE).manual_seed(seed)
        self.q = torch.zeros(arms, joints, device=DEVICE)
        self.dq = torch.zeros(arms, joints, device=DEVICE)
        self.goal = torch.randn(arms, joints, device=DEVICE, generator=self.rng)
        self.kp = torch.linspace(30.0, 10.0, joints, device=DEVICE)
        self.kd = torch.linspace(4.0, 2.0, joints, device=DEVICE)
        self.inertia = torch.linspace(2.0, 0.5, joints, device=DEVICE)
        self.q_max = torch.full((joints,), 2.5, device=DEVICE)
        self.tau_max = torch.full((joints,), 6.0, device=DEVICE)
        self.dt = 0.01

    def new_goal(self):
        self.goal.normal_(generator=self.rng)

    def torque(self):
        safety = active_safety.get()
        goal = self.goal
        if Safety.JOINT_LIMIT in safety:
            goal = torch.minimum(torch.maximum(goal, -self.q_max), self.q_max)
        tau = self.kp * (goal - self.q) - self.kd * self.dq
        if Safety.DAMPING in safety:
            tau = tau - 3.0 * self.dq
        if Safety.TORQUE_LIMIT in safety:
            tau = torch.minimum(torch.maximum(tau, -self.tau_max), self.tau_max)
        return tau

    def tick(self):
        tau = self.torque()
        self.dq.add_(tau / self.inertia, alpha=self.dt)
        self.q.add_(self.dq, alpha=self.dt)
        return tau, self.q.clone()


fleet = ArmFleet()
supervisor = Supervisor()
_presence = iter([False, False, True, True, False, True] * 8)


def step():
    return fleet.tick()


def vary():
    fleet.new_goal()
    supervisor.report(next(_presence))


def reset():
    fleet.q.zero_()
    fleet.dq.zero_()
