"""The test that was missing: a reader writes it, and it is judged on what was wrong and on what holds.

As in pytest, a test is red if it raises, else green; what it returns is not looked at. It must be red on
every variant that fails without a crash, for a crash needs no test, and green on every one that holds.
"""

import html
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from mrv2lab import looks
from mrv2lab.cases.exercises.watch import NOT_WRITTEN
from mrv2lab.errors import BadInput
from mrv2lab.limits import time_limit
from mrv2lab.results import Role
from mrv2lab.tables import aligned, plain_html

CPU_S = 60.0
RED = ("buggy", "tempting")

Test = Callable[["Seen"], Any]


class Seen:
    """What a test is given: one run, and the same steps without graphs. A copy, which the test may change.

    Attributes:
        steps: a `ModelRunnerOutput` each, with `logits` [num_reqs, vocab_size] and `num_replays`.
        reference: the same, every one of them run eagerly.
        kernels: name to count, from the graphs that a decode step replays.
        metrics: named figures.
    """

    NAMES = ("steps", "reference", "kernels", "metrics")

    def __init__(self, observation: Any):
        self._given = {name: deepcopy(getattr(observation, name)) for name in self.NAMES}
        self.looked_at: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name not in self.NAMES:
            raise AttributeError(f"a run has no {name}; possible: {', '.join(self.NAMES)}")
        self.looked_at.add(name)
        return self._given[name]


@dataclass(frozen=True)
class Colour:
    """What a test did on one variant: `error` if it was red. And what it looked at before it ended."""

    variant: str
    role: Role
    error: str | None
    looked_at: frozenset[str]
    is_stub: bool = False

    @property
    def is_red(self) -> bool:
        return self.error is not None

    @property
    def is_right(self) -> bool:
        return self.is_red == (self.role in RED)

    @property
    def row(self) -> list[str]:
        """Name, role, the colour it must have and the one it has."""
        return [
            self.variant,
            self.role,
            "red" if self.role in RED else "green",
            "red" if self.is_red else "green",
        ]


@dataclass(frozen=True, repr=False)
class TestCheck:
    """A reader's test, judged."""

    __test__ = False  # for pytest, which collects what is called Test...

    name: str
    colours: tuple[Colour, ...]

    @property
    def solved(self) -> bool:
        return all(colour.is_right for colour in self.colours)

    @property
    def status(self) -> str:
        """In one line."""
        if any(colour.is_stub for colour in self.colours):
            return f"not solved yet: {self.name} is still the stub"
        wrong = sum(not colour.is_right for colour in self.colours)
        return (
            "solved"
            if self.solved
            else f"not solved yet: {wrong} of {len(self.colours)} variants are told wrongly"
        )

    @property
    def why(self) -> str:
        """What is wrong with the test, as far as that was seen; empty if nothing is."""
        if self.solved or any(colour.is_stub for colour in self.colours):
            return ""
        false_alarm = next((c for c in self.colours if c.is_red and not c.is_right), None)
        if false_alarm:
            always = (
                " It is red on every variant, and so says nothing."
                if all(c.is_red for c in self.colours)
                else ""
            )
            return f"red on {false_alarm.variant}, which holds: {false_alarm.error}.{always}"
        missed = next(c for c in self.colours if not c.is_right)
        if not missed.looked_at:
            return f"green on {missed.variant}, and it has looked at nothing of the run."
        if missed.looked_at == {"steps"}:
            return (
                f"green on {missed.variant}: it has looked at the run's own steps and at nothing beside "
                "them. A wrong run agrees with itself; compare with `reference`, or ask for a fact."
            )
        looked_at = ", ".join(sorted(missed.looked_at))
        return (
            f"green on {missed.variant}: {looked_at} did not tell it from what holds, the way it was asked."
        )

    @property
    def _rows(self) -> list[list[str]]:
        return [["variant", "role", "must be", "is"], *(colour.row for colour in self.colours)]

    def __repr__(self) -> str:
        return "\n".join(line for line in (self.status, self.why, aligned(self._rows)) if line)

    def _repr_html_(self) -> str:
        status, why = html.escape(self.status), html.escape(self.why)
        head = f'<p><b class="{looks.tone(self.solved)}">{status}</b></p><p>{why}</p>'
        return looks.part(head) + plain_html(self._rows, "red: the test raised; green: it did not")


def check_test(test: Test, variants: Iterable[Any], observe: Callable[[Any], Any]) -> TestCheck:
    """Run a test on every variant that it has to tell apart.

    Args:
        variants: of a case.
        observe: runs one and returns what was seen.

    Raises:
        BadInput: `test` cannot be called, or no variant fails without a crash.
    """
    if not callable(test):
        raise BadInput(f"a {type(test).__name__} cannot be checked; give the function itself, uncalled")
    asked = [v for v in variants if v.role == "fixed" or (v.role in RED and v.expected != "crash")]
    if not any(v.role in RED for v in asked):
        raise BadInput("what is wrong here ends in a crash, which needs no test; it needs the circumstances")
    return TestCheck(getattr(test, "__name__", "the test"), tuple(_run(test, v, observe(v)) for v in asked))


def _run(test: Test, variant: Any, observation: Any) -> Colour:
    seen, error, is_stub = Seen(observation), None, False
    try:
        with time_limit(CPU_S, variant.name):
            test(seen)
    except (Exception, SystemExit) as raised:
        first = str(raised).partition("\n")[0]
        error = f"{type(raised).__name__}: {first}" if first else type(raised).__name__
        is_stub = isinstance(raised, NOT_WRITTEN)
    return Colour(variant.name, variant.role, error, frozenset(seen.looked_at), is_stub)
