"""GPUs, or the CPU and memory of the server's processes: read on this machine, not from the server.

The panel reads by itself while it is on screen, in a thread, one question at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import ClassVar

from app.client import formatting
from app.client.formatting import human_bytes
from app.client.watch.host import GpuUse, HostSample, ProcessUse
from tui.widgets.charts.history_graph import bar
from tui.widgets.panel import Panel
from tui.widgets.rows import Row, styled

INTERVAL_S = 2.0


class HostPanel(Panel):
    """One row per GPU and per process, as far as the height allows."""

    TITLE = "Machine"
    READING: ClassVar[tuple[tuple[str, str], ...]] = (
        ("GPU", "through NVML: how busy, memory, power, temperature, what slows its clock"),
        ("server", "memory of that GPU that the server's processes hold"),
        ("cpu", "cores that a process keeps busy: 1.50 is one and a half"),
        ("memory", "resident; pages that several processes share count in each"),
    )

    def __init__(
        self,
        read: Callable[[], HostSample] | None,
        *,
        interval_s: float = INTERVAL_S,
        id: str | None = None,
    ) -> None:
        super().__init__(id=id)
        self.is_frozen = False
        self.host: HostSample | None = None
        self._read = read
        self._interval_s = interval_s
        self._is_shown = asyncio.Event()

    def on_mount(self) -> None:
        if self._read is not None:
            self.run_worker(self._poll(self._read), name="host")

    def on_show(self) -> None:
        """Read as soon as there is a picture."""
        self.call_after_refresh(self._is_shown.set)

    async def _poll(self, read: Callable[[], HostSample]) -> None:
        while True:
            is_seen = self.is_on_screen and self.screen is self.app.screen
            if is_seen and not (self.is_frozen and self.host):
                self.host = await asyncio.to_thread(read)
                self.caption(_machine(self.host))
                self.redraw()
            self._is_shown.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._is_shown.wait(), self._interval_s)

    def rows(self, width: int, height: int) -> list[Row]:
        """GPUs first, then processes, as many as the height allows."""
        host = self.host
        if host is None:
            reason = "n/a: not read from a recording" if self._read is None else "reading ..."
            return [styled(reason, "note")]
        rows = [row for gpu in host.gpus for row in self._gpu(gpu, width)]
        if host.gpu_reason:
            rows.append(styled(f"GPU n/a: {host.gpu_reason}", "note"))
        if host.process_reason and host.process_reason != host.gpu_reason:
            rows.append(styled(f"processes n/a: {host.process_reason}", "note"))
        rows += [self._process(process) for process in host.processes]
        total = [self._total(host.processes)] if len(host.processes) > 1 else []
        if len(rows) + len(total) <= height:
            return rows + total
        kept = rows[: max(0, height - 1 - len(total))]
        left_out = styled(f"{len(rows) - len(kept)} more rows: press 3", "note")
        return [*kept, *total, left_out]

    def _gpu(self, gpu: GpuUse, width: int) -> list[Row]:
        share = None
        if gpu.memory_used_bytes is not None and gpu.memory_total_bytes:
            share = gpu.memory_used_bytes / gpu.memory_total_bytes
        numbers = (
            f"{formatting.percent(gpu.utilisation)} busy · "
            f"{human_bytes(gpu.memory_used_bytes)} of {human_bytes(gpu.memory_total_bytes)}"
        )
        head = f"GPU {gpu.index} {gpu.name}  "
        room = max(4, width - len(head) - len(numbers) - 2)
        first = (
            (head, "label"),
            (bar(share, min(room, 40)), "graph"),
            (f"  {numbers}", "value"),
        )
        return [first, styled(_gpu_note(gpu), "note")]

    def _process(self, process: ProcessUse) -> Row:
        cpu = "-" if process.cpu_share is None else f"{process.cpu_share:.2f}"
        return (
            (f"{process.pid:>8}  {_name(process)[:20]:<20}", "label"),
            (f"  cpu {cpu:>6}  memory {human_bytes(process.rss_bytes):>10}", "value"),
            (f"  {_counted(process.num_threads, 'thread', 's')}", "note"),
        )

    def _total(self, processes: tuple[ProcessUse, ...]) -> Row:
        shares = [process.cpu_share for process in processes if process.cpu_share is not None]
        cpu = f"{sum(shares):.2f}" if shares else "-"
        memory = human_bytes(sum(process.rss_bytes for process in processes))
        return (
            (f"{'':8}  {'together':<20}", "label"),
            (f"  cpu {cpu:>6}  memory {memory:>10}", "value"),
        )


def _gpu_note(gpu: GpuUse) -> str:
    power = "-" if gpu.power_w is None else f"{gpu.power_w:.0f} W"
    if gpu.power_limit_w is not None:
        power += f" of {gpu.power_limit_w:.0f} W"
    temperature = "-" if gpu.temperature_c is None else f"{gpu.temperature_c} °C"
    throttle = {None: "throttling n/a", "": "not throttled"}.get(gpu.throttle, gpu.throttle)
    return (
        f"      {power} · {temperature} · {throttle} · server {human_bytes(gpu.server_bytes)}"
        f" · {_counted(len(gpu.processes), 'process', 'es')}"
    )


def _name(process: ProcessUse) -> str:
    return f"{process.role} ({process.name})" if process.role else process.name


def _counted(number: int, noun: str, ending: str) -> str:
    return f"{number} {noun}{'' if number == 1 else ending}"


def _machine(host: HostSample) -> str:
    if host.num_cores is None:
        return ""
    used, total = human_bytes(host.memory_used_bytes), human_bytes(host.memory_total_bytes)
    cores = f"{formatting.percent(host.cpu_share)} of {host.num_cores} cores"
    return f"machine: {cores} · memory {used} of {total}"
