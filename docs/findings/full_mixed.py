"""Full CUDA graphs of mixed batches: a short prompt is attended to without the causal mask (Model Runner V2).

    python full_mixed.py        # on a GPU: log-probabilities of the first token, by graphs and eagerly

Needs vLLM 0.21.0 to 0.28.0 (0.23.0 was run) and a Hopper GPU, for FlashAttention 3; elsewhere it shows no
fault. No download: a small model with random weights is made. Exit status 1 if the fault is there.
"""

import json
import os
import subprocess
import sys
import tempfile

SIZES = [1, 2, 4, 8, 16]
LENGTHS = [1, 2, 3, 4, 8, 15, 16, 17, 64]  # tokens of a prompt; behind the largest size there is no graph
SMALL = {
    "num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 2048, "initializer_range": 0.2,
}  # fmt: skip


def make_model(folder: str) -> None:
    """A random Qwen3, which transformers saves."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**SMALL)).to(torch.bfloat16).save_pretrained(folder)


def first_tokens(folder: str, mode: str) -> None:
    """Print the log-probabilities that follow each prompt, each served alone."""
    from vllm import LLM, SamplingParams

    compilation = {"mode": 0, "cudagraph_mode": mode, "cudagraph_capture_sizes": SIZES}
    llm = LLM(
        model=folder, skip_tokenizer_init=True, max_model_len=256, gpu_memory_utilization=0.1,
        enable_prefix_caching=False, compilation_config=compilation, max_logprobs=2048,
    )  # fmt: skip
    params = SamplingParams(max_tokens=1, temperature=0, logprobs=2048, detokenize=False)
    found = {}
    for length in LENGTHS:
        prompt = {"prompt_token_ids": [(17 * i + 5) % 2048 for i in range(length)]}
        (output,) = llm.generate([prompt], params, use_tqdm=False)
        found[length] = {token: one.logprob for token, one in output.outputs[0].logprobs[0].items()}
    print("RESULT" + json.dumps(found))


def main() -> int:
    """Compare the two."""
    with tempfile.TemporaryDirectory() as folder:
        make_model(folder)
        told = {}
        for mode in ("NONE", "FULL"):
            command = [sys.executable, __file__, folder, mode]
            output = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
            told[mode] = json.loads(output.rpartition("RESULT")[2])
    is_wrong = False
    for length in map(str, LENGTHS):
        eager, graph = told["NONE"][length], told["FULL"][length]
        apart = max(abs(eager[token] - graph[token]) for token in eager)
        same = max(eager, key=eager.get) == max(graph, key=graph.get)
        is_wrong |= apart > 0.5
        print(f"{length} tokens: at most {apart:.3f} apart; {'the same' if same else 'another'} greedy token")
    return int(is_wrong)


if __name__ == "__main__":
    os.environ |= {"VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    sys.exit(first_tokens(*sys.argv[1:]) if sys.argv[1:] else main())
