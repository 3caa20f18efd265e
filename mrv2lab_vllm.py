"""Audit and guard as a plugin of vLLM: of what a server replays, with no code of it changed. `MRV2LAB_AUDIT`
and `MRV2LAB_GUARD` ask.

vLLM loads it in each of its processes, by the entry point group `vllm.general_plugins`. Most of them never
have a worker, so nothing of mrv2lab is imported before one is about to capture. It stands outside of the
package for the same reason: to import that where no NVIDIA GPU is sets Triton's interpreter.

Why the order holds. Executors, but for elastic expert parallelism, ask a `WorkerWrapperBase` by name to warm
up, and it asks its worker. Plugins
are loaded in its `init_worker`, or earlier in the same process, so what is set on its class here is found.
Captures come later, but for V1's drafts of Gemma 4, and whoever makes a graph in vLLM says
`torch.cuda.CUDAGraph()` then; nobody imports that by name. What stands there meanwhile is what they make.
Read in 0.23.0 to 0.33.0.
"""

import logging
import os
import sys
from contextlib import ExitStack
from typing import Any

LOG = logging.getLogger("vllm.mrv2lab")  # vLLM gives what is below "vllm" a handler and a level
TRIED = ("0.23", "0.24", "0.25", "0.26")  # releases


def attach() -> None:
    """Have the workers of this process audited or guarded, or both, if that is asked for.

    `MRV2LAB_AUDIT` is `1`, or `every=N`: then each Nth replay of a key is held against an eager step as well.
    `MRV2LAB_GUARD` is `warn` or `refuse`.
    """
    asked, guard = os.environ.get("MRV2LAB_AUDIT", ""), os.environ.get("MRV2LAB_GUARD", "")
    name, _, number = asked.partition("=")
    audits, guards = asked not in ("", "0"), guard not in ("", "0", "off")
    if audits and asked != "1" and not (name == "every" and number.isdecimal() and int(number)):
        LOG.warning("MRV2LAB_AUDIT=%s: nothing is audited; possible: 1, every=N", asked)
        audits = False
    if guards and guard not in ("warn", "refuse"):
        LOG.warning("MRV2LAB_GUARD=%s: nothing is guarded; possible: warn, refuse", guard)
        guards = False
    if not (audits or guards):
        return
    what = " or ".join(["audited"] * audits + ["guarded"] * guards)
    try:
        from vllm import __version__
        from vllm.v1.worker.worker_base import WorkerWrapperBase
    except Exception as error:  # vLLM guards the loading of a plugin, and not its call
        LOG.warning("nothing is %s: %s", what, error)
        return
    if ".".join(__version__.split(".")[:2]) not in TRIED:
        tried = "audits were" if audits else "the guard was"
        LOG.warning("%s tried with vllm %s; this is %s", tried, ", ".join(TRIED), __version__)
    if audits and "torch" in sys.modules:  # as it is where vLLM runs
        see_allocations()
    every, mode = int(number or 0) if audits else None, guard if guards else ""
    WorkerWrapperBase.compile_or_warm_up_model = lambda self: _warm_up(self.worker, every, mode)


def see_allocations() -> None:
    """From now on code that torch.compile makes, or loads, allocates where a dispatch mode sees it, if there
    is one: when they are imported, Inductor's modules look up what allocates past the dispatcher."""
    import torch

    guards: Any = torch._C._dynamo.guards
    own, modes = guards._empty_strided_cuda, torch._C._len_torch_dispatch_stack

    def empty_strided(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        if not modes():  # nobody looks on, as in nearly every step of a server
            return own(size, stride, dtype)  # type: ignore[no-any-return]
        return torch.empty_strided(size, stride, dtype=dtype, device="cuda")

    guards._empty_strided_cuda = empty_strided


def _warm_up(worker: Any, every: int | None, mode: str = "") -> Any:
    """Let a worker warm up and capture; what it captures is recorded, and what it replays then audited
    (unless `every` is None) and guarded (if there is a `mode`)."""
    guard: Any = None
    stack = ExitStack()
    try:
        if mode:
            _has_driver()
            from mrv2lab.live.guarded import ServerGuard

            guard = worker.mrv2lab_guard = stack.enter_context(ServerGuard(mode, worker))
    except Exception as error:
        LOG.warning("nothing is guarded: %s", error)
    with stack:
        times = worker.compile_or_warm_up_model() if every is None else _warm_up_audited(worker, every)
    if guard is not None:
        guard.serve()
    return times


def _has_driver() -> None:
    if sys.modules["torch"].version.cuda is None:
        raise RuntimeError("graphs are read through NVIDIA's driver")


def _warm_up_audited(worker: Any, every: int) -> Any:
    try:
        _has_driver()
        from mrv2lab.live.plugin import Served

        served = worker.mrv2lab_audit = Served.of(worker, every)
    except Exception as error:
        LOG.warning("nothing is audited: %s", error)
        return worker.compile_or_warm_up_model()
    with served.capturing():
        times = worker.compile_or_warm_up_model()
    served.begin()
    return times
