"""A case's exercise: the watch in its seam, hints, and mistakes that are known by what they do."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mrv2lab.cases.exercises.check import Check, Explanation
from mrv2lab.cases.exercises.shared import put_back
from mrv2lab.cases.exercises.watch import Watch
from mrv2lab.errors import BadInput
from mrv2lab.results import Run

RunWatch = Callable[[Watch, dict[str, int], dict[str, int]], Run]
"""Runs a case with a watch in its seam: at its own shape, with the first numbers where the reader gives none
and with the second ones whatever the reader gives."""


@dataclass(frozen=True, repr=False)
class Hint:
    """One rung of the ladder."""

    number: int
    text: str

    def __repr__(self) -> str:
        return f"hint {self.number}: {self.text}"


Observed = Iterator[tuple[str, dict[str, object]]]
"""What was observed: a mistake or a remark by its name, and what stands in the gaps of its text `seen`."""

Look = Callable[[Run, Any], Observed]
"""Given a run, and the case's own watch with what it has noted."""


@dataclass(frozen=True)
class Exercise:
    """What `Case.check`, `Case.hint` and `Case.solution` are made of; texts and numbers come out of TOML."""

    hints: tuple[str, ...] = ()  # three, from a question to the names of what has to be written
    seen: dict[str, str] = field(default_factory=dict)  # of a mistake or remark; with gaps, as for numbers
    why: dict[str, str] = field(default_factory=dict)  # that is no repair, or depends on more than it says
    solution: str = ""  # name of the variant that upstream chose, or that we propose where upstream has none
    whose: str = "upstream"  # or `ours`
    # what people would try, known by what it does. The first one that was observed is explained, so special
    # ones stand before general ones.
    mistakes: Look = lambda run, watch: iter(())
    even_if_right: Look = lambda run, watch: iter(())  # more, looked for where the answer is right as well
    remarks: Look = lambda run, watch: iter(())  # on a right answer, which is no less solved
    shape: dict[str, int] = field(default_factory=dict)  # of a check, where fewer will do: the reader waits
    # further shapes at which a repair must hold, tried when that one is right. Among them each graph that is
    # captured is replayed: of one that is not, a check says nothing.
    harder: tuple[dict[str, int], ...] = ()
    watch: Callable[[Callable[..., Any]], Watch] = field(default=Watch)  # what stands in the seam

    def check(self, fn: Callable[..., Any], run: RunWatch) -> Check:
        """Run a reader's function at the exercise's shape and, if it is right there, at harder ones. Returns
        the first check that is not solved, else the first. BadInput: `fn` cannot be called.
        """
        if not callable(fn):
            raise BadInput(f"this is of type {type(fn).__name__}; give the function itself, uncalled")
        first = self._check_once(fn, run, {})
        further = (self._check_once(fn, run, changes) for changes in self.harder if first.solved)
        return next((check for check in further if not check.solved), first)

    def _check_once(self, fn: Callable[..., Any], run: RunWatch, changes: dict[str, int]) -> Check:
        watch = self.watch(fn)
        try:
            with put_back() as changed:
                ran = run(watch, {} if changes else self.shape, changes)
        finally:
            watch.collect()
        looks = [] if ran.as_expected else [self.mistakes]
        says_nothing = watch.trouble is not None and watch.trouble.is_no_fault
        made = [] if says_nothing else self._explained([*looks, self.even_if_right], ran, watch)
        remarks = self._explained([self.remarks] if ran.as_expected else [], ran, watch)
        return Check(ran, watch.trouble, next(iter(made), None), tuple(remarks), tuple(changed), changes)

    def _explained(self, looks: Iterable[Look], run: Run, watch: Watch) -> list[Explanation]:
        found = ((*each, self.why[each[0]]) for look in looks for each in look(run, watch))
        return [Explanation(n.replace("_", " "), self.seen[n].format(**said), why) for n, said, why in found]
