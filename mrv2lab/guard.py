"""A guard that stays on: before each replay, what the capture read is compared with what it was then.

    with guard("warn") as guarded:
        with torch.cuda.graph(graph):
            out = model(x)
    graph.replay()  # warns: model.scale was 1.0 at capture, is 2.0 now (read at model.py:12 in forward)

Read means: a line of the captured code names it and it outlives its function, or a node of the graph holds
its address. The way to each value is found once, at capture, from objects that are held weakly. What a replay
asks is one function of plain comparisons, compiled for its graph, as `torch.compile` guards its own.
"""

import ast
import gc
import re
import sys
import threading
import warnings
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from copy import deepcopy
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache, partial
from inspect import CO_OPTIMIZED
from itertools import count
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from mrv2lab.audit import atoms, names
from mrv2lab.audit.atoms import MISSING, SCALARS, Atom, Described, host_values, summary
from mrv2lab.audit.branches import _Told
from mrv2lab.audit.lines import MONITORS, Lines, Positions, is_users
from mrv2lab.audit.report import Place
from mrv2lab.errors import CaptureError, StaleCapture, choose, counted
from mrv2lab.graphs import emulated
from mrv2lab.graphs.base import CapturedGraph, CaptureObserver, observed
from mrv2lab.graphs.cuda import _checked, read_nodes
from mrv2lab.graphs.memory import is_marked

_MOST_OBJECTS = 20_000  # that one capture looks through for names
_FEW = 16  # elements of a container that are compared one by one
_SINGLE = (type(None), bool, Enum, torch.dtype, torch.device)  # compared as objects
_SHAPE = ("shape", "dtype", "ndim", "is_cuda")  # of a tensor: it is watched by its address alone
_TABLES = ("_parameters", "_buffers", "_modules")


class Held(NamedTuple):
    """A value, its source, which begins at a root `r0`, `r1`, ..., and what people call it."""

    value: Any
    source: str
    name: str


class Read(NamedTuple):
    """What a line of the captured code has read, the last time that it was."""

    held: Held
    where: Place
    # source and value of the expressions that all lines work out of it; None where one does something else
    outcomes: dict[str, Any] | None


class Root(NamedTuple):
    """Where the ways to values begin: an object, or a variable that outlives its function."""

    source: str
    value: Any
    name: str
    owner: Any  # of a variable: the code that closes over it, or the globals that it is one of; else None


