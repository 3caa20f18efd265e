"""Latent attention, decode-only graphs and the speculator, with no case in sight."""

import pytest
import torch

from mrv2lab.errors import BadInput
from mrv2lab.runner import CUDAGraphMode, Engine, ModelRunner, Request, RunnerConfig

SMALL = {
    "attention_backend": "FLASHMLA", "block_size": 16, "num_layers": 1, "hidden_size": 32,
    "intermediate_size": 32, "vocab_size": 64, "num_speculative_tokens": 1, "verify_drafts": False,
    "cudagraph_capture_sizes": (1, 4),
}  # fmt: skip


def serve(backend, wanted, mode=CUDAGraphMode.FULL_DECODE_ONLY, **config):
    runner = ModelRunner(RunnerConfig(**SMALL | {"cudagraph_mode": mode} | config), backend)
    runner.warm_up_and_capture()
    engine = Engine(runner)
    for request in wanted:
        engine.add_request(request)
    return list(iter(engine.step, None))


def requests(n=3, max_tokens=6):
    return [Request(f"r{i}", tuple(range(1, 14 + 3 * i)), max_tokens) for i in range(n)]


def test_graphs_and_eager_agree_for_target_and_draft(backend):
    full = serve(backend, requests())
    eager = serve(backend, requests(), CUDAGraphMode.NONE)
    assert [step.num_replays for step in full] == [0, 1, 1, 1, 1, 1]  # prompts are never in a decode graph
    for step, reference in zip(full, eager, strict=True):
        torch.testing.assert_close(step.logits, reference.logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(step.draft_logits, reference.draft_logits, rtol=1e-4, atol=1e-4)


def test_a_short_prompt_does_not_take_a_decode_graph():
    steps = serve("emulated", [Request("r", (1, 2, 3), 2)])
    assert [step.num_replays for step in steps] == [0, 1]


def test_decoding_with_a_cache_equals_one_long_prompt():
    # The decode kernels against the plain prefill path.
    steps = serve("emulated", requests(1, max_tokens=10))
    sequence = [*range(1, 14), *(step.sampled_token_ids[0][0] for step in steps)]
    (again,) = serve("emulated", [Request("r0", tuple(sequence[:-1]), 1)])
    torch.testing.assert_close(again.logits, steps[-1].logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(again.draft_logits, steps[-1].draft_logits, rtol=1e-4, atol=1e-4)


def test_the_draft_follows_the_token_that_was_sampled():
    first = serve("emulated", [Request("r", (1, 2, 3), 1)])[0]
    longer = serve("emulated", [Request("r", (1, 2, 3, first.sampled_token_ids[0][0]), 1)])[0]
    assert not torch.equal(first.draft_logits, first.logits)
    assert first.draft_logits.shape == longer.logits.shape == (1, 64)


def test_pages_of_every_size_that_is_possible_give_the_same_answer():
    small, *larger = (serve("emulated", requests(2, max_tokens=3), block_size=n)[-1] for n in (16, 32, 64))
    for step in larger:
        torch.testing.assert_close(step.logits, small.logits, rtol=1e-4, atol=1e-4)


def test_without_speculation_there_are_no_draft_logits():
    assert serve("emulated", requests(1), num_speculative_tokens=0)[0].draft_logits is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"attention_backend": "FLASHATTN"},
            "unknown attention_backend 'FLASHATTN'; possible: PAGED, FLASHMLA",
        ),
        (
            {"attention_backend": "FLASHMLA", "block_size": 8},
            "block_size=8 with FLASHMLA; possible: 16, 32, 64",
        ),
        (
            {"attention_backend": "FLASHMLA", "block_size": 16, "cudagraph_mode": CUDAGraphMode.PIECEWISE},
            "PIECEWISE graphs with FLASHMLA; possible: NONE, FULL_DECODE_ONLY",
        ),
        ({"num_speculative_tokens": 5}, "num_speculative_tokens=5 is out of range; possible: 0 to 4"),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(config, message):
    with pytest.raises(BadInput, match=message):
        RunnerConfig(**config)
