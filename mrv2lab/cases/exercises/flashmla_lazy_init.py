"""The exercise of `flashmla_lazy_init`: which metadata each pass of a capture gets."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from mrv2lab import prose
from mrv2lab.cases.exercises.base import Evidence, Exercise
from mrv2lab.cases.exercises.watch import Watch
from mrv2lab.kernels.flash_mla import FlashMLASchedMeta
from mrv2lab.runner import AttentionMetadata, AttentionStatePair

PASSES = ("target's warm-up", "target's capture", "draft's warm-up", "draft's capture")
"""In the order in which a size goes through them."""

PLANNER = "get_mla_metadata_kernel"


WARM_UPS, CAPTURES = PASSES[::2], PASSES[1::2]


@dataclass
class Passes:
    """One size: what was built for it, and what its four passes were given.

    Attributes:
        built: by `build()`, in order.
        given: metadata by pass.
        used: passes whose metadata had been used before this function returned.
    """

    built: list[AttentionMetadata] = field(default_factory=list)
    given: dict[str, AttentionMetadata] = field(default_factory=dict)
    used: list[str] = field(default_factory=list)

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

    @property
    def num_plans(self) -> int:
        return len({id(self.plan(name)) for name in PASSES})

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

    def given(self, *args: Any) -> tuple[Any, ...]:
        (build,) = args
        passes = Passes()
        self.sizes.append(passes)

        def noted() -> AttentionMetadata:
            state: AttentionMetadata = replace(build(), scheduler_metadata=WatchedMeta())
            passes.built.append(state)
            return state

        return (noted,)

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

    def complaint(self, result: Any) -> str | None:
        both = result if isinstance(result, tuple) else ()
        if len(both) == 2 and all(isinstance(s, AttentionStatePair) or callable(s) for s in both):
            return None
        return "return two AttentionStatePairs, the target's and the speculator's"

    def left(self, result: Any, *args: Any) -> None:
        passes = self.sizes[-1]
        for states, names in zip(result, (PASSES[:2], PASSES[2:]), strict=True):
            if isinstance(states, AttentionStatePair):
                passes.given |= dict(zip(names, states, strict=True))
        passes.used = [name for name in passes.given if passes.plan(name).have_initialized]


def sizes(evidence: Evidence) -> list[Passes]:
    """Those whose passes were all given something."""
    return [passes for passes in evidence.watch.sizes if len(passes.given) == len(PASSES)]


def reads_copies(evidence: Evidence) -> Iterator[str]:
    for passes in sizes(evidence):
        if names := [name for name in CAPTURES if passes.built and passes.elsewhere(name)]:
            yield f"{_they(names)} given seq_lens at another address than the runner writes to."


def plan_used_before(evidence: Evidence) -> Iterator[str]:
    for passes in sizes(evidence):
        if passes.used:
            yield f"have_initialized was True for {_and(passes.used)} before any pass of this size ran."


def captured_plan_in_an_eager_pass(evidence: Evidence) -> Iterator[str]:
    for passes in sizes(evidence):
        for name in WARM_UPS:
            if (first := passes.first_user(name)) in CAPTURES:
                yield f"The {name} was given the plan whose first user was the {first}."


def stale_plan(evidence: Evidence) -> Passes | None:
    """The largest size, if the target's warm-up plans for its capture, and the graph has no planner."""
    first = sizes(evidence)[:1]
    if not first or PLANNER in evidence.run.kernels or not evidence.run.kernels:
        return None
    return first[0] if first[0].first_user("target's capture") == "target's warm-up" else None


def flag_put_down(evidence: Evidence) -> Iterator[str]:
    passes = stale_plan(evidence)
    if passes and passes.flag_put_down:
        yield f"have_initialized was put down to False, and one plan served {_ONE_PLAN}."


def metadata_copied_plan_shared(evidence: Evidence) -> Iterator[str]:
    passes = stale_plan(evidence)
    if passes and passes.given[PASSES[0]] is not passes.given[PASSES[1]]:
        yield (
            "There are two AttentionMetadata, and both hold one scheduler_metadata: "
            f"one plan served {_ONE_PLAN}."
        )


def warmed_up_twice(evidence: Evidence) -> Iterator[str]:
    passes = stale_plan(evidence)
    if passes and len(passes.built) > passes.num_plans:
        yield (
            f"build() was called {len(passes.built)} times, and {passes.num_plans} of the results reached a "
            f"pass: one plan served {_ONE_PLAN}."
        )


def one_plan_for_both(evidence: Evidence) -> Iterator[str]:
    if stale_plan(evidence):
        yield f"One plan served {_ONE_PLAN}."


def draft_follows_a_warm_up(evidence: Evidence) -> Iterator[str]:
    for passes in sizes(evidence):
        if (first := passes.first_user("draft's capture")) in WARM_UPS:
            yield f"The draft's capture was given the plan whose first user was the {first}."


_ONE_PLAN = f"the target's warm-up and its capture, and the graph holds no {PLANNER}"


def _and(names: list[str]) -> str:
    return "every pass" if len(names) == len(PASSES) else " and ".join(f"the {name}" for name in names)


def _they(names: list[str]) -> str:
    return f"{_and(names)[0].upper()}{_and(names)[1:]} {'was' if len(names) == 1 else 'were'}"


EXERCISE = Exercise(
    prose.beside(__file__),
    solution="state_pair",
    watch=AttentionStatesWatch,
    harder=({"batch_size": 8}, {"batch_size": 1, "to_the_limits": 1}),
    mistakes=(
        reads_copies,
        plan_used_before,
        captured_plan_in_an_eager_pass,
        flag_put_down,
        metadata_copied_plan_shared,
        warmed_up_twice,
        one_plan_for_both,
        draft_follows_a_warm_up,
    ),
)
