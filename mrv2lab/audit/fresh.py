"""Fresh engines, one captured and one not, and requests that are served on them."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple

import torch

from mrv2lab.audit import names
from mrv2lab.audit.arguments import counting
from mrv2lab.audit.evidence import Evidence
from mrv2lab.audit.memory import Saved, clone, storage_of
from mrv2lab.audit.passes import (
    NUM_REQUESTS,
    bytes_of,
    contents,
    draw_again,
    drawn_next,
    is_alike,
    nothing,
    replay,
)
from mrv2lab.audit.results import changed, is_off, returned, values
from mrv2lab.graphs import CapturedGraph, capture
from mrv2lab.graphs.base import replayed

FEW = 1 << 16  # elements of an input that is compared
MANY = 1 << 24  # of a result
Tensors = dict[str, torch.Tensor]


class Fresh:
    """An engine to serve with, as `audit` is told of one: `step`, `vary` and what else `made` has. Without a
    backend it runs eagerly; with one it is captured, or replays graphs of its own."""

    whole: Set[str] = frozenset()  # large tensors that are copied; of others a hash is taken

    def __init__(self, made: Any, backend: str | None, is_captured: bool = False):
        self.made = made  # its memory lives as long as it does
        self.resets_once, self.num_prepared = False, 0
        self.in_flight, self.overwritten = 0, dict[str, None]()  # results that later requests write over
        self.drawn: list[list[Any]] = []  # for each request what was drawn next when one was prepared first
        self.hashed = set[str]()
        self.step, self.vary = made.step, made.vary
        self.make_inputs: Callable[[], Any] = made.vary  # with what is to be done around it
        self.reset = getattr(made, "reset", None) or nothing
        rows, self.finish = getattr(made, "rows", None), getattr(made, "finish", None)
        self.rows = rows and counting(rows)
        self.run = made.step if backend else getattr(made, "eager", made.step)
        self.graph: CapturedGraph | None = None
        self.reset()
        begun = Saved(tensor for _, tensor in self.held()) if is_captured else None
        with replayed() as own:
            try:
                result = self.run()
            except Exception:
                self.vary()  # a step may need a request before it can run at all
                begun = begun and Saved(tensor for _, tensor in self.held())
                result = self.run()
            self.first = returned(result)  # of the call before any request
        if is_captured and not own:
            beside, self.graphs = getattr(made, "beside", ()), list[CapturedGraph]()
            for step in (*beside, made.step, *beside):
                if step is not made.step:
                    step()
                self.graphs.append(capture(step, backend=backend or "auto"))
            self.graph = self.graphs[len(beside)]
            self.run = partial(replay, self.graph)
            self._settle(begun)

    def _settle(self, begun: Saved | None) -> None:
        """A replay of the very call that has been made, as `Passes._settle`: what the step has bound leads to
        its results, beside the state that it has left."""
        assert begun is not None and self.graph is not None
        drawn = drawn_next(self.step, self.vary)
        with Saved(tensor for tensor, _ in begun.items()), suppress(Exception):
            begun.restore()
            self.graph.replay()
        draw_again(drawn)

    def prepare(self) -> None:
        """What the host does before the next request. Each engine draws the same for it."""
        states = drawn_next(self.vary, self.reset)
        if self.num_prepared == len(self.drawn):
            self.drawn.append([state for _, state in states])
        elif len(states) == len(self.drawn[self.num_prepared]):
            ways = (put_back for put_back, _ in states)
            draw_again(zip(ways, self.drawn[self.num_prepared], strict=True))
        if not (self.resets_once and self.num_prepared):
            self.reset()
        self.num_prepared += 1
        self.make_inputs()

    def undoes_vary(self) -> bool:
        """Whether its reset puts back what `vary` has changed, so that `vary` makes the same of it each time:
        with one before each, all requests would be the first."""
        states, drawn = list[dict[str, Any]](), drawn_next(self.vary, self.reset)
        for change in (self.reset, self.vary, self.reset, self.vary):
            try:
                if change is self.reset:
                    draw_again(drawn)
                change()
            except StopIteration:  # there are no requests
                return False
            states.append({path: one for call in self.calls for path, one in contents(call).items()})
        fresh, varied, again, second = states
        changed = [path for path in fresh | varied if not is_alike(fresh.get(path), varied.get(path))]
        is_same = all(is_alike(varied.get(path), second.get(path)) for path in changed)
        return is_same and any(is_alike(fresh.get(path), again.get(path)) for path in changed)

    def skip(self, number: int) -> None:
        """Serve requests until one is prepared."""
        for _ in range(number):
            self.prepare()
            self.run()
        self.prepare()

    @property
    def calls(self) -> Iterator[names.Reachable]:
        """What leads to all that it holds."""
        eager = getattr(self.made, "eager", None)
        return map(names.Reachable, filter(None, (self.step, self.vary, self.finish, eager)))

    def held(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor that it holds, with its path."""
        for call in self.calls:
            yield from names.walk(call)

    def generators(self) -> list[torch.Generator]:
        """Of random numbers: its own, in order, and those of all."""
        leaves = (leaf for call in self.calls for _, leaf in names.leaves(call))
        own = {id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Generator)}
        return [*own.values(), torch.default_generator, *torch.cuda.default_generators]

    def copies(self) -> dict[str, tuple[torch.Tensor, int]]:
        """What it holds, and where that lies. Large tensors count where a step returns nothing."""
        most, found = FEW if self.first else MANY, dict[str, tuple[torch.Tensor, int]]()
        for path, tensor in self.held():
            if tensor.numel() <= FEW or path in self.whole:
                found[path] = clone(tensor), storage_of(tensor)
            elif tensor.numel() <= most:
                found[path] = torch.tensor([hash(bytes_of(tensor))]), storage_of(tensor)
                self.hashed.add(path)
        return found


