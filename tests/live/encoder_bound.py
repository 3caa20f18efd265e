"""Audits the encoder of a small Qwen2.5-VL: `python -m tests.live.encoder_bound sound|short MODEL`.

`max_seqlen_full`, that of full attention, is a number of the host, which a graph keeps. vLLM captures with
the longest sequence that fits a budget (0.23.0, `qwen2_5_vl.py`, `prepare_encoder_cudagraph_capture_inputs`);
*short* is captured with what one dummy image has. Prints what was found, as JSON.
"""

import json
import sys
from contextlib import nullcontext

from mrv2lab.live import audited
from mrv2lab.live.audit import attached
from mrv2lab.live.protocol import claim_stdout
from mrv2lab.upstream.unfix import Edit, unfix

MODEL = "vllm.model_executor.models.qwen2_5_vl:Qwen2_5_VLForConditionalGeneration"
SHORT = Edit(
    f"{MODEL}.prepare_encoder_cudagraph_capture_inputs",
    find="metadata = _",
    put="token_budget = per_mm_item_output\n...",
)
OPTIONS = {
    "skip_tokenizer_init": False, "max_model_len": 1024, "gpu_memory_utilization": 0.4,
    "kv_cache_memory_bytes": 64 << 20,  # copied for each pass
    "mm_encoder_attn_backend": "TRITON_ATTN",  # has a block of its grid for each so many of a sequence
}  # fmt: skip
COMPILATION = {
    "mode": 0, "cudagraph_mode": "FULL", "cudagraph_capture_sizes": [1, 2, 4], "cudagraph_mm_encoder": True,
}  # fmt: skip


def main(program: str, model: str) -> None:
    told, edits = claim_stdout(), {"sound": (), "short": (SHORT,)}[program]
    with attached() as steps, unfix(*edits, versions="==0.23.0") if edits else nullcontext():
        from vllm import LLM

        llm = LLM(model=model, compilation_config=COMPILATION, **OPTIONS)
        json.dump(audited._serve(llm, steps, [], ["images"]), told)


if __name__ == "__main__":
    main(*sys.argv[1:])
