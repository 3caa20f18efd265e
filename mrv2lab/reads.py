"""What a capture reads that outlives its functions, and how to reach it later: for `guard`.

Read means: a line of the captured code names it, or a node of the graph holds its address. A way to a value
begins at a root, which is an object that is held weakly, or a variable of a module or a function that is,
and goes on as source: `r0.layers[3]`. A local variable stands for the object in it, by the first way to that.
"""

import ast
import gc
import re
import sys
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from functools import cache, partial
from inspect import CO_OPTIMIZED
from itertools import compress, count
from keyword import iskeyword
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef

from mrv2lab.audit import atoms, names
from mrv2lab.audit.atoms import MISSING, SCALARS, Atom, Described, host_values, summary
from mrv2lab.audit.branches import _Told
from mrv2lab.audit.lines import MONITORS, Lines, Positions, is_users
from mrv2lab.audit.report import Place
from mrv2lab.graphs import CapturedGraph, emulated
from mrv2lab.graphs.base import no_garbage_collection
from mrv2lab.graphs.memory import is_marked

_AUDITS = ("mrv2lab.live.plugin", "mrv2lab.live.audit", "mrv2lab.graphs.foreign")  # where they are attached
_OURS = ("mrv2lab.guard", __name__, "mrv2lab.live.guarded", "mrv2lab_vllm", *_AUDITS)
_MOST_OBJECTS = 20_000  # that one capture looks through for names
_MOST_OF_SERIES = 100_000  # and a series of captures
_FEW = 16  # elements of a container that are compared one by one
_numbers = count()  # of roots
_FUNCTIONS = (FunctionType, BuiltinFunctionType)
_SINGLE = (type(None), bool, torch.dtype, torch.layout, torch.memory_format)  # compared as objects
_EXACT = (int, str, bytes)  # of equal ones that are of one type none differs from the other
_PLAIN = (*SCALARS, *_SINGLE, bytes, range, Decimal, np.generic, torch.device)
_CONTAINERS = (list, tuple, torch.Size, set, frozenset, deque, dict, bytearray)
_Part = tuple[str, dict[str, str]]  # an expression over names that stand for what a line reads, and these
_SHAPE = ("shape", "dtype", "ndim", "is_cuda")  # of a tensor, which is watched by its address alone
_TABLES = ("_parameters", "_buffers", "_modules")


class Held(NamedTuple):
    """A value, its source, the root in that, and what people call it."""

    value: Any
    source: str
    root: str
    name: str


class Root(NamedTuple):
    """Where ways begin."""

    source: str
    value: Any
    name: str
    owner: Any  # of a variable: the code that closes over it, or the globals that it is one of; else None


class Way(NamedTuple):
    """A way to a root."""

    holder: Any  # a weak reference to what holds it
    rest: str  # how it goes on from there


class Watch(NamedTuple):
    """A value that is compared before each replay."""

    source: str
    root: str
    name: str
    was: str  # in words
    condition: str  # source of what is true once it is another one
    k: str  # as what that knows `old`
    old: Any
    where: Place | None  # the line that has read it; None if none of the user's did
    memory: StorageWeakRef | None = None  # of a tensor

    def of_memory(self) -> "Watch":
        """Watch only whether somebody still owns the memory that a graph uses."""
        return self._replace(source="MISSING", root="", condition=f"{self.k}.expired()", old=self.memory)


@dataclass
class Series:
    """What captures in a row have in common: hundreds, as a server makes them, among millions of objects.

    So all objects are looked through once, and are frozen from then on: what is not is new.
    """

    names: dict[str, Any]  # what is looked through for names first, as the model
    roots: dict[tuple[int, str], Root] = field(default_factory=dict)
    known: dict[int, Held] = field(default_factory=dict)
    tensors: dict[int, Held] = field(default_factory=dict)
    at_lines: dict[Any, list[_Part]] = field(default_factory=dict)
    memory: dict[int, "Memory"] = field(default_factory=dict)  # that Python holds, by number
    first: frozenset[int] = frozenset()  # numbers of what was there before the first capture

    def look(self) -> list["Memory"]:
        """The memory that Python holds now."""
        new = _memory() if not self.memory else _memory_of(gc.get_objects())
        self.memory |= {one.number: one for one in new}
        gc.freeze()
        self.memory = {n: one for n, one in self.memory.items() if not one.reference.expired()}
        self.first = self.first or frozenset(self.memory)
        return list(self.memory.values())

    def forget(self) -> None:
        """Keep none of the tensors that have come since: their memory could not be used again."""
        for key in [key for key, one in self.tensors.items() if _number(one.value) not in self.first]:
            del self.known[key], self.tensors[key]
            self.roots.pop((key, ""), None)


