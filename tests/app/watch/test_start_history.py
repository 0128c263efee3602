from __future__ import annotations

from pathlib import Path

from app.watch.start_history import StartHistory, StartTimes


def test_the_median_of_the_last_starts_is_typical(tmp_path: Path) -> None:
    history = StartHistory(tmp_path / "times.json")
    assert history.typical("stoker", "m") is None

    for total in (1000.0, 3.0, 9.0, 4.0, 5.0, 6.0):  # the first is forgotten
        history.add("stoker", "m", StartTimes(total, {"loading": total / 2}))
    history.add("vllm", "m", StartTimes(99.0, {}))

    assert history.typical("stoker", "m") == StartTimes(5.0, {"loading": 2.5})
    assert history.typical("vllm", "m") == StartTimes(99.0, {})
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_damaged_file_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    for damage in ("{", "[]", '{"schema_version": 1, "starts": {"a b": [{"total_s": "x"}]}}'):
        path.write_text(damage)
        assert StartHistory(path).typical("a", "b") is None
    StartHistory(path).add("a", "b", StartTimes(2.0))
    assert StartHistory(path).typical("a", "b") == StartTimes(2.0)
