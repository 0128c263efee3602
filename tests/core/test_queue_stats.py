"""What the DPCoordinator makes of what it is told."""

from __future__ import annotations

from engine.core.queue_stats import QueueCounts
from engine.messages import ClientReport, EngineStats, QueueStats, SchedulerStats


def stats(engine: int, running: int, waiting: int) -> EngineStats:
    return EngineStats(engine, SchedulerStats(num_running_reqs=running, num_waiting_reqs=waiting))


def test_it_publishes_every_engines_queues_and_who_sent_what() -> None:
    counts = QueueCounts(2)
    counts.note_engine(stats(1, running=3, waiting=2))
    counts.note_client(ClientReport(1, [4, 1], [(b"x", 1)], 50))
    counts.note_client(ClientReport(2, [0, 7]))
    assert counts.publication() == QueueStats(
        [0, 2], [0, 3], {1: [4, 1], 2: [0, 7]}, [(b"x", 1)], {1: 50, 2: 0}, [0, 0]
    )
    assert counts.publication().prefixes == [], "each is told once"


def test_whose_turn_is_still_to_come_waits_for_no_room() -> None:
    counts = QueueCounts(1)
    counts.note_engine(EngineStats(0, SchedulerStats(2, 5, num_taking_turns=4)))
    assert counts.publication().num_waiting == [1]


def test_there_is_something_to_publish_only_when_something_has_changed() -> None:
    counts = QueueCounts(2)
    assert counts.has_changed, "who comes first knows nothing"
    counts.publication()
    told = []
    for running in (0, 1, 1, 0):
        counts.note_engine(stats(0, running, waiting=0))
        told.append(counts.has_changed)
        counts.publication()
    assert told == [False, True, False, True]


def test_the_dead_have_no_queue() -> None:
    counts = QueueCounts(2)
    counts.note_engine(stats(0, running=3, waiting=2))
    counts.note_client(ClientReport(1, [5, 1]))
    counts.note_client(ClientReport(2, [2, 1]))
    counts.publication()
    counts.note_down(0)
    counts.note_client_down(2)
    assert counts.has_changed
    assert counts.publication() == QueueStats([0, 0], [0, 0], {1: [0, 1]}, [], {1: 0}, [0, 0])


def test_who_sleeps_is_published() -> None:
    counts = QueueCounts(2)
    counts.publication()
    counts.note_engine(EngineStats(1, SchedulerStats(sleep_level=2)))
    assert counts.has_changed
    assert counts.publication().sleep_levels == [0, 2]
