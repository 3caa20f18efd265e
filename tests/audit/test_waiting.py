"""A step that waits for what never comes: where is told, and that is all that can be done."""

import queue
import threading

from mrv2lab.audit.waiting import Look, Waiting


def blocked(asked):
    """A thread that waits in `get`, and its number once it does."""
    lock = threading.Lock()

    def step():
        with lock:
            number.append(threading.get_ident())
        asked.get()

    number = []
    thread = threading.Thread(target=step, daemon=True)
    thread.start()
    while not number or Look.at(number[0]) is None or "asked.get" not in Look.at(number[0]).place.source:
        pass
    return thread, number[0]


def test_two_looks_at_the_same_call_without_work_between_are_waiting():
    asked = queue.SimpleQueue()
    thread, number = blocked(asked)
    first, second = Look.at(number), Look.at(number)
    assert second.has_waited(first._replace(cpu_s=second.cpu_s), passed_s=1.0)
    assert not second.has_waited(first._replace(cpu_s=second.cpu_s - 1.0), passed_s=1.0)  # it has worked
    assert not second.has_waited(first._replace(frame=0), passed_s=1.0)  # another call
    assert not second.has_waited(None, passed_s=1.0)
    asked.put(None)
    thread.join()
    assert Look.at(number) is None


def test_it_is_told_once_with_the_line():
    asked, told = queue.SimpleQueue(), []

    def tell(text):
        told.append(text)
        asked.put(None)

    with Waiting(tell, every_s=0.05):
        asked.get()
    assert len(told) == 1 and "test_waiting.py" in told[0] and "reset() is to put back" in told[0]
