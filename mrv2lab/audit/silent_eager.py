"""silent-eager: a step that should replay a graph did its work, or too much of it, without one."""

import ast
from dataclasses import replace
from typing import NamedTuple

from mrv2lab import verdict
from mrv2lab.audit import names
from mrv2lab.audit.atoms import SCALARS, assigned_at
from mrv2lab.audit.branches import cause_of
from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.fresh import Fresh
from mrv2lab.audit.passes import naming
from mrv2lab.audit.recorder import Recorder
from mrv2lab.audit.report import Finding, Place
from mrv2lab.audit.trace import Event, Trace
from mrv2lab.errors import counted
from mrv2lab.graphs import CapturedGraph, replayed

KIND, SHORT, RANK = "silent-eager", "eager", 0
ASKED = "always"
_MOST_REQUESTS = 16  # a long prompt may come before a step that a graph can do
_MOST = 0.9  # of the work of a step: below it the graph may be all that was meant to be one


def find(evidence: Evidence) -> Findings:
    """Count the graphs that were replayed, and of a step with graphs of its own what it did beside them."""
    engine, run, eager = evidence.passes.engine, evidence.run, evidence.eager
    work = [event for event in run.own() if event.is_work]
    branch = not_taken(eager) if engine.twin is not None else None
    if branch is not None and (served := of_fresh(evidence)).captured and not any(served.replays):
        captured, requests = counted(served.captured, "graph"), counted(len(served.replays), "request")
        key, values = _key(eager, branch) or (engine.name, "")
        text = f"captures {captured} when it is made, and replays none for"
        text += f" {requests}{values}. The last branch of the function that could:"
        text = text.removesuffix(":") + decided_in(eager, branch) + ":" if values == "" else text
        yield 0, Finding(KIND, key, text, eager.lines.positions.place(branch))
    elif engine.replays and work and not run.replayed():
        if engine.twin is not None and of_fresh(evidence).is_often_replayed():
            return  # other requests of a fresh engine find a graph: which do not is a note
        text = f"{len(work)} ops and launches, and no graph was replayed"
        if evidence.captures:
            text += f"; captured: {counted(len(evidence.captures), 'graph')}"
        yield 0, _decided(evidence, work[0], f"{text}. The first:")
    elif engine.replays and work and eager.replayed():
        yield from _beside(evidence, evidence.made)


def _decided(evidence: Evidence, work: Event, text: str) -> Finding:
    """The host value that led to work beside graphs, if the step has replayed some when it was first run."""
    run, made = evidence.run, evidence.made
    cause = cause_of(made, run, work.key[0]) if made.replayed() else None
    if cause is None:
        return Finding(KIND, evidence.passes.engine.name, text, run.place(work))
    subject, old, new, position = cause
    text = f"was {old!r} when the step was first run, is {new!r} now; {text} {run.place(work)}"
    text += decided_in(run, position)
    return Finding(KIND, subject, text, run.lines.positions.place(position), (old, new))


def not_taken(eager: Trace) -> int | None:
    """The position where a step that has replayed nothing left a function that can. Others may be there to be
    captured by whoever calls them, whatever graphs their engine has beside them."""
    positions = eager.lines.positions
    named = [at for at in eager.values if at and "replay" in positions.code(at).co_names]
    able = [at for at in named if _replays(positions.function(at))]
    if not able or eager.replayed():
        return None
    branches = {at: [s for s in positions.statements(at) if isinstance(s, ast.If | ast.IfExp)] for at in able}
    around = [at for at in able if any(map(_replays, branches[at]))]
    leaving = [at for at in able if any(isinstance(s, ast.Return) for b in branches[at] for s in ast.walk(b))]
    return (around or leaving or [at for at in able if branches[at]] or able)[-1]


def decided_in(eager: Trace, branch: int) -> str:
    """Words for the line of a function that a branch has called at which that has returned, with the numbers
    it saw."""
    positions = eager.lines.positions
    inside = positions.inside(branch)
    for at in (at for at in reversed([*eager.values]) if at in inside):
        if not any(isinstance(statement, ast.Return) for statement in positions.statements(at)):
            continue
        both = zip(positions.atoms(at), eager.values[at], strict=True)
        seen = ", ".join(f"{atom.text} = {value!r}" for atom, value in both if type(value) in SCALARS)
        place = positions.place(at)
        return f"; decided at {place}: {place.source if place else ''}" + (f" ({seen})" if seen else "")
    return ""