class Watch(NamedTuple):
    """A value that is compared before each replay."""

    source: str
    name: str
    was: str  # in words
    condition: str  # source of what is true once it is another one
    k: str  # by what name that knows
    old: Any  # what it was
    where: Place | None = None  # the line that read it last; None if none of the user's did
    memory: StorageWeakRef | None = None  # of a tensor

    @property
    def root(self) -> str | None:
        found = re.search(r"\br\d+", self.source)
        return found[0] if found else None


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
        left_out: names of what captures have read and nobody watches, each with the reason.
    """

    def __init__(self, mode: str, allow: tuple[str, ...]):
        self.mode, self.allow = mode, allow
        self.left_out: dict[str, str] = {}
        self._graphs: weakref.WeakSet[_Checks] = weakref.WeakSet()
        self._told: dict[tuple[str, str], str] = {}  # by name and what it was
        self._reads: _Reads | None = None  # of a capture that goes on, or whose graph is not there yet
        self._made: set[StorageWeakRef] = set()  # by captures, and kept
        self._lock = threading.RLock()

    @property
    def checks(self) -> int:
        """How many values are compared, all graphs together."""
        return sum(len(checks.watches) for checks in self._graphs)

    def report(self) -> str:
        """How much is watched, what is not and why, and what has been told."""
        graphs = counted(len(self._graphs), "graph")
        head = f"guard ({self.mode}): {counted(self.checks, 'value')} of {graphs}"
        out = [f"left out, {why}: {name}" for name, why in self.left_out.items()]
        return "\n".join([head, *out, *self._told.values()])

    # ---- captures ----

    def __enter__(self) -> "Guard":
        self._stack, self._thread = ExitStack(), threading.get_ident()
        if self.mode != "off":
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
                with suppress(CaptureError):  # of one that has failed already
                    addresses = _addresses_under_way()
                self.end()
            end(graph)
            if addresses is not None:
                self._watch(graph, addresses)

        with patch.multiple(kind, capture_begin=capture_begin, capture_end=capture_end):
            yield

    def begin(self) -> None:
        if self._reads is None or self._reads.is_over:  # else torch has told of the same capture
            self._reads = _Reads()
            self._reads.__enter__()

    def end(self) -> None:
        if self._reads is not None and not self._reads.is_over:
            self._reads.__exit__()

    def captured(self, graph: CapturedGraph) -> None:
        if self._reads is not None:
            self._watch(graph, [address for node in graph.nodes for address in node.addresses])

    def replaying(self, graph: CapturedGraph) -> AbstractContextManager[None]:
        return nullcontext()

    def _watch(self, graph: Any, addresses: list[int]) -> None:
        """What the capture that has just ended read is asked for from now on."""
        assert self._reads is not None
        reads, self._reads = self._reads, None
        ways = reads.ways()
        watches = [w for w in reads.watches(addresses, self._made) if w.root is None or w.root in ways]
        checks = _Checks(ways, watches)
        reads.forget()
        for watch in watches:
            is_allowed = any(watch.name == name or fnmatchcase(watch.name, name) for name in self.allow)
            if is_allowed or checks.is_changed(watch):
                self.left_out[watch.name] = "allowed" if is_allowed else "changed by the capture itself"
        checks.drop([watch for watch in watches if watch.name in self.left_out])
        self._graphs.add(checks)
        graph.__dict__["replay"] = partial(_replay, weakref.ref(graph), checks, self)

    # ---- replays ----

    def tell(self, checks: "_Checks") -> None:
        """Say what has changed since a capture. StaleCapture: this guard refuses."""
        with self._lock:
            checks.let_go(self.left_out)
            changed = [watch for watch in checks.watches if checks.is_changed(watch)]
            texts = [checks.words(watch) for watch in changed]
            checks.drop(changed if self.mode == "warn" else [])
            told = {(watch.name, watch.was): text for watch, text in zip(changed, texts, strict=True)}
            news = [text for key, text in told.items() if key not in self._told]
            self._told |= told
        if self.mode == "refuse" and texts:
            raise StaleCapture("\n".join(texts))
        for text in news:
            warnings.warn(StaleCapture(text), stacklevel=3)


def _replay(graph: Any, checks: "_Checks", guard: Guard) -> None:
    """In place of a graph's `replay`."""
    try:
        is_stale = checks.is_stale()
    except Exception:  # something is not to be found where it was
        is_stale = True
    if is_stale:
        guard.tell(checks)
    graph = graph()
    type(graph).replay(graph)


class _Checks:
    """What is asked before each replay of a graph.

    Args:
        ways: for each root a weak reference to what holds it, and the source of how it goes on from there.
    """

    def __init__(self, ways: dict[str, tuple[Any, str]], watches: list[Watch]):
        self.ways, self.watches = ways, watches

    def drop(self, watches: list[Watch]) -> None:
        """Ask no more for these. Makes `is_stale`: whether another one has changed; it may raise as well."""
        dropped = {watch.k for watch in watches}
        self.watches = [watch for watch in self.watches if watch.k not in dropped]
        known = dict(_KNOWN) | {watch.k: watch.old for watch in self.watches}
        known |= {f"{root}_": reference for root, (reference, _) in self.ways.items()}
        roots = dict.fromkeys(watch.root for watch in self.watches if watch.root)
        lines = [f"{root} = {root}_(){self.ways[root][1]}" for root in roots]
        lines += [f"if {watch.condition}: return True" for watch in self.watches]
        exec("\n    ".join(["def is_stale():", *lines, "return False"]), known)
        self.is_stale = known["is_stale"]

    def _ask(self, watch: Watch, source: str) -> Any:
        """What a source comes to now; MISSING where it cannot be reached."""
        known = dict(_KNOWN) | {watch.k: watch.old}
        try:
            if watch.root:
                reference, way = self.ways[watch.root]
                known[watch.root] = eval(f"owner{way}", {"owner": reference()})
            return eval(source, known)
        except Exception:
            return MISSING

    def is_changed(self, watch: Watch) -> bool:
        found = self._ask(watch, watch.condition)
        return found is MISSING or bool(found)

    def let_go(self, left_out: dict[str, str]) -> None:
        """Of what went with its owner only memory is still asked for."""
        for i, watch in enumerate(self.watches):
            if watch.root and self.ways[watch.root][0]() is None:
                left_out[watch.name] = "gone with its owner"
                if watch.memory is not None:
                    self.watches[i] = _of_memory(watch.name, watch.was, watch.k, watch.memory)
        gone = [w for w in self.watches if w.root and self.ways[w.root][0]() is None]
        self.drop(gone)

    def words(self, watch: Watch) -> str:
        """What has become of a value that has changed."""
        now = self._ask(watch, watch.source)
        told = "gone now" if now is MISSING else f"{_words(now, watch.memory is not None)} now"
        if watch.memory is not None and watch.memory.expired():
            told += ", and what the graph uses is freed"
        read = f" (read at {watch.where})" if watch.where else ""
        return f"{watch.name} was {watch.was} at capture, is {told}{read}"


