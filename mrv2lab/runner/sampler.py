"""From logits to tokens. Mirrors `vllm/v1/worker/gpu/sample/sampler.py`."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class SamplingParams:
    """How to choose a token."""

    temperature: float = 0.0  # 0 takes the most likely token
    seed: int = 0  # with the position it determines the noise, so a run can be repeated
    # take these, one a step, whatever the logits say. Two runs that are forced along the same tokens can be
    # compared logit by logit, however wrong one of them is
    forced_token_ids: tuple[int, ...] = ()


def accept(drafts: list[int], token_ids: list[int]) -> list[int]:
    """What a request gets of a step: tokens as long as they are what was drafted, and the first that is not.

    Exact for tokens that are drawn with noise of their own too: each of them is drawn as without drafts.
    `token_ids` are sampled behind the newest token and behind each of `drafts`. Mirrors, in its simplest
    form, `RejectionSampler`.
    """
    num_accepted = 0
    while num_accepted < len(drafts) and drafts[num_accepted] == token_ids[num_accepted]:
        num_accepted += 1
    return token_ids[: num_accepted + 1]


def sample(logits: torch.Tensor, params: list[SamplingParams], num_sampled: list[int]) -> list[int]:
    """Choose one token for each row of logits, [num_rows, vocab_size]. `num_sampled` tells of each row how
    many tokens its request has sampled before.
    """
    scores = logits.float().cpu()
    for row, (param, step) in enumerate(zip(params, num_sampled, strict=True)):
        if param.temperature > 0:
            generator = torch.Generator().manual_seed(param.seed * 1_000_003 + step)
            gumbel = -torch.empty(scores.shape[1]).exponential_(generator=generator).log()
            scores[row] = scores[row] / param.temperature + gumbel
    tokens = scores.argmax(dim=-1).tolist()
    forced = [p.forced_token_ids[n : n + 1] for p, n in zip(params, num_sampled, strict=True)]
    return [force[0] if force else token for force, token in zip(forced, tokens, strict=True)]
