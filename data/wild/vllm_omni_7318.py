"""Images from MammothModa2 ended after some five tokens once its decoder was captured whole. Tokens of
text and tokens of images go to different experts, and Python chooses by whether any, or all, tokens of the
batch are of an image. Captures run with dummy tokens, zeros, which are text: the graphs hold the expert
for text. One of the repairs that the thread proposes: both experts, and a choice on the device.
"""

from types import SimpleNamespace

import torch

PROJECT = "vLLM-Omni"
LINK = "https://github.com/vllm-project/vllm-omni/issues/7318"
MECHANISM = "frozen-host-value"
CAUSE = "batch.input_ids_cpu"
LINE = "if all(token >= GEN_VOCAB_START for token in batch.input_ids_cpu):"
EXECUTORS = ("emulated", "cuda")

ROWS, HIDDEN, GEN_VOCAB_START = 3, 4, 100


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    numbers = torch.Generator().manual_seed(0)
    und_expert, gen_expert = torch.rand(2, HIDDEN, HIDDEN, generator=numbers).to(device)
    hidden = torch.ones(ROWS, HIDDEN, device=device)
    input_ids = torch.zeros(ROWS, dtype=torch.int64, device=device)
    batch = SimpleNamespace(input_ids_cpu=[0] * ROWS)
    batches = iter([[101, 107, 103], [5, 8, 9], [7, 105, 2]] * 3)

    def route() -> torch.Tensor:
        gen_token_mask = (input_ids >= GEN_VOCAB_START)[:, None]
        if fixed:
            return torch.where(gen_token_mask, hidden @ gen_expert, hidden @ und_expert)
        if all(token >= GEN_VOCAB_START for token in batch.input_ids_cpu):
            return hidden @ gen_expert
        if not any(token >= GEN_VOCAB_START for token in batch.input_ids_cpu):
            return hidden @ und_expert
        return torch.where(gen_token_mask, hidden @ gen_expert, hidden @ und_expert)

    def vary() -> None:
        batch.input_ids_cpu = next(batches)
        input_ids.copy_(torch.tensor(batch.input_ids_cpu))
        hidden.copy_(torch.rand(ROWS, HIDDEN, generator=numbers))

    return SimpleNamespace(step=route, vary=vary, batch=batch)
