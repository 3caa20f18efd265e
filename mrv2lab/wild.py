"""Bugs of other engines, cut down to pairs of programs, and what checks of today say of them.

`program(fixed, device)` in a file of `data/wild` makes a small engine. It is served as engines serve: warmed
up, captured with what is captured beside it, then replayed for each request. What is right comes from the
fixed program run eagerly: never from a check, nor from the audit, which is called from outside as the others.
"""

import inspect
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch

from mrv2lab import forks, graphs, sources
from mrv2lab.errors import AuditError, choose
from mrv2lab.graphs.base import CapturedGraph
from mrv2lab.graphs.nested import tensors_in
from mrv2lab.results import RECORDS, Kept, provenance

FOLDER = RECORDS / "wild"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
Results = list[list[torch.Tensor]]
_COSTS = (
    "frozen, with the same result: ",
    "replays no graph of its own, and could: ",
)  # how such notes begin


def load(name: str) -> ModuleType:
    """A pair: the module of its file."""
    path = FOLDER / f"{choose('pair', name, NAMES)}.py"
    pair = sys.modules[f"wild_{name}"] = ModuleType(f"wild_{name}")
    pair.__file__ = str(path)
    exec(compile(path.read_text(), path, "exec"), vars(pair))  # records hold no bytecode
    return pair


class Server:
    """A fresh program, warmed up and, unless it runs eagerly, captured. `first`: what warming up returned."""

    def __init__(self, pair: ModuleType, fixed: bool, device: torch.device, *, captured: bool = True):
        self.program: SimpleNamespace = pair.program(fixed, device)
        self.graphs: list[CapturedGraph] = []
        self._backend: Any = "cuda" if device.type == "cuda" else "emulated"
        self._reset = getattr(self.program, "reset", lambda: None)
        off = getattr(self.program, "eager", self.program.step)  # what the engine does with graphs off
        self._run = self.program.step if captured else off
        self._reset()
        if not captured or hasattr(self.program, "own_graphs"):
            self.first = self._real(self._run())
            return
        beside, pool = getattr(self.program, "beside", []), graphs.new_pool(self._backend)
        before, after = ([fn for at, fn in beside if at == when] for when in ("before", "after"))
        for fn in (*before, self.program.step, *after):
            warm = self._real(fn())
            self.graphs.append(graphs.capture(fn, backend=self._backend, pool=pool))
            if fn is self.program.step:
                self.first, graph = warm, self.graphs[-1]
        self._run = lambda: graph.replay() or graph.outputs  # type: ignore[func-returns-value]

    def _real(self, outputs: Any) -> list[torch.Tensor]:
        rows = self.program.rows() if hasattr(self.program, "rows") else None
        return [t[:rows].clone() if t.dim() else t.clone() for t in tensors_in(outputs)]

    def prepare(self) -> None:
        """What the host does before the next request."""
        self._reset()
        self.program.vary()

    def step(self) -> list[torch.Tensor]:
        """One step on what was prepared: copies of the real rows of its results."""
        return self._real(self._run())

    def requests(self) -> Results:
        """All requests in a row, and at last what the caller makes of earlier results."""
        results: Results = []
        for _ in range(getattr(self.program, "requests", 3)):
            self.prepare()
            results.append(self.step())
        if hasattr(self.program, "finish"):
            results.append([t.clone() for t in tensors_in(self.program.finish())])
        return [[t.cpu() for t in result] for result in results]  # faults of a GPU show here


def agree(results: Results, expected: Results) -> bool:
    """Whether results are the same but for rounding."""
    one, other = tensors_in(results), tensors_in(expected)
    return [t.shape for t in one] == [t.shape for t in other] and all(
        torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-5) for a, b in zip(one, other, strict=True)
    )


def truth(pair: ModuleType, fixed: bool, device: torch.device) -> str:
    """What a variant does: `right`, `wrong`, or `slow` if less of it is replayed than of the fixed one."""
    expected = Server(pair, True, device, captured=False).requests()
    with graphs.replayed() as seen:
        results = Server(pair, fixed, device).requests()
    if not agree(results, expected):
        return "wrong"
    with graphs.replayed() as most:
        Server(pair, True, device).requests()
    return "slow" if sum(len(g.nodes) for g in seen) < sum(len(g.nodes) for g in most) else "right"


