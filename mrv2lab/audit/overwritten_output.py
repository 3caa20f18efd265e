"""overwritten-output: a result that is still read lies in memory that a later replay writes."""

import ast
from collections.abc import Iterable, Iterator

from mrv2lab.audit import names
from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.report import Finding
from mrv2lab.audit.trace import Event

KIND, SHORT, RANK = "overwritten-output", "over", 7
ASKED = "always"


def find(evidence: Evidence) -> Findings:
    """Of results that are said to be read after later steps, and of steps that replay a graph twice."""
    passes, engine = evidence.passes, evidence.passes.engine
    yield from _within(evidence)
    if not engine.in_flight:
        return
    if not evidence.results.run.returned:
        told = "the step returns nothing, so nobody knows what of it is read later (in_flight): not asked"
        passes.notes.append(told)
    lost = passes.overwritten(engine.run, engine.in_flight, evidence.results.written)
    found = [(path, *_made(evidence, path, address)) for path, address in lost.items()]
    variables = [variable for *_, variable in found]
    for path, at, variable in found:
        name = variable if variables.count(variable) == 1 else path
        place = evidence.session.positions.place(at)
        yield evidence.order(at), Finding(KIND, name, _text(engine.in_flight, path), place)


def in_flight(evidence: Evidence, lost: Iterable[str]) -> Iterator[Finding]:
    """Of results that requests in a row have written over while they were read."""
    return (Finding(KIND, path, _text(evidence.passes.engine.in_flight, path)) for path in lost)


def _text(num_steps: int, path: str) -> str:
    steps = "the next step" if num_steps == 1 else f"one of the next {num_steps} steps"
    return f"{steps} writes over {path} while it is still read; copy it first"


def _made(evidence: Evidence, path: str, address: int) -> tuple[int, str]:
    """Where a part of a result was made, and the variable that holds it there, or else its path: by work
    beside graphs, or by a graph that returns it."""
    beside = [event.key[0] for event in evidence.run.own() if _writes(event, address)]
    if beside:
        return beside[-1], path
    position = 0
    for capture in evidence.captures:
        outputs = dict(names.tensors_of(capture.graph.outputs)) if capture.graph else {}
        made = ((key[0], one.address) for key, _, one in capture.trace.all_made())
        here = [at for at, address in made if path in outputs and address == outputs[path].data_ptr()]
        position = here[-1] if here else position
    assigned = (
        s.targets[0] for s in evidence.session.positions.statements(position) if isinstance(s, ast.Assign)
    )
    return position, next((target.id for target in assigned if isinstance(target, ast.Name)), path)


def _writes(event: Event, address: int) -> bool:
    return event.is_work and any(one.written and one.address == address for one in event.tensors)


def _within(evidence: Evidence) -> Findings:
    """Work that is given one result of a graph twice, where the graph was replayed more than once."""
    replays = [id(graph) for graph in evidence.run.replayed()]
    often = {graph for graph in replays if replays.count(graph) > 1}
    born = {s for c in evidence.captures if id(c.graph) in often for s in c.born}
    for event in evidence.run.own():
        given = [t.address for t in event.tensors if not t.written]
        for address in {a for a in given if a in born and given.count(a) > 1}:
            text = f"{event.name} is given it {given.count(address)} times, after a graph was replayed more"
            text += " than once: each replay has written over the result before"
            found = evidence.path(address)
            name = found[0] if found else "what the graph returned"
            yield evidence.run.when(event), Finding(KIND, name, text, evidence.run.place(event))
