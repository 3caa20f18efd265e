"""A graph of two tokens in mode FULL, and a request with two tokens behind a cached prefix (Model Runner V2).

    python two_tokens.py 32 128      # query heads, elements of a head; on a GPU
    python two_tokens.py 32 128 1    # keys split into at most so many parts

Needs vLLM (0.23.0 was run) and a Hopper GPU, for FlashAttention 3. No download: a small model with random
weights is made. Prints how many log-probabilities of an engine without graphs, and of one with them, are no
numbers, and how far the others are apart.
"""

import json
import os
import subprocess
import sys
import tempfile
from math import isnan

PREFIXES = [32, 400, 1600]  # cached tokens: keys of one block, of several, of many


def make_model(folder: str, heads: int, head_dim: int) -> None:
    """A random Qwen3, which transformers saves."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        num_hidden_layers=2, hidden_size=256, intermediate_size=512, num_attention_heads=heads,
        num_key_value_heads=heads // 4, head_dim=head_dim, vocab_size=2048, initializer_range=0.2,
    )  # fmt: skip
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def first_tokens(folder: str, mode: str, splits: str) -> None:
    """Print the log-probabilities that follow one to four tokens behind each prefix."""
    from vllm import LLM, SamplingParams

    compilation = {"mode": 0, "cudagraph_mode": mode, "cudagraph_capture_sizes": [1, 2, 4]}
    llm = LLM(
        model=folder, skip_tokenizer_init=True, max_model_len=2048, kv_cache_memory_bytes=1 << 28,
        max_num_seqs=8, gpu_memory_utilization=0.1, enable_prefix_caching=True,
        compilation_config=compilation, max_logprobs=2048,
        attention_config={"flash_attn_max_num_splits_for_cuda_graph": int(splits)},
    )  # fmt: skip
    params = SamplingParams(max_tokens=1, temperature=0, logprobs=2048, detokenize=False, ignore_eos=True)
    found = {}
    for length in PREFIXES:
        prefix = [(17 * i + 5) % 2048 for i in range(length)]
        llm.generate([{"prompt_token_ids": [*prefix, 9, 9, 9]}], params, use_tqdm=False)
        for more in (1, 2, 3, 4):
            prompt = prefix + [7 + more, 11, 13, 17][:more]
            (output,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
            answer = {token: one.logprob for token, one in output.outputs[0].logprobs[0].items()}
            found[f"{more} behind {output.num_cached_tokens} cached"] = answer
    print("RESULT" + json.dumps(found))


def main(heads: int, head_dim: int, splits: int = 32) -> None:
    """Compare graphs with an engine without."""
    with tempfile.TemporaryDirectory() as folder:
        make_model(folder, heads, head_dim)
        told = {}
        for mode in ("NONE", "FULL"):
            command = [sys.executable, __file__, folder, mode, str(splits), "answer"]
            output = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
            told[mode] = json.loads(output.rpartition("RESULT")[2])
    for load, eager in told["NONE"].items():
        graphs = told["FULL"][load]
        lost = [sum(map(isnan, one.values())) for one in (eager, graphs)]
        both = [token for token in eager if token in graphs]
        apart = [gap for token in both if not isnan(gap := abs(eager[token] - graphs[token]))]
        text = f"{max(apart):.3f} apart" if apart else "nothing to compare"
        print(f"{load}: no numbers {lost[0]} without graphs, {lost[1]} with; {text}", flush=True)


if __name__ == "__main__":
    os.environ |= {"VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    if len(sys.argv) > 4:
        first_tokens(*sys.argv[1:4])
    else:
        main(*map(int, sys.argv[1:]))
