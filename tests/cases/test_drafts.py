"""Upstream's comparison, LoRA against LoRA with drafts: what it counts, and what it cannot see."""

from mrv2lab.cases.drafts import Compared, compare
from mrv2lab.cases.lora_short_circuit import forced_launch, zero_mapping


def test_where_kernels_are_launched_drafts_change_nothing_and_all_is_right(backend):
    compared = compare(forced_launch, backend, num_prompts=3)
    assert compared.agree == compared.right == [True] * 3


def test_two_engines_that_have_lost_the_adapter_agree_about_wrong_answers(backend):
    compared = compare(zero_mapping, backend, num_prompts=6)
    wrong = [agree and not right for agree, right in zip(compared.agree, compared.right, strict=True)]
    assert any(wrong), compared


def test_what_is_counted():
    compared = Compared(alone=[(1,), (2,)], drafted=[(1,), (3,)], expected=[(4,), (3,)])
    assert (compared.agree, compared.right) == ([True, False], [False, True])
