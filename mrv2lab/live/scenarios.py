"""Ways to vary the steps of an engine that is audited, by name: each serves other requests."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, NamedTuple

from mrv2lab.errors import BadInput, choose
from mrv2lab.live.engine import requests

NUM_TOKENS = 4
PROMPT_LENGTHS = (5, 130, 700, 1400)


class Batch(NamedTuple):
    """Requests that are served at once."""

    prompt_lengths: Sequence[int]  # tokens
    adapters: Sequence[Any] = ()  # of each request its `LoRARequest`, or None; empty: of all the first


@dataclass(frozen=True)
class Engine:
    """What a scenario knows of the engine."""

    llm: Any
    num_reqs: Sequence[int]  # numbers of requests that have a graph of their own, ascending
    num_tokens: Sequence[int]  # the same of tokens
    adapters: Sequence[Any]  # `LoRARequest`s
    longest: int  # tokens of a prompt

    def lengths(self, num_reqs: int) -> list[int]:
        return [min(length, self.longest) for length in islice(cycle(PROMPT_LENGTHS), num_reqs)]

    def serve(self, batch: Batch) -> None:
        """Serve a batch to its end, `NUM_TOKENS` tokens a request."""
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True, detokenize=False)
        adapters = list(batch.adapters or [next(iter(self.adapters), None)] * len(batch.prompt_lengths))
        with_adapters = adapters if self.adapters else None
        self.llm.generate(requests(batch.prompt_lengths), params, use_tqdm=False, lora_request=with_adapters)


def _lengths(engine: Engine) -> Iterator[Batch]:
    """Prompts of other lengths than the dummy batch has, at each number of requests that has a graph."""
    return (Batch(engine.lengths(number)) for number in engine.num_reqs)


def _shrinking(engine: Engine) -> Iterator[Batch]:
    """One request less than each number that has a graph: the last row is padding."""
    return (Batch(engine.lengths(number - 1)) for number in reversed(engine.num_reqs) if number > 1)


def _prefill(engine: Engine) -> Iterator[Batch]:
    """One prompt of each number of tokens that has a graph."""
    return (Batch([number]) for number in engine.num_tokens if 1 < number <= engine.longest)


def _adapters(engine: Engine) -> Iterator[Batch]:
    """Requests with each adapter, and with none, in one batch; then none with any."""
    mixed = [*engine.adapters, None]
    for number in engine.num_reqs:
        yield Batch(engine.lengths(number), list(islice(cycle(mixed), number)))
    for number in engine.num_reqs:
        yield Batch(engine.lengths(number), [None] * number)


def _prefix(engine: Engine) -> Iterator[Batch]:
    """The same prompts twice: the second time their first blocks are cached."""
    return (Batch(engine.lengths(number)) for number in engine.num_reqs for _ in range(2))


class Scenario(NamedTuple):
    """A way to vary steps."""

    batches: Callable[[Engine], Iterator[Batch]]
    lacks: Callable[[Engine], str] = lambda engine: ""  # what of the engine it needs and is not there


def _no_adapter(engine: Engine) -> str:
    return "" if engine.adapters else "an adapter: --lora FOLDER"


def _no_prefix_cache(engine: Engine) -> str:
    cached = engine.llm.llm_engine.vllm_config.cache_config.enable_prefix_caching
    return "" if cached else "prefix caching: --engine enable_prefix_caching=true"


SCENARIOS = {
    "lengths": Scenario(_lengths),
    "shrinking": Scenario(_shrinking),
    "prefill": Scenario(_prefill),
    "adapters": Scenario(_adapters, _no_adapter),
    "prefix": Scenario(_prefix, _no_prefix_cache),
}


def chosen(names: Sequence[str]) -> list[str]:
    """Names of scenarios; `all` is every one. BadInput: there is none of that name."""
    for name in names:
        choose("scenario", name, ["all", *SCENARIOS])
    return list(SCENARIOS) if "all" in names else list(dict.fromkeys(names))


def run(engine: Engine, names: Sequence[str], tell: Callable[[str], Any]) -> list[str]:
    """Serve the requests of scenarios; `tell` hears of each before it begins.

    Returns:
        Of those that cannot run on this engine, why.

    Raises:
        BadInput: none can.
    """
    lacking = {name: lacks for name in names if (lacks := SCENARIOS[name].lacks(engine))}
    told = [f"{name} needs {lacks}" for name, lacks in lacking.items()]
    if len(lacking) == len(names):
        raise BadInput("; ".join(told))
    for name in names:
        if name not in lacking:
            tell(name)
            for batch in SCENARIOS[name].batches(engine):
                engine.serve(batch)
    return told
