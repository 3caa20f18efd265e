"""Audits what a server replays, while it serves. `mrv2lab_vllm` attaches this to a worker of vLLM.

It changes no answer: a step is replayed as ever behind whatever was done with it. But what a capture has read
is kept, so where a stock server reads memory that has been freed, this one goes on reading what was there. An
audit that raises is a line of the log, and its key is left alone from then on. What nobody can catch ends the
server: a lost CUDA context, the kernel where memory runs out, a worker that the engine waits for no longer.
"""

import atexit
import gc
import json
import logging
import os
import platform
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import patch
from weakref import ref

import torch

from mrv2lab import lifeline
from mrv2lab.audit.evidence import kept
from mrv2lab.audit.memory import Saved, storage_of
from mrv2lab.audit.names import tensors_of
from mrv2lab.audit.results import is_off
from mrv2lab.errors import AuditError, counted
from mrv2lab.live import encoders, patterns
from mrv2lab.live.audit import FIRST, Steps, way_of, why_not, without_places
from mrv2lab.live.ranks import Ranks, apart
from mrv2lab.live.v2 import Kind, Met

LOG = logging.getLogger("vllm.mrv2lab")
COPIES = 12  # of the KV cache in host memory: before and behind each pass of an audit
MOST_AUDITS = 5  # of a key: what differs each time, and nothing is found, is not to cost an audit each time
TELL_EACH = 100  # checks
PIECES = (
    "vllm.compilation.cuda_graph.CUDAGraphWrapper",
    "vllm.compilation.breakable_cudagraph.BreakableCUDAGraphWrapper",
)
"""Hold the graphs of a step that is captured in pieces, and V1's whole ones (vLLM 0.23.0 to 0.33.0)."""


def _end(served: "ref[Served]") -> None:
    if (there := served()) is not None:  # an engine may have ended before its process
        LOG.info("audits ended: %s", there.totals())


@dataclass
class Turn:
    """How often a key was replayed, and at which replay it is looked at next."""

    replays: int = 0
    next: float = 1


