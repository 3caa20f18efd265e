"""Graphs of mode FULL under the V1 runner: batches of decodes get no attention at all (FlashAttention 3).

    python mixed_decode.py       # on a GPU: log-probabilities of the second token, 1 to 8 requests at once
    python mixed_decode.py 64    # heads of 64 elements only; of 64 and of 128 otherwise

Needs vLLM (0.23.0 and 0.26.0 were run) and a Hopper GPU, for FlashAttention 3; elsewhere it shows no fault.
No download: small models with random weights are made. Exit status 1 if the fault is there.
"""

import json
import os
import subprocess
import sys
import tempfile
from math import inf

SIZES = [1, 2, 4, 8]
BATCHES = [1, 2, 3, 4, 8]  # requests at once
PROMPT = 20  # tokens of each: more than the largest graph has
HEADS = [64, 128]  # elements of a head
MODES = ["FULL", "FULL_DECODE_ONLY"]


def make_model(folder: str, head_dim: int) -> None:
    """A random Qwen3, which transformers saves."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        num_hidden_layers=2, hidden_size=256, intermediate_size=512, num_attention_heads=4,
        num_key_value_heads=2, head_dim=head_dim, vocab_size=2048, initializer_range=0.2,
    )  # fmt: skip
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def second_tokens(folder: str, mode: str) -> None:
    """Print the log-probabilities of the second token of each request, for each size of a batch."""
    from vllm import LLM, SamplingParams

    compilation = {"mode": 0, "cudagraph_mode": mode, "cudagraph_capture_sizes": SIZES}
    llm = LLM(
        model=folder, skip_tokenizer_init=True, max_model_len=256, kv_cache_memory_bytes=1 << 28,
        enable_prefix_caching=False, compilation_config=compilation, max_logprobs=2048,
    )  # fmt: skip
    params = SamplingParams(max_tokens=2, temperature=0, logprobs=2048, detokenize=False, ignore_eos=True)
    prompts = [
        {"prompt_token_ids": [(17 * i + 101 * n + 5) % 2048 for i in range(PROMPT)]}
        for n in range(BATCHES[-1])
    ]
    found = {}
    for batch in BATCHES:
        outputs = llm.generate(prompts[:batch], params, use_tqdm=False)
        found[batch] = [
            {token: one.logprob for token, one in output.outputs[0].logprobs[1].items()} for output in outputs
        ]
    print("RESULT" + json.dumps(found))


def told(folder: str, mode: str) -> dict[str, list[dict[str, float]]]:
    """What an engine says, in a process of its own."""
    command = [sys.executable, __file__, folder, mode]
    output = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
    found: dict[str, list[dict[str, float]]] = json.loads(output.rpartition("RESULT")[2])
    return found


def apart(one: dict[str, float], other: dict[str, float]) -> float:
    """The largest difference of two lists of log-probabilities."""
    both = [(value, other[token]) for token, value in one.items()]
    return max(abs(a - b) if a == a and b == b else inf for a, b in both)


def main(heads: list[int]) -> int:
    """Compare graphs with an eager engine, request by request."""
    is_wrong = False
    for head_dim in heads:
        with tempfile.TemporaryDirectory() as folder:
            make_model(folder, head_dim)
            eager = told(folder, "NONE")
            for mode in MODES:
                graphs = told(folder, mode)
                for batch in map(str, BATCHES):
                    most = max(map(apart, eager[batch], graphs[batch]))
                    is_wrong |= most > 0.5
                    print(f"heads of {head_dim}, {mode}, {batch} requests: at most {most:.3f} apart")
    return int(is_wrong)


if __name__ == "__main__":
    os.environ |= {"VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    if len(sys.argv) > 2:
        second_tokens(*sys.argv[1:])
    else:
        sys.exit(main([int(sys.argv[1])] if sys.argv[1:] else HEADS))
