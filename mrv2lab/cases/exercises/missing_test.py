"""The test that was missing: a reader writes it, and it is judged on what was wrong and on what holds.

As in pytest, a test is red if it raises, else green; what it returns is not looked at. It must be red on
every variant that fails, and green on every one that holds. A crash needs no test, so variants that crash are
left out; but where nothing else is wrong, the test is asked to bring the crash about (`Start`).

Each variant is shown several times, in an order that nobody knows: whoever counts calls has to guess.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, field
from io import StringIO
from random import Random
from secrets import randbits
from types import FunctionType
from typing import Any, TypeVar

import torch
import torch.utils.deterministic

from mrv2lab import looks, prose
from mrv2lab.cases.exercises.watch import NOT_WRITTEN, require_function
from mrv2lab.graphs.mode import DispatchMode
from mrv2lab.lifeline import memory_limit
from mrv2lab.limits import time_limit
from mrv2lab.results import Role
from mrv2lab.tables import aligned, plain_html

deterministic: Any = torch.utils.deterministic  # a module whose one setting type checkers do not see

CPU_S = 60.0
TIMES = 5  # each variant is shown: of two, a guess is right once in 252
RED = ("buggy", "tempting")
_WHY = prose.beside(__file__)

T = TypeVar("T")
Test = Callable[[Any], Any]
"""Given a `Seen`, or a `Start` where the case has one; raises if something is wrong."""


class Seen:
    """What a test is given: one run, and the same steps without graphs. A copy, which the test may change.

    `steps` and `reference` hold a `ModelRunnerOutput` for each step, `kernels` counts by name what the graphs
    of a decode step hold, and `metrics` are named figures.
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


class Start:
    """What a test is given where what is wrong ends in a crash: called, it starts the engine anew.

    New memory holds zeros, as it mostly does when it comes from the operating system, unless the test sees to
    it that it does not.
    """

    def __init__(self, start: Callable[[], Any]):
        self._start = start
        self.looked_at: set[str] = set()

    def __call__(self) -> Any:
        self.looked_at.add("start")
        try:
            return self._start()
        except Exception:
            self.looked_at.add("crash")
            raise


class _ZeroMemory(DispatchMode):
    """What `torch.empty` and its kin return holds zeros, unless PyTorch was asked to fill it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        is_new = "empty" in func._schema.name and not torch.are_deterministic_algorithms_enabled()
        return made.zero_() if is_new else made


@contextmanager
def settings_put_back() -> Iterator[None]:
    """Within this context PyTorch may be asked to fill new memory."""
    enabled, fills = torch.are_deterministic_algorithms_enabled(), deterministic.fill_uninitialized_memory
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        deterministic.fill_uninitialized_memory = fills


@dataclass
class Colour:
    """What a test did on one variant: `errors`, one for each time; None: green. And what it looked at."""

    variant: str
    role: Role
    errors: list[str | None] = field(default_factory=list)
    looked_at: set[str] = field(default_factory=set)
    is_stub: bool = False

    @property
    def error(self) -> str | None:
        return next(filter(None, self.errors), None)

    @property
    def is_steady(self) -> bool:
        return None not in self.errors or not any(self.errors)

    @property
    def is_red(self) -> bool:
        return self.error is not None

    @property
    def is_right(self) -> bool:
        return self.is_steady and self.is_red == (self.role in RED)

    @property
    def row(self) -> list[str]:
        """Name, role, the colour it must have and the one it has."""
        must, seen = ("red" if is_red else "green" for is_red in (self.role in RED, self.is_red))
        return [self.variant, self.role, must, seen if self.is_steady else "now red, now green"]

    def told(self, why: str) -> str:
        """A text of the file beside this one, about this variant."""
        times, looked_at = len(self.errors), ", ".join(sorted(self.looked_at))
        text: str = _WHY[why]
        return text.format(self, red=times - self.errors.count(None), times=times, looked_at=looked_at)


@dataclass(frozen=True, repr=False)
class TestCheck:
    """A reader's test, judged."""

    __test__ = False  # for pytest, which collects what is called Test...

    name: str
    colours: tuple[Colour, ...]

    @property
    def unseen(self) -> Colour | None:
        """A variant of which the test has looked at nothing. It may be right about it all the same."""
        return next((colour for colour in self.colours if not colour.looked_at), None)

    @property
    def solved(self) -> bool:
        return self.unseen is None and all(colour.is_right for colour in self.colours)

    @property
    def status(self) -> str:
        """In one line."""
        if any(colour.is_stub for colour in self.colours):
            return f"not solved yet: {self.name} is still the stub"
        if self.solved:
            return "solved"
        wrong, all_of_them = sum(not colour.is_right for colour in self.colours), len(self.colours)
        if not wrong:
            return f"not solved yet: {self.name} looks at nothing that it is given"
        return f"not solved yet: {wrong} of {all_of_them} variants get the wrong colour"

    @property
    def why(self) -> str:
        """What is wrong with the test, as far as that was seen; empty if nothing is."""
        if self.solved or any(colour.is_stub for colour in self.colours):
            return ""
        wrong = [colour for colour in self.colours if not colour.is_right]
        if unsteady := next((colour for colour in wrong if not colour.is_steady), None):
            return unsteady.told("unsteady")
        if alarm := next((colour for colour in wrong if colour.is_red), None):
            return alarm.told("always_red" if all(c.is_red for c in self.colours) else "false_alarm")
        if wrong:
            return wrong[0].told(_missed_by(wrong[0].looked_at))
        return self.unseen.told("by_something_else") if self.unseen else ""

    @property
    def _rows(self) -> list[list[str]]:
        return [["variant", "role", "must be", "is"], *(colour.row for colour in self.colours)]

    def __repr__(self) -> str:
        return "\n".join(line for line in (self.status, self.why, aligned(self._rows)) if line)

    def _repr_html_(self) -> str:
        status, why = map(looks.marked, (self.status, self.why))
        head = f'<p><b class="{looks.tone(self.solved)}">{status}</b></p><p>{why}</p>'
        return looks.part(head) + plain_html(self._rows, "red: the test raised; green: it did not")


