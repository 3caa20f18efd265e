"""Ten puzzles of two minutes each, on a bare tape of a few operations: make this graph right.

A reader writes `captured(buffers)`, the step; `before(buffers, new)`, what Python does before each replay;
`after(buffers, result)`, what is kept. The engine writes `x` in between: only a graph sees it.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from mrv2lab import journal, looks
from mrv2lab.cases.exercises.shared import put_back
from mrv2lab.cases.exercises.watch import Watch, require_function
from mrv2lab.errors import BadInput, CaptureError, choose
from mrv2lab.graphs import resolve
from mrv2lab.graphs.border import Border
from mrv2lab.graphs.memory import is_host
from mrv2lab.graphs.streams import other_orders
from mrv2lab.graphs.work import counted, measured
from mrv2lab.lifeline import memory_limit
from mrv2lab.limits import by_itself, time_limit
from mrv2lab.puzzles.picture import show, told
from mrv2lab.puzzles.tape import CPU_S, EAGER, PUZZLES, SEEN, graphs_of, make_buffers, steps

__all__ = ["check", "show"]


@dataclass(frozen=True, repr=False)
class Outcome:
    """What a check saw. `verdict` is one of the workbook's words, `seen` what it rests on."""

    puzzle: str
    verdict: str
    seen: str
    rung: str

    def __repr__(self) -> str:
        told = PUZZLES[self.puzzle]
        why = [f"{told.why} ({told.see})"] if self.verdict == "correct" else []
        return "\n".join([f"{told.title}: {self.verdict}", self.seen, *why, self.rung])

    def _repr_html_(self) -> str:
        hints = () if self.verdict == "correct" else PUZZLES[self.puzzle].hints
        return looks.part(looks.piece("outcome", self.verdict, repr(self).splitlines(), hints))


class _Result(Watch):
    def left(self, result: Any, *args: Any) -> str | None:
        return None if isinstance(result, torch.Tensor) else "return the tensor that holds the result"


@by_itself
def check(
    puzzle: str, captured: Callable[..., Any], before: Any = None, after: Any = None, *, backend: str = "auto"
) -> Outcome:
    """Judge an answer, and have it noted if it is right. Raises BadInput where there is nothing to judge."""
    choose("puzzle", puzzle, list(PUZZLES))
    for fn in (captured, before, after):
        if fn is not None:
            require_function(fn)
    if after and puzzle != "lent_output":
        raise BadInput(f"{puzzle} has no `after`: what counts is what the graph leaves in its own result")
    rung = resolve(backend)
    with put_back() as changed, ExitStack() as border:
        if rung == "emulated":
            border.enter_context(_NotNumpys())
            border.enter_context(Border(is_open=True))
        try:
            with time_limit(CPU_S, puzzle), memory_limit(), counted():
                verdict, seen = _judged(puzzle, captured, before, after, rung)
        except Exception as error:
            verdict = "crash" if isinstance(error, CaptureError) else "failed"
            seen = told(error, captured, before, after)
            if isinstance(error, AttributeError) and type(error.obj) is SimpleNamespace:
                seen += f"; here are {', '.join(vars(error.obj))}"
    if changed:
        verdict, seen = "failed", f"replaced {', '.join(changed)}, which was put back: change the graph only"
    if verdict == "correct":
        journal.note("puzzles", puzzle)
    machine = torch.cuda.get_device_name() if rung == "cuda" else "a model of capture on the CPU"
    return Outcome(puzzle, verdict, seen, f"rung: {rung} ({machine})")


def _judged(puzzle: str, captured: Any, before: Any, after: Any, backend: str) -> tuple[str, str]:
    if puzzle == "stream" and backend == "cuda":  # a GPU may go right by luck
        modelled = _judged(puzzle, captured, before, after, "emulated")
        if modelled[0] != "correct":
            return modelled
    buffers, issue, prepare = make_buffers(backend), _Result(captured), Watch(before or (lambda *_: None))
    x, count = buffers.x, buffers.count  # whatever these names come to stand for
    planned = [(x, new, EAGER[puzzle](x, new)) for x, new in steps(puzzle, x.device)]
    held = [(tensor, tensor.clone()) for tensor in vars(buffers).values() if isinstance(tensor, torch.Tensor)]
    issue(buffers)  # a warm-up, after which the buffers hold what they held
    for tensor, value in held:
        tensor.copy_(value)
    graphs = graphs_of(puzzle, lambda: issue(buffers), x, backend)
    if not graphs[0].nodes:
        return "wrong", "the graph is empty: no work was issued while it was captured"
    rights = [right for *_, right in planned]
    results, kept, counts = list[torch.Tensor](), list[torch.Tensor](), list[torch.Tensor]()
    for number, (values, new, _) in enumerate(planned, start=1):
        with measured() as work:
            prepare(buffers, new)
            x[: new.num_rows].copy_(values[: new.num_rows])
            for graph in graphs:
                graph.replay()
            results.append(graphs[0].outputs.clone())
            counts += [count.clone()] if puzzle == "counter" else []
            if backend == "cuda":
                torch.cuda.synchronize()
            x.fill_(-1)
            if after:
                kept.append(_Result(after)(buffers, graphs[0].outputs))
        if work.ops:
            return "eager", f"{', '.join(work.ops)} ran outside of the graph, at replay {number}"
        if number in (SEEN, len(planned)):  # before numbers come that are others each time, and at the end
            arrived = [torch.ones(1)] * len(planned)
            wrong = _first_wrong(results, rights) or _first_wrong(kept, rights)
            if wrong := wrong or _first_wrong(counts, arrived, "in `count` "):
                return "wrong", wrong
    if puzzle == "stream" and backend == "emulated" and (raced := _raced(graphs[0], x, planned)):
        return "wrong", raced
    return "correct", f"all {len(planned)} replays give what is asked for"


def _raced(graph: Any, x: torch.Tensor, planned: list[Any]) -> str | None:
    """Whether the result hangs on an order that the graph does not hold."""
    tape = list(graph._tape)
    if len({one.stream for one in graph.issued}) == 1:
        return "nothing in the graph was issued on `side`"
    for order, (values, _, right) in zip(other_orders(graph.issued), planned, strict=False):
        graph._tape = [tape[i] for i in order]
        x.copy_(values)
        graph.replay()
        if wrong := _first_wrong([graph.outputs.clone()], [right]):
            return f"the graph also allows another order of the two streams: {wrong.partition('first: ')[2]}"
    return None


class _NotNumpys(TorchFunctionMode):
    """On a GPU `cpu()` is a copy, and NumPy sees no device memory. Emulated, all memory is the host's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.numpy, torch.Tensor.__array__) and not is_host(args[0]):
            raise TypeError("can't convert a device tensor to numpy. Use Tensor.cpu() to copy it first")
        result = func(*args, **(kwargs or {}))
        return result.clone() if func is torch.Tensor.cpu and result is args[0] else result


def _first_wrong(results: list[torch.Tensor], rights: list[torch.Tensor], what: str = "") -> str | None:
    for number, (got, right) in enumerate(zip(results, rights, strict=False), start=1):
        if got.shape != right.shape or not bool((got.cpu() == right.cpu()).all()):
            asked, graph = (", ".join(f"{v:g}" for v in t.flatten().tolist()[:8]) for t in (right, got))
            of_shape = "" if got.shape == right.shape else f" of shape {[*got.shape]}, not {[*right.shape]}"
            first = f"replay {number} of {len(rights)} differs first: {what}"
            return f"{first}asked for {asked}; graph {graph}{of_shape}"
    return None
