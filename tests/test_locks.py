"""Locks on files: a wait is told, and ends."""

import fcntl

import pytest

from mrv2lab import locks
from mrv2lab.errors import BadInput


def test_a_lock_is_held_in_the_block_and_in_no_other(tmp_path):
    with (tmp_path / "lock").open("w") as other:
        with locks.held(tmp_path / "lock", 0), pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_who_waits_says_for_what_and_gives_up(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(locks, "QUIET_S", 0)
    path = tmp_path / "lock"
    with path.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BadInput, match=f"^{path}: another process has held it for 0 min; end that one"):
            locks.held(path, 0).__enter__()
    assert capsys.readouterr().err == f"waiting for another process, which holds {path}\n"


def test_who_has_waited_long_enough_gets_it(tmp_path, monkeypatch, capsys):
    class Lock(locks.FileLock):
        def acquire(self, timeout):
            asked.append(timeout)
            if len(asked) == 1:
                raise locks.Timeout(self.lock_file)
            return super().acquire(timeout)

    asked = []
    monkeypatch.setattr(locks, "FileLock", Lock)
    with locks.held(tmp_path / "lock", 3600):
        assert asked == [locks.QUIET_S, 3600]
    assert "waiting" in capsys.readouterr().err