@dataclass
class Served(Steps):
    """The steps that a server replays: the first of each key is audited, and each `every`th is checked."""

    every: int = 0
    rank: int = 0
    # by `BatchExecutionDescriptor`, of which a hash takes longer than all else that a replay is asked
    turns: dict[Any, Turn] = field(default_factory=lambda: defaultdict(Turn))
    found: dict[Any, list[int]] = field(default_factory=lambda: defaultdict(list))  # by each audit of a key
    changed: dict[Any, list[torch.Tensor]] = field(default_factory=dict)  # in place, by a step of a key
    num: Counter[str] = field(default_factory=Counter)  # of what `totals` says
    differ: str = ""  # which keys ranks have picked for the step of now, where they differ

    @classmethod
    def of(cls, worker: Any, every: int) -> "Served":
        """Those of a worker that is about to capture. AuditError: it cannot be audited, and why."""
        try:
            cls._check_worker(worker)
            why = ""
        except Exception as error:
            why = str(error) or type(error).__name__
        # One that is not audited would leave the others waiting.
        told = Ranks.of(worker.vllm_config).gather(why)
        if any(told.values()):
            raise AuditError(why or next(f"rank {rank}: {why}" for rank, why in told.items() if why))
        return cls(every=every, rank=worker.rank, runner=worker.model_runner)

    @staticmethod
    def _check_worker(worker: Any) -> None:
        """AuditError: it cannot be audited, and why."""
        if worker.model_config.enforce_eager:
            raise AuditError("the engine captures nothing (enforce_eager)")
        if why := why_not(worker.vllm_config):
            raise AuditError(why)
        way_of(worker.model_runner).check(worker.model_runner)
        from cuda.bindings import driver  # noqa: F401 - what reads graphs, asked for before one is captured

        if worker.vllm_config.kv_transfer_config is not None:  # what arrives meanwhile would be put back
            raise AuditError("a KV connector writes the cache while a step goes on (kv_transfer_config)")
        caches = (cache.untyped_storage() for _, cache in tensors_of(worker.model_runner.kv_caches))
        cached = sum({memory.data_ptr(): memory.nbytes() for memory in caches}.values())
        logits = getattr(getattr(worker.model_runner, "speculator", None), "draft_logits", None)
        needed = COPIES * (cached + (0 if logits is None else logits.nbytes))
        needed *= getattr(worker.vllm_config.parallel_config, "local_world_size", 1)  # of this host
        if needed > (there := lifeline.free()):
            told = f"{needed >> 30} GiB for copies of the KV cache, and {there >> 30} are there"
            raise AuditError(f"an audit needs host memory, {told}: try --kv-cache-memory-bytes 1G")

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Inside, the worker warms up and captures."""
        capture = partial(self._capture_watched, self.runner.capture_model)
        self._own_graph = torch.cuda.CUDAGraph
        with patterns.holding_graphs(), patch.object(self.runner, "capture_model", capture):
            yield

    def begin(self) -> None:
        """From now on the worker serves. All ranks audit, or none: one alone would wait for the others."""
        why = None
        try:
            if not (self.captured() or encoders.are_captured(self.runner)):
                why = self.why_none()
            elif hasattr(self, "_audit"):
                LOG.info("%s can be audited; reports: %s", counted(len(self.captured()), "key"), self.file)
                for told in self.left_out():
                    LOG.info("%s", told)
                self._withhold_patterns()
        except Exception as error:
            why = str(error) or type(error).__name__
        if not_here := [told for told in self.ranks.gather(why).values() if told is not None]:
            LOG.warning("nothing is audited: %s", why or not_here[0])
        elif hasattr(self, "_audit"):
            atexit.register(_end, ref(self))
            self.scenario = FIRST

    def _withhold_patterns(self) -> None:
        """What is served gives no patterns to what it allocates: only an audit needs them."""
        try:
            patterns.withhold(self._audit.passes.captures, self._audit.passes.session)
        except Exception as error:
            LOG.warning("graphs stay as slow as audits make them: %s", error)

    def _capture_watched(self, capture_model: Callable[..., int], **how: Any) -> int:
        """Where that fails, what it has captured is forgotten, and the runner captures by itself."""
        if how.get("profile_only"):  # of V2 in later releases: only measures memory, and is thrown away
            return capture_model(**how)
        owners = (self.runner, getattr(self.runner, "speculator", None) or self.runner)
        managers = [one for owner in owners for one in vars(owner).values() if hasattr(one, "run_fullgraph")]
        before = [(manager, vars(manager) | {"graphs": dict(manager.graphs)}) for manager in managers]
        try:
            return self.watch_capture(self.runner, partial(capture_model, **how))
        except Exception as error:
            if self.ranks.group is not None:  # the others do not capture again
                raise
            vars(self).pop("_audit", None)
            LOG.warning("nothing is audited: the capture failed while it was watched: %s", error)
        from vllm.platforms import current_platform

        # another pool: torch begins no capture in one of which memory is held, but no graph any more
        type(current_platform)._global_graph_pool = None
        for manager, attributes in before:
            vars(manager).clear()
            vars(manager).update(attributes, pool=current_platform.get_global_graph_pool())
        for kind in PIECES:  # each wrapper has asked for the pool when it was made
            module, _, name = kind.rpartition(".")
            for wrapper in [*getattr(getattr(sys.modules.get(module), name, None), "_all_instances", ())]:
                wrapper.clear_graphs()
                wrapper.graph_pool = current_platform.get_global_graph_pool()
        with patch.object(torch.cuda, "CUDAGraph", self._own_graph):
            return capture_model(**how)

    def pick(self, desc: Any) -> None:
        """A step is given a key; it is not looked at where ranks that are inside it have not the same."""
        self.differ = ""
        if self.ranks.agree(desc):
            return
        told = apart(self.ranks.gather(str(desc)))
        if not self.num["ranks apart"]:
            LOG.warning("%s", told)
            self._write(desc, apart=told)
        self.differ = told
        self.num["ranks apart"] += 1

    def skips(self, desc: Any) -> bool:
        """As for all steps; and where its turn has not come, as in nearly each step of a server."""
        if self.scenario is None or self.differ:
            return True
        turn = self.turns[desc]
        if is_early := turn.replays + 1 < turn.next:
            turn.replays += 1
        return is_early

    def meet(self, kind: Kind, prepared: dict[str, Any], replay: Callable[[], Any]) -> None:
        """Audit or check a step that is about to be replayed, if its turn has come: that of all ranks."""
        if prepared.get("dummy_run"):
            return
        key = prepared.get("batch_desc")
        turn = self.turns[key]
        turn.replays += 1
        is_first = turn.replays == 1
        if turn.replays < turn.next:  # pieces come here each time
            return
        step, why = None, None
        try:
            step = kind(self.runner, prepared, replay)
        except Exception as error:
            why = str(error) or type(error).__name__
        if all(self.ranks.gather(step is not None).values()):  # else the others would wait inside of it
            try:
                (self._audit_in_full if is_first else self._check)(step)  # type: ignore[arg-type]
            except Exception as error:
                why = str(error) or type(error).__name__
        if given_up := [told for told in self.ranks.gather(why).values() if told is not None]:
            self.changed.pop(key, None)
            self.num["failed"] += 1
            LOG.warning("%s is not audited any more: %s", key, why or given_up[0])
            self._write(key, error=why or given_up[0])
        if not all(self.ranks.gather(key in self.changed).values()):
            self.changed.pop(key, None)  # all check a key, or none
        is_checked = self.every and key in self.changed
        turn.next = (turn.replays // self.every + 1) * self.every if is_checked else inf

    def _audit_in_full(self, step: Met, apart: float | None = None) -> None:
        with patterns.given(self._audit.passes.session), kept() as seen:
            report = without_places(self.audit(step))
        # With images a step may write what this one has not: such keys are not checked.
        for evidence in () if getattr(self.runner, "supports_mm_inputs", False) else seen:
            written = [one.tensor for one in evidence.results.eager.written]
            self.changed[step.desc] = [tensor for tensor in written if not self._is_written_alike(tensor)]
        self.found[step.desc].append(len(report.findings))
        for finding in report.findings:
            LOG.warning("audit of %s: %s", report.step, " ".join(str(finding).split()))
        if not report.findings:
            LOG.info("audit of %s: nothing found (%s)", report.step, self.totals())
        self._write(step.desc, apart=apart, report=json.loads(report.to_json()))
        gc.collect()
        gc.freeze()  # as vLLM does once it stands: what audits keep would be looked through again and again

    def _check(self, step: Met) -> None:
        """Replay the step and run it eagerly, on the same contents; where that is apart, audit it."""
        begin, off, why = time.perf_counter(), 0.0, None
        try:
            with Saved(self.changed[step.desc]) as saved:
                step.prepare()
                # Copies: what it gives may lie where the eager pass writes.
                served = {path: tensor.clone() for path, tensor in tensors_of(step.run())}
                saved.restore()
                step.prepare()
                right = dict(tensors_of(step.eager()))
                off = max(is_off(served[path], right[path]) for path in right)
        except Exception as error:
            why = str(error) or type(error).__name__
        try:
            step.put_back()
        except Exception as error:
            why = why or str(error) or type(error).__name__
        found = self.found[step.desc]
        asks = bool(off and not any(found) and len(found) < MOST_AUDITS)
        told = self.ranks.gather((asks, why)).values()  # once, whatever has happened here
        if failed := [one for _, one in told if one is not None]:
            raise AuditError(why or failed[0])
        self.num["checks"] += 1
        self.num["us"] += int(1e6 * (time.perf_counter() - begin))
        self.num["apart"] += bool(off)
        if any(asked for asked, _ in told):
            LOG.warning("%s, replay %d: %.2g apart", self._name(step), self.turns[step.desc].replays, off)
            self._audit_in_full(step, off)
        if self.num["checks"] % TELL_EACH == 0:
            LOG.info("audits go on: %s", self.totals())

    def _is_written_alike(self, tensor: torch.Tensor) -> bool:
        """Attention writes keys and values of the same tokens to the same slots, however often it is run."""
        specs = [group.kv_cache_spec for group in self.runner.kv_cache_config.kv_cache_groups]
        # layers that differ in size have one of their own each
        specs = [one for spec in specs for one in getattr(spec, "kv_cache_specs", {"": spec}).values()]
        classes = [{base.__name__ for base in type(spec).__mro__} for spec in specs]
        cached = {storage_of(cache) for _, cache in tensors_of(self.runner.kv_caches)}
        return storage_of(tensor) in cached and all("AttentionSpec" in names for names in classes)

    def totals(self) -> str:
        """How much has been done."""
        num, found = self.num, [number for audits in self.found.values() for number in audits]
        told = f"{counted(len(found), 'step')} audited, {counted(sum(found), 'finding')}"
        told += f", {num['failed']} given up" if num["failed"] else ""
        told += f", ranks apart in {counted(num['ranks apart'], 'step')}" if num["ranks apart"] else ""
        if num["checks"]:
            told += f", {counted(num['checks'], 'check')} of {num['us'] / num['checks'] / 1e3:.1f} ms"
            told += f", {num['apart']} apart"
        return told

    @property
    def file(self) -> Path:
        """Where reports go: a file for each process and rank, of each host."""
        folder = Path(os.environ.get("MRV2LAB_AUDIT_DIR", "mrv2lab-audit"))
        return folder / f"{platform.node()}-{os.getpid()}-rank{self.rank}.jsonl"

    def _write(self, key: Any, **told: Any) -> None:
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a") as file:
                file.write(json.dumps({"key": str(key), "replay": self.turns[key].replays, **told}) + "\n")
        except OSError as error:
            LOG.warning("no report of %s: %s", key, error)
