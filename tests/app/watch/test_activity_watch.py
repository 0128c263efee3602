"""An idle server is asked for a token now and then."""

from __future__ import annotations

import threading

from app.watch.activity_watch import IdleProbe
from tests.waiting import wait_for


class Asked:
    """Answers as it is told, and can be made to wait."""

    def __init__(self) -> None:
        self.answer, self.count = True, 0
        self.may_answer = threading.Event()
        self.may_answer.set()

    def __call__(self, timeout_s: float) -> bool:
        self.count += 1
        self.may_answer.wait(300)
        return self.answer


def probe(asked: Asked, now: list[float]) -> IdleProbe:
    return IdleProbe(asked, every_s=10.0, patience_s=5.0, clock=lambda: now[0])


def test_an_idle_server_is_asked_when_it_is_time() -> None:
    asked, now = Asked(), [0.0]
    one = probe(asked, now)
    now[0] = 9.0
    assert one.look(is_idle=True) is None
    assert asked.count == 0
    now[0] = 10.0
    assert one.look(is_idle=True) is None
    wait_for(lambda: asked.count == 1)


def test_a_busy_server_is_not_asked_and_the_time_begins_anew() -> None:
    asked, now = Asked(), [0.0]
    one = probe(asked, now)
    for now[0], is_idle in ((20.0, False), (29.0, True)):
        assert one.look(is_idle=is_idle) is None
    assert asked.count == 0


def test_no_token_is_a_complaint_until_one_comes() -> None:
    asked, now = Asked(), [10.0]
    one = IdleProbe(asked, every_s=10.0, patience_s=5.0, clock=lambda: now[0])
    asked.answer = False
    asked.may_answer.clear()
    now[0] = 20.0
    assert one.look(is_idle=True) is None, "it waits in a thread of its own"
    now[0] = 25.0
    asked.may_answer.set()
    wait_for(lambda: one.look(is_idle=True) is not None)
    assert one.look(is_idle=True) == "an idle server gave no token within 5 s"

    asked.answer = True
    now[0] = 40.0
    wait_for(lambda: one.look(is_idle=True) is None)
