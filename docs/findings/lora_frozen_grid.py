"""`specialize_active_lora`: a request without adapter can drop an adapter of its batch under CUDA graphs.

It does where the number of adapters in the batch is a power of two up to `max_loras`.

    python lora_frozen_grid.py          # on a CPU, with the wheel's Python only: keys and ids
    python lora_frozen_grid.py --gpu    # on a GPU: tokens of one engine, by graphs and eagerly

Needs vLLM 0.24.0 or later, and for --gpu transformers and safetensors, which it brings along. No download.
Exit status 1 if the fault is there.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

MAX_LORAS, MAX_TOKENS = 2, 32
KINDS = {"adapter 1": 1, "adapter 2": 2, "none": 0}


def on_the_cpu() -> bool:
    """Ids that graphs are captured with, by key, and ids and key of one batch. True if the batch fits."""
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1"}
    import numpy as np
    import torch
    import vllm
    from vllm.lora.ops.triton_ops.lora_kernel_metadata import LoRAKernelMeta
    from vllm.lora.request import LoRARequest
    from vllm.lora.utils import get_captured_lora_counts
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager
    from vllm.v1.worker.gpu.lora_utils import LoraState, get_num_active_loras_for_dispatch
    from vllm.v1.worker.lora_model_runner_mixin import LoRAModelRunnerMixin

    class Runner(LoRAModelRunnerMixin):
        lora_manager = object()

        def _set_active_loras(self, prompt_mapping, token_mapping, lora_requests, mapping_type):
            self.token_mapping = token_mapping

    counts = get_captured_lora_counts(MAX_LORAS, True)
    config = SimpleNamespace(max_loras=MAX_LORAS)

    def grid_z(adapters) -> int:
        meta = LoRAKernelMeta.make(MAX_LORAS, 64, "cpu", captured_lora_counts=counts)
        meta.prepare_tensors(
            torch.tensor([adapter - 1 for adapter in adapters])
        )  # adapter i is in slot i - 1
        return int(meta.num_active_loras_cpu)

    print(f"vllm {vllm.__version__}, max_loras={MAX_LORAS}, specialize_active_lora=True")
    captured, runner = {}, Runner()
    for key in counts:
        with runner.maybe_select_dummy_loras(config, np.ones(MAX_LORAS + 2, np.int32), num_active_loras=key):
            captured[key] = grid_z(runner.token_mapping)
        ids = sorted(map(int, set(runner.token_mapping)))
        print(f"graph of key {key}: adapters {ids}, grid z {captured[key]}")

    state = LoraState(max_num_reqs=len(KINDS))
    for i, (name, adapter) in enumerate(KINDS.items()):
        state.add_request(name, i, LoRARequest(name, adapter, "/nowhere") if adapter else None)
    keys, _ = CudaGraphManager._build_lora_dispatch_map(SimpleNamespace(lora_capture_cases=[0, *counts]))
    active = get_num_active_loras_for_dispatch(config, state, list(KINDS), False)
    key, needed = keys[active], grid_z(KINDS.values())
    print(
        f"batch {', '.join(KINDS)}: key {key}, its graph has grid z {captured[key]}, an eager step {needed}"
    )
    return captured[key] >= needed


def make_files(folder: Path) -> Path:
    """A random Qwen3 of four layers, and two adapters for it."""
    import torch
    from safetensors.torch import save_file
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "vocab_size": 2048}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64}
    config = Qwen3Config(**sizes, **heads, initializer_range=0.05, tie_word_embeddings=False)
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder / "model")
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    for adapter in (1, 2):
        weights = {}
        for name, module in model.named_modules():
            if name.rsplit(".")[-1] in names:
                outputs, inputs = module.weight.shape
                at = f"base_model.model.{name}"
                weights[f"{at}.lora_A.weight"] = torch.randn(16, inputs) / inputs**0.5
                weights[f"{at}.lora_B.weight"] = torch.randn(outputs, 16) / 4
        (folder / f"adapter{adapter}").mkdir()
        save_file(weights, folder / f"adapter{adapter}" / "adapter_model.safetensors")
        peft = {"peft_type": "LORA", "r": 16, "lora_alpha": 16, "target_modules": list(names), "bias": "none"}
        (folder / f"adapter{adapter}" / "adapter_config.json").write_text(json.dumps(peft))
    return folder


def tokens(folder: Path, mode: str) -> list[list[int]]:
    """Greedy answers of 12 requests in one batch, four of each kind; `mode` is FULL or NONE."""
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    llm = LLM(
        str(folder / "model"), skip_tokenizer_init=True, enable_prefix_caching=False, max_model_len=1024,
        gpu_memory_utilization=0.3, max_num_seqs=16, enable_lora=True, max_loras=MAX_LORAS, max_lora_rank=16,
        specialize_active_lora=True,
        compilation_config={"mode": 0, "cudagraph_mode": mode, "cudagraph_capture_sizes": [4, 8, 16]},
    )  # fmt: skip
    adapters = [
        LoRARequest(f"adapter{i}", i, str(folder / f"adapter{i}")) if i else None for i in KINDS.values()
    ]
    prompts = [{"prompt_token_ids": [(7 * i + 3 * n) % 2000 for i in range(n)]} for n in range(5, 17)]
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, detokenize=False)
    answers = llm.generate(prompts, params, lora_request=[adapters[i % 3] for i in range(12)], use_tqdm=False)
    return [list(answer.outputs[0].token_ids) for answer in answers]


def on_a_gpu() -> bool:
    """Answers by graphs against eager ones, by kind of request. True if no kind is wrong from the start."""
    environment = os.environ | {"VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    with tempfile.TemporaryDirectory() as name:
        folder, answers = make_files(Path(name)), {}
        for mode in ("FULL", "NONE"):
            command = [sys.executable, __file__, "--tokens", name, mode]
            subprocess.run(command, check=True, env=environment)
            answers[mode] = json.loads((folder / mode).read_text())
    fine = True
    for i, kind in enumerate(KINDS):
        pairs = list(zip(answers["FULL"][i::3], answers["NONE"][i::3], strict=True))
        prefixes = [
            next((n for n, (a, b) in enumerate(zip(*p, strict=True)) if a != b), MAX_TOKENS) for p in pairs
        ]
        print(f"{kind}: tokens until graphs and eager part (of {MAX_TOKENS}): {prefixes}")
        fine &= (
            max(prefixes) > 1
        )  # rounding flips a near tie here and there, and never the second token of all
    return fine


if __name__ == "__main__":
    if sys.argv[1:2] == ["--tokens"]:
        folder, mode = Path(sys.argv[2]), sys.argv[3]
        (folder / mode).write_text(json.dumps(tokens(folder, mode)))
    else:
        sys.exit(0 if (on_a_gpu() if "--gpu" in sys.argv else on_the_cpu()) else 1)
