"""Ways to vary the steps of an engine that is audited, by name: each serves other requests."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np

from mrv2lab.errors import BadInput, choose
from mrv2lab.live.engine import requests

NUM_TOKENS = 4
PROMPT_LENGTHS = (5, 130, 700, 1400)
SIDES = (112, 224, 336)  # pixels, a multiple of what most encoders make a token of


class Batch(NamedTuple):
    """Requests that are served at once."""

    prompt_lengths: Sequence[int]  # tokens
    adapters: Sequence[Any] = ()  # of each request its `LoRARequest`, or None; empty: of all the first
    part: str | None = ""  # of the scenario, whose steps are looked at for themselves; None: they are not
    side: int = 0  # pixels of an image that each request brings along; 0: none does


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
        asked = self._with_images(batch) if batch.side else requests(batch.prompt_lengths)
        self.llm.generate(asked, params, use_tqdm=False, lora_request=with_adapters)

    def _with_images(self, batch: Batch) -> list[dict[str, Any]]:
        """A short text each, with an image that no other request has: of one that is known nothing is
        encoded."""
        from PIL import Image
        from vllm.model_executor.model_loader.utils import get_model_cls

        place = get_model_cls(self.llm.llm_engine.model_config).get_placeholder_str("image", 1)
        shape, drawn = (
            (batch.side, batch.side, 3),
            np.random.default_rng((batch.side, len(batch.prompt_lengths))),
        )
        pixels = (drawn.integers(256, size=shape, dtype=np.uint8) for _ in batch.prompt_lengths)
        return [
            {"prompt": f"{place} what?", "multi_modal_data": {"image": Image.fromarray(p)}} for p in pixels
        ]

    def lacks(self, scenario: str) -> str:
        """What a scenario needs and is not there."""
        if scenario == "adapters" and not self.adapters:
            return "an adapter: --lora FOLDER"
        config = self.llm.llm_engine.vllm_config
        if scenario == "prefix" and not config.cache_config.enable_prefix_caching:
            return "prefix caching: --engine enable_prefix_caching=true"
        if scenario == "images" and not config.model_config.is_multimodal_model:
            return "a model that takes images"
        if scenario == "images" and config.model_config.skip_tokenizer_init:
            return "a tokenizer: --engine skip_tokenizer_init=false"
        return ""


def lengths(engine: Engine) -> Iterator[Batch]:
    """Prompts of other lengths than the dummy batch has, at each number of requests that has a graph."""
    return (Batch(engine.lengths(number)) for number in engine.num_reqs)


def shrinking(engine: Engine) -> Iterator[Batch]:
    """One request less than each number that has a graph: the last row is padding."""
    return (Batch(engine.lengths(number - 1)) for number in reversed(engine.num_reqs) if number > 1)


def prefill(engine: Engine) -> Iterator[Batch]:
    """One prompt of each number of tokens that has a graph."""
    return (Batch([number]) for number in engine.num_tokens if 1 < number <= engine.longest)


def adapters(engine: Engine) -> Iterator[Batch]:
    """Requests with each adapter, and with none, in one batch; then none with any."""
    for part, kinds in ("", [*engine.adapters, None]), ("unused", [None]):
        for number in engine.num_reqs:
            yield Batch(engine.lengths(number), list(islice(cycle(kinds), number)), part)


def prefix(engine: Engine) -> Iterator[Batch]:
    """The same prompts twice: the second time their first blocks are cached, and steps are audited."""
    return (Batch(engine.lengths(number), part=part) for number in engine.num_reqs for part in (None, ""))


def images(engine: Engine) -> Iterator[Batch]:
    """An image with each request, small and larger ones: encoders may have graphs."""
    return (Batch([1] * number, side=side) for side in SIDES for number in engine.num_reqs or [1])


_ALL = lengths, shrinking, prefill, adapters, prefix, images
SCENARIOS = {scenario.__name__: scenario for scenario in _ALL}


def chosen(names: Sequence[str]) -> list[str]:
    """Names of scenarios; `all` is every one. BadInput: there is none of that name."""
    for name in names:
        choose("scenario", name, ["all", *SCENARIOS])
    return list(SCENARIOS) if "all" in names else list(dict.fromkeys(names))


def run(engine: Engine, names: Sequence[str], tell: Callable[[str | None], Any]) -> list[str]:
    """Serve the requests of scenarios; `tell` hears what a batch is to be audited as, or None, before it.

    Returns:
        Of those that cannot run on this engine, why.

    Raises:
        BadInput: none can.
    """
    lacking = {name: lacks for name in names if (lacks := engine.lacks(name))}
    told = [f"{name} needs {lacks}" for name, lacks in lacking.items()]
    if len(lacking) == len(names):
        raise BadInput("; ".join(told))
    for name in (name for name in names if name not in lacking):
        for batch in SCENARIOS[name](engine):
            tell(None if batch.part is None else f"{name} {batch.part}".strip())
            engine.serve(batch)
    return told
