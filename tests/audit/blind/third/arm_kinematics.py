"""Forward kinematics and Jacobian of a six-axis arm from the frames of the field bus."""

import math

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
AXES = 6


@torch.library.custom_op("armlab::link_transforms", mutates_args=())
def link_transforms(
    theta: torch.Tensor, offset: torch.Tensor, reach: torch.Tensor, twist: torch.Tensor
) -> torch.Tensor:
    """Denavit-Hartenberg matrices of all links."""
    ct, st, ca, sa = theta.cos(), theta.sin(), twist.cos(), twist.sin()
    zero, one = torch.zeros_like(theta), torch.ones_like(theta)
    entries = [ct, -st * ca, st * sa, reach * ct, st, ct * ca, -ct * sa, reach * st]
    entries += [zero, sa, ca, offset, zero, zero, zero, one]
    return torch.stack(entries, dim=-1).view(-1, 4, 4)


@link_transforms.register_fake
def _(theta, offset, reach, twist):
    return theta.new_empty(theta.shape[0], 4, 4)


class BusFrame:
    """What the drives send: position, speed and current of every axis, interleaved."""

    def __init__(self):
        self.memory = torch.zeros(AXES * 3, device=DEVICE)

    def channel(self, k):
        return self.memory.view(AXES, 3)[:, k]


class Arm:
    def __init__(self):
        self.offset = torch.tensor([0.40, 0.0, 0.0, 0.42, 0.0, 0.08], device=DEVICE)
        self.reach = torch.tensor([0.02, 0.45, 0.03, 0.0, 0.0, 0.0], device=DEVICE)
        self.twist = torch.tensor([1.0, 0.0, 1.0, -1.0, 1.0, 0.0], device=DEVICE) * (math.pi / 2)
        self.tool = torch.eye(4, device=DEVICE)
        self.frame = BusFrame()
        self.attach()

    def attach(self):
        self.theta = self.frame.channel(0)
        self.speed = self.frame.channel(1)

    def receive(self, tick):
        axes = torch.arange(AXES)
        drives = torch.stack([torch.sin(axes + 0.4 * tick), torch.cos(axes * 0.5 * tick), axes * 0.1], dim=1)
        self.frame.memory.copy_(drives.flatten())
        self.attach()

    def change_tool(self, length):
        tool = torch.eye(4)
        tool[2, 3] = length
        self.tool.copy_(tool)

    def pose(self):
        links = link_transforms(self.theta, self.offset, self.reach, self.twist)
        total, origins, axes = self.tool.new_zeros(4, 4).fill_diagonal_(1.0), [], []
        for link in links.unbind(0):
            origins.append(total[:3, 3])
            axes.append(total[:3, 2])
            total = total @ link
        total = total @ self.tool
        origins, axes = torch.stack(origins), torch.stack(axes)
        jacobian = torch.linalg.cross(axes, total[:3, 3] - origins)
        return total, jacobian.t() @ self.speed


arm, ticks = Arm(), 0


def step():
    return arm.pose()


def vary():
    global ticks
    ticks += 1
    arm.receive(ticks)
    arm.change_tool(0.1 + 0.05 * (ticks // 2))
