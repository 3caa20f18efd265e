"""A guard that stays on: before each replay, what the capture read is compared with what it was then.

    with guard("warn") as guarded:
        with torch.cuda.graph(graph):
            out = model(x)
    graph.replay()  # warns: model.scale was 1.0 at capture, is 2.0 now (read at model.py:12 in forward)

What was read, and how each value is reached, is found once, at capture (`reads`). What a replay asks is one
function of plain comparisons, compiled for its graph, as `torch.compile` guards its own.
"""

import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from fnmatch import fnmatchcase
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import patch

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from mrv2lab.audit.atoms import MISSING
from mrv2lab.audit.recorder import entered
from mrv2lab.errors import CaptureError, StaleCapture, choose, counted
from mrv2lab.graphs.base import CapturedGraph, CaptureObserver, _observers, observed
from mrv2lab.graphs.cuda import _checked, read_nodes
from mrv2lab.reads import KNOWN, Reads, Series, Watch, Way, words


def guard(mode: Literal["warn", "refuse", "off"] = "warn", *, allow: Iterable[str] = ()) -> "Guard":
    """Guard every graph that this thread captures in the context, for as long as the graph lives.

    Args:
        mode: where a replay would not use what the program holds now, `warn` warns, once for each value
            (`StaleCapture`), and `refuse` raises that and does not replay; `off` costs nothing.
        allow: names of what may change, as a warning tells them; `*` stands for anything.

    Raises:
        BadInput: an unknown mode.
    """
    return Guard(choose("mode", mode, ["warn", "refuse", "off"]), tuple(allow))


class Guard(CaptureObserver):
    """What `guard` returns. Inside of its context it hears of captures.

    Attributes:
        left_out: names of what captures have read and nobody watches any more, each with the reason.
    """

    def __init__(self, mode: str, allow: tuple[str, ...]):
        self.mode, self.allow = mode, allow
        self.left_out: dict[str, str] = {}
        self._graphs: weakref.WeakSet[Checks] = weakref.WeakSet()
        self._told: dict[str, None] = {}
        self._inner: list[Guard] = []  # in whose contexts captures are as well
        self._reads: Reads | None = None  # of a capture that goes on, or whose graph is not there yet
        self._made: dict[int, StorageWeakRef] = {}  # memory that captures have made, as `Memory` numbers it
        self._series: Series | None = None  # that captures belong to, if they have something in common
        self._lock = threading.RLock()

    @property
    def checks(self) -> int:
        """How many values are compared, all graphs together."""
        return sum(len(checks.watches) for checks in self._graphs)

    def report(self) -> str:
        """How much is watched, what is not and why, and what has been told."""
        values, graphs = counted(self.checks, "value"), counted(len(self._graphs), "graph")
        out = [f"left out, {why}: {name}" for name, why in self.left_out.items()]
        return "\n".join([f"guard ({self.mode}): {values} of {graphs}", *out, *self._told])

    # ---- captures ----

    def __enter__(self) -> "Guard":
        self._stack, self._thread = ExitStack(), threading.get_ident()
        outer = next((one for one in _observers.get() if isinstance(one, Guard)), None)
        if self.mode != "off" and outer is not None:  # what a capture reads is found once, for all of them
            outer._inner.append(self)
            self._stack.callback(outer._inner.remove, self)
        elif self.mode != "off":
            self._stack.enter_context(observed(self))
            if torch.cuda.is_available():
                self._stack.enter_context(self._told_by_torch())
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.close()
        self._reads = None  # of a capture that has failed

    @contextmanager
    def _told_by_torch(self) -> Iterator[None]:
        """Hear of captures into `torch.cuda.CUDAGraph`, whoever has made the graph, and when."""
        kind: Any = torch.cuda.CUDAGraph
        begin, end = kind.capture_begin, kind.capture_end

        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> None:
            begin(graph, *args, **kwargs)
            if threading.get_ident() == self._thread:
                self.begin()

        def capture_end(graph: Any) -> None:
            addresses = None
            if self._reads is not None and threading.get_ident() == self._thread:
                addresses = self._addresses()
                self.end()
            end(graph)
            if addresses is not None:
                self._watch(graph, addresses)

        with patch.multiple(kind, capture_begin=capture_begin, capture_end=capture_end):
            yield

    def _addresses(self) -> list[int] | None:
        """Those in the graph that is about to end; None of one that has failed already."""
        with suppress(CaptureError):
            return _addresses_under_way()
        return None

    def begin(self) -> None:
        if self._reads is None or self._reads.is_over:  # else torch has told of the same capture
            with _unheard():
                self._reads = Reads(self._series)
                self._reads.__enter__()

    def end(self) -> None:
        if self._reads is not None and not self._reads.is_over:
            with _unheard():
                self._reads.__exit__()

    def captured(self, graph: CapturedGraph) -> None:
        if self._reads is not None:
            self._watch(graph, [address for node in graph.nodes for address in node.addresses])

    def replaying(self, graph: CapturedGraph) -> AbstractContextManager[None]:
        return nullcontext()

    def _watch(self, graph: Any, addresses: list[int]) -> None:
        """What the capture that has just ended read is asked for from now on, by each guard around it."""
        assert self._reads is not None
        reads, self._reads = self._reads, None
        with _unheard():
            # a list: a tuple that is filled one by one is among the objects that are looked through meanwhile
            asked = [(one, one._checks(reads, addresses)) for one in (self, *self._inner)]
            reads.forget()
        if not hasattr(graph, "_guards"):
            kind: Any = type(graph)
            graph.__class__ = _guarded(kind)
        graph._guards = asked

    def _checks(self, reads: Reads, addresses: list[int]) -> "Checks":
        checks = self._new(reads.ways(), list(reads.watches(addresses, self._made)))
        checks.let_go()  # what nothing holds that can be held weakly
        out = dict[str, str]()
        for watch in checks.watches:
            if any(watch.name == name or fnmatchcase(watch.name, name) for name in self.allow):
                out[watch.name] = "allowed"
            elif checks.is_changed(watch):
                out[watch.name] = "changed by the capture itself"
        hidden = {watch.name for watch in checks.watches if self._hides(watch)}
        checks.drop([watch for watch in checks.watches if watch.name in out])
        self.left_out |= reads.failed | {name: out[name] for name in out if name not in hidden}
        self._graphs.add(checks)
        return checks

    def _new(self, ways: dict[str, list[Way]], watches: list[Watch]) -> "Checks":
        return Checks(ways, watches)

    def _hides(self, watch: Watch) -> bool:
        """Whether nobody wants to hear that it is left out: it is a library's."""
        return watch.where is not None and "site-packages" in watch.where.file

    # ---- replays ----

    def tell(self, checks: "Checks") -> None:
        """Say what has changed since a capture. StaleCapture: this guard refuses."""
        with self._lock:
            self.left_out |= checks.let_go()
            told = [(watch, checks.told(watch)) for watch in checks.watches if checks.is_changed(watch)]
            texts = dict.fromkeys(text for _, text in told)
            self._told |= texts
            if self.mode == "refuse" and told:
                raise StaleCapture("\n".join(texts))
            try:
                for text in list(texts):
                    del texts[text]
                    warnings.warn(StaleCapture(text), stacklevel=3)  # it may raise
            finally:
                checks.drop([watch for watch, text in told if text not in texts])


