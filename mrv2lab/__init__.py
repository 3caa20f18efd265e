"""mrv2lab: seven real failures and limits of vLLM's Model Runner V2, reproduced, repaired and measured.

Most are of one family: host code does not run when a CUDA graph is replayed, and what it decided while
the graph was captured stays frozen in it. Start with `notebooks/00_start_here.ipynb` or `mrv2lab doctor`.
"""

import ctypes
import importlib.util
import os
from pathlib import Path


def _has_gpu() -> bool:
    """Whether there is a driver and it may show a GPU. To ask torch would take a second in every process."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")


if not _has_gpu():
    # Then `@triton.jit` means Triton's interpreter. That is read where a kernel is defined; Triton itself has
    # some, so it has to be set before Triton is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")


def _triton_is_only_python() -> bool:
    """Whether Triton is here without its native library, as where there is no build of it."""
    triton = importlib.util.find_spec("triton")
    folders = triton.submodule_search_locations if triton else None
    return folders is not None and not any(list(Path(folder, "_C").glob("libtriton.*")) for folder in folders)


if _triton_is_only_python():
    from mrv2lab import libtriton

    libtriton.install()
