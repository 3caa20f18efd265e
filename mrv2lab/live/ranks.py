"""Ranks that are inside the same step: each audits it in its turn, and meanwhile the others go along.

An audit runs a step many times, each rank's another number of times, and inside a step ranks wait for one
another. So a rank that audits says before each pass which one comes, and the others make that pass too, as
one of their own: what it writes is put back. That holds for tensor parallel ranks. Stages of a pipeline
hand on what they compute between steps, and each is audited by itself.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

import torch
from torch import distributed
from torch.utils._python_dispatch import _disable_current_modes

from mrv2lab.audit import AuditReport, Engine, EngineAudit
from mrv2lab.errors import AuditError

EXTENSION = "mrv2lab.live.ranked.Extension"  # a name: importing it watches this process
OF_CAPTURE = "self._IS_CAPTURING"
"""By it `CustomAllreduce` takes a path of its own for graphs, to the same sum. In an eager pass it is always
another one, so what else has changed comes first (`custom_all_reduce.py`, vLLM 0.23.0 and 0.26.0)."""

T = TypeVar("T")


class Ranks:
    """Those that are inside the same step, as one of them sees them.

    Args:
        group: theirs for the host, of `torch.distributed`; None: there is one rank.
    """

    def __init__(self, group: Any = None):
        self.group = group
        self.all = [0] if group is None else distributed.get_process_group_ranks(group)
        self.here = 0 if group is None else distributed.get_rank()

    @classmethod
    def of(cls, config: Any) -> "Ranks":
        """Those of a worker of vLLM with this `VllmConfig`."""
        if getattr(config.parallel_config, "tensor_parallel_size", 1) == 1:
            return cls()
        from vllm.distributed.parallel_state import get_tp_group

        return cls(get_tp_group().cpu_group)

    def tell(self, what: T, by: int) -> T:
        """What rank `by` passes; the others hear it."""
        if self.group is None:
            return what
        box = [what]
        with _disable_current_modes(), torch._C.DisableTorchFunction():  # no work of the step
            distributed.broadcast_object_list(box, src=by, group=self.group)
        return box[0]

    def gather(self, what: T) -> dict[int, T]:
        """What each rank passes."""
        return {rank: self.tell(what, rank) for rank in self.all}

    def agree(self, what: Any) -> bool:
        """Whether all pass the same, by its words. Of one message each: it is asked in every step."""
        if self.group is None:
            return True
        with _disable_current_modes(), torch._C.DisableTorchFunction():  # no work of the step
            ours = torch.tensor([_number(what)], device="cpu")
            each = [torch.empty_like(ours) for _ in self.all]
            distributed.all_gather(each, ours, group=self.group)
            return all(torch.equal(one, ours) for one in each)

    def audit(self, audit: EngineAudit, engine: Engine) -> AuditReport:
        """This rank's report of a step in which all are. AuditError: it cannot be audited here, or a pass
        that another rank asked for could not be made."""
        report, error = None, None
        for rank in self.all:
            if rank != self.here:
                error = self._go_along(audit, engine, rank) or error
                continue
            try:
                report = audit.step(self._telling(engine))
            except Exception as raised:
                error = raised
            finally:
                self.tell(None, rank)
        found = self.gather([f"{one.kind}: {one.subject}" for one in report.findings] if report else [])
        nodes = self.gather(report.num_nodes if report else 0)
        if report is None or error is not None:
            raise error or AuditError("no report")
        notes = list(report.notes)
        for rank in (rank for rank in self.all if rank != self.here):
            if report.findings and found[rank]:
                what = ", ".join(found[rank])
                notes.append(f"rank {rank} finds {what}, and what it computes is part of this")
            if nodes[rank] and nodes[rank] != report.num_nodes:
                notes.append(f"rank {rank} has {nodes[rank]} nodes, this one {report.num_nodes}")
        causes_first = sorted(report.findings, key=lambda one: one.subject == OF_CAPTURE)
        return replace(report, findings=tuple(causes_first), notes=tuple(notes))

    def _telling(self, engine: Engine) -> Engine:
        """The engine; before each pass it says which one."""

        def telling(name: str) -> Callable[[], Any]:
            def made() -> Any:
                self.tell(name, self.here)
                return getattr(engine, name)()

            return made

        if self.group is None:
            return engine
        return replace(engine, in_parts=False, run=telling("run"), eager=telling("eager"))

    def _go_along(self, audit: EngineAudit, engine: Engine, rank: int) -> Exception | None:
        """Make the passes that a rank asks for, until it is through."""
        passes, error = audit.passes, None
        passes.engine = engine
        known: dict[str, Callable[[], Any]] = {"run": passes.run, "eager": passes.eager}
        while (name := self.tell("", rank)) is not None:
            try:
                known[name]()
            except Exception as raised:
                error = AuditError(f"a pass of rank {rank} could not be made here: {raised}")
        return error


@cache
def _number(what: Any) -> int:
    """Of its words: a hash of Python's own is another one in each process."""
    return int.from_bytes(sha256(str(what).encode()).digest()[:8], "big", signed=True)


def apart(picked: Mapping[int, Any]) -> str:
    """Words for ranks that have not picked the same, by rank; empty if all have."""
    if len(set(picked.values())) <= 1:
        return ""
    return "ranks pick different keys: " + ", ".join(f"rank {at} {key}" for at, key in picked.items())


# ---- an engine whose workers are processes of their own ----


class Size(NamedTuple):
    """Of a graph."""

    num_reqs: int | None
    num_tokens: int


class Workers:
    """The steps of all ranks of an engine, asked for through vLLM. As `audit.Steps`.

    Args:
        llm: one that was started with `worker_extension_cls=EXTENSION`.
    """

    def __init__(self, llm: Any):
        self._llm = llm

    def _told(self) -> list[Any]:
        return self._llm.collective_rpc("audit_told")  # type: ignore[no-any-return]

    def captured(self) -> list[Size]:
        """The sizes that have a graph, the same on all ranks."""
        return [Size(*size) for size in self._told()[0]["captured"]]

    @property
    def scenario(self) -> str | None:
        raise AttributeError("ranks are told of it, and do not tell")

    @scenario.setter
    def scenario(self, name: str | None) -> None:
        self._llm.collective_rpc("audit_begin", args=(name,))

    @property
    def reports(self) -> dict[Any, AuditReport]:
        """By rank and number, those of one rank after those of the one before."""
        told = [(rank, text) for rank, one in enumerate(self._told()) for text in one["reports"]]
        return {(rank, at): AuditReport.of(json.loads(text)) for at, (rank, text) in enumerate(told)}

    def apart(self) -> list[str]:
        """The first step for which ranks have not picked the same key."""
        steps = [one["picked"] for one in self._told()]
        for number, picked in enumerate(zip(*steps, strict=False), 1):
            if told := apart(dict(enumerate(picked))):
                return [f"step {number}: {told}"]
        numbers = [len(keys) for keys in steps]
        is_same = len({*numbers}) == 1
        return [] if is_same else [f"ranks have made different numbers of steps: {numbers}"]

    @property
    def failed(self) -> list[str]:
        """Why steps could not be audited, each with its rank."""
        return [why for one in self._told() for why in one["failed"]]

    def left_out(self) -> list[str]:
        """What replays graphs and is not audited, and why."""
        return list(dict.fromkeys(why for one in self._told() for why in one["left_out"]))

    def why_none(self) -> str:
        """Why there is no report."""
        return "; ".join(dict.fromkeys(one["why_none"] for one in self._told()))
