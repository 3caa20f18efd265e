"""A process of its own: its record comes back, and its death is told."""

import sys

import pytest

from mrv2lab.cases import isolated
from mrv2lab.cases.base import raised_at
from mrv2lab.errors import CutOff


def test_the_record_of_the_child_comes_back():
    shape = {"batch_size": 1, "num_layers": 1, "num_steps": 9}
    run = isolated.run("lora_short_circuit", "zero_mapping", "emulated", shape, {})
    assert (run.variant, run.verdict, run.shape["num_layers"]) == ("zero_mapping", "wrong", 1)


def test_a_child_that_dies_is_told_by_its_last_words():
    with pytest.raises(isolated.Died, match="unknown variant"):
        isolated.run("lora_short_circuit", "no_such_variant", "emulated", {}, {})


def test_last_words_come_with_what_led_to_them(monkeypatch, tmp_path):
    dies = tmp_path / "dies.sh"
    dies.write_text("#!/bin/sh\nprintf 'Traceback\\n  a line\\nNameError: x\\n' >&2\nexit 1\n")
    dies.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(dies))
    with pytest.raises(isolated.Died) as caught:
        isolated.run("lora_short_circuit", "zero_mapping", "emulated", {}, {})
    assert str(caught.value).splitlines() == ["NameError: x", "Traceback", "  a line", "NameError: x"]


def test_a_child_that_hangs_is_ended_and_its_variant_is_not_to_blame(monkeypatch, tmp_path):
    hang = tmp_path / "hang.sh"
    hang.write_text("#!/bin/sh\nexec sleep 60\n")
    hang.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hang))
    monkeypatch.setattr(isolated, "TIMEOUT_S", 1)
    with pytest.raises(CutOff, match="zero_mapping had no result after 1 s and was ended") as caught:
        isolated.run("lora_short_circuit", "zero_mapping", "emulated", {}, {})
    assert raised_at(caught.value) is None


def test_the_child_gets_its_environment_and_starts_no_child(monkeypatch):
    assert not isolated.in_child()
    monkeypatch.setenv(isolated.CHILD, "1")
    assert isolated.in_child()
