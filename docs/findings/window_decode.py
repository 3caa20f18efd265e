"""Full CUDA graphs of decodes: contexts within a sliding window get no attention at all (FlashAttention 3).

    python window_decode.py              # on a GPU: log-probabilities of the second token
    python window_decode.py default      # the same in vLLM's default mode, compiled

Needs vLLM (0.23.0 and 0.26.0 were run) and a Hopper GPU, for FlashAttention 3; elsewhere it shows no fault.
No download: small models with random weights are made. Exit status 1 if the fault is there.
"""

import json
import os
import subprocess
import sys
import tempfile
from math import inf

WINDOW, LONGEST = 64, 512
LENGTHS = [3, 20, 60, 66, 100, 200]  # tokens of a prompt
HEADS = [64, 128]  # elements of a head


def make_model(folder: str, head_dim: int) -> None:
    """A random Mistral, each layer with the window, which transformers saves."""
    import torch
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        num_hidden_layers=2, hidden_size=256, intermediate_size=512, num_attention_heads=4,
        num_key_value_heads=2, head_dim=head_dim, vocab_size=2048, initializer_range=0.2,
        sliding_window=WINDOW, max_position_embeddings=LONGEST,
    )  # fmt: skip
    MistralForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def second_tokens(folder: str, mode: str) -> None:
    """Print the log-probabilities of the second token behind each prompt, each served alone."""
    from vllm import LLM, SamplingParams

    more: dict[str, object] = {"enforce_eager": True}
    if mode != "NONE":
        sizes = {"cudagraph_mode": mode, "cudagraph_capture_sizes": [1, 2, 4]}
        more = {"compilation_config": sizes | ({"mode": 0} if mode == "FULL_DECODE_ONLY" else {})}
    llm = LLM(
        model=folder, skip_tokenizer_init=True, max_model_len=LONGEST, kv_cache_memory_bytes=1 << 28,
        enable_prefix_caching=False, max_logprobs=2048, **more,
    )  # fmt: skip
    params = SamplingParams(max_tokens=2, temperature=0, logprobs=2048, detokenize=False, ignore_eos=True)
    found = {}
    for length in LENGTHS:
        prompt = {"prompt_token_ids": [(17 * i + 5) % 2048 for i in range(length)]}
        (output,) = llm.generate([prompt], params, use_tqdm=False)
        found[length] = {token: one.logprob for token, one in output.outputs[0].logprobs[1].items()}
    print("RESULT" + json.dumps(found))


def told(folder: str, mode: str, runner: str) -> dict[str, dict[str, float]]:
    """What an engine says, in a process of its own."""
    env = os.environ | {"VLLM_USE_V2_MODEL_RUNNER": runner, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    command = [sys.executable, __file__, folder, mode]
    output = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, env=env).stdout
    found: dict[str, dict[str, float]] = json.loads(output.rpartition("RESULT")[2])
    return found


def main(mode: str) -> int:
    """Compare the two, for both model runners."""
    is_wrong = False
    for head_dim in HEADS:
        with tempfile.TemporaryDirectory() as folder:
            make_model(folder, head_dim)
            for runner in "01":
                eager, graphs = told(folder, "NONE", runner), told(folder, mode, runner)
                for length in map(str, LENGTHS):
                    both = [(one, graphs[length][token]) for token, one in eager[length].items()]
                    apart = max(
                        abs(one - other) if one == one and other == other else inf for one, other in both
                    )
                    is_wrong |= apart > 0.5
                    of = f"heads of {head_dim}, V{int(runner) + 1}, {length} tokens"
                    print(f"{of}: at most {apart:.3f} apart")
    return int(is_wrong)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        second_tokens(*sys.argv[1:])
    else:
        sys.exit(main("FULL_AND_PIECEWISE" if sys.argv[1:] else "FULL_DECODE_ONLY"))
