"""Assertions about captured graphs for tests of your own, and a pytest plugin that keeps what they found.

    from mrv2lab.testing import assert_graph_equals_eager

    def test_decode_replays_what_it_computes(engine):
        assert_graph_equals_eager(engine.decode, vary=engine.next_batch)

A test that cannot fail is refused: `CannotFail`. With `pytest -p mrv2lab.testing` each finding and each note
becomes a property of its test, which `--junit-xml` writes, and `--sarif FILE` writes all findings as SARIF
2.1.0. An assertion that fails in a thread of the test then fails the test.
"""

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from urllib.parse import quote

from mrv2lab.errors import BadInput

if TYPE_CHECKING:
    import torch

    from mrv2lab.audit import AuditReport
    from mrv2lab.audit.evidence import Evidence
    from mrv2lab.audit.results import Results
    from mrv2lab.graphs import CapturedGraph

_PROPERTY = "mrv2lab"
_now: list[list[tuple[str, object]]] = []  # properties of the test that runs


class _ByAudits(threading.local):
    """What those of this thread do: another one's replays are nobody's here."""

    replays = 0  # of emulated graphs, so far
    running = 0  # how many go on


_by_audits = _ByAudits()


class CannotFail(AssertionError):
    """A test that would pass whatever the graph had frozen."""


def assert_graph_equals_eager(
    step: Callable[[], Any], *, vary: Callable[[], Any], **options: Any
) -> "AuditReport":
    """Capture a step, vary its inputs, and hold the replay against the step run eagerly.

    Args:
        step: a function without arguments, over buffers that stay where they are.
        vary: prepares the inputs of another step, with another result.
        options: as for `mrv2lab.audit.audit`.

    Raises:
        AssertionError: the audit found something; its report is the message.
        CannotFail: after `vary` the results are the same, or hold no number that tells anything, or they do
            not hang on the replay; something that it changes was read once, and what was made of it is kept,
            and there is no `reset`; or a `twin` that replays graphs where it is to run eagerly.
        AuditError, BadInput: as for `audit`; or there is no `vary`, or nothing to capture.
    """
    __tracebackhide__ = True
    from mrv2lab.audit import audit, evidence

    if not callable(vary) or not options.get("captured", True):
        raise BadInput("assert_graph_equals_eager needs a function `vary`, and a step that is captured")
    with evidence.kept(before=True) as seen, _an_audit():
        report = audit(step, vary=vary, **options)
        passes = None if report.findings or not seen else seen[-1]  # none: it was held against its twin alone
        why_vain = _why_it_cannot_fail(passes) if passes else None
        if report.own_graphs and not report.findings:
            why_vain = _why_it_has_no_twin(options.get("twin")) or why_vain
    untold = _untold(passes)[0] if passes else ()
    notes = (f"vary() leaves {what} in {name}: nothing shows there" for name, what in untold)
    report = replace(report, notes=(*report.notes, *notes))
    _tell(report)
    if report.findings:
        raise AssertionError(str(report))
    if why_vain := _why_it_is_kept(report) or why_vain:  # then the results are often the same as well
        raise CannotFail(f"{report.step}: {why_vain}")
    return report


@contextmanager
def _an_audit() -> Iterator[None]:
    """What is replayed in here, or only in part, the audit replays."""
    from mrv2lab.graphs import replayed

    _by_audits.running += 1
    try:
        with replayed() as own:
            yield
    finally:
        _by_audits.running -= 1
        _by_audits.replays += sum(map(_counts, own))


def _emulated(graph: Any) -> "CapturedGraph | None":
    """What the emulator has captured for a model of `torch.cuda.CUDAGraph`."""
    from mrv2lab.graphs import CapturedGraph

    held = getattr(graph, "graph", None)
    return held if isinstance(held, CapturedGraph) else None


