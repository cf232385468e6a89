"""Jobs run in order in another thread, and a full queue makes the giver wait."""

from __future__ import annotations

import threading

import pytest

from msprobe_collector.recording.guard import ComputationFailed
from msprobe_collector.recording.step_files import WritingQueue


def test_jobs_run_in_order_and_drain_waits_for_the_last():
    ran, faults = [], []
    queue = WritingQueue(lambda where, error: faults.append(error))
    for number in range(100):
        queue.put(lambda number=number: ran.append(number), held_bytes=1)
    queue.put(lambda: 1 / 0, held_bytes=1)
    queue.drain()
    assert ran == list(range(100))
    assert [type(fault) for fault in faults] == [ZeroDivisionError]


def test_an_error_of_the_script_is_raised_where_the_training_waits():
    faults = []
    queue = WritingQueue(lambda where, error: faults.append(error))

    def read() -> None:
        raise ComputationFailed(ValueError("of the script"))

    queue.put(read, held_bytes=1)
    with pytest.raises(ComputationFailed, match="of the script"):
        queue.drain()
    queue.drain()
    assert faults == []


def test_a_full_queue_makes_the_giver_wait():
    gate, given = threading.Event(), []
    queue = WritingQueue(lambda where, error: None, most_bytes=10)
    queue.put(gate.wait, held_bytes=8)

    def give():
        queue.put(lambda: None, held_bytes=8)
        given.append(True)

    giver = threading.Thread(target=give)
    giver.start()
    giver.join(0.2)
    assert given == []
    gate.set()
    giver.join(10)
    assert given == [True]
    queue.drain()


def test_a_job_larger_than_the_queue_is_taken_alone():
    queue = WritingQueue(lambda where, error: None, most_bytes=10)
    ran = []
    queue.put(lambda: ran.append(1), held_bytes=1000)
    queue.drain()
    assert ran == [1]
