"""What an audit found, as text, HTML and JSON."""

import json
import linecache
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from mrv2lab import looks
from mrv2lab.errors import counted

Kind = str  # the name of a kind of finding, one of `kinds.KINDS`

_BESIDE_THE_PACKAGE = Path(__file__).resolve().parents[2]


NO_SIGN = "so what is frozen cannot show"
KEPT = "What was made of it is in use in the eager pass too, so that it is stale cannot show"
NOT_COMPARED = "could not be compared"
_MOST_NAMES = 3
HOW_TO_COMPARE = (
    "Define an eager() that replays none, and give --twin; or audit the function that is captured"
)
# Beside a twin: there was nothing to compare with.
_NOTHING_BESIDE = ("both fresh engines replay graphs", "two fresh engines that run eagerly give different")


@dataclass(frozen=True)
class Place:
    """A line of source."""

    file: str  # its path; of a notebook's cell, the name under which IPython has compiled it
    line: int  # 1 for the first
    function: str  # the function it lies in

    def __str__(self) -> str:
        return f"{_cell(self.file) or _short(self.file)}:{self.line} in {self.function}"

    @property
    def source(self) -> str:
        """The line itself, without indentation; empty where there is no source."""
        return linecache.getline(self.file, self.line).strip()


Changed = tuple[str, str]


def changed_as(subject: str, *change: Any) -> Changed:
    """What something is called, and how it changed, in words: two objects may have the same name."""
    return subject, repr(change)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a captured step."""

    kind: Kind  # one of `kinds.KINDS`
    subject: str  # what it is about: a kernel, a tensor, a host value, as the source names it
    evidence: str  # what was observed, with old and new value
    where: Place | None = None  # the line that read or launched it; None if no line of Python did
    # what it was at capture and what it is now: two values or two addresses; None for other kinds
    change: tuple[Any, Any] | None = field(default=None, repr=False, compare=False)
    by: Changed | None = field(default=None, repr=False, compare=False)  # the host value that decided it

    @property
    def changed(self) -> Changed:
        return changed_as(self.subject, *(self.change or ()))

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.subject}", f"    {self.evidence}"]
        if self.where is not None:
            lines.append(f"    at {self.where}: {self.where.source}")
        return "\n".join(lines)


@dataclass(frozen=True)
class AuditReport:
    """The findings of one audit, the causal one first."""

    step: str  # name of what was audited
    backend: str  # executor, `cuda` or `emulated`
    findings: tuple[Finding, ...]  # sorted as `order` says
    num_nodes: int  # nodes of the captured graphs, those that the audit adds left out
    # ops in C++ that are not torch's own. Nobody sees what they decide on the host.
    opaque: tuple[str, ...] = ()
    # the step replays graphs of its own. Whether they do the right thing was not asked.
    own_graphs: bool = False
    has_twin: bool = False  # but it was, beside a fresh engine that runs eagerly
    varied: bool = True  # the inputs were changed between capture and replay
    changed: tuple[str, ...] = ()  # what `vary` has changed of what the step reaches, by name
    notes: tuple[str, ...] = ()  # what is no fault and may be worth knowing

    @classmethod
    def of(cls, document: dict[str, Any]) -> "AuditReport":
        """The report that `to_json` wrote."""
        from pydantic import TypeAdapter

        return TypeAdapter(cls).validate_python(document)

    @property
    def kinds(self) -> set[Kind]:
        return {finding.kind for finding in self.findings}

    def __str__(self) -> str:
        head = f"audit of {self.step} ({self.backend}, {counted(self.num_nodes, 'node')}): "
        head += counted(len(self.findings), "finding") if self.findings else f"nothing found{self._asked()}"
        return "\n".join([head, *map(str, self.findings), *self._not_seen()])

    @property
    def is_blind(self) -> bool:
        """Whether something frozen could not have been found: inputs did not change, or what was made of them
        once is kept by eager passes too, or graphs of its own were held against nothing that runs eagerly."""
        is_open = any(note.startswith(_NOTHING_BESIDE) for note in self.notes) or not self.has_twin
        told = "\n".join([*map(str, self.findings), *self._not_seen()])
        return NO_SIGN in told or KEPT in told or (self.own_graphs and is_open)

    def _asked(self) -> str:
        """Words for what `vary` has changed: nothing else could be found. And for what could not show."""
        names, others = [*self.changed], len(self.changed) - _MOST_NAMES
        if others > 1:
            names[_MOST_NAMES:] = [f"{others} more"]
        changed = " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
        told = f" as vary() changed {changed}" if changed else ""
        return told + ", and not all could show" * self.is_blind

    def _not_seen(self) -> list[str]:
        said = list(self.notes)
        if not self.varied:
            said += [f"no vary(): the inputs did not change, {NO_SIGN}"]
        if self.own_graphs and not self.has_twin:
            asked = "only asked whether it still does, not whether they are right"
            said += [f"replays graphs of its own: {asked}. {HOW_TO_COMPARE}"]
        if self.opaque:
            said += [f"opaque: {', '.join(self.opaque)}: in C++, so what the host decides inside is not seen"]
        return said

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What IPython shows where it has no HTML."""
        printer.text(str(self))

    def _repr_html_(self) -> str:
        head = str(self).splitlines()[0]
        return looks.part(looks.piece("audit", head, self.findings, self._not_seen()))

    def to_json(self) -> str:
        findings = [asdict(f) | {"source": f.where.source if f.where else None} for f in self.findings]
        for finding in findings:
            del finding["change"]  # the evidence says it
        told = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "findings"}
        document = told | {"findings": findings}
        return json.dumps(document, indent=1) + "\n"


def once(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Without repetitions: of findings with the same kind and subject the first stays."""
    seen: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        seen.setdefault((finding.kind, finding.subject), finding)
    return tuple(seen.values())


def _cell(file: str) -> str | None:
    """`In[4]` for what a notebook's fourth cell has defined; its file is a temporary one."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    name = shell.compile.format_code_name(file) if shell else None
    return name[1] if name else None


def _short(file: str) -> str:
    """The path from here, or of this package's own files from the package, where that is shorter."""
    path = Path(file)
    bases = (base for base in (Path.cwd(), _BESIDE_THE_PACKAGE) if path.is_relative_to(base))
    return next((str(path.relative_to(base)) for base in bases), file)
