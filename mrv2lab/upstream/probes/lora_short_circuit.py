"""#43314 on vLLM's own classes: `no_lora_flag_cpu` at capture decides whether a graph holds LoRA kernels."""

from dataclasses import replace
from functools import partial

from mrv2lab.upstream.model_runner import Setup
from mrv2lab.upstream.outcome import Outcome, Word
from mrv2lab.upstream.probe import Probe, Row, Variant
from mrv2lab.upstream.probes.lora_model import observe
from mrv2lab.upstream.unfix import Edit

SETUP = Setup("FULL", (2, 4), max_num_reqs=4)

WITHOUT_FLAGS = Edit(
    "vllm.v1.worker.gpu.model_runner:GPUModelRunner.execute_model", find="for punica_wrapper in _: ..."
)
"""The dummy-run branch as #43139 left it: a mapping without adapters, and the flag that follows from it."""

# Metadata that start-up leaves unwritten holds zeros here, as fresh memory often does: otherwise releases
# without #43139 would end before they capture, which is the other bug.
captured = partial(observe, SETUP, memory=0)


def word(outcome: Outcome) -> tuple[Word, str]:
    """From what the graph holds, and what it was captured with, to a word."""
    kernels = sum(count for name, count in outcome.kernels.items() if name.startswith("_lora_"))
    if outcome.verdict != "correct":
        return "buggy", f"verdict {outcome.verdict}; the graph holds {kernels} LoRA kernels"
    if not outcome.metrics["start_up_mappings"]:
        return "not there", f"start-up programs no mapping, so nothing skips the {kernels} LoRA kernels"
    if outcome.metrics["start_up_adapters"]:
        return (
            "replaced",
            f"captured with dummy adapters: {kernels} LoRA kernels in the graph of a LoRA batch",
        )
    return "fixed", f"the last dummy run mapped no adapter, and still {kernels} LoRA kernels in the graph"


PROBE = Probe(
    variants={
        "eager": Variant(partial(observe, replace(SETUP, mode="NONE"))),
        "zero_mapping": Variant(captured, (WITHOUT_FLAGS,)),
        "forced_launch": Variant(captured),
    },
    rows=(Row(captured, word, bug=("wrong",)),),
)
