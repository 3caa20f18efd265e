"""What this machine has, what that allows, and how to get what is missing."""

import os
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from mrv2lab.record import DATA, RECIPES, since
from mrv2lab.upstream.releases import RELEASES, TARGET, cached


@dataclass(frozen=True)
class Check:
    """One thing looked for; `found` is None where it is missing."""

    what: str
    found: str | None
    allows: str
    remedy: str


def examine() -> list[Check]:
    """Look at Python, packages and GPUs."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [
        Check("Python", sys.version.split()[0], "everything", ""),
        _package("torch", "rungs emulated and cuda", "make setup"),
        _package("triton", "the LoRA kernels: interpreted on a CPU, compiled on a GPU", "make setup"),
        _package("jupyterlab", "the workbook", "make lab"),
        _package("nbval", "checking the notebooks: pytest --nbval notebooks/", "make setup"),
        Check("CPU cores", str(os.cpu_count()), "rung emulated: every verdict, no speed", ""),
        Check(
            "CUDA GPU",
            ", ".join(gpus) or None,
            "rung cuda: real graphs and speeds",
            "run on a machine with an NVIDIA GPU; recorded runs are shown meanwhile",
        ),
        Check(
            "vLLM's Python",
            ", ".join(version for version in RELEASES if cached(version)) or None,
            "rung source: vLLM's own classes, every verdict, no speed; mrv2lab history",
            f"mrv2lab run --all --rung source fetches {TARGET}; mrv2lab history --all fetches the rest",
        ),
        _package("xgrammar", "importing vLLM's Python", "make source"),
        _package(
            "vllm",
            "with a GPU, rung vllm: the real engine; mrv2lab live",
            "make setup STACK=gpu, on a GPU host",
        ),
    ]


def stale_records(data: Path = DATA) -> list[str]:
    """A line for each record below a folder that other code made: which, and what has changed since."""
    kept = [path for recipe in RECIPES for path in recipe.kept(data)]
    return [f"{path.relative_to(data)}: {since(path)}" for path in kept if since(path)]


def _package(name: str, allows: str, remedy: str) -> Check:
    try:
        found: str | None = version(name)
    except PackageNotFoundError:
        found = None
    return Check(name, found, allows, remedy)
