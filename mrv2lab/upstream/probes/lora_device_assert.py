"""#43139 on vLLM's own classes: the dummy run reads LoRA metadata, and who wrote it?"""

from functools import partial

import numpy as np

from mrv2lab.crash import Crash, of_cuda
from mrv2lab.upstream.model_runner import Setup, execute
from mrv2lab.upstream.outcome import Outcome, Word
from mrv2lab.upstream.platform import LOUD_BYTE
from mrv2lab.upstream.probe import Probe, Row, Seen, Variant
from mrv2lab.upstream.probes.lora_model import (
    STEPS,
    make_lora_runner,
    observe,
    programmed_mappings,
    reference,
    start_up_metrics,
)
from mrv2lab.upstream.unfix import Edit

SETUP = Setup("NONE", (2, 4), max_num_reqs=4)

WITHOUT_MAPPING = Edit(
    "vllm.v1.worker.gpu.model_runner:GPUModelRunner.execute_model",
    find="""
if self.lora_config:
    ...
    adapter_manager.set_adapter_mapping(_)
    ...
""",
)
"""0.23.0 without the mapping of its dummy runs: they program nothing, as none did before #43139."""

CRASH = Crash(
    ("IndexError: index out of range in self", *of_cuda("device-side assert triggered")),
    within="lora/layers/vocal_parallel_embedding.py in forward",
)
"""The look-up of adapter rows; on a GPU it is the launch behind it that hears of it."""

as_engines_start = partial(observe, SETUP, memory=LOUD_BYTE)


def observe_dummy_adapters() -> Seen:
    """The same with adapters 1 and 2 in the dummy run, by the method that #35536 takes from the V1 runner."""
    runner = make_lora_runner(SETUP, memory=LOUD_BYTE)
    one_token_each = np.ones(4, np.int32)
    with (
        programmed_mappings() as mappings,
        runner.maybe_dummy_run_with_lora(
            runner.lora_config, one_token_each, one_token_each, num_active_loras=2
        ),
    ):
        runner._dummy_run(4, skip_attn=True, is_profile=True)
    steps = [execute(runner, requests) for requests in STEPS]
    return Seen(steps, reference, start_up_metrics(mappings))


def word(outcome: Outcome) -> tuple[Word, str]:
    """From what the dummy run read to a word."""
    if outcome.verdict != "correct":
        return "buggy", f"{outcome.message} ({outcome.where})"
    mappings, adapters = (int(outcome.metrics[f"start_up_{name}"]) for name in ("mappings", "adapters"))
    programmed = f"mappings that start-up programs, each for tokens and prompts: {mappings}"
    if mappings and not adapters:
        return "fixed", f"{programmed}; no adapter in them"
    return "replaced", f"{programmed}; dummy adapters in them: up to {adapters}"


PROBE = Probe(
    variants={
        "dummy_adapters": Variant(observe_dummy_adapters, (WITHOUT_MAPPING,)),
        "unwritten": Variant(as_engines_start, (WITHOUT_MAPPING,), crash=CRASH),
        "zero_mapping": Variant(as_engines_start),
    },
    rows=(Row(as_engines_start, word, bug=("crash",), crash=CRASH),),
)
