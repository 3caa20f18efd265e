"""The audit as a plugin of vLLM: of what a server replays, with no code of it changed. `MRV2LAB_AUDIT` asks.

vLLM loads it in each of its processes, by the entry point group `vllm.general_plugins`. Most of them never
have a worker, so nothing of mrv2lab is imported before one is about to capture. It stands outside of the
package for the same reason: to import that where no NVIDIA GPU is sets Triton's interpreter.

Why the order holds. vLLM loads plugins before it resolves the class of a worker, in
`WorkerWrapperBase.init_worker` or earlier in the same process. So that class is attached to when its module
is imported, or at once where it has been. It captures later, and whoever makes a graph in vLLM says
`torch.cuda.CUDAGraph()` then; nobody imports that by name. What stands there meanwhile is what they make.
Read in 0.23.0 and 0.26.0.
"""

import importlib.util
import logging
import os
import sys
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

WORKER = "vllm.v1.worker.gpu_worker"
LOG = logging.getLogger("vllm.mrv2lab")  # vLLM gives what is below "vllm" a handler and a level


def attach() -> None:
    """Have the workers of this process audited, if that is asked for.

    `MRV2LAB_AUDIT` is `1`, or `every=N`: then each Nth replay of a key is held against an eager step as well.
    """
    asked = os.environ.get("MRV2LAB_AUDIT", "")
    name, _, number = asked.partition("=")
    if asked in ("", "0"):
        return
    if asked != "1" and not (name == "every" and number.isdecimal() and int(number)):
        LOG.warning("MRV2LAB_AUDIT=%s: nothing is audited; possible: 1, every=N", asked)
    elif WORKER in sys.modules:
        _attach_to(sys.modules[WORKER], int(number or 0))
    else:
        sys.meta_path.insert(0, _WhenImported(int(number or 0)))


class _WhenImported(MetaPathFinder):
    """Attaches to the module of workers behind its import."""

    def __init__(self, every: int):
        self.every = every

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != WORKER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _attach_to(module, self.every)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _attach_to(module: ModuleType, every: int) -> None:
    """From now on, what a worker captures is recorded, and what it replays is audited."""
    original = module.Worker.compile_or_warm_up_model
    if hasattr(original, "is_audited"):
        return

    @wraps(original)
    def compile_or_warm_up_model(worker: Any) -> Any:
        try:
            if sys.modules["torch"].version.cuda is None:
                raise RuntimeError("graphs are read through NVIDIA's driver")
            from mrv2lab.live.plugin import Served

            served = Served.of(worker, every)
        except Exception as error:
            LOG.warning("nothing is audited: %s", error)
            return original(worker)
        with served.capturing():
            times = original(worker)
        served.begin()
        return times

    compile_or_warm_up_model.is_audited = True  # type: ignore[attr-defined]
    module.Worker.compile_or_warm_up_model = compile_or_warm_up_model