class Reads(Lines):
    """The lines of one capture, while it is entered, and what they read."""

    def __init__(self, series: Series | None = None) -> None:
        if series is None or not series.memory:
            atoms.forget_sources()
        super().__init__(Positions())
        self.is_over = False
        self.is_emulated = emulated.is_capturing()
        self.series = series
        self.before = self._look()
        self._numbers = {memory.number for memory in self.before}
        self.roots: dict[tuple[int, str], Root] = series.roots if series else {}
        self.known: dict[int, Held] = series.known if series else {}  # objects that have a name, by `id`
        self.tensors: dict[int, Held] = series.tensors if series else {}  # of these
        # By source, with the line that has read it last, and source and value of the expressions in which
        # lines use it; None where one does something else with it.
        self.read: dict[str, tuple[Held, Place, dict[str, Any] | None]] = {}
        self._at_lines: dict[Any, list[_Part]] = series.at_lines if series else {}  # by code, line and texts
        self.failed: dict[str, str] = {}  # lines, and why
        self._of_class = cache(names._of_class)
        for name, value in series.names.items() if series else ():
            self._explore(self._held(value, name))

    def __enter__(self) -> "Reads":
        super().__enter__()
        self._running = [(frame, frame.f_trace) for frame in _running(sys._getframe(1))]
        for frame, _ in reversed(self._running):
            for name in frame.f_locals if frame.f_locals is not frame.f_globals else ():
                self._variable(frame, name)
            self._call(frame)
            if MONITORS:
                self._watch(frame.f_code, self._local)
            else:
                frame.f_trace = self._on_event
        for frame, _ in self._running[:1]:  # captured work may stand on the line that begins the capture
            statements = atoms.statements_at(frame.f_code.co_filename, frame.f_lineno)
            if any(isinstance(s, ast.With) and s.body[0].lineno == frame.f_lineno for s in statements):
                self._line(frame)
        return self

    def __exit__(self, *exception: Any) -> None:
        self.is_over = True
        super().__exit__(*exception)
        for frame, tracer in self._running:
            frame.f_trace = tracer
            if frame.f_code.co_flags & CO_OPTIMIZED and type(frame.f_locals) is dict:
                frame.f_locals.clear()  # not the variables: a copy of them all that Python keeps
        self._running, self._calls = [], []

    def forget(self) -> None:
        """Keep nothing alive, though a generator that goes on may keep its tracer."""
        self.read.clear()
        for kept in () if self.series else (self.roots, self.known, self.tensors):
            kept.clear()
        if self.series:
            self.series.forget()

    def _look(self) -> list["Memory"]:
        return self.series.look() if self.series else list(_memory())

    # ---- lines ----

    def _line(self, frame: FrameType) -> None:
        if self._back_in(frame) and frame.f_globals.get("__name__") not in _OURS:
            try:
                self._read_line(frame)
            except Exception as error:  # a guard stops no capture
                place = Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
                self.failed[str(place)] = f"not understood, {type(error).__name__}"

    def _read_line(self, frame: FrameType) -> None:
        code, line, found = frame.f_code, frame.f_lineno, dict[str, Held]()
        for atom in (one for one in atoms.atoms_at(code, line) if not one.is_there):
            held = self._variable(frame, atom.name)
            for is_attribute, key in atom.steps:
                if isinstance(key, Atom):
                    key = key.value(frame, frame.f_locals)
                elif is_attribute and key.startswith("__"):  # in a class perhaps another name
                    key = next((name for name in code.co_names if re.fullmatch(f"_\\w+{key}", name)), key)
                held = held and self._step(held, is_attribute, key)
            if held is not None and atom.is_len:
                value = atom.value(frame, frame.f_locals)
                held = Held(value, f"len({held.source})", held.root, f"len({held.name})")
            if held is not None:
                self._explore(held)
                found[atom.text] = held
        key = code, line, frozenset(found)
        if key not in self._at_lines:
            self._at_lines[key] = _parts(atoms.statements_at(code.co_filename, line), found)
        outcomes = _outcomes(self._at_lines[key], found)
        for text, held in found.items():
            before = self.read[held.source][2] if held.source in self.read else {}
            now = outcomes.get(text)
            both = None if before is None or now is None else before | now
            self.read[held.source] = (held, Place(code.co_filename, line, code.co_name), both)

    def _variable(self, frame: FrameType, name: str) -> Held | None:
        """What a variable leads to; None for a local one that holds no object."""
        owner: Any = None
        variables = frame.f_locals
        if name not in variables or variables is frame.f_globals:
            variables = owner = frame.f_globals
        elif name in frame.f_code.co_freevars:
            owner = frame.f_code
        value = variables.get(name, MISSING)
        if value is MISSING or self._is_made(value):
            return None
        if owner is None and (id(value) in self.known or not _is_weak(value)):
            return self.known.get(id(value))
        held = self._held(value, name, owner)
        self._explore(held)
        return held

    def _held(self, value: Any, name: str, owner: Any = None) -> Held:
        key = (id(value), "") if owner is None else (id(owner), name)
        root = self.roots.setdefault(key, Root(f"r{next(_numbers)}", value, name, owner)).source
        return Held(value, root, root, name)

    def _step(self, held: Held, is_attribute: bool, key: Any) -> Held | None:
        """An attribute or an element; None where it is computed, or nothing that is watched."""
        if not isinstance(key, SCALARS):
            return None
        owner, told = held.value, f".{key}" if is_attribute else f"[{_bare(key)}]"
        source, value = held.source + told, MISSING
        tables = vars(owner) if issubclass(type(owner), torch.nn.Module) else {}
        if table := next((at for at in _TABLES if str(key) in tables.get(at, ())), None):
            source, value = f"{held.source}.{table}[{str(key)!r}]", tables[table][str(key)]
        elif is_attribute and not (_is_tensor(owner) and key in _SHAPE):
            value = atoms.attribute(owner, str(key))
            if key != atoms._GET and (not str(key).isidentifier() or iskeyword(str(key))):
                source = f"getattr({held.source}, {key!r})"
        elif not is_attribute and _is_tensor(owner):
            values = host_values(owner) if self._is_hosts(owner) and owner.dim() == 1 else None
            source, value = f"host_values({held.source}){told}", atoms.element(values, key)
        elif not is_attribute:
            value = atoms.element(owner, key)
        if value is MISSING or self._is_made(value):
            return None
        return Held(value, source, held.root, held.name + told)

    def _is_made(self, value: Any) -> bool:
        """Whether a tensor was made in the capture: kept, its memory could not be used again there."""
        with suppress(Exception), torch._C.DisableTorchFunction():
            return _is_tensor(value) and value.untyped_storage()._cdata not in self._numbers
        return False

    def _is_hosts(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu" and (not self.is_emulated or is_marked(tensor))

    def _explore(self, held: Held) -> None:
        """Find names for what can be reached from here, the shortest first."""
        queue, most = deque([held]), _MOST_OF_SERIES if self.series else _MOST_OBJECTS
        while queue and len(self.known) < most:
            held = queue.popleft()
            kind = type(held.value)
            if id(held.value) in self.known or issubclass(kind, (*SCALARS, type, ModuleType)):
                continue
            if kind.__module__ in _OURS:
                continue
            self.known[id(held.value)] = held
            if _is_tensor(held.value):
                self.tensors[id(held.value)] = held
            with suppress(Exception):  # an object that does not let itself be looked at
                parts = names._children("", held.value, names._MOST_ELEMENTS, self._of_class)
                for way, _ in () if _is_tensor(held.value) else parts:
                    is_attribute = way.startswith(".")
                    key = way[1:] if is_attribute else ast.literal_eval(way[1:-1])
                    if found := self._step(held, is_attribute, key):
                        queue.append(found)

    # ---- once it has ended ----

    def ways(self) -> dict[str, list[Way]]:
        """By root. Of what nothing holds that can be held weakly there is none."""
        owners = [root.owner for root in self.roots.values() if root.owner is not None]
        functions: list[FunctionType] = []
        if not self.series:  # there all variables of functions would be looked for anew among all objects
            with _thawed():
                functions = [one for one in gc.get_referrers(*owners) if type(one) is FunctionType]
        found = ((root.source, _holders(root, functions)) for root in self.roots.values())
        return {r: [Way(weakref.ref(one), way) for one, way in ways if _is_weak(one)] for r, ways in found}

    def watches(self, addresses: list[int], made: dict[int, StorageWeakRef]) -> Iterator[Watch]:
        """What is to be compared, of a graph whose nodes hold these addresses.

        Args:
            made: memory that captures have made; what this one has made is added.
        """
        addresses = sorted(addresses)
        of_graphs = {number for number, memory in made.items() if not memory.expired()}
        used = [memory for memory in self.before if memory.holds_one_of(addresses)]
        touched = {memory.start: memory.reference for memory in used if memory.number not in of_graphs}
        new = (memory for memory in self._look() if memory.number not in self._numbers)
        made |= {memory.number: memory.reference for memory in new if memory.holds_one_of(addresses)}
        numbers = (f"k{i}" for i in count())
        named = {_start(held.value) for held, _, _ in self.read.values()}
        for held, place, outcomes in self.read.values():
            if (start := _start(held.value)) in touched:
                yield _of_tensor(held, next(numbers), place, touched[start])
            elif not (_is_tensor(held.value) and not self._is_hosts(held.value)):
                yield from _of_value(held, next(numbers), place, outcomes)
        for held in self.tensors.values():  # what no line of the user's names, such as weights
            if (start := _start(held.value)) in touched and start not in named:
                named.add(start)
                yield _of_tensor(held, next(numbers), None, touched[start])


def _of_tensor(held: Held, k: str, where: Place | None, memory: StorageWeakRef) -> Watch:
    value, source, root, name = held
    at, was, condition = value.data_ptr(), words(value, is_address=True), f"{source}.data_ptr() != {k}"
    if value.dim() > 1 and not value.is_nested:  # in another order it lies where it has lain
        other = f"v.stride() != {value.stride()} and v.dim() == {value.dim()}"
        condition = f"(v := {source}).data_ptr() != {k} or {other}"
    return Watch(source, root, name, was, condition, k, at, where, memory)


def _of_value(held: Held, k: str, where: Place, outcomes: dict[str, Any] | None) -> Iterator[Watch]:
    value, source, root, name = held
    if compared := _compared(held, k):
        # What the line works out is asked of what has changed only.
        asked = (f"repr({one}) != {repr(was)!r}" for one, was in (outcomes or {}).items())
        condition = f"({compared[0]}) and ({' or '.join(asked) or True})"
        yield Watch(source, root, name, words(value), condition, k, compared[1], where)


def _compared(held: Held, k: str) -> tuple[str, Any] | None:
    """Source of what is true of another value, and what that knows as `k`; None for what is not compared."""
    value, source, kind = held.value, held.source, type(held.value)
    if issubclass(kind, (ModuleType, type, torch.cuda.CUDAGraph, CapturedGraph)):
        return None  # a graph that is guarded has another class from then on
    if issubclass(kind, _FUNCTIONS):  # under a name that is not its own it was chosen
        is_own = value.__name__ == re.split(r"\W", held.name)[-1]
        return None if is_own else (f"ref({source}) != {k}", weakref.ref(value))
    if issubclass(kind, partial):
        return f"ref({source}) != {k}", weakref.ref(value)
    if issubclass(kind, (*_SINGLE, Enum)):
        return f"{source} is not {k}", value
    if kind in (*_EXACT, float):  # most are; `form` says the same, and takes longer
        is_odd = value == 0.0 or value != value  # zero has a sign, and a NaN is not itself
        now, value = ("repr(v)", repr(value)) if is_odd else ("v", value)
        return f"(v := {source}).__class__ is not {kind.__name__} or {now} != {k}", value
    if issubclass(kind, (np.ndarray, torch.Tensor)):
        return f"repr(summary({source})) != {k}", repr(summary(value))
    return f"form({source}) != {k}", form(value)


def form(value: Any, levels: int = 4) -> Any:
    """What is equal for values that are alike and for no others, and keeps none of them alive: a NaN is like
    another one, 0.0 not like -0.0 or 0. Of a large container there is only the length, of an object its type.
    """
    kind = type(value)
    if issubclass(kind, _CONTAINERS):
        is_small = kind in _CONTAINERS and len(value) <= _FEW and levels
        parts = (value.items() if kind is dict else value) if is_small else ()
        order = frozenset if kind in (set, frozenset, dict) else tuple
        return id(kind), len(value), order(form(part, levels - 1) for part in parts)
    if kind is slice:
        return id(kind), form((value.start, value.stop, value.step))
    if kind in _EXACT or issubclass(kind, Enum):
        return id(kind), value
    if issubclass(kind, SCALARS):
        return id(kind), _bare(value)
    return id(kind), repr(value) if issubclass(kind, _PLAIN) else None


def _bare(value: Any) -> str:
    """A number or a text as source, whatever a type of the user's makes of it."""
    kind: Any = next(one for one in SCALARS if isinstance(value, one))
    return str(kind.__repr__(value))


KNOWN: dict[str, Any] = dict(host_values=host_values, summary=summary, MISSING=MISSING, form=form)
KNOWN["ref"] = weakref.ref
"""What sources may call."""


def words(value: Any, *, is_address: bool = False) -> str:
    """What is said of a value; of a tensor, where it lies."""
    if is_address and _is_tensor(value):
        return f"at 0x{value.data_ptr():x}"
    told = value if _is_plain(value) else summary(value)
    return str(told) if isinstance(told, Described) else repr(told)


def _parts(statements: list[ast.stmt], read: Collection[str]) -> list[_Part]:
    """The largest expressions of a line that can be worked out from what it reads, which is given as text."""
    found = list[_Part]()
    for statement in statements:
        tests = atoms.heads(statement) if isinstance(statement, ast.If | ast.While) else []
        nodes = list(atoms.heads(statement))
        for node in nodes:  # it grows
            told = _Told(dict(zip(read, read, strict=True)))
            # What a walrus binds is used later.
            is_whole = isinstance(node, ast.expr) and ast.NamedExpr not in map(type, ast.walk(node))
            text = ast.unparse(told.of(node)) if is_whole else "_unknown"
            if "_unknown" in text:
                nodes += ast.iter_child_nodes(node)
            elif told.names:
                found.append((f"bool({text})" if node in tests else text, told.names))
    return found


def _outcomes(parts: list[_Part], found: dict[str, Held]) -> dict[str, dict[str, Any]]:
    """What a line works out of what it reads, by its text there: sources and values. Not of what it uses in
    another way as well, like a number that it passes on."""
    known: dict[str, dict[str, Any]] = {}
    plain: set[str] = set()
    for text, names_of in parts:
        helds = {name: found[read] for name, read in names_of.items()}
        outcome = None if text in helds else _outcome(text, helds)
        for read in names_of.values():
            known.setdefault(read, {}).update(outcome or {})
        plain |= set() if outcome else set(names_of.values())
    return {read: outcomes for read, outcomes in known.items() if read not in plain}


def _outcome(text: str, helds: dict[str, Held]) -> dict[str, Any] | None:
    """Source and value of an expression over values that are held; None where nobody can tell."""
    is_known = {name: isinstance(held.value, Enum) or _is_plain(held.value) for name, held in helds.items()}
    if any(re.search(rf"\b{name}\b(?! is (?:not )?None)", text) for name in helds if not is_known[name]):
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


def _is_plain(value: Any, levels: int = 4) -> bool:
    """Whether a value is a number, a text or the like, or a small container of what is."""
    if type(value) is slice:
        value = (value.start, value.stop, value.step)
    if type(value) not in _CONTAINERS:
        return issubclass(type(value), _PLAIN)
    items = value.items() if type(value) is dict else value
    return len(items) <= _FEW and levels > 0 and all(_is_plain(item, levels - 1) for item in items)


def _is_tensor(value: Any) -> bool:
    return issubclass(type(value), torch.Tensor)


def _number(value: Any) -> int:
    """As `Memory` numbers that of a tensor; 0 where it has none."""
    with suppress(Exception), torch._C.DisableTorchFunction():
        return int(value.untyped_storage()._cdata)
    return 0


def _start(value: Any) -> int:
    """Where the memory of a tensor begins; 0 for anything else."""
    with suppress(Exception), torch._C.DisableTorchFunction():
        has_memory = _is_tensor(value) and not issubclass(type(value), FakeTensor)
        return value.untyped_storage().data_ptr() if has_memory else 0
    return 0


class Memory(NamedTuple):
    """The memory of a tensor that Python holds."""

    start: int
    end: int
    number: int  # no two have the same at once
    reference: StorageWeakRef

    def holds_one_of(self, addresses: list[int]) -> bool:
        """Whether one of some sorted addresses lies in it."""
        at = bisect_left(addresses, self.start)
        return at < len(addresses) and addresses[at] < self.end


@contextmanager
def _thawed() -> Iterator[None]:
    """Of a frozen heap, as vLLM's V1 runner has it while it captures, Python tells neither which objects it
    holds nor who refers to one. It is frozen again, with all garbage since; none is collected in here."""
    was_frozen = gc.get_freeze_count() > 0
    with no_garbage_collection():
        gc.unfreeze()
        try:
            yield
        finally:
            if was_frozen:
                gc.freeze()


def _memory() -> Iterator[Memory]:
    with _thawed():
        objects = gc.get_objects()
    return _memory_of(objects)


def _memory_of(objects: list[Any]) -> Iterator[Memory]:
    kinds: list[Any] = [torch.Tensor]
    for kind in kinds:  # it grows
        kinds += [sub for sub in type.__subclasses__(kind) if sub is not FakeTensor]  # that has no memory
    # There may be millions to be asked, so no line of Python is run for each.
    tensors = list(compress(objects, map(frozenset(kinds).__contains__, map(type, objects))))
    del objects
    for tensor in tensors:
        with suppress(Exception), torch._C.DisableTorchFunction():
            storage = tensor.untyped_storage()
            start = storage.data_ptr()
            if start:
                yield Memory(start, start + storage.nbytes(), storage._cdata, StorageWeakRef(storage))


def _running(frame: FrameType | None) -> Iterator[FrameType]:
    """The functions of the user's that run, inner ones first. A library's only run whoever asked for it."""
    while frame is not None:
        is_librarys = "site-packages" in frame.f_code.co_filename
        if is_users(frame.f_code) and not is_librarys and frame.f_globals.get("__name__") not in _OURS:
            yield frame
        frame = frame.f_back


def _holders(root: Root, functions: list[FunctionType]) -> Iterator[tuple[Any, str]]:
    """What a root can be reached from, and how. An object is there for as long as it holds itself."""
    if type(root.owner) is dict:
        module = sys.modules.get(str(root.owner.get("__name__")))
        if module is not None and vars(module) is root.owner:
            yield module, f".{root.name}"
        for function in functions:
            if function.__globals__ is root.owner:
                yield function, f".__globals__[{root.name!r}]"
    elif root.owner is not None:
        i = root.owner.co_freevars.index(root.name)
        closures = [one for one in functions if one.__code__ is root.owner]
        same = [one for one in closures if (one.__closure__ or ())[i].cell_contents is root.value]
        for function in same or closures:
            yield function, f".__closure__[{i}].cell_contents"
    yield root.value, ""