def _counts(graph: "CapturedGraph") -> bool:
    """Whether nobody else counts it, and it does something: an emulated one with nodes."""
    from mrv2lab.graphs.cuda import CudaGraph
    from mrv2lab.graphs.foreign import ForeignGraph

    return not isinstance(graph, CudaGraph | ForeignGraph) and bool(graph.nodes)


def _why_it_cannot_fail(evidence: "Evidence") -> str | None:
    from mrv2lab.graphs.base import idle_replays

    passes, eager = evidence.passes, evidence.results.eager
    if evidence.before is not None and _are_the_same(evidence.before, eager):
        return "`vary` changes nothing that matters: the results are those at the inputs of the capture"
    told, num_results = _untold(evidence)
    for name, what in told:
        if what == "no finite number" or len(told) == num_results:
            return f"`vary` leaves {what} in {name}: there nothing frozen can show"
    if not evidence.captures or evidence.eager.replayed():
        return None
    with idle_replays():  # what one of two patterns happens to be, the other is not
        idle = [passes.run(before=partial(_scrub, evidence, which)).results for which in (0, 1)]
    is_vain = all(_are_the_same(results, eager) for results in idle)
    return "the results are the same if the replay does nothing" if is_vain else None


def _why_it_is_kept(report: "AuditReport") -> str | None:
    """Of a plan that the first pass alone has made, the replay is no more stale than the eager pass."""
    from mrv2lab.audit.report import KEPT

    stale = (f"{note}; if it is kept on purpose, give a `reset` that does nothing" for note in report.notes)
    return next((note for note in stale if KEPT in note), None)


def _why_it_has_no_twin(make: Callable[[], Any] | None) -> str | None:
    """Of a step with graphs of its own, which only another engine can judge: one that replays none."""
    from mrv2lab.audit.fresh import Fresh, serve

    if make is None:
        return "it replays graphs of its own, eagerly as well: give `twin`"
    if (one := make()) is make():
        return "`twin` gives the same engine each time: it must make a fresh one"
    told = "`twin` replays graphs as well: it must have an `eager` that replays none"
    return told if any(request.num_replays for request in serve(Fresh(one, None))) else None


def _untold(evidence: "Evidence") -> tuple[list[tuple[str, str]], int]:
    """In which results nothing frozen can show after `vary`, and what they hold; and how many there are."""
    from mrv2lab.audit.memory import key_of

    if (old := evidence.before) is None:
        return [], 0
    new, written = evidence.results.eager, {key_of(w.tensor): w.after for w in old.written}
    both = [(name, old.made.get(name), tensor) for name, tensor in new.made.items()]
    both += [(evidence.called(w.tensor), written.get(key_of(w.tensor)), w.after) for w in new.written]
    held = [(name, _held(before, after)) for name, before, after in both if before is not None]
    return [(name, what) for name, what in held if what], len(both)


def _held(before: "torch.Tensor", after: "torch.Tensor") -> str | None:
    from mrv2lab.audit.results import is_off

    if after.numel() and (after.is_floating_point() or after.is_complex()):  # a token may well be zero
        if before.isfinite().any() and not after.isfinite().any():
            return "no finite number"
        if before.any() and not after.any():
            return "zeros only"
    return None if is_off(after, before) else "what was there"


def _are_the_same(one: "Results", other: "Results") -> bool:
    """What two passes returned, and what their memory holds."""
    from mrv2lab.audit.memory import key_of
    from mrv2lab.audit.results import agree, is_off

    held, others = ({key_of(w.tensor): w.after for w in results.written} for results in (one, other))
    same_memory = held.keys() == others.keys() and not any(is_off(held[key], others[key]) for key in held)
    return same_memory and agree(one, other)


def _scrub(evidence: "Evidence", which: int) -> None:
    """What a graph has made is left from its last replay."""
    import torch

    from mrv2lab.audit.memory import pattern, storage_of
    from mrv2lab.graphs.nested import tensors_in

    for capture in evidence.captures:
        for tensor in tensors_in(capture.graph and capture.graph.outputs):
            if storage_of(tensor) in capture.born:
                with torch.inference_mode():
                    tensor.fill_(pattern(tensor.dtype, which))


