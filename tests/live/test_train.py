"""Weights with real margins: the task, the training, and the files that come of it."""

import sys
from types import SimpleNamespace

import pytest
import torch

from mrv2lab.live import lora
from mrv2lab.live.train import (
    NUM_SYMBOLS,
    PERIOD,
    ROUNDS,
    LowRank,
    lines,
    make_eagle_head,
    make_trained_qwen3,
    train,
)


def generator():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("shift", [0, 1])
def test_every_round_of_a_line_is_the_one_before_plus_the_shift(shift):
    made = lines(5, shift, generator())
    assert made.shape == (5, PERIOD * ROUNDS) and 0 <= made.min() <= made.max() < NUM_SYMBOLS
    assert torch.equal((made[:, :-PERIOD] + shift) % NUM_SYMBOLS, made[:, PERIOD:])
    assert len({tuple(line) for line in made.tolist()}) == 5


class Lookup(torch.nn.Module):
    """Looks `PERIOD - 1` symbols back: all that the task asks for."""

    device = torch.device("cpu")

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(NUM_SYMBOLS, NUM_SYMBOLS)

    def forward(self, tokens):
        self.logits = self.table(tokens.roll(PERIOD - 1, dims=1))
        return self


@pytest.mark.parametrize("shift", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_training_ends_when_the_task_is_learnt(shift):
    model = Lookup()
    assert train(model, shift, lr=0.5) < 3e-3
    assert torch.equal(model.table.weight.argmax(dim=-1), (torch.arange(NUM_SYMBOLS) + shift) % NUM_SYMBOLS)


def test_training_that_does_not_learn_is_an_error():
    with pytest.raises(RuntimeError, match="after 2 steps"):
        train(Lookup(), 0, max_steps=2)


def test_what_is_low_rank_starts_at_nothing():
    low_rank = LowRank(outputs=6, inputs=4, rank=2)
    weight = torch.randn(6, 4)
    assert torch.equal(low_rank(weight), weight)
    low_rank.lora_B.data.fill_(1)
    assert torch.linalg.matrix_rank(low_rank(weight) - weight) == 1


def test_prompts_are_a_round_and_answers_go_on_from_it():
    prompts, expected = lora.prompts(), lora.expected()
    assert len(prompts) == len(expected) == lora.NUM_PROMPTS
    for prompt, answer in zip(prompts, expected, strict=True):
        assert [(symbol + 1) % NUM_SYMBOLS for symbol in prompt] == answer[:PERIOD]
    assert {len(answer) for answer in expected} == set(range(PERIOD, PERIOD * (ROUNDS - 1) + 1))


class Saved(torch.nn.Module):
    """What transformers would load: a layer that an adapter changes, and one that it leaves alone."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.lm_head = torch.nn.Linear(4, 6, bias=False), torch.nn.Linear(6, 8, bias=False)

    def save_pretrained(self, path):
        pass


def test_once_the_model_is_saved_only_the_adapter_learns(tmp_path, monkeypatch):
    loader = SimpleNamespace(from_pretrained=lambda path, dtype: Saved())
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoModelForCausalLM=loader))
    monkeypatch.setattr("mrv2lab.live.train.make_qwen3", lambda path, **sizes: path)
    monkeypatch.setattr("mrv2lab.live.train.write_adapter", lambda folder, path, factors: folder)
    learning = []

    def note(model, shift):
        learning.append([name for name, p in model.named_parameters() if p.requires_grad])

    monkeypatch.setattr("mrv2lab.live.train.train", note)
    make_trained_qwen3(tmp_path)
    model, adapter = learning
    assert model == ["q_proj.weight", "lm_head.weight"]
    assert [name.rpartition(".")[2] for name in adapter] == ["lora_A", "lora_B"]


@pytest.mark.source  # for its libraries
def test_the_files_hold_model_adapter_and_head(tmp_path, monkeypatch):
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr("mrv2lab.live.train.LEARNT", float("inf"))  # learning takes minutes on a CPU
    path, adapter = make_trained_qwen3(tmp_path, hidden_size=64, rank=8)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    factors = load_file(adapter / "adapter_model.safetensors")
    layers = {name.removesuffix(".lora_A.weight") for name in factors if "lora_A" in name}
    assert len(layers) == 7 * model.config.num_hidden_layers
    for name in layers:
        outputs, inputs = model.get_submodule(name.removeprefix("base_model.model.")).weight.shape
        assert factors[f"{name}.lora_A.weight"].shape == (8, inputs)
        assert factors[f"{name}.lora_B.weight"].shape == (outputs, 8)
    head = load_file(make_eagle_head(tmp_path / "head", path) / "model.safetensors")
    assert head["fc.weight"].shape == (64, 128)


def test_what_goes_into_an_adapter_keeps_its_size():
    torch.manual_seed(0)
    low_rank = LowRank(outputs=8, inputs=400, rank=64)
    assert (low_rank.lora_A @ torch.randn(400)).std().item() == pytest.approx(1, abs=0.5)
