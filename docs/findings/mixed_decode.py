"""Graphs of mode FULL that were captured with several tokens a request: decodes get no attention at all
(FlashAttention 3).

    python mixed_decode.py       # on a GPU: log-probabilities of the second token of each request
    python mixed_decode.py 64    # heads of 64 elements only; of 64 and of 128 otherwise

Needs vLLM (of 0.23.0 and 0.26.0 the first two ways were run) and a Hopper GPU, for FlashAttention 3;
elsewhere it shows no fault. No download: small models with random weights are made. Exit status 1 if the
fault is there.
"""

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from math import inf

HEADS = [64, 128]  # elements of a head
PROMPTS = [20, 250]  # tokens: keys of one block and of two; more than the largest graph has
BATCHES = [1, 2, 3, 4, 6, 8]  # requests at once
WAYS = [  # runner, mode, sizes of graphs, most requests at once
    ("V1", "FULL", [1, 2, 4, 8], 8),
    ("V1", "FULL_DECODE_ONLY", [1, 2, 4, 8], 8),
    ("V1", "FULL", [4, 8], 8),  # one request is padded to four
    ("V2", "FULL", [1, 2, 4, 8], 8),
    ("V2", "FULL", [8], 6),  # a size above the number of requests: some have several tokens at capture
]


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


def second_tokens(folder: str, mode: str, sizes: str, most: str) -> None:
    """Print the log-probabilities of the second token of each request, for each load."""
    from vllm import LLM, SamplingParams

    compilation = {"mode": 0, "cudagraph_mode": mode, "cudagraph_capture_sizes": json.loads(sizes)}
    llm = LLM(
        model=folder, skip_tokenizer_init=True, max_model_len=512, kv_cache_memory_bytes=1 << 28,
        max_num_seqs=int(most), enable_prefix_caching=False, max_logprobs=2048,
        compilation_config=compilation, gpu_memory_utilization=0.1,
    )  # fmt: skip
    params = SamplingParams(max_tokens=2, temperature=0, logprobs=2048, detokenize=False, ignore_eos=True)
    found = {}
    for length in PROMPTS:
        for batch in (n for n in BATCHES if n <= int(most)):
            tokens = [[(17 * i + 101 * n + 5) % 2048 for i in range(length)] for n in range(batch)]
            outputs = llm.generate([{"prompt_token_ids": one} for one in tokens], params, use_tqdm=False)
            seconds = [output.outputs[0].logprobs[1].items() for output in outputs]
            answers = [{token: one.logprob for token, one in second} for second in seconds]
            found[f"prompts of {length}, {batch} at once"] = answers
    print("RESULT" + json.dumps(found))


Answers = dict[str, list[dict[str, float]]]


def told(folder: str, runner: str, mode: str, sizes: list[int], most: int) -> Answers:
    """What an engine says, in a process of its own."""
    env = os.environ | {"VLLM_USE_V2_MODEL_RUNNER": str(int(runner == "V2"))}
    command = [sys.executable, __file__, folder, mode, json.dumps(sizes), str(most)]
    output = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, env=env).stdout
    found: Answers = json.loads(output.rpartition("RESULT")[2])
    return found


def apart(one: dict[str, float], other: dict[str, float]) -> float:
    """The largest difference of two lists of log-probabilities."""
    both = [(value, other[token]) for token, value in one.items()]
    return max(abs(a - b) if a == a and b == b else inf for a, b in both)


def main(heads: list[int]) -> int:
    """Compare graphs with an eager engine of the same runner, request by request; four engines at a time."""
    is_wrong = False
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(4) as pool:
        for head_dim in heads:
            model = f"{folder}/{head_dim}"
            make_model(model, head_dim)
            eager = {runner: pool.submit(told, model, runner, "NONE", [8], 8) for runner in ("V1", "V2")}
            graphs = [pool.submit(told, model, *way) for way in WAYS]
            for (runner, mode, sizes, most), found in zip(WAYS, graphs, strict=True):
                print(f"heads of {head_dim}, {runner}, {mode}, sizes {sizes}, {most} requests at most")
                for load, answers in found.result().items():
                    apart_at_most = max(map(apart, eager[runner].result()[load], answers))
                    is_wrong |= apart_at_most > 0.5
                    print(f"  {load}: at most {apart_at_most:.3f} apart", flush=True)
    return int(is_wrong)


if __name__ == "__main__":
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    if len(sys.argv) > 2:
        second_tokens(*sys.argv[1:])
    else:
        sys.exit(main([int(sys.argv[1])] if sys.argv[1:] else HEADS))