def assert_nodes(
    graph: "CapturedGraph | torch.cuda.CUDAGraph | Mapping[str, int]",
    contains: str | Iterable[str] | Mapping[str, int] = (),
    lacks: str | Iterable[str] = (),
) -> None:
    """A captured graph holds these kernels, and lacks those.

    A name is a kernel's whole one, or what stands in it between characters of no identifier: of
    `void at::softmax_kernel<float>(int)` it may be `softmax_kernel` or `softmax_kernel<float>`. Case counts.

    Args:
        graph: of `mrv2lab.graphs.capture`; or torch's, captured with `keep_graph=True`; or name to count.
        contains: names, or of each name how many nodes.

    Raises:
        AssertionError: with names that are near, and all nodes of the graph.
        CannotFail: nothing is asked, or none of a name; or what it must lack is there in another case, or as
            a fragment of a name.
        BadInput: torch has not kept the graph's nodes.
    """
    __tracebackhide__ = True
    asked, unwanted = ([names] if isinstance(names, str) else names for names in (contains, lacks))
    asked, unwanted = dict(asked) if isinstance(asked, Mapping) else dict.fromkeys(asked), list(unwanted)
    if not all([*asked, *unwanted]) or not (asked or unwanted):
        raise CannotFail("assert_nodes: neither `contains` nor `lacks` names a kernel")
    if vain := [name for name, count in asked.items() if count is not None and not count >= 1]:
        raise CannotFail(f"assert_nodes: `contains` asks for no {vain[0]}; `lacks` does that")
    labels = Counter(graph if isinstance(graph, Mapping) else _names(graph))
    if not labels:
        raise AssertionError("the graph is empty")
    for name, wanted in [*asked.items(), *((name, 0) for name in unwanted)]:
        held = sum(count for label, count in labels.items() if _is_in(name, label))
        if held != wanted if wanted is not None else not held:
            told = "no" if wanted is None else f"{held} instead of {wanted}"
            nodes = ", ".join(f"{count} {label}" for label, count in labels.items()) or "none"
            near = "" if held else _near(name, labels)
            raise AssertionError(f"the graph holds {told} {name}{near}; its nodes: {nodes}")
        if wanted == 0 and (like := next((label for label in labels if name.lower() in label.lower()), None)):
            rule = "names are whole, case counts"
            raise CannotFail(f"assert_nodes: no {name} in the graph, but {like}: {rule}")


def _is_in(name: str, label: str) -> bool:
    """Whether it is there and no identifier goes on at either end of it."""
    return re.search(rf"(?!\B\w){re.escape(name)}(?<!\w\B)", label) is not None


def _near(name: str, labels: Iterable[str]) -> str:
    """Identifiers that were probably meant."""
    words = list(dict.fromkeys(word for label in labels for word in re.findall(r"\w+", label)))
    parts = re.findall(r"\w+", name.lower())
    near = [word for word in words if any(part in word.lower() for part in parts)]
    near = near or get_close_matches(name, words)
    return f"; near: {', '.join(near[:5])}" if near else ""


def _names(graph: Any) -> Iterator[str]:
    """Whole names: those of C++ hold namespaces, template parameters and arguments."""
    import torch

    from mrv2lab.graphs import CapturedGraph
    from mrv2lab.graphs.cuda import read_nodes

    graph = _emulated(graph) or graph
    if isinstance(graph, CapturedGraph):
        return (node.name for node in graph.nodes)
    if not isinstance(graph, torch.cuda.CUDAGraph):
        raise BadInput(f"assert_nodes takes a graph, or counts by name, not {type(graph).__name__}")
    try:
        return (node.name for node in read_nodes(graph))
    except RuntimeError as error:
        raise BadInput(f"its nodes are gone: capture with CUDAGraph(keep_graph=True) ({error})") from error


