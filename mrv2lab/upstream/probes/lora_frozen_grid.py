"""`specialize_active_lora` on vLLM's own classes: how many ids a captured LoRA kernel has room for."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module

from mrv2lab.upstream.model_runner import Request, Setup, Step
from mrv2lab.upstream.outcome import Outcome, Word
from mrv2lab.upstream.probe import Probe, Row, Seen, Variant
from mrv2lab.upstream.probes import lora_model
from mrv2lab.upstream.unfix import Edit

SETUP = Setup("FULL", (1, 2, 4), max_num_reqs=4)
MAX_LORAS = 2
KEYED = "0.26.0"
"""A release that keys graphs by adapters; 0.24.0 to 0.33.0 read the same in what is edited."""

STEPS = (  # 0 is no adapter
    (Request((5,), 3, 1), Request((6,), 4, 2), Request((7,), 4, 0)),
    (Request((9,), 4, 2), Request((3,), 5, 0)),
    (Request((4,), 5, 1), Request((2,), 6, 2)),
    (Request((60,), 6, 2), Request((1,), 7, 0), Request((33,), 3, 1), Request((12,), 10, 2)),
)

_MIXIN = "vllm.v1.worker.lora_model_runner_mixin:LoRAModelRunnerMixin.maybe_select_dummy_loras"
_CYCLE = "cycle_values = _"
_WITH_NOBODY = "cycle_values = np.array([*range(1, effective_num_loras + 1), 0], dtype=np.int32)"
LAST_KEY_WITH_NOBODY = Edit(_MIXIN, find=_CYCLE, put=_WITH_NOBODY)
"""The id that the comment above this line promises, for the key `max_loras` + 1."""

EVERY_KEY_WITH_NOBODY = Edit(
    _MIXIN,
    find="prompt_lora_mapping = (np.arange(num_reqs, dtype=np.int32) % effective_num_loras) + 1",
    put="prompt_lora_mapping = (np.arange(num_reqs, dtype=np.int32) + 1) % (effective_num_loras + 1)",
)
"""And for every other key."""


def observe(setup: Setup = SETUP, *, specialize: bool = True) -> Seen:
    """`lora_model.observe` with or without the setting, and `rooms`."""
    seen = lora_model.observe(setup, 0, STEPS, max_loras=MAX_LORAS, specialize_active_lora=specialize)
    return replace(seen, metrics=seen.metrics | rooms(seen.steps))


def rooms(steps: Sequence[Step]) -> dict[str, float]:
    """For each step the third dimension of the LoRA kernels' grid in its graph, and the ids of its batch."""
    figures: dict[str, float] = {}
    for i, (step, requests) in enumerate(zip(steps, STEPS, strict=True)):
        nodes = [node for graph in step.graphs for node in graph.nodes if "_lora_" in node.name]
        grids = [node.grid[2] for node in nodes if node.grid]
        figures[f"step_{i}_grid_z"] = max(grids, default=0)
        figures[f"step_{i}_ids"] = len({request.lora_id for request in requests})
    return figures


def has_setting() -> str | None:
    """Why a release cannot have the bug."""
    fields = import_module("vllm.config.lora").LoRAConfig.__dataclass_fields__
    return None if "specialize_active_lora" in fields else "LoRAConfig has no specialize_active_lora"


def word(outcome: Outcome) -> tuple[Word, str]:
    """From what graphs have room for, and what batches had, to a word."""
    steps = range(len(STEPS))
    room = ", ".join(
        f"{outcome.metrics[f'step_{i}_grid_z']:.0f} of {outcome.metrics[f'step_{i}_ids']:.0f}" for i in steps
    )
    told = f"specialize_active_lora; ids with a block in the graph, of those in the batch, by step: {room}"
    return ("buggy" if outcome.verdict == "wrong" else "fixed"), told


PROBE = Probe(
    variants={
        "eager": Variant(partial(observe, replace(SETUP, mode="NONE"))),
        "one_slot": Variant(observe),
        "keyed_short": Variant(observe, release=KEYED),
        "keyed_last": Variant(observe, (LAST_KEY_WITH_NOBODY,), release=KEYED),
        "keyed_full": Variant(observe, (LAST_KEY_WITH_NOBODY, EVERY_KEY_WITH_NOBODY), release=KEYED),
        "default_setting": Variant(partial(observe, specialize=False)),
    },
    rows=(Row(observe, word, bug=("wrong",), needs=has_setting),),
)
