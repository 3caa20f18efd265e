"""Soft bodies moved wrongly: a captured conjugate-gradient solver seemed to converge in five iterations
while its residual stayed large. The preconditioner launches on the legacy default stream, and the stream
of the capture was of the kind that does not wait for that one: such launches are neither recorded nor
refused, and replays use the preconditioner's result of the capture. Repaired with a stream for which they
end the capture, so that the solver falls back to eager steps.
"""

from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import _disable_current_modes

from mrv2lab.graphs import CaptureError, capture, is_capturing

PROJECT = "libuipc"
LINK = "https://github.com/spiriMirror/libuipc/pull/472"
MECHANISM = "lost-kernel"
CAUSE = "on_legacy_stream"
LINE = "on_legacy_stream(precondition, device, capture_waits_for_it=fixed)"
EXECUTORS = ("emulated", "cuda")

SIZE = 4


def on_legacy_stream(
    kernel: Callable[[], object], device: torch.device, *, capture_waits_for_it: bool
) -> None:
    """A launch that names no stream, as of CUDA C++."""
    if is_capturing() and capture_waits_for_it:
        raise CaptureError("operation would make the legacy stream depend on a capturing stream")
    if device.type == "cuda":
        with torch.cuda.stream(torch.cuda.default_stream()):
            kernel()
    else:
        with _disable_current_modes():
            kernel()


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    backend = "cuda" if device.type == "cuda" else "emulated"
    diagonal = torch.arange(1.0, SIZE + 1, device=device)
    residual, z = torch.ones(SIZE, device=device), torch.zeros(SIZE, device=device)
    solver = SimpleNamespace(graph=None, is_eager=False)

    def precondition() -> None:
        torch.div(residual, diagonal, out=z)

    def iterate() -> torch.Tensor:
        on_legacy_stream(precondition, device, capture_waits_for_it=fixed)
        alpha = (residual * z).sum() / (z * z * diagonal).sum()
        return alpha * z

    def solve() -> torch.Tensor:
        if solver.graph is None and not solver.is_eager:
            iterate()  # warms up
            try:
                solver.graph = capture(iterate, backend=backend)
            except CaptureError:
                solver.is_eager = True
        if solver.is_eager:
            return iterate()
        solver.graph.replay()
        return solver.graph.outputs

    def vary() -> None:
        residual.add_(torch.linspace(-1, 2, SIZE, device=device))

    return SimpleNamespace(step=solve, eager=iterate, own_graphs=True, vary=vary, solver=solver)