class Request(NamedTuple):
    """Results of a request, and of small tensors that the engine holds then: a copy, and where they lie."""

    results: Tensors
    held: dict[str, tuple[torch.Tensor, int]]
    num_replays: int | None = None  # None: it is what the caller makes of all results
    unseen: Sequence[str] = ()  # in what the step gave: nobody can compare that
    before: Mapping[str, torch.Tensor] = {}  # what is written held this
    beside: Mapping[str, torch.Tensor] = {}  # what is written in place where something is returned
    rows: int | None = None
    whole: Mapping[str, torch.Tensor] = {}  # what the step gave, with rows that are not real
    outputs: Set[int] = frozenset()  # where what graphs return lies
    error: Exception | None = None  # that the replay raised
    seeds: Sequence[int] = ()  # hashes of where generators are then


def engine_of(evidence: Evidence, backend: str | None = None, is_captured: bool = False) -> Fresh:
    """A fresh engine. Each is made with the same random numbers."""
    passes = evidence.passes

    def make() -> Any:
        passes.drawn_for_twins = passes.drawn_for_twins or drawn_next()
        draw_again(passes.drawn_for_twins)
        assert passes.engine.twin is not None
        return passes.engine.twin()

    engine = Fresh(make(), backend, is_captured)
    if passes.resets_once is None:
        passes.resets_once = engine.reset is not nothing and Fresh(make(), None).undoes_vary()
    engine.resets_once, engine.drawn = passes.resets_once, passes.drawn_by_request
    engine.whole, engine.in_flight = evidence.whole, passes.engine.in_flight
    return engine


