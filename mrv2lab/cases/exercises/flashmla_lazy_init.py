"""The exercise of `flashmla_lazy_init`: which metadata each pass of a capture gets."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from mrv2lab import prose
from mrv2lab.cases.exercises.base import Exercise, Observed
from mrv2lab.cases.exercises.watch import Watch
from mrv2lab.kernels.flash_mla import FlashMLASchedMeta
from mrv2lab.results import Run
from mrv2lab.runner import AttentionMetadata, AttentionStatePair

PASSES = ("target's warm-up", "target's capture", "draft's warm-up", "draft's capture")
"""In the order in which a size goes through them."""

WARM_UPS, CAPTURES = PASSES[::2], PASSES[1::2]
PLANNER = "get_mla_metadata_kernel"


@dataclass
class Passes:
    """One size: what was built for it, and what its four passes were given."""

    built: list[AttentionMetadata] = field(default_factory=list)  # by `build()`, in order
    given: dict[str, AttentionMetadata] = field(default_factory=dict)  # metadata by pass
    used: list[str] = field(default_factory=list)  # passes whose plan was used before the function returned

    def plan(self, name: str) -> FlashMLASchedMeta:
        plan = self.given[name].scheduler_metadata
        assert isinstance(plan, FlashMLASchedMeta)  # of this case's backend
        return plan

    def first_user(self, name: str) -> str:
        """The pass that is the first to use this pass's plan."""
        return next(other for other in PASSES if self.plan(other) is self.plan(name))

    @property
    def flag_put_down(self) -> bool:
        """Somebody has set `have_initialized` to False, or it is down although there is a plan."""
        return any(
            vars(plan).get("resets")
            or (plan.tile_scheduler_metadata is not None and not plan.have_initialized)
            for plan in map(self.plan, PASSES)
        )

    def elsewhere(self, name: str) -> bool:
        """The pass reads lengths at an address that is not the runner's."""
        lengths = {state.seq_lens.data_ptr() for state in self.built}
        return self.given[name].seq_lens.data_ptr() not in lengths


class WatchedMeta(FlashMLASchedMeta):
    """Counts how often `have_initialized` is set back to False."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "have_initialized" and value is False and name in vars(self):
            vars(self)["resets"] = vars(self).get("resets", 0) + 1
        super().__setattr__(name, value)


class AttentionStatesWatch(Watch):
    """Notes for each size which metadata was built and who was given it."""

    def __init__(self, fn: Callable[..., Any]):
        super().__init__(fn)
        self.sizes: list[Passes] = []

    @contextmanager
    def watching(self, *args: Any) -> Iterator[tuple[Any, ...]]:
        (build,) = args
        passes = Passes()
        self.sizes.append(passes)

        def noted() -> AttentionMetadata:
            state: AttentionMetadata = replace(build(), scheduler_metadata=WatchedMeta())
            passes.built.append(state)
            return state

        yield (noted,)

    def __call__(self, *args: Any) -> Any:
        target, draft = super().__call__(*args)
        passes = self.sizes[-1]
        return self._noting(target, passes, PASSES[:2]), self._noting(draft, passes, PASSES[2:])

    @staticmethod
    def _noting(states: Any, passes: Passes, names: tuple[str, ...]) -> Any:
        """A pair as it is; of a way to build, note in which pass it built what."""
        if isinstance(states, AttentionStatePair):
            return states
        upcoming = iter(names)

        def build() -> AttentionMetadata:
            state: AttentionMetadata = states()
            passes.given[next(upcoming)] = state
            return state

        return build

    def left(self, result: Any, *args: Any) -> str | None:
        both, passes = result if isinstance(result, tuple) else (), self.sizes[-1]
        if len(both) != 2 or not all(isinstance(s, AttentionStatePair) or callable(s) for s in both):
            return "return two AttentionStatePairs, the target's and the speculator's"
        for states, names in zip(result, (PASSES[:2], PASSES[2:]), strict=True):
            if isinstance(states, AttentionStatePair):
                passes.given |= dict(zip(names, states, strict=True))
        passes.used = [name for name in passes.given if passes.plan(name).have_initialized]
        return None


def mistakes(run: Run, watch: AttentionStatesWatch) -> Observed:
    all_sizes = [passes for passes in watch.sizes if len(passes.given) == len(PASSES)]
    for passes in all_sizes:
        if names := [name for name in CAPTURES if passes.built and passes.elsewhere(name)]:
            they, were = _and(names), "was" if len(names) == 1 else "were"
            yield "reads_copies", {"they": they[0].upper() + they[1:], "were": were}
    for passes in all_sizes:
        if passes.used:
            yield "plan_used_before", {"passes": _and(passes.used)}
    for passes in all_sizes:
        for name in WARM_UPS:
            if (first := passes.first_user(name)) in CAPTURES:
                yield "captured_plan_in_an_eager_pass", {"given": name, "first": first}
    if all_sizes:
        yield from stale_plan(all_sizes[0], run.kernels)
    for passes in all_sizes:
        if (first := passes.first_user("draft's capture")) in WARM_UPS:
            yield "draft_follows_a_warm_up", {"first": first}


def stale_plan(largest: Passes, kernels: dict[str, int]) -> Observed:
    """The target's warm-up plans for its capture in the largest size, and the graph has no planner."""
    is_shared = largest.first_user("target's capture") == "target's warm-up"
    if not is_shared or not kernels or PLANNER in kernels:
        return
    if largest.flag_put_down:
        yield "flag_put_down", {}
    if largest.given[PASSES[0]] is not largest.given[PASSES[1]]:
        yield "metadata_copied_plan_shared", {}
    calls, plans = len(largest.built), len({id(largest.plan(name)) for name in PASSES})
    if calls > plans:
        yield "warmed_up_twice", {"calls": calls, "plans": plans}
    yield "one_plan_for_both", {}


def _and(names: list[str]) -> str:
    return "every pass" if len(names) == len(PASSES) else " and ".join(f"the {name}" for name in names)


EXERCISE = Exercise(**prose.beside(__file__), watch=AttentionStatesWatch, mistakes=mistakes)
