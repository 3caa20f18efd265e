"""A process of its own: its record comes back, and its death is told."""

import os
import signal
import subprocess
import time
from multiprocessing.connection import wait

import pytest

from mrv2lab.cases import isolated
from mrv2lab.cases.base import raised_at
from mrv2lab.errors import CutOff
from mrv2lab.forks import Fork
from tests.processes import is_gone, until


def test_the_record_of_the_child_comes_back():
    shape = {"batch_size": 1, "num_layers": 1, "num_steps": 9}
    run = isolated.run("lora_short_circuit", "zero_mapping", "emulated", shape, {})
    assert (run.variant, run.verdict, run.shape["num_layers"]) == ("zero_mapping", "wrong", 1)


def test_a_child_that_dies_is_told_by_its_last_words_and_what_led_to_them():
    with pytest.raises(isolated.Died, match="unknown variant") as caught:
        isolated.run("lora_short_circuit", "no_such_variant", "emulated", {}, {})
    first, *rest = str(caught.value).splitlines()
    assert first == rest[-1] and "Traceback (most recent call last):" in rest


def test_a_child_that_is_killed_says_how(tmp_path):
    log = tmp_path / "log"
    child = Fork(os.kill, 0, signal.SIGKILL, log=log)  # 0: its whole group, which is not ours
    assert wait([child.sentinel], 60) and child.status == -signal.SIGKILL
    child.end()


def test_a_child_that_takes_too_long_is_ended_and_its_variant_is_not_to_blame(monkeypatch):
    monkeypatch.setattr(isolated, "TIMEOUT_S", 0)
    with pytest.raises(CutOff, match="zero_mapping had no result after 0 s and was ended") as caught:
        isolated.run("lora_short_circuit", "zero_mapping", "emulated", {}, {})
    assert raised_at(caught.value) is None


def test_a_child_ends_with_all_that_it_has_started(tmp_path):
    child = Fork(subprocess.run, ["sh", "-c", f"echo $$ > {tmp_path}/pid; sleep 600"], log=tmp_path / "log")
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert child.status is None
    child.end()
    pid = int((tmp_path / "pid").read_text())
    assert until(lambda: is_gone(pid))  # whoever adopts it may be slow


def test_an_interrupt_ends_the_child(monkeypatch):
    made = []

    def fork(*_, **options):
        made.append(Fork(time.sleep, 6000, **options))
        return made[0]

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(isolated, "Fork", fork)
    monkeypatch.setattr(isolated, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        isolated.run("lora_short_circuit", "zero_mapping", "emulated", {}, {})
    status = made[0].status
    made[0].end()
    assert status is not None


def test_its_keeper_is_given_the_folder_to_remove(monkeypatch):
    given = {}

    def fork(*args, **options):
        given.update(options, result=args[-1])
        raise InterruptedError

    monkeypatch.setattr(isolated, "Fork", fork)
    with pytest.raises(InterruptedError):
        isolated.run("lora_short_circuit", "zero_mapping", "emulated", {}, {})
    assert given["folder"] == given["log"].parent == given["result"].parent


def test_the_child_gets_its_environment_and_starts_no_child(monkeypatch):
    assert not isolated.in_child()
    monkeypatch.setenv(isolated.CHILD, "1")
    assert isolated.in_child()
