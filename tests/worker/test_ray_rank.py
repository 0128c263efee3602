"""A rank's calls come in the order in which they were made, whatever order Ray brings them in."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.rank_layout import WHOLE
from engine.worker.ray_rank import RayRank
from tests.waiting import wait_for
from tests.worker.driver import engine_config


class Recorder:
    """Stands for the worker, and says which thread called it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def note(self, word: str) -> str:
        self.calls.append((word, threading.get_ident()))
        if word == "bad":
            raise ValueError(word)
        return word


def test_later_calls_wait_for_earlier_ones(folder: Path) -> None:
    rank, worker = RayRank(engine_config(folder), WHOLE), Recorder()
    rank._worker = worker  # type: ignore[assignment]
    with ThreadPoolExecutor(3) as pool:
        third = pool.submit(rank.call, 2, "note", "third")
        second = pool.submit(rank.call, 1, "note", "bad")
        wait_for(lambda: third.running() and second.running())
        assert worker.calls == []
        assert rank.call(0, "note", "first") == "first"
        with pytest.raises(ValueError, match="bad"):  # whose turn is over all the same
            second.result(60)
        assert third.result(60) == "third"
    assert [word for word, _ in worker.calls] == ["first", "bad", "third"]
    assert len({thread for _, thread in worker.calls}) == 1
