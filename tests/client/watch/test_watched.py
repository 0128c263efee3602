from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from app.client.debug.documents import DebugSource
from app.client.errors import BadStatus, Unreachable
from app.client.watch.recording import RecordingWriter, read_recording
from app.client.watch.replay import Replay
from app.client.watch.watched import record_steps, scrape_all, watch_recorded, watch_url
from tests.client.local_server import Answer, Call, serving

METRICS = b"vllm:num_requests_running 3\n"
DOCUMENTS = {
    "/debug/scheduler": {"num_steps": 1},
    "/debug/requests": {"data": [], "num_not_listed": 0},
    "/debug/blocks": {"num_blocks": 4},
}


async def test_a_server_that_is_away_takes_nothing_from_the_others() -> None:
    with serving({"/metrics": lambda _call: Answer([METRICS])}) as live:
        with serving({}) as gone:
            away = watch_url(gone.url)
        found = await scrape_all([away, watch_url(live.url, name="live")])
    assert isinstance(found[0].error, Unreachable)
    assert found[1].sample is not None
    assert (found[1].server.name, found[1].sample.running) == ("live", 3)


async def test_recording_writes_answers_debug_documents_and_failures(tmp_path: Path) -> None:
    path, answers = tmp_path / "r.jsonl", iter((METRICS, METRICS, b"node_cpu 1\n"))
    routes = {p: lambda _c, d=d: Answer([json.dumps(d).encode()]) for p, d in DOCUMENTS.items()}
    with serving({"/metrics": lambda _call: Answer([next(answers)]), **routes}) as server:
        writer = RecordingWriter(path, ["one"], 0.01)
        watched = watch_recorded(watch_url(server.url), writer, 0, "the-key")
        await record_steps([watched], writer, 0.01, 3)
        writer.close()
        keys = {call.headers.get("Authorization") for call in server.calls}
    assert keys == {"Bearer the-key"}
    entries = read_recording(path).entries
    scrapes = [e.metrics or str(e.error) for e in entries if e.debug is None]
    assert scrapes[:2] == [METRICS.decode()] * 2
    assert "holds no metrics" in scrapes[2]
    assert {k for e in entries if e.debug for k in e.debug} == {"scheduler", "requests", "blocks"}
    assert "the-key" not in path.read_text()


async def test_a_server_without_debug_is_not_asked_each_time(tmp_path: Path) -> None:
    with serving({"/metrics": lambda _call: Answer([METRICS])}) as server:
        writer = RecordingWriter(tmp_path / "r.jsonl", ["one"], 0.01)
        await record_steps([watch_recorded(watch_url(server.url), writer, 0, None)], writer, 0.0, 8)
        writer.close()
        paths = [call.path for call in server.calls]
    assert paths.count("/metrics") == 8
    assert paths.count("/debug/scheduler") == 1


async def test_the_scrapes_of_one_server_never_overlap(tmp_path: Path) -> None:
    lock, overlaps = threading.Lock(), []

    def metrics(_call: Call) -> Answer:
        overlaps.append(not lock.acquire(blocking=False))
        threading.Event().wait(0.02)
        lock.release()
        return Answer([METRICS])

    with serving({"/metrics": metrics}) as server:
        writer = RecordingWriter(tmp_path / "r.jsonl", ["one"], 0.001)
        watched = watch_recorded(watch_url(server.url), writer, 0, None)
        await record_steps([watched], writer, 0.001, 5)
        writer.close()
    assert overlaps == [False] * 5


async def test_slots_of_llama_server_are_kept_without_their_texts(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    slots = [
        {
            "id": 0,
            "n_ctx": 64,
            "is_processing": True,
            "id_task": 5,
            "n_prompt_tokens": 9,
            "n_prompt_tokens_processed": 4,
            "prompt": "my secret",
            "params": {"n_predict": 7},
            "next_token": [{"n_decoded": 2, "text": "my secret"}],
            "prompt_tokens": [31337],
        },
        {"id": 1, "n_ctx": 64, "is_processing": False},
    ]
    routes = {
        "/metrics": lambda _call: Answer([b"llamacpp:requests_processing 1\n"]),
        "/slots": lambda _call: Answer([json.dumps(slots).encode()]),
    }
    with serving(routes) as server:
        writer = RecordingWriter(path, ["llama"], 0.01)
        await record_steps([watch_recorded(watch_url(server.url), writer, 0, None)], writer, 0.0, 2)
        writer.close()
        direct = await DebugSource(server.url).slots()
    assert "secret" not in path.read_text()
    assert "31337" not in path.read_text()
    replay = Replay(read_recording(path), speed=1000.0)
    await replay.source().scrape()
    debug = replay.debug_source()
    assert debug is not None
    assert await debug.slots() == direct
    assert direct[0].is_busy
    with pytest.raises(BadStatus, match="404"):
        await debug.fetch()
