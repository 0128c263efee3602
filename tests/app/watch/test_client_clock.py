from __future__ import annotations

from app.watch.client_clock import ClientClock, ProbeCount
from app.watch.forward_progress import Reading


def reading(time_s: float, queue: float | None, finished: float | None) -> Reading:
    return Reading(time_s, queue, frozenset(), finished)


def test_a_server_that_shows_nothing_is_never_idle() -> None:
    clock = ClientClock(0.0)
    clock.note(reading(10.0, None, None), ProbeCount())
    assert clock.idle_s(100.0) is None


def test_a_request_that_runs_or_has_ended_begins_the_time_anew() -> None:
    clock = ClientClock(0.0)
    clock.note(reading(1.0, 0, 1), ProbeCount())  # the token of the start
    assert clock.idle_s(10.0) == 10.0
    clock.note(reading(10.0, 1, 1), ProbeCount())
    assert clock.idle_s(10.0) == 0.0
    clock.note(reading(500.0, 1, 1), ProbeCount())  # one long stream
    assert clock.idle_s(501.0) == 1.0
    clock.note(reading(502.0, 0, 3), ProbeCount())  # and a short one between two looks
    assert clock.idle_s(512.0) == 10.0
    clock.note(reading(600.0, 0, 3), ProbeCount())
    assert clock.idle_s(612.0) == 110.0


def test_probes_are_no_clients() -> None:
    clock = ClientClock(0.0)
    clock.note(reading(1.0, 0, 1), ProbeCount(0))
    clock.note(reading(10.0, 1, 1), ProbeCount(1, is_asking=True))
    clock.note(reading(12.0, 0, 2), ProbeCount(1))
    assert clock.idle_s(20.0) == 20.0
    clock.note(reading(21.0, 2, 2), ProbeCount(2, is_asking=True))  # one of them is a client's
    assert clock.idle_s(21.0) == 0.0
    clock.note(reading(30.0, 0, 4), ProbeCount(2))
    assert clock.idle_s(30.0) == 0.0


def test_an_answer_that_did_not_come_says_nothing() -> None:
    clock = ClientClock(0.0)
    clock.note(reading(1.0, 0, 1), ProbeCount())
    clock.note(reading(2.0, None, None), ProbeCount())
    clock.note(reading(3.0, 0, 1), ProbeCount())
    assert clock.idle_s(5.0) == 5.0


def test_an_engine_that_counts_tokens_only() -> None:
    def tokens(time_s: float, count: str) -> Reading:
        return Reading(time_s, 0, frozenset({("llamacpp:tokens_predicted_total", "[]", count)}))

    clock = ClientClock(0.0)
    clock.note(tokens(1.0, "1"), ProbeCount(0))
    clock.note(tokens(9.0, "1"), ProbeCount(0, is_asking=True))
    clock.note(tokens(11.0, "2"), ProbeCount(1))
    assert clock.idle_s(12.0) == 12.0
    clock.note(tokens(13.0, "2"), ProbeCount(1))
    clock.note(tokens(15.0, "9"), ProbeCount(1))
    assert clock.idle_s(16.0) == 1.0
