"""The turn of a start to measure and allocate a device's memory, and what its log says of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from engine.env import device_starts
from engine.logger import get_logger
from engine.machine.device_starts import DeviceTurn

logger = get_logger(__name__)


@contextlib.contextmanager
def memory_turn(device: str) -> Iterator[Callable[[int], None]]:
    """Hold the turn of `cpu` or `cuda`; to be told the bytes of RAM that the engine may hold.

    Where there is no folder to agree in, a warning is logged and the start goes on.
    """
    if device != "cpu":
        device_starts("cpu").leave_with_server()
    with contextlib.ExitStack() as stack:
        turn = _enter(stack, device)

        def reserve(held_bytes: int) -> None:
            if turn is None:
                return
            try:
                turn.reserve(held_bytes)
            except OSError as error:
                _warn(device, error)

        yield reserve


def announce_start() -> None:
    """Before torch is loaded, so that a start that measures meanwhile knows whose memory that is.

    On which device it will run is not known yet: it is RAM that it takes first.
    """
    device_starts("cpu").announce()


def hold_memory(device: str, held_bytes: int) -> None:
    """What a running engine may come to hold of the RAM has changed; nothing on another device,
    which shows what is free.
    """
    if device != "cpu":
        return
    with contextlib.suppress(OSError):  # no folder to agree in: the start has said so
        device_starts(device).hold(held_bytes)


def leave_memory(device: str) -> None:
    """The engine's memory is free for others."""
    device_starts(device).leave()


def _enter(stack: contextlib.ExitStack, device: str) -> DeviceTurn | None:
    def on_wait(pid: int) -> None:
        logger.info(
            "Waiting for process %d, which measures %s; its turn comes first.", pid, _name(device)
        )

    try:
        return stack.enter_context(device_starts(device).turn(on_wait))
    except (OSError, NotImplementedError) as error:  # the latter: no locks on this file system
        _warn(device, error)
        return None


def _warn(device: str, error: Exception) -> None:
    logger.warning("Other starts are not waited for while %s is measured: %s", _name(device), error)


def _name(device: str) -> str:
    return "the free RAM" if device == "cpu" else "the memory of the GPU"
