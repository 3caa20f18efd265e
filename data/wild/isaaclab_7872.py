"""With wheels of PyTorch for CUDA 13 a simulation ran eagerly where it had been replayed, and nothing said
so. The manager captures by the CUDA runtime that PyTorch has loaded, and looks for it by the name of release
12 or by one without a release; neither is loaded now, and without a runtime it does not capture. Repaired by
asking for the release that PyTorch reports.
"""

from functools import partial
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "Isaac Lab"
LINK = "https://github.com/isaac-sim/IsaacLab/pull/7872"
MECHANISM = "silent-eager"
CAUSE = "CUDART_NAMES"
LINE = 'CUDART_NAMES = ("libcudart.so.12", "libcudart.so")'
EXECUTORS = ("emulated", "cuda")
SYMPTOM = "speed"

CUDART_NAMES = ("libcudart.so.12", "libcudart.so")
TORCH_VERSION_CUDA = "13.0"  # of the wheels
LOADED = {"libc10_cuda.so", "libcudart.so.13"}  # with them
JOINTS, DT, STIFFNESS, DAMPING = 4, 0.02, 40.0, 2.0


class NewtonManager:
    """Joints with drives, stepped by a graph where there is a runtime to capture it."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.graph = fixed, None
        self.capture = partial(capture, backend="cuda" if device.type == "cuda" else "emulated")
        self.joint_q = torch.zeros(JOINTS, device=device)
        self.joint_qd, self.joint_target = torch.zeros_like(self.joint_q), torch.ones_like(self.joint_q)
        self.initialize_solver()

    def load_cudart(self) -> str | None:
        names = CUDART_NAMES
        if self.fixed:
            names = (f"libcudart.so.{TORCH_VERSION_CUDA.split('.')[0]}",)
        return next((name for name in names if name in LOADED), None)

    def initialize_solver(self) -> None:
        if self.load_cudart() is not None:
            self.graph = self.capture(self.simulate)

    def simulate(self) -> torch.Tensor:
        drive = (self.joint_target - self.joint_q) * STIFFNESS - self.joint_qd * DAMPING
        self.joint_qd.add_(drive * DT)
        self.joint_q.add_(self.joint_qd * DT)
        return self.joint_q

    def step(self) -> torch.Tensor:
        if self.graph is None:
            return self.simulate()
        self.graph.replay()
        return self.joint_q


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    manager = NewtonManager(fixed, device)
    actions = torch.Generator().manual_seed(0)

    def vary() -> None:
        manager.joint_target.copy_(torch.rand(JOINTS, generator=actions))

    return SimpleNamespace(
        step=manager.step, eager=manager.simulate, own_graphs=True, vary=vary, manager=manager
    )
