"""What this machine has, what one can do with it, and how to get what is missing."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import mrv2lab
from mrv2lab import prose
from mrv2lab.results import IN_CLONE, version_or_none
from mrv2lab.upstream.releases import RELEASES, TARGET, cached


@dataclass(frozen=True)
class Check:
    """One thing looked for; `found` is None where it is missing."""

    what: str
    found: str | None
    allows: str
    fits: bool = True  # another release may not


@dataclass(frozen=True)
class Ability:
    what: str  # in a few words
    command: str  # that does it
    needs: Sequence[str]  # names of checks
    extra: str = ""  # of this package, that brings what is neither torch nor Triton

    def lacks(self, checks: Sequence[Check]) -> list[str]:
        return [
            check.what for check in checks if check.what in self.needs and not (check.found and check.fits)
        ]

    def remedy(self, lacks: Sequence[str]) -> str:
        """The one command to get what it lacks."""
        extras = [stack()] if {"torch", "triton"} & {*lacks} and self.extra != "gpu" else []
        return install(*extras, *filter(None, [self.extra])) + " on a GPU host" * ("CUDA GPU" in lacks)


_TOLD = prose.beside(__file__)


def abilities() -> list[Ability]:
    """What can be done, here or elsewhere. The workbook is no part of an installed package."""
    found = (Ability(**told) for told in _TOLD["abilities"])
    return [ability for ability in found if IN_CLONE or ability.extra != "lab"]


def install(*extras: str) -> str:
    """The command that brings what these extras of the package name: in a clone, as pinned."""
    return str(_TOLD["targets"][extras[-1]]) if IN_CLONE else pip_install(*extras)


def pip_install(*extras: str) -> str:
    """The same far from a clone. The public index has torch for Linux with CUDA alone."""
    is_apart = "cpu" in extras and sys.platform == "linux"
    index = "--extra-index-url https://download.pytorch.org/whl/cpu " * is_apart
    return f"pip install {index}'mrv2lab[{','.join(extras)}]'"


def stack() -> str:
    """The extra with the torch that suits this machine."""
    return "gpu" if mrv2lab._has_gpu() else "cpu"


def examine() -> list[Check]:
    kept = [version for version in RELEASES if cached(version)]
    several = f"{kept[0]} to {kept[-1]} ({len(kept)})" if len(kept) > 2 else " and ".join(kept)
    special = {
        "Python": sys.version.split()[0],
        "CPU cores": str(os.cpu_count()),
        "CUDA GPU": _gpus(),
        "vLLM's Python": several or None,
    }
    found = {what: version_or_none(what) for what in _TOLD["allows"]} | special
    fits = {"vllm": found["vllm"] == TARGET}
    return [
        Check(what, found[what], allows, fits.get(what, True)) for what, allows in _TOLD["allows"].items()
    ]


def _gpus() -> str | None:
    if find_spec("torch") is None:
        return None
    import torch

    return ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())) or None