@contextmanager
def assert_replays(at_least: int = 1) -> Iterator[None]:
    """What this thread runs in this context replays graphs: torch's, whoever made them, or emulated ones.

    Not counted are replays by `assert_graph_equals_eager` (those of any other audit are), of an emulated
    graph that is empty, and by a method of a torch graph that was bound before.

    Raises:
        AssertionError: it replays fewer.
        CannotFail: `at_least` is below 1.
    """
    __tracebackhide__ = True
    import torch

    from mrv2lab.graphs import replayed

    if not at_least >= 1:  # a NaN
        raise CannotFail("assert_replays: any step replays that many graphs")
    original, times, before = torch.cuda.CUDAGraph.replay, [0], _by_audits.replays
    this = threading.get_ident()

    def replay(graph: Any) -> Any:
        is_counted = _by_audits.running or _emulated(graph) is not None  # elsewhere
        times[0] += threading.get_ident() == this and not is_counted
        return original(graph)

    with patch.object(torch.cuda.CUDAGraph, "replay", replay), replayed() as seen:
        yield
    num = times[0] + sum(map(_counts, seen)) - (_by_audits.replays - before)
    if num < at_least:
        raise AssertionError(f"{num} graphs were replayed, not {at_least}: the step ran eagerly, or in part")


def _tell(report: "AuditReport") -> None:
    for finding in report.findings:
        at = finding.where
        told: dict[str, Any] = {name: getattr(finding, name) for name in ("kind", "subject", "evidence")}
        told |= {"file": at.file, "line": at.line} if at else {}
        _keep(_PROPERTY, json.dumps(told))
    for note in report.notes:
        _keep(f"{_PROPERTY}-note", note)


def _keep(name: str, text: str) -> None:
    for properties in _now[-1:]:
        properties.append((name, text))


def as_sarif(findings: Iterable[Mapping[str, Any]], base: Path) -> dict[str, Any]:
    """A SARIF 2.1.0 document of findings: kind, subject, evidence and, where known, file and line."""
    results: list[dict[str, Any]] = []
    for finding in findings:
        text = f"{finding['subject']}: {finding['evidence']}"
        results.append({"ruleId": finding["kind"], "level": "error", "message": {"text": text}})
        if "file" in finding:
            path = Path(finding["file"]).absolute()
            uri = quote(path.relative_to(base).as_posix()) if path.is_relative_to(base) else path.as_uri()
            at = {"artifactLocation": {"uri": uri}, "region": {"startLine": finding["line"]}}
            results[-1]["locations"] = [{"physicalLocation": at}]
    rules = [{"id": kind} for kind in sorted({result["ruleId"] for result in results})]
    driver = {"name": "mrv2lab", "version": version("mrv2lab"), "rules": rules}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


# ---- hooks of pytest ----


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--sarif", metavar="FILE", help="write what assertions of mrv2lab found as SARIF")


def pytest_configure(config: Any) -> None:
    # A thread that ends by an exception is a warning for pytest, and its test passes.
    ours = r"(?s).*, in assert_(graph_equals_eager|nodes|replays)\b"
    warning = "pytest.PytestUnhandledThreadExceptionWarning"
    config.addinivalue_line("filterwarnings", f"error:{ours}:{warning}")
    if config.getoption("--sarif") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Sarif(Path(config.getoption("--sarif")), config.rootpath))


def pytest_runtest_setup(item: Any) -> None:
    _now.append(item.user_properties)


def pytest_runtest_logfinish() -> None:
    _now.clear()


class _Sarif:
    """Collects what tests that failed tell, those of other processes too, and writes it at the end."""

    def __init__(self, path: Path, base: Path):
        self.path, self.base = path, base
        self.found: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.found |= dict.fromkeys(text for name, text in report.user_properties if name == _PROPERTY)

    def pytest_sessionfinish(self) -> None:
        from mrv2lab import results

        document = as_sarif(map(json.loads, self.found), self.base)
        results.write(self.path, json.dumps(document, indent=1) + "\n")