def _missed_by(looked_at: set[str]) -> str:
    """Why a test is green on what fails."""
    if not looked_at:
        return "looked_at_nothing"
    started = next((what for what in ("crash", "start") if what in looked_at), None)
    return started or ("own_steps" if looked_at == {"steps"} else "not_told_apart")


def check_test(test: Test, variants: Iterable[Any], give: Callable[[Any], Seen | Start]) -> TestCheck:
    """Show a test every variant that it has to tell apart, `TIMES` times each, all of them shuffled; `give`
    makes what it is given of one, anew for each call. BadInput: as `require_function`.

    While it is tried nothing says which is which: only the seed of the order is kept.
    """
    require_function(test)
    asked, seed = [variant for variant in variants if variant.role in ("fixed", *RED)], randbits(64)
    shown = shuffled(seed, [give(variant) for variant in asked * TIMES])
    told = [_try(test, given) for given in shown]
    colours = [Colour(variant.name, variant.role) for variant in asked]
    for colour, given, (error, printed) in zip(shuffled(seed, colours * TIMES), shown, told, strict=True):
        if not colour.errors:  # once is enough
            print(printed, end="")
        colour.is_stub |= isinstance(error, NOT_WRITTEN)
        words = f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")
        colour.errors.append(words if error else None)
        colour.looked_at |= given.looked_at
    return TestCheck(getattr(test, "__name__", "the test"), tuple(colours))


def shuffled(seed: int, values: list[T]) -> list[T]:
    """The values in the order of this seed."""
    return Random(seed).sample(values, len(values))


def _try(test: Test, given: Seen | Start) -> tuple[BaseException | None, str]:
    """What the test raised, and what it printed."""
    error, printed = None, StringIO()
    try:
        name = getattr(test, "__name__", "the test")
        zeros = _ZeroMemory() if isinstance(given, Start) else nullcontext()
        limits = time_limit(CPU_S, name), memory_limit()
        with limits[0], limits[1], redirect_stdout(printed), settings_put_back(), zeros:
            test(given)
    except (Exception, SystemExit) as raised:
        error = raised
    return error, printed.getvalue()


def unnamed(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which does not say what it is called."""
    code = fn.__code__.replace(co_name="fn", co_qualname="fn")
    return FunctionType(code, fn.__globals__, "fn", fn.__defaults__, fn.__closure__)
