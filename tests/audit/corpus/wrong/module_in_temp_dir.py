"""A settings module written to a temporary directory and imported; its global changes."""

import importlib
import sys
import tempfile
from pathlib import Path

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["SCALE", "settings", "scale"]


def settings_module():
    folder = tempfile.mkdtemp()
    name = f"lab_settings_{Path(folder).name}"
    (Path(folder) / f"{name}.py").write_text("SCALE = 2.0\n\ndef scaled(x):\n    return x * SCALE\n")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


def make():
    torch.manual_seed(0)
    settings, x = settings_module(), torch.randn(4, device=DEVICE)

    def step():
        return settings.scaled(x) + 1  # HERE

    def vary():
        settings.SCALE *= 3

    return {"step": step, "vary": vary, "reset": None}
