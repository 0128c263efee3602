"""JobProcess: starts a process that does jobs (`forked_jobs`), and matches its answers to them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import msgspec

from engine.core.forked_jobs import FrameReader, Job, JobAnswer, write_frame
from engine.logger import get_logger
from engine.machine.children import engine_command
from engine.machine.secrets import child_environment

logger = get_logger(__name__)


class JobProcessEnded(Exception):
    """The process ended while the job was under way; another one takes the next."""


class JobProcess:
    """The process of one subcommand of the engine, started with the first job.

    `setup` is its first message. `duty` says what it does, for the log.
    """

    def __init__(self, subcommand: str, setup: msgspec.Struct, duty: str) -> None:
        self._subcommand = subcommand
        self._setup = setup
        self._duty = duty
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Future[JobAnswer | None]] = {}

    async def do(self, body: bytes) -> JobAnswer:
        """Have one job done; whoever is cancelled while it waits gives it up.

        JobProcessEnded when the process went away meanwhile.
        """
        process = await self._running()
        number = next(self._numbers)
        answer: asyncio.Future[JobAnswer | None] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        assert process.stdin is not None, "a pipe"
        try:
            process.stdin.write(write_frame(Job(number, body)))
            with contextlib.suppress(ConnectionError):  # told by the answer
                await process.stdin.drain()
            found = await answer
        except asyncio.CancelledError:
            process.stdin.write(write_frame(Job(number)))
            raise
        finally:
            self._answers.pop(number, None)
        if found is None:
            raise JobProcessEnded
        return found

    async def close(self) -> None:
        """End the process, if it was ever started."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if self._reader is not None:
            await self._reader

    async def _running(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                self._process = process = await asyncio.create_subprocess_exec(
                    *engine_command(self._subcommand),
                    env=child_environment(),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                )
                assert process.stdin is not None, "a pipe"
                process.stdin.write(write_frame(self._setup))
                self._reader = asyncio.create_task(
                    self._read(process), name=f"{self._subcommand}-answers"
                )
            return self._process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        frames = FrameReader()
        assert process.stdout is not None, "a pipe"
        while data := await process.stdout.read(1 << 18):
            for payload in frames.feed(data):
                found = msgspec.msgpack.decode(payload, type=JobAnswer)
                answer = self._answers.get(found.number)
                if answer is not None and not answer.done():
                    answer.set_result(found)
        code = await process.wait()
        if self._process is process:
            logger.error("The process that %s ended with code %d.", self._duty, code)
        for answer in list(self._answers.values()):
            if not answer.done():
                answer.set_result(None)
