"""What a start finds of a machine's memory. Looked at before every start, so it imports little."""

from __future__ import annotations

from dataclasses import dataclass

from app.errors import StokerError
from app.launch.launch_specs import ServeRequest
from app.planning.gpu_catalogue import PlannedGpu, gpu_of_reading
from engine.env import device_starts


@dataclass(frozen=True, slots=True)
class MemoryBefore:
    """What a start finds; taken before it, since the server changes it."""

    gpu: PlannedGpu | None
    free_ram_bytes: int


def memory_before(request: ServeRequest) -> MemoryBefore:
    """The first GPU unless the flags say cpu, and the free RAM."""
    from engine.machine.gpus import read_gpus
    from engine.machine.ram_shares import RamShares

    gpu = None
    if request.args.device != "cpu":
        try:
            gpu = gpu_of_reading(read_gpus())
        except StokerError:
            gpu = None  # one that is divided: its parts are not known here
    return MemoryBefore(gpu, RamShares(device_starts("cpu")).left_for_new_start())
