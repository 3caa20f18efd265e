"""A captured graph as a document that can be kept: what it launches, with which numbers, on whose memory.

A step is captured twice, plainly and watched. The first capture says what the pool holds, and which words of
a kernel's parameters are the same each time; the second what Python knows of a node, and on which line.
Memory lies elsewhere in every capture: of an address is kept what the step calls it, and of the pool's, which
has no name, how many nodes back it was last written.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from pydantic import Field

from mrv2lab import results
from mrv2lab.audit import launches, names, nodes
from mrv2lab.audit.arguments import check
from mrv2lab.audit.atoms import summary
from mrv2lab.audit.passes import naming, nothing
from mrv2lab.audit.recorder import Recorder, Session
from mrv2lab.audit.target import _callable, _optional, _run_file
from mrv2lab.audit.trace import Event, Key, TensorArgument, Trace
from mrv2lab.audit.writers import UnwrittenIndex
from mrv2lab.errors import BadInput, HostSyncError, file_and_function
from mrv2lab.graphs import base, capture, new_pool, resolve
from mrv2lab.tables import Table

SEED = 0  # nothing is drawn
_WIDEST = 8  # bytes of an element: what is nearer is taken first


class Node(results.Strict):
    """A node of a graph. Values are kept as Python writes them."""

    name: str
    # grid of a kernel, and on a GPU its block and bytes of shared memory, or the extent of a copy
    launch: dict[str, str]
    numbers: dict[str, str]  # frozen into it, by parameter; of a kernel in C++ by place among the parameters
    # the memory that it was given, by parameter: what the step calls it or which node wrote it, and the shape
    buffers: dict[str, str]
    line: str  # that launched it; empty where none is known

    @property
    def label(self) -> str:
        return base.Node(self.name, None, ()).label

    @property
    def content(self) -> str:
        """All that two nodes must have in common to be the same; lines move."""
        return self.model_dump_json(exclude={"line"})


class Described(Table, results.Kept):
    """The graph of a step, in text, HTML and JSON."""

    step: str
    backend: Literal["cuda", "emulated"]  # executor: they name nodes otherwise
    nodes: tuple[Node, ...]  # in order of capture
    pool_bytes: int = Field(ge=0, lt=1 << 60)

    __str__ = Table.__repr__

    def rows(self) -> list[list[str]]:
        told = ("launch", "numbers", "buffers")
        body = [
            [str(number), node.label, *(_words_of(getattr(node, part)) for part in told), node.line]
            for number, node in enumerate(self.nodes)
        ]
        return [["node", "name", *told, "line"], *body]

    def _below(self) -> str:
        return f"{self.pool_bytes:,} bytes in the pool; {self.provenance.machine}"

    @classmethod
    def load(cls, path: Path) -> "Described":
        """A kept one. RecordError: there is none at this path."""
        remedy = "make one with mrv2lab graph show FILE.py:FUNCTION --save GRAPH.json"
        return cls.read(path, "captured graph", remedy)


def _words_of(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def describe_target(target: str, *, reset: str | None = None, backend: str = "auto") -> Described:
    """Describe `FILE.py:FUNCTION`; a function named `reset` beside it is used, if there is one.

    Modules that the file imports from its own folder are forgotten again: another file may mean others.

    Raises:
        BadInput: no such file or function, or as `describe`.
    """
    file, name = file_and_function(target)
    known, folder = {*sys.modules}, file.parent.resolve()
    try:
        namespace = _run_file(file)
        restore = _optional(namespace, reset, "reset")
        return describe(_callable(namespace, name), reset=restore, backend=backend)
    finally:
        for imported in {*sys.modules} - known:
            place = getattr(sys.modules[imported], "__file__", None)
            if place and Path(place).resolve().is_relative_to(folder):
                del sys.modules[imported]


def describe(
    step: Callable[[], Any], *, reset: Callable[[], Any] | None = None, backend: str = "auto"
) -> Described:
    """Capture a step, and say what its graph is.

    Args:
        step: zero-argument callable over static buffers; it runs three times.
        reset: restores state to that of a fresh step; called before each.
        backend: `cuda`, `emulated`, or `auto` for what the machine has.

    Raises:
        BadInput: the step raises or cannot be captured, an unknown backend, or no GPU for `cuda`.
    """
    check(step=step, reset=reset)
    backend, restore = resolve(backend), reset or nothing
    session, pool = Session(backend), new_pool(backend)
    recorder, called = Recorder(session), names.step_name(step)
    try:
        with naming("when it was run eagerly"):
            restore()
            step()
        with naming("while it was captured"):
            restore()
            plain = capture(step, backend=backend, pool=pool)
            pool_bytes = pool.num_bytes
            restore()
            with recorder:
                capture(step, backend=backend)
    except (HostSyncError, UnwrittenIndex) as error:
        why = f"{called} cannot be captured: {error}"
        raise BadInput(f"{why}; `mrv2lab audit FILE.py:{called}` names the line") from error
    known, of_pool = names.spans(names.Reachable(step)), recorder.captures[0].born
    spans = {path: span for path, span in known.items() if span.start not in of_pool}
    return Described(
        provenance=results.provenance(SEED, uses_gpu=backend == "cuda"),
        step=called, backend=backend, pool_bytes=pool_bytes,
        nodes=tuple(_nodes(recorder, launches.read(plain), spans)),
    )  # fmt: skip


def _nodes(recorder: Recorder, plain: list[launches.Launch], spans: names.Spans) -> Iterator[Node]:
    """The nodes of what was watched; `plain` are those of a graph that was not, on a GPU."""
    session, (watched,) = recorder.session, recorder.captures
    assert watched.graph is not None
    own, asked = session.nodes(watched.graph), SimpleNamespace(replayed=[watched], session=session)
    made: list[Any] = [*nodes.own(asked)] or [None] * len(own)  # type: ignore[arg-type] # asks for no more
    is_repeated = [one.label for one in plain] == [node.label for node in own]
    spaces = nodes._Spaces() if plain else None
    events, memory = _events(recorder, own), _Memory(spans, watched.trace)
    on_line = defaultdict[int, list[Event]](list)
    for event in watched.trace.own():
        on_line[event.key[0]] += [event] if event.is_work and event.in_graph else []
    for number, (node, one) in enumerate(zip(own, made, strict=True)):
        launch = _launch(one.launch.shape) if one else {"grid": str(node.grid)} if node.grid else {}
        numbers, buffers, position = dict[str, str](), dict[str, str](), one.position if one else 0
        if node.label in events:
            event = next(events[node.label])
            numbers = {label: repr(summary(value)) for label, value in event.scalars}
            buffers = {tensor.label: memory.told(tensor) for tensor in event.tensors}
            position = event.key[0]
            memory.note([event])
        elif spaces and one.launch.params and is_repeated:
            numbers, buffers = _words(one.launch.params, plain[number].params, memory, spaces)
        else:
            places = {f"address {i}": memory.place(at) for i, at in enumerate(node.addresses)}
            buffers = {label: place for label, place in places.items() if place is not None}
        memory.note(on_line[position] if one else ())
        place = session.positions.place(position)
        line = str(place) if place else ""
        yield Node(name=node.name, launch=launch, numbers=numbers, buffers=buffers, line=line)


class _Memory:
    """What a step calls its memory, and which work has last written the rest."""

    def __init__(self, spans: names.Spans, trace: Trace):
        self._spans, self._trace = spans, trace
        self._written: dict[int, tuple[int, int]] = {}  # by address: how far, and by which work
        self._noted: set[Key] = set()

    def path(self, address: int) -> str | None:
        """What the step calls the memory at an address."""
        return names.into(self._spans, address)

    def place(self, address: int) -> str | None:
        """`x + 32 bytes`, or `2 back` of what was noted; None if it has neither a name nor a writer."""
        if (path := self.path(address)) is not None:
            place, begin = path, self._spans[path].start
        else:
            found = [(at, by) for at, (end, by) in self._written.items() if at <= address < end]
            if not found:
                return None
            begin, by = max(found)
            place = f"{len(self._noted) - by} back"
        return f"{place} + {address - begin} bytes" if address > begin else place

    def told(self, tensor: TensorArgument) -> str:
        """The place, if it is known, and the shape."""
        return " ".join(filter(None, (self.place(tensor.address), str(list(tensor.shape)))))

    def note(self, work: Iterable[Event]) -> None:
        """What a node, or a line that is made of several, has written."""
        for event in work:
            if event.key in self._noted:
                continue
            number, written = len(self._noted), [tensor for tensor in event.tensors if tensor.written]
            self._noted.add(event.key)
            self._written |= {t.address: (t.address + t.num_bytes, number) for t in written}
            for one in self._trace.made.get(event.key, ()):
                reach = 1 + sum((n - 1) * stride for n, stride in zip(one.shape, one.stride, strict=True))
                self._written[one.address] = one.address + _WIDEST * reach, number


def _events(recorder: Recorder, own: list[base.Node]) -> dict[str, Iterator[Event]]:
    """What Python issued, by the name of the node that it became, in order; other names are left out."""
    found, there = defaultdict[str, list[Event]](list), Counter(node.label for node in own)
    for event in recorder.captures[0].trace.own():
        if event.is_work and event.in_graph and 0 not in (event.grid or ()):
            found[event.name].append(event)
    return {name: iter(events) for name, events in found.items() if len(events) == there[name]}


def _launch(shape: tuple[int, ...]) -> dict[str, str]:
    if len(shape) != 7:  # no kernel
        return {"extent": str(shape)} if shape else {}
    return {"grid": str(shape[:3]), "block": str(shape[3:6]), "shared memory": str(shape[6])}


def _words(
    ours: launches.Params, control: launches.Params, memory: _Memory, spaces: "nodes._Spaces"
) -> tuple[dict[str, str], dict[str, str]]:
    """Numbers and memory among a kernel's parameters, as far as both captures agree."""
    numbers, buffers = dict[str, str](), dict[str, str]()
    for number, (data, again) in enumerate(zip(ours, control, strict=True)):
        for begin in range(0, len(data), 4):
            label = f"parameter {number}" + (f", byte {begin}" if len(data) > 8 else "")
            if begin % 8 == 0 and spaces._hold(data, begin) and spaces._hold(again, begin):
                address, other = (int.from_bytes(d[begin : begin + 8], "little") for d in (data, again))
                place = memory.place(address)
                if place is not None and memory.path(address) == memory.path(other):
                    buffers[label] = place
            word = data[begin : begin + 4]
            if word == again[begin : begin + 4] and not spaces._hold(data, begin - begin % 8):
                numbers[label] = repr(nodes._number(word))
    return numbers, buffers