@cache
def _guarded(kind: Any) -> Any:
    """Graphs of a kind, with a replay that asks first: a method, so that no graph keeps itself alive."""

    class Guarded(kind):  # type: ignore[misc]
        def replay(self) -> None:
            for guard, checks in self._guards:
                if checks.is_stale():
                    guard.tell(checks)
            super().replay()

    Guarded.__name__, Guarded.__qualname__ = kind.__name__, kind.__qualname__
    return Guarded


class Checks:
    """What is asked before each replay of a graph, by the first way to each root that is still there."""

    def __init__(self, ways: dict[str, list[Way]], watches: list[Watch]):
        self.ways, self.watches = ways, watches

    def _way(self, watch: Watch) -> Way | None:
        return next((way for way in self.ways.get(watch.root, ()) if way.holder() is not None), None)

    def drop(self, watches: list[Watch]) -> None:
        """Ask no more for these. Makes `is_stale`: whether another one has changed, or is gone."""
        dropped = {watch.k for watch in watches}
        self.watches = [watch for watch in self.watches if watch.k not in dropped]
        known, lines = dict(KNOWN), dict[str, None]()
        for watch in self.watches:
            known[watch.k] = watch.old
            if way := self._way(watch):
                known[f"{watch.root}_"] = way.holder
                lines[f"{watch.root} = {watch.root}_(){way.rest}"] = None
        asked = [f"if {watch.condition}: return True" for watch in self.watches]
        body = "\n        ".join(["def is_stale():\n    try:", *lines, *asked, "return False"])
        exec(f"{body}\n    except Exception: return True", known)
        self.is_stale = known["is_stale"]

    def _ask(self, watch: Watch, source: str) -> Any:
        """What a source comes to now; MISSING where it cannot be reached."""
        known = KNOWN | {watch.k: watch.old}
        try:
            if way := self._way(watch):
                known[watch.root] = eval(f"holder{way.rest}", {"holder": way.holder()})
            return eval(source, known)
        except Exception:
            return MISSING

    def is_changed(self, watch: Watch) -> bool:
        return self._ask(watch, f"bool({watch.condition})") is not False

    def let_go(self) -> dict[str, str]:
        """Of what went with its owner only memory is still asked for. Returns the names of the rest."""
        gone = [watch for watch in self.watches if watch.root and self._way(watch) is None]
        self.drop(gone)
        self.watches += [watch.of_memory() for watch in gone if watch.memory is not None]
        self.drop([])
        return {watch.name: "no longer in reach" for watch in gone if watch.memory is None}

    def told(self, watch: Watch) -> str:
        """What has become of a value that has changed."""
        now = self._ask(watch, watch.source)
        told = "gone now" if now is MISSING else f"{words(now, is_address=watch.memory is not None)} now"
        if watch.memory and told == f"{watch.was} now":
            told = f"there with strides {now.stride()} now"
        if watch.memory is not None and watch.memory.expired():
            told += ", and what the graph uses is freed"
        read = f" (read at {watch.where})" if watch.where else ""
        return f"{watch.name} was {watch.was} at capture, is {told}{read}"


@contextmanager
def _unheard() -> Iterator[None]:
    """An audit that watches the captures as well hears no line of ours: there would be millions."""
    recorder = entered()
    lines = recorder.trace.lines if recorder else SimpleNamespace(paused=False)
    was_paused, lines.paused = lines.paused, True
    try:
        yield
    finally:
        lines.paused = was_paused


def _addresses_under_way() -> list[int]:
    """The addresses in the graph that the current stream captures: later torch may not keep its nodes."""
    from cuda.bindings import driver

    stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
    handle = int(_checked(driver.cuStreamGetCaptureInfo(stream))[2])
    graph: Any = SimpleNamespace(raw_cuda_graph=lambda: handle)
    return [address for node in read_nodes(graph) for address in node.addresses]