def graphs_off(pair: ModuleType, fixed: bool, device: torch.device) -> str:
    """What it does eagerly: what is wrong there too, no comparison of a graph with an eager twin can show."""
    eager, expected = (Server(pair, good, device, captured=False).requests() for good in (fixed, True))
    return "right" if agree(eager, expected) else "wrong"


def same_inputs(pair: ModuleType, fixed: bool, device: torch.device) -> bool:
    """Complains if a replay on the inputs of the capture gives other results than the eager warm-up."""
    server = Server(pair, fixed, device)
    return not agree([server.step()], [server.first])


def changed_inputs(pair: ModuleType, fixed: bool, device: torch.device) -> bool:
    """The same on those of one other request, against this program with graphs off."""
    server, eager = Server(pair, fixed, device), Server(pair, fixed, device, captured=False)
    server.prepare()
    eager.prepare()
    return not agree([server.step()], [eager.step()])


def address_guard(pair: ModuleType, fixed: bool, device: torch.device) -> bool:
    """Complains before a replay if a tensor that the graphs use lies elsewhere than at capture."""
    server = Server(pair, fixed, device)
    used = {a for graph in server.graphs for node in graph.nodes for a in node.addresses}
    held = set(_addresses(server.program, "", set()))
    seen = {(path, begin, end) for path, begin, end in held if any(begin <= a < end for a in used)}
    for _ in range(getattr(server.program, "requests", 3)):
        server.prepare()
        if not seen <= set(_addresses(server.program, "", set())):
            return True
        server.step()
    return False


def _addresses(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, int, int]]:
    """Where tensors lie, by the names that lead to them, as engines walk their inputs and metadata."""
    inside: Any = {}
    match value:
        case torch.Tensor():
            yield path, value.data_ptr(), value.data_ptr() + value.nbytes
        case list() | tuple() | dict():
            inside = value if isinstance(value, dict) else dict(enumerate(value))
        case MethodType():
            inside = {"self": value.__self__}
        case FunctionType():
            inside = inspect.getclosurevars(value).nonlocals
        case _ if type(value).__module__.startswith(("wild_", "types")):
            inside = getattr(value, "__dict__", {})
    for name, each in inside.items() if id(value) not in seen else ():
        yield from _addresses(each, f"{path}.{name}", seen | {id(value)})


def input_liveness(pair: ModuleType, fixed: bool, device: torch.device) -> bool | str:
    """PyTorch's own: complains if an input of the graph was freed between capture and replay."""
    if "check_input_liveness" not in inspect.signature(torch.cuda.graph).parameters:
        return f"n/a (not in torch {torch.__version__})"
    with mock.patch.object(torch.cuda, "graph", partial(torch.cuda.graph, check_input_liveness=True)):
        try:
            return not Server(pair, fixed, device).requests()
        except RuntimeError as error:
            if "dead tensor" not in str(error):
                raise
            return True


def audited(pair: ModuleType, fixed: bool, device: torch.device) -> bool | str:
    """The audit, from outside; of what it detects, whether the cause is named first, and the line."""
    from mrv2lab.audit import audit

    twin = partial(_engine, pair, fixed, device)
    program, backend = twin(), "cuda" if device.type == "cuda" else "emulated"
    said: dict[str, Any] = {name: getattr(program, name, None) for name in ("reset", "rows", "beside")}
    try:
        report = audit(program.step, vary=program.vary, backend=backend, twin=twin, **said)
    except AuditError as error:
        return f"n/a ({error})"
    costs = [note for note in report.notes if note.startswith(_COSTS)]  # alone these are no fault, so notes
    told = [f"{f.kind}: {f.subject}" for f in report.findings]
    told = told or (costs if getattr(pair, "SYMPTOM", "") == "speed" else [])
    if fixed or not told:
        return bool(told)
    lines = [line.strip() for line in inspect.getsource(pair).splitlines()]
    place = f"{pair.__name__.removeprefix('wild_')}.py:{1 + lines.index(pair.LINE)} in "
    cause = re.escape(pair.CAUSE.removeprefix("self."))  # the audit may know the object by another name
    subject = told[0].split(": ")[1]
    is_first = bool(re.search(rf"(?<!\w){cause}(?!\w)", subject))
    named = ", cause first" * is_first + ", line named" * (place in str(report))
    return f"detects{named} ({': '.join(told[0].split(': ')[:2])})"