def serve(engine: Fresh, at: int = 0, around: AbstractContextManager[Any] | None = None) -> list[Request]:
    """Requests in a row, one of them with something around it, and at last what the caller makes of all."""
    served: list[Request] = []
    read_later = deque[list[tuple[str, torch.Tensor, torch.Tensor]]](maxlen=engine.in_flight)
    for _ in range(NUM_REQUESTS):
        try:
            engine.prepare()
        except StopIteration:  # there are no more
            break
        found, lay = {}, {}
        for path, (content, storage) in engine.copies().items():
            found[path], lay[path] = content, storage
        rows = engine.rows and engine.rows()
        try:
            inside = around if around is not None and len(served) == at else nullcontext()
            with replayed() as graphs, inside:
                result = engine.run()
            whole = compared(result)
            given = dict(names.tensors_of(result))  # of those that are no numbers rows may not be real
            given = {path: tensor for path, tensor in given.items() if path in whole}
            made = {path: t[:rows] if path in given and t.dim() else t for path, t in whole.items()}
        except Exception as error:
            if engine.graph is None:
                raise
            return [*served, Request({}, {}, error=error)]
        read = [(path, tensor, content) for results in read_later for path, tensor, content in results]
        engine.overwritten |= {path: None for path, tensor, held in read if has_changed(held, clone(tensor))}
        read_later.append([(path, tensor, clone(tensor)) for path, tensor in given.items()])
        held = engine.copies()
        unseen = list(_unseen(result))
        written = {p: t for p, (t, _) in held.items() if p in found and has_changed(found[p], t)}
        before = {path: found[path] for path in written}
        outputs = outputs_of(graphs)
        beside = {p: t for p, t in written.items() if held[p][1] == lay[p] and lay[p] not in outputs}
        if not returned(result):  # what it has written is its result
            beside = {}
            large = (path for path, _ in engine.held() if path not in held)
            unseen += [f"{path} (of more than {MANY} elements)" for path in large]
            made |= written
        seeds = [hash(bytes_of(generator.get_state())) for generator in engine.generators()]
        about = unseen, before, beside, rows, whole, outputs
        served.append(Request(made, held, len(graphs), *about, seeds=seeds))
    if engine.finish is not None:
        served.append(Request(compared(engine.finish()), {}))
    return served


def outputs_of(graphs: Iterable[CapturedGraph]) -> set[int]:
    """Where what graphs return lies."""
    return {storage_of(tensor) for graph in graphs for _, tensor in names.tensors_of(graph.outputs)}


def compared(result: Any) -> Tensors:
    """Tensors and numbers in what a step gave."""
    numbers = {p: n for p, n in values(result).items() if isinstance(n, bool | int | float)}
    return returned(result) | {path: _exactly(number) for path, number in numbers.items()}


def _exactly(number: bool | int | float) -> torch.Tensor:
    """A number as a tensor that another one equals only if the numbers do, hashes of 64 bits too."""
    if isinstance(number, float) and not (number.is_integer() and abs(number) < 1 << 53):
        return torch.tensor(number, dtype=torch.float64)
    whole = int(number)
    return torch.tensor([*whole.to_bytes(whole.bit_length() // 8 + 1, "little", signed=True)])


def _unseen(result: Any) -> Iterator[str]:
    """What else is in it, but for what belongs to classes."""
    for path, value in names.leaves_of(result):
        is_seen = isinstance(value, torch.Tensor | bool | int | float | type | None)
        if not is_seen and not callable(value) and ".__" not in path:
            yield f"{path} (a {type(value).__name__})"


def counted_of(other: Request, path: str) -> torch.Tensor:
    """Which elements of what is written count. Where only some rows are real: those, and what has changed
    behind them, unless it was cleared."""
    right, before = other.results[path], other.before[path]
    if path in other.beside:
        return changed(before, right)
    if other.rows is None or not right.dim():
        return torch.ones_like(right, dtype=torch.bool)
    counts, real = changed(before, right), slice(other.rows)
    counts[real] = False
    counts &= ~((right[counts] == 0) | (right[counts] == -1)).all()
    counts[real] = True
    return counts


def are_alike(one: Request, other: Request) -> bool:
    return one.results.keys() == other.results.keys() and not any(results_off(one, other))


def results_off(one: Request, other: Request) -> Iterator[str]:
    """Results that one has not as the other. Of what is written only the elements count that the other one
    has changed, and the rows that are real."""
    yield from one.results.keys() - other.results.keys() - one.before.keys()  # nobody is to be given it
    for path, right in other.results.items():
        mine, before = one.results.get(path), other.before.get(path)
        if before is not None and mine is not None and mine.shape == right.shape == before.shape != ():
            counts = counted_of(other, path)
            mine, right, before = mine[counts], right[counts], before[counts]
        elif before is not None and before.shape != right.shape:
            before = None
        if mine is None or mine.shape != right.shape or is_off(mine, right, before):
            yield path


def has_changed(before: torch.Tensor, after: torch.Tensor) -> bool:
    return before.shape != after.shape or bool(changed(before, after).any())


def holds_same(a: torch.Tensor | None, b: torch.Tensor) -> bool:
    return a is not None and a.shape == b.shape and not is_off(a, b)