def _replays(node: ast.AST | None) -> bool:
    """Whether a graph's `replay` is called there."""
    calls = (one.func for one in ast.walk(node) if isinstance(one, ast.Call)) if node else ()
    return any(isinstance(called, ast.Attribute) and called.attr == "replay" for called in calls)


def unused(evidence: Evidence) -> str | None:
    """The path to a graph of its own that holds all the work of a step which never replays it."""
    passes, nodes = evidence.passes, evidence.session.nodes
    work = [[n.label for n in nodes(one.graph)] for one in evidence.captures if one.graph is not None][-1:]
    reached = () if evidence.eager.replayed() else names.leaves(passes.engine.roots)
    graphs = ((path, graph) for path, graph in reached if isinstance(graph, CapturedGraph))
    path = next((path for path, graph in graphs if [[n.label for n in nodes(graph)]] == work), None)
    return None if path and passes.engine.twin and any(of_fresh(evidence).replays) else path


def _key(eager: Trace, branch: int) -> tuple[str, str] | None:
    """What a graph is looked up by, if a branch asks for one, and words for the values it is made of."""
    positions = eager.lines.positions
    place = positions.place(branch)
    assigned = assigned_at(place.file, place.line) if place else {}
    tests = [s.test for s in positions.statements(branch) if isinstance(s, ast.If)]
    for node in (node for test in tests for node in ast.walk(test)):
        match assigned.get(node.id, node) if isinstance(node, ast.Name) else node:
            case (
                ast.Call(func=ast.Attribute(attr="get"), args=[key, *_])
                | ast.Subscript(slice=key)
                | ast.Compare(left=key, ops=[ast.In() | ast.NotIn()])
            ):
                looked_up = (positions.turns(branch, key.lineno) or [branch])[-1]
                last = [at for at in eager.values if looked_up in positions.chain(at)][-1]
                both = zip(positions.atoms(last), eager.values[last], strict=True)
                plain = [f"{atom.text} = {value!r}" for atom, value in both if type(value) in SCALARS]
                return ast.unparse(key), f"; it asks for {', '.join(plain)}" if plain else ""
    return None


class Served(NamedTuple):
    """By a fresh engine."""

    captured: int  # graphs, when it was made
    replays: list[int]  # for each request

    def is_often_replayed(self) -> bool:
        return bool(self.replays) and 2 * sum(map(bool, self.replays)) >= len(self.replays)


def of_fresh(evidence: Evidence) -> Served:
    """Requests in a row, served by an engine that its twin makes."""
    passes, replays = evidence.passes, list[int]()
    recorder = Recorder(replace(evidence.session, uncomputed={}))
    with passes.made.unwatched(), naming("when it was served"):
        with recorder:
            engine = Fresh(evidence.passes.engine.twin(), passes.session.backend)  # type: ignore[misc]
        while len(replays) < _MOST_REQUESTS:
            try:
                engine.prepare()
            except StopIteration:  # there are no more
                break
            with replayed() as graphs:
                engine.run()
            replays.append(len(graphs))
    return Served(len(recorder.captures), replays)


def _beside(evidence: Evidence, made: Trace) -> Findings:
    """Work that graphs did when the step was first run, and that is issued beside them now. What was issued
    beside graphs then too is where it belongs. So is what comes in place of no node."""
    before, now = made.num_nodes(), evidence.run.num_nodes()
    known = {_way(made, event) for event in made.own()}
    beside = evidence.run.beside_graphs()
    share = len(beside) / (len(beside) + now)
    if share > _MOST:
        text = f"{share:.0%} of the step's work, {len(beside)} ops and launches, are issued beside its graphs"
        text += f" of {counted(now, 'node')}. The first:"
        yield 0, _decided(evidence, beside[0], text)
        return
    new = [event for event in beside if _way(evidence.run, event) not in known]
    taken_out = min(len(new), before - now)
    if taken_out > verdict.ALLOWED * (now + taken_out):
        text = f"{len(new)} ops and launches beside graphs of {now} nodes"
        text += f"; when it was first run, its graphs had {before} nodes and did this work. The first:"
        yield 0, _decided(evidence, new[0], text)


def _way(trace: Trace, event: Event) -> tuple[str, tuple[Place | None, ...]]:
    """What was done, and the lines that led there, however often they ran."""
    positions = trace.lines.positions
    return event.name, tuple(map(positions.place, positions.chain(event.key[0])))
