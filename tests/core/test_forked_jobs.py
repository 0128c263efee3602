"""What goes through the pipes of a process that does jobs."""

from __future__ import annotations

from engine.core.forked_jobs import FrameReader, Job, JobAnswer, write_frame


def test_messages_arrive_however_the_pipe_cuts_them() -> None:
    sent = [Job(7, b"one"), Job(8), JobAnswer(7, b"x" * 100)]
    data = b"".join(map(write_frame, sent))
    for size in (1, 3, 50, len(data)):
        reader = FrameReader()
        found = [
            payload
            for start in range(0, len(data), size)
            for payload in reader.feed(data[start : start + size])
        ]
        assert [write_frame(message)[4:] for message in sent] == found