def _of_memory(name: str, was: str, k: str, memory: StorageWeakRef) -> Watch:
    """Watch only whether somebody still owns the memory that a graph uses."""
    return Watch("MISSING", name, was, f"{k}.expired()", k, memory, memory=memory)


def _words(value: Any, is_address: bool = False) -> str:
    if is_address and _is_tensor(value):
        return f"at 0x{value.data_ptr():x}"
    told = value if _is_plain(value) else summary(value)
    return str(told) if isinstance(told, Described) else repr(told)


_KNOWN = {"host_values": host_values, "summary": summary, "MISSING": MISSING}
"""What conditions may call."""


# ---- at capture ----


class _Reads(Lines):
    """The lines of one capture, while it is entered, and what they read that outlives its function."""

    def __init__(self) -> None:
        atoms.forget_sources()
        super().__init__(Positions())
        self.is_over = False
        self.is_emulated = emulated.is_capturing()
        self.before = dict(_memory())  # what there was before the capture began
        self.roots: dict[tuple[int, str], Root] = {}
        self.known: dict[int, Held] = {}  # objects that have a name, by `id`; they are kept for so long
        self.read: dict[str, Read] = {}  # by source
        self._of_class = cache(names._of_class)
        self._at_lines: dict[tuple[CodeType, int], list[Atom]] = {}

    def __enter__(self) -> "_Reads":
        super().__enter__()
        self._running = [(frame, frame.f_trace) for frame in _running(sys._getframe(1))]
        for frame, _ in reversed(self._running):
            for name in frame.f_locals if frame.f_locals is not frame.f_globals else ():
                self._variable(frame, frame.f_locals, name)
            self._call(frame)
            if MONITORS:
                self._watch(frame.f_code, self._local)
            else:
                frame.f_trace = self._on_event
        for frame, _ in self._running[:1]:
            self._line(frame)  # it may have gone on to the capture's body without a line of its own
        return self

    def __exit__(self, *exception: Any) -> None:
        self.is_over = True
        super().__exit__(*exception)
        for frame, tracer in self._running:
            frame.f_trace = tracer
            if frame.f_code.co_flags & CO_OPTIMIZED and type(frame.f_locals) is dict:
                frame.f_locals.clear()  # no variable of the function, but a copy of all that it keeps
        self._running, self._calls = [], []

    def _line(self, frame: FrameType) -> None:
        if frame.f_code.co_filename == __file__ or not self._back_in(frame):
            return
        code, variables, line = frame.f_code, frame.f_locals, frame.f_lineno
        found: dict[str, Held] = {}
        for atom in self._atoms(code, line):
            held = self._variable(frame, variables, atom.name)
            for is_attribute, key in atom.steps:
                key = key.value(frame, variables) if isinstance(key, Atom) else key
                held = held and self._step(held, is_attribute, key)
            if held is not None and atom.is_len:
                held = Held(atom.value(frame, variables), f"len({held.source})", f"len({held.name})")
            if held is not None:
                self._explore(held)
                found[atom.text] = held
        place = Place(code.co_filename, line, code.co_name)
        outcomes = _outcomes(atoms.statements_at(code.co_filename, line), found)
        for text, held in found.items():
            before = self.read[held.source].outcomes if held.source in self.read else {}
            known = outcomes.get(text)
            both = before | known if before is not None and known is not None else None
            self.read[held.source] = Read(held, place, both)

    def _atoms(self, code: CodeType, line: int) -> list[Atom]:
        """What a line reads, and does not only set."""
        if (code, line) not in self._at_lines:
            parts = [part for s in atoms.statements_at(code.co_filename, line) for part in atoms.heads(s)]
            nodes = [n for part in parts for n in ast.walk(part) if hasattr(n, "ctx")]
            stored, loaded = (
                {ast.unparse(n) for n in nodes if isinstance(n.ctx, context)}
                for context in (ast.Store, ast.Load)
            )
            found = atoms.atoms_at(code, line)
            self._at_lines[code, line] = [atom for atom in found if atom.text not in stored - loaded]
        return self._at_lines[code, line]

    def _variable(self, frame: FrameType, variables: dict[str, Any], name: str) -> Held | None:
        """What an atom begins with. A local variable stands for the object that it holds."""
        owner: Any = None
        if name not in variables or variables is frame.f_globals:
            owner = variables = frame.f_globals
            if name not in variables:
                return None
        elif name in frame.f_code.co_freevars:
            owner = frame.f_code
        value = variables[name]
        if owner is None and (id(value) in self.known or not _is_weak(value)):
            return self.known.get(id(value))
        key = (id(value), "") if owner is None else (id(owner), name)
        root = self.roots.setdefault(key, Root(f"r{len(self.roots)}", value, name, owner))
        held = Held(value, root.source, name)
        self._explore(held)
        return held

    def _step(self, held: Held, is_attribute: bool, key: Any) -> Held | None:
        """An attribute or an element; None where it is computed, or nothing that is watched."""
        owner, source, name = held
        told = f".{key}" if is_attribute else f"[{key!r}]"
        if not isinstance(key, (str, int, type(None))):
            return None
        if issubclass(type(owner), torch.nn.Module):
            for at in _TABLES:
                if str(key) in (table := vars(owner).get(at, {})):
                    return Held(table[str(key)], f"{source}.{at}[{str(key)!r}]", name + told)
        if issubclass(type(owner), torch.Tensor) and is_attribute and key in _SHAPE:
            return None
        if issubclass(type(owner), torch.Tensor) and not is_attribute:
            values = host_values(owner) if self._is_hosts(owner) and owner.dim() == 1 else []
            if not (values and type(key) is int and -len(values) <= key < len(values)):
                return None
            return Held(values[key], f"host_values({source})[{key}]", name + told)
        value = atoms.attribute(owner, key) if is_attribute else atoms._element(owner, key)
        return None if value is MISSING else Held(value, source + told, name + told)

    def _is_hosts(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu" and (not self.is_emulated or is_marked(tensor))

    def _explore(self, held: Held) -> None:
        """Find names for what can be reached from here, the shortest first."""
        queue = deque([held])
        while queue and len(self.known) < _MOST_OBJECTS:
            held = queue.popleft()
            if id(held.value) in self.known or issubclass(type(held.value), (*SCALARS, type, ModuleType)):
                continue
            self.known[id(held.value)] = held
            if issubclass(type(held.value), torch.Tensor):
                continue
            with suppress(Exception):  # an object that does not let itself be looked at
                for way, _ in names._children("", held.value, names._MOST_ELEMENTS, self._of_class):
                    is_attribute = way.startswith(".")
                    key = way[1:] if is_attribute else ast.literal_eval(way[1:-1])
                    if found := self._step(held, is_attribute, key):
                        queue.append(found)

    # ---- once it has ended ----

    def ways(self) -> dict[str, tuple[Any, str]]:
        """As `_Checks` takes them. Of what nothing holds that can be held weakly there is none."""
        owners = [root.owner for root in self.roots.values() if root.owner is not None]
        functions = [one for one in gc.get_referrers(*owners) if type(one) is FunctionType]
        found = {}
        for root in self.roots.values():
            holder, way = _holder(root, functions)
            if _is_weak(holder):
                found[root.source] = weakref.ref(holder), way
        return found

    def forget(self) -> None:
        """Keep nothing alive any longer: a function that goes on, a generator, may still have a tracer of ours."""
        for kept in (self.roots, self.known, self.read):
            kept.clear()

    def watches(self, addresses: list[int], made: set[StorageWeakRef]) -> Iterator[Watch]:
        """What is to be compared, of a graph whose nodes hold these addresses.

        Args:
            made: memory that captures have made; what this one has made is added.
        """
        addresses, before = sorted(addresses), {memory for _, memory in self.before.values()}
        touched = {at: memory for at, memory in _touched(self.before, addresses) if memory not in made}
        made |= {memory for _, memory in _touched(dict(_memory()), addresses)} - before
        numbers, named = count(), set[int]()
        for held, place, outcomes in self.read.values():
            k = f"k{next(numbers)}"
            start = _start(held.value)
            if start in touched:
                named.add(start)
                yield _of_tensor(held, k, place, touched[start])
            elif not _is_tensor(held.value) or self._is_hosts(held.value):
                if (compared := _compared(held)) is not None:
                    operator, old = compared
                    condition = f"{operator} {k}"
                    if outcomes is not None:  # asked only of what has changed
                        others = " or ".join(f"{source} != {value!r}" for source, value in outcomes.items())
                        condition += f" and ({others})"
                    yield Watch(held.source, held.name, _words(held.value), condition, k, old, place)
        for held in self.known.values():  # those that no line of the user's names, such as weights
            if (start := _start(held.value)) in touched and start not in named:
                named.add(start)
                yield _of_tensor(held, f"k{next(numbers)}", None, touched[start])


def _outcomes(statements: list[ast.stmt], found: dict[str, Held]) -> dict[str, dict[str, Any]]:
    """What a line works out of what it reads, by its text there: sources and values. Not of what it uses in
    another way as well, like a number that it passes on."""
    known: dict[str, dict[str, Any]] = {}
    plain: set[str] = set()
    for statement in statements:
        tests = atoms.heads(statement) if isinstance(statement, ast.If | ast.While) else []
        nodes = list(atoms.heads(statement))
        for node in nodes:  # it grows
            told = _Told(found)
            text = ast.unparse(told.visit(deepcopy(node))) if isinstance(node, ast.expr) else "_unknown"
            here = {held.source for held in told.names.values()}
            read = [name for name, held in found.items() if held.source in here]
            outcome = _outcome(f"bool({text})" if node in tests else text, told.names)
            if outcome is not None:
                for name in read:
                    known.setdefault(name, {}).update(outcome)
            elif "_unknown" in text:
                nodes += ast.iter_child_nodes(node)
            else:
                plain.update(read)
    return {name: outcomes for name, outcomes in known.items() if name not in plain}


def _outcome(text: str, helds: dict[str, Held]) -> dict[str, Any] | None:
    """Source and value of an expression over values that are held; None where nobody can tell."""
    if "_unknown" in text or text in helds or not helds:
        return None
    odd = [name for name, held in helds.items() if not (_is_plain(held.value) or isinstance(held.value, Enum))]
    if any(len(re.findall(rf"\b{name}\b(?! is (?:not )?None)", text)) for name in odd):
        return None  # it may run code of the user's, or wait for the device
    with suppress(Exception):
        value = eval(text, {name: held.value for name, held in helds.items()})
        if type(value) in (type(None), bool, int, str):
            given = ", ".join(held.source for held in helds.values())
            return {f"(lambda {', '.join(helds)}: {text})({given})": value}
    return None


def _is_weak(value: Any) -> bool:
    """Whether there are weak references to a value; to numbers, texts and plain containers there are none."""
    with suppress(TypeError):
        return weakref.ref(value) is not None
    return False


def _is_plain(value: Any) -> bool:
    """Whether a value is a number or a text, or a small container of what is."""
    if type(value) in (list, tuple, set, frozenset, deque, dict):
        items = [*value, *value.values()] if type(value) is dict else value
        return len(items) <= _FEW and all(map(_is_plain, items))
    return isinstance(value, SCALARS)


def _is_tensor(value: Any) -> bool:
    return issubclass(type(value), torch.Tensor)


def _start(value: Any) -> int:
    """Where the memory of a tensor begins; 0 for anything else."""
    with suppress(Exception), torch._C.DisableTorchFunction():
        return value.untyped_storage().data_ptr() if _is_tensor(value) else 0
    return 0


def _of_tensor(held: Held, k: str, place: Place | None, memory: StorageWeakRef) -> Watch:
    at, was = held.value.data_ptr(), _words(held.value, is_address=True)
    return Watch(held.source, held.name, was, f"{held.source}.data_ptr() != {k}", k, at, place, memory)


def _compared(held: Held) -> tuple[str, Any] | None:
    """The source of a comparison up to its last operand, and that operand; None for what is not compared."""
    value, source, name = held
    kind = type(value)
    if issubclass(kind, (ModuleType, type)):
        return None
    if issubclass(kind, (FunctionType, BuiltinFunctionType)):  # under another name than its own it was chosen
        return None if value.__name__ == re.split(r"\W", name)[-1] else (f"id({source}) !=", id(value))
    if issubclass(kind, _SINGLE):
        return f"{source} is not", value
    if issubclass(kind, (*SCALARS, np.generic, torch.Size)):
        return (f"{source} !=", value) if value == value else (f"str({source}) !=", str(value))
    if issubclass(kind, (np.ndarray, torch.Tensor)):
        return f"summary({source}) !=", summary(value)
    if issubclass(kind, (list, tuple, set, frozenset, deque, dict)):
        return (f"{source} !=", deepcopy(value)) if _is_plain(value) else (f"len({source}) !=", len(value))
    return f"id(type({source})) !=", id(kind)


def _memory() -> Iterator[tuple[int, tuple[int, StorageWeakRef]]]:
    """Where the memory of each tensor begins that Python holds, where it ends, and a weak reference to it."""
    for tensor in filter(_is_tensor, gc.get_objects()):
        with suppress(Exception), torch._C.DisableTorchFunction():
            storage = tensor.untyped_storage()
            if storage.nbytes():
                yield storage.data_ptr(), (storage.data_ptr() + storage.nbytes(), StorageWeakRef(storage))


def _touched(
    memory: dict[int, tuple[int, StorageWeakRef]], addresses: list[int]
) -> Iterator[tuple[int, StorageWeakRef]]:
    """The memory that one of some sorted addresses lies in."""
    for start, (end, reference) in memory.items():
        at = bisect_left(addresses, start)
        if at < len(addresses) and addresses[at] < end:
            yield start, reference


def _running(frame: FrameType | None) -> Iterator[FrameType]:
    """The functions of the user's that run, inner ones first. A library's only run whoever asked for it."""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(frame.f_code) and "site-packages" not in file and file != __file__:
            yield frame
        frame = frame.f_back


def _holder(root: Root, functions: list[FunctionType]) -> tuple[Any, str]:
    """What a variable can be reached from, and how; of an object itself the object."""
    if type(root.owner) is dict:
        module = sys.modules.get(str(root.owner.get("__name__")))
        if module is not None and vars(module) is root.owner:
            return module, f".{root.name}"
        for function in functions:
            if function.__globals__ is root.owner:
                return function, f".__globals__[{root.name!r}]"
    elif root.owner is not None:
        i = root.owner.co_freevars.index(root.name)
        closures = [one for one in functions if one.__code__ is root.owner]
        same = [one for one in closures if one.__closure__[i].cell_contents is root.value]
        for function in same or closures:
            return function, f".__closure__[{i}].cell_contents"
    return root.value, ""


def _addresses_under_way() -> list[int]:
    """The addresses in the graph that the current stream captures. Later torch may not keep its nodes."""
    from cuda.bindings import driver

    stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
    handle = int(_checked(driver.cuStreamGetCaptureInfo(stream))[2])
    graph: Any = SimpleNamespace(raw_cuda_graph=lambda: handle)
    return [address for node in read_nodes(graph) for address in node.addresses]
