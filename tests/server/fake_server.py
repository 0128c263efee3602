"""The whole API server process with a FakeCore in place of the EngineCore process.

Run as `python -m tests.server.fake_server SCENARIO serve-flags...`; prints which heavy libraries it
ended up with.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys

from engine.args import EngineArgs
from engine.config import EngineConfig
from engine.errors import EngineError, MemoryBudgetError
from engine.messages import EngineCoreOutputs, HandshakeReady
from engine.server.launch import run
from tests.server.fake_core import FakeCore

_HEAVY = ("torch", "transformers", "numpy", "triton")


class _DyingCore(FakeCore):
    """Dies while its first request runs."""

    async def start(self) -> tuple[HandshakeReady, ...]:
        ready = await super().start()
        asyncio.create_task(self._die_when_busy())  # noqa: RUF006 - lives as long as the process
        return ready

    async def _die_when_busy(self) -> None:
        while not self.num_running:
            await asyncio.sleep(0.01)
        self.die()


class _WaitingCore(FakeCore):
    """Stands still after its first token until SIGUSR1."""

    has_waited = False

    async def start(self) -> tuple[HandshakeReady, ...]:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self.resume)
        return await super().start()

    async def get_output(self) -> EngineCoreOutputs:
        output = await super().get_output()
        if not self.has_waited:
            self.has_waited = self.is_paused = True
        return output


def _make_core(scenario: str, _config: EngineConfig) -> FakeCore:
    kinds: dict[str, type[FakeCore]] = {"dies": _DyingCore, "waits": _WaitingCore}
    error: EngineError | None = None
    if scenario == "too-big":
        error = MemoryBudgetError("the weights need 9 GiB, 1 GiB is free.")
    core = kinds.get(scenario, FakeCore)(
        answer=list(range(65, 91)),
        step_s=0.2 if scenario == "slow" else 0.001,
        start_error=error,
        is_paused=scenario == "dies",
    )
    if scenario == "loads-forever":
        core.may_start.clear()
    return core


def main() -> int:
    scenario, *flags = sys.argv[1:]
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    EngineArgs.add_cli_args(parser)
    namespace = parser.parse_args(flags)
    code = run(
        namespace.model,
        EngineArgs.from_cli(namespace),
        client_factory=lambda config: _make_core(scenario, config),
    )
    print("heavy:", [name for name in _HEAVY if name in sys.modules])
    return code


if __name__ == "__main__":
    sys.exit(main())
