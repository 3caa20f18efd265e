# renderer: splats in front of the near plane are blended
import torch

torch.manual_seed(16)
PIX, N = 6, 4


class Splat:
    def __init__(self, i, depth):
        self.depth, self.name, self.i = depth, f"splat{i}", i


scene = [Splat(i, 1.0 + i) for i in range(N)]
colour = torch.rand(N, 3, device="cpu")
centre = torch.rand(N, device="cpu") * PIX
depth_dev = torch.tensor([s.depth for s in scene], device="cpu")
NEAR = 1.5
grid = torch.arange(PIX, device="cpu").float()
overlay = {"fps": 60, "selected": None}


def blend(image, i, keep):
    a = 0.8 * torch.exp(-((grid - centre[i]) ** 2)) * keep
    return image * (1 - a)[:, None] + a[:, None] * colour[i]


def step():
    image = torch.zeros(PIX, 3, device="cpu")
    for s in scene:
        keep = (depth_dev[s.i] > NEAR).float()
        image = blend(image, s.i, keep)
    return image


def vary():
    overlay["fps"] -= 1
    overlay["selected"] = scene[overlay["fps"] % N].name
    centre.copy_(torch.rand(N) * PIX)
    colour.mul_(0.95)
    for s in scene:
        s.depth += -0.7 if s.i % 2 else 0.4
        depth_dev[s.i] = s.depth
