"""Spheres by ray casting: a tiny renderer for turntable previews.

Between frames the rig moves the lamp, breathes the radii and walks the camera along its rail.
"""

import math
from dataclasses import dataclass, field

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZE = 12


def vector(x, y, z):
    return torch.tensor([x, y, z], dtype=torch.float32, device=DEVICE)


def unit(v):
    return v / v.norm(dim=-1, keepdim=True).clamp_min(1e-6)


@dataclass
class Camera:
    eye: torch.Tensor = field(default_factory=lambda: vector(0.0, 0.0, -4.0))
    focal: torch.Tensor = field(default_factory=lambda: torch.full((), 1.4, device=DEVICE))

    def rays(self, grid):
        x, y = grid
        return unit(torch.stack([x, y, self.focal.expand_as(x)], -1))


@dataclass
class Scene:
    centres: torch.Tensor
    radii: torch.Tensor
    lamp: torch.Tensor
    camera: Camera = field(default_factory=Camera)


class Rig:
    """Moves things a little between frames."""

    def __init__(self, scene):
        self.scene, self.frame = scene, 0
        self.rail = vector(0.22, 0.05, 0.15)
        self.sway = vector(-0.6, 0.3, 0.0)

    def advance(self):
        self.frame += 1
        scene, camera = self.scene, self.scene.camera
        scene.radii *= 1.0 + 0.04 * math.sin(self.frame)
        scene.lamp += self.sway
        camera.focal += 0.02
        camera.eye = camera.eye + self.rail


class Renderer:
    def __init__(self, scene):
        self.scene = scene
        axis = torch.linspace(-1.0, 1.0, SIZE, device=DEVICE)
        self.grid = torch.meshgrid(axis, axis, indexing="xy")

    def shade(self):
        scene = self.scene
        rays = scene.camera.rays(self.grid).reshape(-1, 1, 3)
        origin = scene.camera.eye
        reach = origin - scene.centres
        half_b = (rays * reach).sum(-1)
        disc = half_b**2 - ((reach**2).sum(-1) - scene.radii**2)
        near = torch.where(disc > 0, -half_b - disc.clamp_min(0).sqrt(), torch.full_like(disc, 1e4))
        depth, which = near.min(1)
        point = origin + depth[:, None] * rays[:, 0]
        normal = unit(point - scene.centres[which])
        light = (normal * unit(scene.lamp - point)).sum(-1).clamp_min(0.0)
        hit = depth < 1e3
        image = torch.where(hit, 0.1 + 0.9 * light, torch.zeros_like(light))
        return image.view(SIZE, SIZE), torch.where(hit, depth, torch.zeros_like(depth)).view(SIZE, SIZE)


scene = Scene(
    centres=torch.tensor([[0.0, 0.0, 1.0], [-0.9, 0.4, 1.6], [0.8, -0.5, 0.7]], device=DEVICE),
    radii=torch.tensor([0.8, 0.6, 0.5], device=DEVICE),
    lamp=vector(2.0, 3.0, -3.0),
)
rig = Rig(scene)
renderer = Renderer(scene)


def step():
    image, depth = renderer.shade()
    return {"image": image, "depth": depth}


def vary():
    rig.advance()
