"""Limits count the time that a function runs; the clock alone blames nobody."""

import resource
import signal
import sys
import threading

import numpy as np
import pytest
import torch

from mrv2lab import limits
from mrv2lab.errors import CutOff
from mrv2lab.lifeline import REFUSED, memory_limit
from mrv2lab.limits import time_limit


def works_for_ever():
    while True:
        pass


def waits_for_ever():
    threading.Event().wait()


@pytest.fixture
def clocks(monkeypatch):
    """Both clocks, of a machine that gives this thread no processor; each look at the wall adds `step`."""

    class Clocks:
        cpu, wall, step, looks = 0.0, 0.0, 0.0, 0

        def thread_time(self):
            self.looks += 1
            return self.cpu

        def monotonic(self):
            self.wall += self.step
            return self.wall

    made = Clocks()
    monkeypatch.setattr(limits, "time", made)
    return made


def test_what_works_for_ever_is_stopped_long_before_the_clock_runs_out():
    stopped = r"it ran for 0.2 s without a result and was stopped"
    with pytest.raises(TimeoutError, match=stopped), time_limit(0.2, "it", wall_s=10_000):
        works_for_ever()


def test_what_waits_for_ever_is_ended_by_the_clock_and_nobody_is_to_blame():
    ended = r"it had no result after 0.2 s and was ended: .* busy.* Run it again"
    with pytest.raises(CutOff, match=ended), time_limit(10_000, "it", wall_s=0.2):
        waits_for_ever()


def test_work_that_has_not_run_is_not_stopped_however_often_we_look(clocks):
    with time_limit(0.001, "it"):
        while clocks.looks < 20:
            pass


def test_work_that_never_runs_is_cut_off_and_not_blamed(clocks):
    clocks.step = 0.02
    with pytest.raises(CutOff, match=r"after 0.05 s"), time_limit(0.01, "it"):
        works_for_ever()


def test_who_swallows_the_error_meets_it_again():
    caught = 0
    with pytest.raises(TimeoutError), time_limit(0.1, "it", wall_s=10_000):
        while caught < 2:
            try:
                works_for_ever()
            except TimeoutError:
                caught += 1
        works_for_ever()
    assert caught == 2


def test_who_cleans_up_after_the_error_has_as_long_again(clocks):
    with time_limit(0.01, "it"):
        with pytest.raises(TimeoutError):
            clocks.cpu = 0.015
            works_for_ever()
        seen = clocks.looks
        while clocks.looks < seen + 20:
            pass


def test_who_cleans_up_after_being_cut_off_has_as_long_again(clocks):
    with time_limit(0.01, "it"):  # by the clock, 0.05 s
        with pytest.raises(CutOff):
            clocks.wall = 0.06
            works_for_ever()
        seen = clocks.looks
        while clocks.looks < seen + 20:
            pass


def test_a_limit_inside_another_leaves_it_in_force():
    with pytest.raises(TimeoutError, match=r"outer"), time_limit(0.3, "outer", wall_s=10_000):
        with pytest.raises(TimeoutError, match="inner"), time_limit(0.1, "inner", wall_s=10_000):
            works_for_ever()
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0  # without it the next line would have no end
        works_for_ever()


def test_nothing_is_left_behind():
    before = signal.getsignal(signal.SIGALRM)
    with time_limit(0.1, "it"):
        pass
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_elsewhere_there_is_no_limit():
    ended = []

    def work():
        with time_limit(0.001, "it", wall_s=0.001):
            ended.append(threading.Event().wait(0.05))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended == [False]


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds what a process asks for")


def asks_for_ever():
    """Not so long that a limit that fails takes the machine."""
    held = [bytearray(1 << 24) for _ in range(200)]
    raise AssertionError(f"{len(held)} pieces were given")


@on_linux
@pytest.mark.parametrize("ask", [asks_for_ever, lambda: torch.zeros(1 << 31), lambda: np.zeros(1 << 31)])
def test_what_asks_for_memory_without_end_is_refused_more(monkeypatch, ask):
    monkeypatch.setenv("MRV2LAB_MEMORY_GIB", "0.5")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(MemoryError, match=REFUSED), memory_limit():
        ask()
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@on_linux
def test_a_memory_limit_inside_another_does_not_give_more(monkeypatch):
    monkeypatch.setenv("MRV2LAB_MEMORY_GIB", "0.5")
    with pytest.raises(MemoryError, match=REFUSED), memory_limit():
        monkeypatch.setenv("MRV2LAB_MEMORY_GIB", "100")
        with memory_limit():
            asks_for_ever()


def test_another_error_within_a_memory_limit_is_left_as_it_is():
    with pytest.raises(RuntimeError, match=r"^mine$"), memory_limit():
        raise RuntimeError("mine")
