"""The exercise of `stale_view`: which metadata the speculator captures with, and when it is made."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from mrv2lab import prose
from mrv2lab.cases.exercises.base import Exercise, Observed
from mrv2lab.cases.exercises.watch import Watch
from mrv2lab.results import Run
from mrv2lab.runner import AttentionMetadata, AttentionStatePair


class SpeculatorWatch(Watch):
    """Notes what the speculator was given to capture with, and what lay in its buffers."""

    def __init__(self, fn: Callable[..., Any]):
        super().__init__(fn)
        self.kept: dict[Any, Any] = {}  # metadata that the target has kept, by size
        self.states: dict[Any, Any] | None = None  # what it was given, by size; None if it was not captured
        self.prepared: list[int] = []  # sizes that were prepared before the speculator captured anything
        self.zeroed: list[str] = []  # its buffers that held zeros only when it captured
        self.plans_zeroed = False  # the plan that the kept metadata show held zeros only

    @contextmanager
    def watching(self, *args: Any) -> Iterator[tuple[Any, ...]]:
        speculator, self.kept, prepare = args
        capture = speculator.capture
        # A dummy run leaves something here: what is zero later, somebody has zeroed.
        speculator.input_ids.fill_(1)
        speculator.hidden_states.fill_(1)

        def noted_prepare(desc: Any) -> AttentionMetadata:
            if self.states is None:
                self.prepared.append(desc.num_tokens)
            state: AttentionMetadata = prepare(desc)
            return state

        def noted_capture(attn_states: Any) -> None:
            self.states = dict(attn_states)
            self.zeroed = [n for n in ("input_ids", "hidden_states") if not getattr(speculator, n).any()]
            plans = [pair.captured.scheduler_metadata for pair in self.kept.values()]
            self.plans_zeroed = bool(plans) and not any(plan.any() for plan in plans)
            capture(attn_states)

        with patch.object(speculator, "capture", noted_capture):
            yield speculator, self.kept, noted_prepare

    def left(self, result: Any, *args: Any) -> None:
        if self.states is None:
            raise self._broken(f"{self.__name__} did not call speculator.capture")

    def pairs(self) -> list[tuple[AttentionStatePair, AttentionStatePair]]:
        """For each size that was given a pair: that pair, and the kept one."""
        states = (self.states or {}).items()
        return [(s, self.kept[d]) for d, s in states if isinstance(s, AttentionStatePair) and d in self.kept]

    @property
    def has_own_memory(self) -> bool:
        """A pair's tensors lie elsewhere than where the runner writes."""
        plans: Any = ([pair.captured.scheduler_metadata for pair in both] for both in self.pairs())
        return any(given.data_ptr() != kept.data_ptr() for given, kept in plans)


def mistakes(run: Run, watch: SpeculatorWatch) -> Observed:
    if run.verdict == "crash" and watch.pairs():
        if watch.zeroed:
            yield "zeroed", {"buffers": " and ".join(watch.zeroed)}
        if watch.prepared:
            yield "prepared_too_early", {"sizes": ", ".join(map(str, watch.prepared))}
        if watch.has_own_memory:
            yield "copied_too_late", {}
        yield "kept_views", {}
    if run.verdict == "wrong" and watch.has_own_memory:
        yield "nobody_refreshes", {}


def remarks(run: Run, watch: SpeculatorWatch) -> Observed:
    if watch.plans_zeroed and watch.pairs():
        yield "zeros_ask_for_nothing", {}


EXERCISE = Exercise(**prose.beside(__file__), watch=SpeculatorWatch, mistakes=mistakes, remarks=remarks)
