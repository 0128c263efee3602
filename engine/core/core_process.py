"""The EngineCore process as its parent holds it: a child that imports torch while the parent is
still busy with imports of its own. Knows nothing of messages; imports nothing that takes long.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence

from engine.config import ParallelConfig
from engine.core.handshake import CoreAddresses
from engine.machine.children import engine_command
from engine.machine.secrets import child_environment
from engine.node_key import NODE_KEY_VARIABLE


class ChildProcess:
    """A running part of the engine, and the news of its end."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        log_fd: int | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start it. `log_fd` is where it writes its log; None is this process's stdout.

        `environment` is added to what a child gets.
        """
        self._process = subprocess.Popen(
            command,
            env={**child_environment(), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=log_fd,
            pass_fds=pass_fds,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while nobody has noticed its end."""
        return self._process.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Nothing happens when it is gone."""
        self._process.send_signal(number)

    async def wait(self) -> int:
        """The exit code, once it has ended."""
        import asyncio  # not before the process is started

        loop = asyncio.get_running_loop()
        ended: asyncio.Future[int] = loop.create_future()

        def deliver(code: int) -> None:
            if not ended.done():
                ended.set_result(code)

        def watch() -> None:
            code = self._process.wait()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(deliver, code)

        threading.Thread(target=watch, daemon=True, name="child-exit").start()
        return await ended

    def discard(self) -> None:
        """End it at once, where nobody did; may be called more than once."""
        self._process.kill()
        self._process.wait()


class CoreProcess(ChildProcess):
    """An EngineCore, and the addresses at which it looks for its parent."""

    def __init__(
        self,
        addresses: CoreAddresses,
        *,
        log_fd: int | None = None,
        name: str = "EngineCore",
        executor: str = "uni",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`name` stands before its lines, `executor` is the one that it will most likely be told
        to use.
        """
        words = ["--handshake", addresses.handshake, "--parent", str(os.getpid()), "--name", name]
        words += ["--executor", executor]
        self.addresses = addresses
        command = engine_command("core", *words)
        super().__init__(command, environment=environment, log_fd=log_fd)

    def discard(self) -> None:
        """End it at once, where no client did, and delete its sockets."""
        super().discard()
        self.addresses.remove()


def start_processes(parallel: ParallelConfig) -> list[CoreProcess]:
    """One EngineCore for each replica; they look for their clients once they have imported what
    they need.
    """
    ranks = (
        dataclasses.replace(parallel, data_parallel_rank=rank)
        for rank in range(parallel.data_parallel_size)
    )
    return [spawn_core(CoreAddresses.create(), parallel=parallel) for parallel in ranks]


def spawn_core(
    addresses: CoreAddresses, *, parallel: ParallelConfig, log_fd: int | None = None
) -> CoreProcess:
    """Start the EngineCore of one replica, which sees the GPUs that are its own."""
    return CoreProcess(
        addresses,
        log_fd=log_fd,
        name=parallel.engine_name,
        executor=parallel.executor_backend,
        environment={**own_gpus(parallel, os.environ), **_node_key(parallel, os.environ)},
    )


def _node_key(parallel: ParallelConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """The nodes' secret, for the one process that meets the other nodes."""
    if parallel.nnodes == 1 or NODE_KEY_VARIABLE not in environ:
        return {}
    return {NODE_KEY_VARIABLE: environ[NODE_KEY_VARIABLE]}


def own_gpus(parallel: ParallelConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that leave one of several replicas its own GPUs; those hidden before stay hidden.

    CUDA reads the one. ROCm reads HIP_VISIBLE_DEVICES first, so that where it is set the other one
    would change nothing there.
    """
    if parallel.data_parallel_size == 1:
        return {}
    first = parallel.data_parallel_rank * parallel.world_size
    end = first + parallel.world_size
    found = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(first, end)))}
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        if name in environ:
            words = [word.strip() for word in environ[name].split(",")]
            found[name] = ",".join(words[first:end])
    return found
