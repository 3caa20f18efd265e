"""Drafts that latent attention verifies: the same answers, in graphs as without, and the bug's variants."""

from functools import lru_cache

import pytest
import torch

from mrv2lab.cases.flashmla_lazy_init import captured_reused, fresh_always, shared_state, state_pair
from mrv2lab.errors import BadInput, IllegalAccess
from mrv2lab.graphs import poison
from mrv2lab.runner import CUDAGraphMode, Engine, ModelRunner, Request, RunnerConfig
from mrv2lab.runner.config import MLA_BACKENDS
from mrv2lab.runner.mla import rows_of_decode

SMALL = {
    "block_size": 16, "num_layers": 1, "hidden_size": 32, "intermediate_size": 32, "vocab_size": 64,
    "cudagraph_capture_sizes": (2, 8), "seed": 1,
}  # fmt: skip
FULL, NONE = CUDAGraphMode.FULL_DECODE_ONLY, CUDAGraphMode.NONE
NUM_TOKENS = 8


def requests():
    """Three that need one page and a second one at different steps; nothing is forced."""
    return [Request(f"r{i}", tuple(range(1 + i, 10 + 4 * i)), NUM_TOKENS - i) for i in range(3)]


def serve(attention_backend, backend, mode, num_drafts=1, oracle=None, **kwargs):
    """Answers by request, and the steps.

    Args:
        oracle: right answers. Every other draft is taken from there, the others are left wrong.
    """
    config = RunnerConfig(
        **SMALL, attention_backend=attention_backend, num_speculative_tokens=num_drafts, cudagraph_mode=mode
    )
    runner = ModelRunner(config, backend, **kwargs)
    poisoned = poison(runner.cudagraph_manager.pool, backend)
    runner.warm_up_and_capture()
    del poisoned
    engine, answers, steps = Engine(runner), {}, []
    if oracle:
        tell(runner.speculator, oracle, runner)
    for request in requests():
        engine.add_request(request)
    for step in iter(engine.step, None):
        steps.append(step)
        for req_id, token_ids in zip(step.req_ids, step.sampled_token_ids, strict=True):
            answers.setdefault(req_id, []).extend(token_ids)
    return answers, steps


def tell(speculator, oracle, runner):
    """Let drafts be right where a request has an even number of tokens, and wrong where not."""
    propose = speculator.propose

    def told(input_batch, *args):
        token_ids = []
        for req_id in input_batch.req_ids:
            index = runner.req_states.req_id_to_index[req_id]
            n = int(runner.req_states.total_len[index]) - runner.prompt_lens[req_id]
            right = (oracle[req_id] + [0])[min(n, len(oracle[req_id]))]
            token_ids.append([right if n % 2 else (right + 1) % SMALL["vocab_size"]])
        return propose(input_batch, *args)._replace(token_ids=token_ids)

    speculator.propose = told


@lru_cache(maxsize=8)
def without_drafts(attention_backend, backend):
    return serve(attention_backend, backend, NONE, num_drafts=0)[0]


@pytest.mark.parametrize("mode", [NONE, FULL])
@pytest.mark.parametrize("attention_backend", MLA_BACKENDS)
def test_drafts_change_no_answer_whether_they_are_taken_or_not(attention_backend, mode, backend):
    wanted = without_drafts(attention_backend, backend)
    answers, steps = serve(attention_backend, backend, mode)
    told, fewer = serve(attention_backend, backend, mode, oracle=wanted)
    assert answers == told == wanted
    numbers = [len(token_ids) for step in fewer[1:] for token_ids in step.sampled_token_ids]
    assert {1, 2} == set(numbers) and len(fewer) < NUM_TOKENS
    for step in (*steps[1:], *fewer[1:]):
        assert (step.num_replays, bool(step.work["speculator"].nodes)) == ((mode is FULL), (mode is FULL))


def test_variants_of_the_flashmla_bug_keep_their_verdicts(backend):
    wanted = without_drafts("FLASHMLA", backend)
    for fixed in (state_pair, fresh_always):
        answers, _ = serve("FLASHMLA", backend, FULL, oracle=wanted, attention_states=fixed)
        assert answers == wanted
    answers, _ = serve("FLASHMLA", backend, FULL, oracle=wanted, attention_states=shared_state)
    assert answers != wanted


def test_captured_metadata_still_end_the_speculators_warm_up():
    with pytest.raises(IllegalAccess, match="flash_fwd_splitkv_mla_kernel"):
        serve("FLASHMLA", "emulated", FULL, attention_states=captured_reused)


def test_each_token_of_a_decode_sees_its_request_up_to_itself_and_padding_sees_nothing():
    seq_lens = torch.tensor([5, 2, 0], dtype=torch.int32)
    assert rows_of_decode(seq_lens, 2).tolist() == [4, 5, 1, 2, 0, 0]
    assert rows_of_decode(seq_lens, 1) is seq_lens


def test_several_drafts_that_nobody_verifies_are_refused():
    with pytest.raises(BadInput, match="2 drafts that nobody verifies; possible: 0, 1"):
        RunnerConfig(num_speculative_tokens=2, verify_drafts=False)
