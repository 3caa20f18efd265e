"""Assertions about captured graphs for tests of your own, and a pytest plugin that keeps what they found.

    from mrv2lab.testing import assert_graph_equals_eager

    def test_decode_replays_what_it_computes(engine):
        assert_graph_equals_eager(engine.decode, vary=engine.next_batch)

A test that cannot fail is refused: `CannotFail`. With `pytest -p mrv2lab.testing` each finding becomes a
property of its test, which `--junit-xml` writes, and `--sarif FILE` writes all of them as SARIF 2.1.0.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from mrv2lab.errors import BadInput

if TYPE_CHECKING:
    import torch

    from mrv2lab.audit import AuditReport
    from mrv2lab.audit.evidence import Evidence
    from mrv2lab.graphs import CapturedGraph

_PROPERTY = "mrv2lab"
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_now: list[list[tuple[str, object]]] = []  # properties of the test that runs


class CannotFail(AssertionError):
    """A test that would pass whatever the graph had frozen."""


def assert_graph_equals_eager(
    step: Callable[[], Any], *, vary: Callable[[], Any], **options: Any
) -> "AuditReport":
    """Capture a step, vary its inputs, and hold the replay against the step run eagerly.

    Args:
        step: a function without arguments, over buffers that stay where they are.
        vary: prepares the inputs of another step, in place.
        options: as for `mrv2lab.audit.audit`.

    Raises:
        AssertionError: the audit found something; its report is the message.
        CannotFail: `vary` changes nothing that matters, or the results do not hang on the replay.
        AuditError, BadInput: as for `audit`.
    """
    __tracebackhide__ = True
    from mrv2lab.audit import audit, evidence, names
    from mrv2lab.audit.memory import clone, storage_of

    changed: list[tuple[torch.Tensor, torch.Tensor]] = []  # tensors, with what they held
    values: list[str] = []  # of Python's, before and behind

    def watched() -> None:
        if values:  # the audit prepares steps beyond the one that it compares
            vary()
            return
        roots = names.Reachable(step)
        before = {storage_of(t): (t, clone(t)) for _, t in names.walk(roots) if t.numel()}
        values.append(repr(names.plain(roots)))
        vary()
        values.append(repr(names.plain(roots)))
        changed.extend((t, old) for t, old in before.values() if not _is_equal(old, clone(t)))

    with evidence.kept() as seen:
        report = audit(step, vary=watched, **options)
    _tell(report)
    if report.findings:
        raise AssertionError(str(report))
    if report.own_graphs and "twin" not in options:
        raise CannotFail(f"{report.step} replays graphs of its own, eagerly as well: give `twin`")
    has_other_values = values[0] != values[-1]
    if not report.own_graphs and (told := _why_it_cannot_fail(seen[-1], changed, has_other_values)):
        raise CannotFail(f"{report.step}: {told}")
    return report


def _why_it_cannot_fail(
    evidence: "Evidence", changed: list[tuple["torch.Tensor", "torch.Tensor"]], has_other_values: bool
) -> str | None:
    import torch

    from mrv2lab.audit.memory import Saved, pattern, put, storage_of
    from mrv2lab.audit.results import agree
    from mrv2lab.graphs.base import idle_replays
    from mrv2lab.graphs.guard import tensors_in

    passes, eager = evidence.passes, evidence.results.eager
    if not changed and not has_other_values:
        return "`vary` changes nothing that can be reached from the step"
    if not has_other_values:
        varied = Saved(tensor for tensor, _ in changed)
        put(changed)
        as_captured = passes.eager().results
        varied.restore()
        if agree(as_captured, eager):
            return "the results are those at the inputs of the capture: `vary` changes nothing that matters"

    def scrub() -> None:
        with torch.inference_mode():
            for capture in evidence.captures:  # what the graph has made is left from its last replay
                for tensor in tensors_in(capture.graph and capture.graph.outputs):
                    if storage_of(tensor) in capture.born:
                        tensor.fill_(pattern(tensor.dtype, 1))

    with idle_replays():
        idle = passes.run(before=scrub).results
    return "the results are the same if the replay does nothing" if agree(idle, eager) else None


def _is_equal(one: "torch.Tensor", other: "torch.Tensor") -> bool:
    from mrv2lab.audit.results import changed

    return one.shape == other.shape and not bool(changed(one, other).any())


def assert_nodes(
    graph: "CapturedGraph | torch.cuda.CUDAGraph | Mapping[str, int]",
    contains: str | Iterable[str] | Mapping[str, int] = (),
    lacks: str | Iterable[str] = (),
) -> None:
    """A captured graph holds these kernels, and lacks those. Parts of their names, case counts.

    Args:
        graph: of `mrv2lab.graphs.capture`; or torch's, captured with `keep_graph=True`; or name to count.
        contains: names, or of each name how many nodes.

    Raises:
        AssertionError: with all nodes of the graph.
        CannotFail: nothing is asked.
        BadInput: torch has not kept the graph's nodes.
    """
    __tracebackhide__ = True
    asked, unwanted = ([names] if isinstance(names, str) else names for names in (contains, lacks))
    asked, unwanted = dict(asked) if isinstance(asked, Mapping) else dict.fromkeys(asked), list(unwanted)
    if not asked and not unwanted:
        raise CannotFail("assert_nodes: neither `contains` nor `lacks` names a kernel")
    labels = Counter(graph if isinstance(graph, Mapping) else (node.label for node in _nodes(graph)))
    for name, wanted in [*asked.items(), *((name, 0) for name in unwanted)]:
        held = sum(count for label, count in labels.items() if name in label)
        if held != wanted if wanted is not None else not held:
            told = "no" if wanted is None else f"{held} instead of {wanted}"
            nodes = ", ".join(f"{count} {label}" for label, count in labels.items()) or "none"
            raise AssertionError(f"the graph holds {told} {name}; its nodes: {nodes}")


def _nodes(graph: Any) -> Iterable[Any]:
    from mrv2lab.graphs import CapturedGraph
    from mrv2lab.graphs.cuda import read_nodes

    if isinstance(graph, CapturedGraph):
        return graph.nodes
    try:
        return read_nodes(graph)
    except (RuntimeError, AttributeError) as error:
        raise BadInput(
            f"its nodes cannot be read: {error}; capture with CUDAGraph(keep_graph=True)"
        ) from error


@contextmanager
def assert_replays(at_least: int = 1) -> Iterator[None]:
    """What runs in this context replays graphs: torch's, whoever made them, or emulated ones.

    Raises:
        AssertionError: it replays fewer.
        CannotFail: `at_least` is below 1.
    """
    __tracebackhide__ = True
    import torch

    from mrv2lab.graphs import replayed
    from mrv2lab.graphs.cuda import CudaGraph
    from mrv2lab.graphs.foreign import ForeignGraph

    if at_least < 1:
        raise CannotFail("assert_replays: any step replays that many graphs")
    original, times = torch.cuda.CUDAGraph.replay, [0]

    def replay(graph: Any) -> Any:
        times[0] += 1
        return original(graph)

    with patch.object(torch.cuda.CUDAGraph, "replay", replay), replayed() as seen:
        yield
    num = times[0] + sum(not isinstance(graph, CudaGraph | ForeignGraph) for graph in seen)
    if num < at_least:
        raise AssertionError(f"{num} graphs were replayed, not {at_least}: the step ran eagerly, or in part")


def _tell(report: "AuditReport") -> None:
    for finding in report.findings:
        at = finding.where
        told: dict[str, Any] = {name: getattr(finding, name) for name in ("kind", "subject", "evidence")}
        told |= {"file": at.file, "line": at.line} if at else {}
        for properties in _now[-1:]:
            properties.append((_PROPERTY, json.dumps(told)))


def as_sarif(findings: Iterable[Mapping[str, Any]], base: Path) -> dict[str, Any]:
    """A SARIF 2.1.0 document of findings: kind, subject, evidence and, where known, file and line."""
    results: list[dict[str, Any]] = []
    for finding in findings:
        text = f"{finding['subject']}: {finding['evidence']}"
        results.append({"ruleId": finding["kind"], "level": "error", "message": {"text": text}})
        if "file" in finding:
            path = Path(finding["file"])
            uri = path.relative_to(base).as_posix() if path.is_relative_to(base) else path.as_uri()
            at = {"artifactLocation": {"uri": uri}, "region": {"startLine": finding["line"]}}
            results[-1]["locations"] = [{"physicalLocation": at}]
    rules = [{"id": kind} for kind in sorted({result["ruleId"] for result in results})]
    driver = {"name": "mrv2lab", "version": version("mrv2lab"), "rules": rules}
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


# ---- hooks of pytest ----


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--sarif", metavar="FILE", help="write what assertions of mrv2lab found as SARIF")


def pytest_configure(config: Any) -> None:
    if config.getoption("--sarif") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Sarif(Path(config.getoption("--sarif")), config.rootpath))


def pytest_runtest_setup(item: Any) -> None:
    _now.append(item.user_properties)


def pytest_runtest_teardown() -> None:
    _now.clear()


class _Sarif:
    """Collects what tests tell, those of other processes too, and writes it at the end."""

    def __init__(self, path: Path, base: Path):
        self.path, self.base = path, base
        self.found: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call":
            self.found |= dict.fromkeys(text for name, text in report.user_properties if name == _PROPERTY)

    def pytest_sessionfinish(self) -> None:
        document = as_sarif(map(json.loads, self.found), self.base)
        self.path.write_text(json.dumps(document, indent=1) + "\n")
