"""overwritten-output: a result that is still read lies in memory that a later replay writes."""

import ast

from mrv2lab.audit import names
from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.report import Finding

KIND, SHORT, RANK = "overwritten-output", "over", 7
ASKED = "always"


def find(evidence: Evidence) -> Findings:
    """Of results that are said to be read after later steps, and of steps that replay a graph twice."""
    passes, engine = evidence.passes, evidence.passes.engine
    yield from _within(evidence)
    if not engine.in_flight:
        return
    lost = passes.overwritten(engine.run, engine.in_flight, evidence.results.written)
    found = [(path, *_made(evidence, path)) for path in lost]
    variables = [variable for *_, variable in found]
    for path, at, variable in found:
        steps = "the next step" if engine.in_flight == 1 else f"one of the next {engine.in_flight} steps"
        text = f"{steps} writes over {path} while it is still read; copy it first"
        name = variable if variables.count(variable) == 1 else path
        yield evidence.order(at), Finding(KIND, name, text, evidence.session.positions.place(at))


def _made(evidence: Evidence, path: str) -> tuple[int, str]:
    """Where a graph has made a part of its result, and the variable that holds it there, or else its path."""
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
