"""Which seeds an audit solves, and which need a human. The record names the faults of every seed."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from mrv2lab import sources
from mrv2lab.mystery import runs
from mrv2lab.mystery.faults import Fault
from mrv2lab.mystery.mystery import faults_of
from mrv2lab.mystery.workload import SEED
from mrv2lab.results import RECORDS, Kept, Rung, Strict, Verdict, provenance
from mrv2lab.tables import Table

FILE = RECORDS / "mystery.json"


class Surveyed(Strict):
    seed: int  # it
    faults: list[str]  # by name
    verdict: Verdict  # of its run
    found: dict[str, str]  # fault to kind, subject and step, where an audit has named it
    human: dict[str, str]  # fault to the reason why none can

    @property
    def is_found(self) -> bool:
        return set(self.found) == set(self.faults)

    @property
    def is_accounted_for(self) -> bool:
        return bool(self.faults) and set(self.found) | set(self.human) == set(self.faults)


class Survey(Kept):
    """All seeds, seen on one machine by one command."""

    rung: Rung
    seeds: list[Surveyed]


def load(path: Path = FILE) -> Survey:
    """Read a recorded survey. RecordError: not there, damaged, or not a survey."""
    return Survey.read(path, "survey", "make it with mrv2lab mystery --survey --save")


def make(rung: Rung, seeds: Iterable[int], *, done: Callable[[int], None] = lambda seed: None) -> Survey:
    """Run and audit the mysteries of these seeds; `done` hears of each."""
    made_by = sources.of(rung, "mystery.survey", besides=["mystery.answer"])
    made_with, seen = provenance(SEED, uses_gpu=rung == "cuda", made_by=made_by), []
    for seed in seeds:
        seen.append(observed(faults_of(seed), rung).model_copy(update={"seed": seed}))
        done(seed)
    return Survey(provenance=made_with, rung=rung, seeds=seen)


@lru_cache(maxsize=256)
def observed(faults: tuple[Fault, ...], rung: Rung) -> Surveyed:
    """Run these faults, and audit the suspect steps until audits have named all that they can."""
    found: dict[str, str] = {}
    wanted = [fault for fault in faults if not fault.human]
    for number in runs.suspects(faults, rung):
        if len(found) < len(wanted):
            report = runs.audit_with(faults, rung, number)
            for fault in wanted:
                if finding := runs.names(fault, report):
                    found.setdefault(fault.name, f"{finding.kind}: {finding.subject}, step {number}")
    return Surveyed(
        seed=0,
        faults=[fault.name for fault in faults],
        verdict=runs.run_with(faults, rung).verdict,
        found=found,
        human={fault.name: fault.human for fault in faults if fault.human},
    )


@dataclass(frozen=True, repr=False)
class SurveyTable(Table):
    """A survey in numbers. It names no seed."""

    survey: Survey  # from `make` or `load`
    recorded: bool = False  # it comes from a file, and the table has to say so

    def rows(self) -> list[list[str]]:
        seeds = self.survey.seeds
        reasons = Counter(reason for seen in seeds for reason in seen.human.values())
        verdicts = Counter(seen.verdict for seen in seeds)
        counted = {
            "one fault": sum(len(seen.faults) == 1 for seen in seeds),
            "two faults": sum(len(seen.faults) == 2 for seen in seeds),
            "no fault": sum(not seen.faults for seen in seeds),
            **{f"verdict {verdict}": number for verdict, number in verdicts.most_common()},
            "audits name every fault": sum(seen.is_found for seen in seeds),
            "a human is needed": sum(bool(seen.human) for seen in seeds),
            **{f"- {reason}": number for reason, number in sorted(reasons.items())},
            "neither": sum(not seen.is_accounted_for for seen in seeds),
        }
        return [[f"of {len(seeds)} mysteries", ""], *([name, str(n)] for name, n in counted.items())]

    def _below(self) -> str:
        recorded = "recorded: " if self.recorded else ""
        return f"{recorded}{self.survey.rung}, {self.survey.provenance.label}"
