from dataclasses import dataclass

import torch
from mrv2lab import graphs  # noqa: F401

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class Camera:
    image: torch.Tensor
    weight: torch.Tensor
    feature: torch.Tensor

    @classmethod
    def build(cls, phase, pixels=8, dim=4):
        n = torch.arange(pixels * dim, dtype=torch.float32)
        weight = torch.sin(n * 0.6 + phase).view(pixels, dim).to(DEVICE)
        return cls(torch.zeros(pixels, device=DEVICE), weight, torch.empty(dim, device=DEVICE))


class StereoHead:
    def __init__(self):
        self.cameras = [Camera.build(0.0), Camera.build(1.5)]
        self.streams = [torch.cuda.Stream() for _ in self.cameras]
        self.ready = torch.cuda.Event()
        self.done = [torch.cuda.Event() for _ in self.cameras]
        self.exposure = torch.ones((), device=DEVICE)

    def encode(self, camera, exposure):
        camera.feature.copy_(torch.tanh((camera.image * exposure) @ camera.weight))

    def fuse(self):
        main = torch.cuda.current_stream()
        exposure = 1.0 / (0.5 + self.exposure)
        self.ready.record(main)
        for camera, stream, done in zip(self.cameras, self.streams, self.done, strict=True):
            stream.wait_event(self.ready)
            with torch.cuda.stream(stream):
                self.encode(camera, exposure)
                done.record(stream)
        for done in self.done:
            main.wait_event(done)
        left, right = (camera.feature for camera in self.cameras)
        return left * right, (left - right).abs().sum()


head = StereoHead()
shots = iter(range(1, 10_000))


def step():
    return head.fuse()


def vary():
    k = next(shots)
    head.exposure.fill_(0.2 * k)
    for side, camera in enumerate(head.cameras):
        n = torch.arange(camera.image.numel(), dtype=torch.float32)
        camera.image.copy_(torch.cos(n * 0.4 * k + side))