def _engine(pair: ModuleType, fixed: bool, device: torch.device) -> SimpleNamespace:
    """A fresh program, as the audit takes one."""
    program: SimpleNamespace = pair.program(fixed, device)
    program.beside = [capture for _, capture in getattr(program, "beside", ())]
    return program


_COLUMNS: Any = truth, graphs_off, same_inputs, changed_inputs, address_guard, input_liveness, audited
CHECKS = {check.__name__: check for check in _COLUMNS}
_SANITIZER = "compute-sanitizer --report-api-errors no --tool"
TOOLS = {  # that watch a process which serves: the command, and how its complaints begin
    "memcheck": (f"{_SANITIZER} memcheck", "ERROR SUMMARY: [1-9]"),
    "initcheck": (f"{_SANITIZER} initcheck", "ERROR SUMMARY: [1-9]"),
    "csan": ("env TORCH_CUDA_SANITIZER=1", "CSAN detected"),
}
COMPLAINT = {"buggy": "detects", "fixed": "accuses the fixed one"}
LIMIT_S = 120  # of a column of one variant, by the clock; most need less than 10
ON_GPU = ("input_liveness", *TOOLS)


def said(name: str, variant: str, column: str, device: str) -> str:
    """What one column says of one variant: `detects`, `-`, `crash` and so on."""
    pair = load(name)
    if device == "cpu" and (column in ON_GPU or "emulated" not in pair.EXECUTORS):
        return "n/a (no GPU)"
    try:
        word = CHECKS[column](pair, variant == "fixed", torch.device(device))
    except Exception:
        return "crash"
    return word if isinstance(word, str) else COMPLAINT[variant] if word else "-"


def _apart(name: str, variant: str, column: str, device: str) -> str:
    """The same in a process of its own: a fault ends a process's use of its GPU, and tools watch one."""
    try:
        return str(forks.apart(_said, name, variant, column, device, limit_s=LIMIT_S))
    except forks.Died:
        return "crash"
    except TimeoutError:
        return "hang"


def _said(name: str, variant: str, column: str, device: str) -> str:
    if column not in TOOLS or device == "cpu":
        return said(name, variant, column, device)
    command, sign = TOOLS[column]
    if not shutil.which(command.split()[0]):
        return "n/a (not installed)"
    asked = (name, variant, "truth", device)  # any column serves
    code = f"from mrv2lab import wild; print('said:', wild.said{asked})"
    words = [*command.split(), sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True)
    if re.search(sign, done.stdout + done.stderr):
        return COMPLAINT[variant]
    return "-" if "said: " in done.stdout and "said: crash" not in done.stdout else "crash"


class Wild(Kept):
    """What each column says of each variant of each pair, and what the pair says of itself."""

    rows: list[dict[str, str]]


def served(names: Sequence[str], rung: str) -> Wild:
    """Serve pairs, ask every column about both variants, and print a row for each as it is done."""
    columns, is_gpu = [*CHECKS, *TOOLS], rung == "cuda"
    print(" " * 28, *(f"{column:15}" for column in columns))
    pairs, rows = list(itertools.product(names or NAMES, COMPLAINT)), []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        asked = [(*pair, column) for pair in pairs for column in columns]
        words = pool.map(partial(_apart, device="cuda" if is_gpu else "cpu"), *zip(*asked, strict=True))
        for name, variant in pairs:
            about = {key.lower(): getattr(load(name), key) for key in ("PROJECT", "LINK", "MECHANISM")}
            rows.append({"pair": name, "variant": variant, **about})
            rows[-1] |= {column: next(words) for column in columns}
            short = (rows[-1][column].partition(" (")[0].partition(" the")[0] for column in columns)
            print(f"{name:22}{variant:6}", *(f"{word:15}" for word in short), flush=True)
    return Wild(provenance=provenance(0, uses_gpu=is_gpu, made_by=sources.of(rung, "wild")), rows=rows)
