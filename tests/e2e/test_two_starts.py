"""Two real engines on one machine: what two starts at once get is what two in turn get."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from engine.machine.sizes import GIB
from tests.e2e.running_server import ENGINE, Server, free_port, started, wait_until_ready
from tests.fakes.control_group import LimitedGroup, limited_group
from tests.tiny_model import write_tiny_llama
from tests.waiting import wait_for


def engine(folder: Path, port: int, *flags: str) -> list[str]:
    return [*ENGINE, "serve", str(folder), "--port", str(port), *flags]


def kv_tokens(server: Server) -> int:
    found = re.search(r"KV cache size: ([\d,]+) tokens", server.text)
    assert found is not None, server.text
    return int(found[1].replace(",", ""))


def pair(group: LimitedGroup, folder: Path, *, at_once: bool) -> tuple[list[int], str]:
    """Tokens of the two caches, the larger first, and all that was logged."""
    with ExitStack() as stack:
        servers = []
        for _ in range(2):
            port = free_port()
            command = group.command(engine(folder, port, "--gpu-memory-utilization", "0.4"))
            servers.append(stack.enter_context(started(command, port, wait=not at_once)))
        for server in servers:
            wait_until_ready(server)
        text = "\n".join(server.text for server in servers)
        return sorted(map(kv_tokens, servers), reverse=True), text


@pytest.mark.slow
def test_two_starts_at_once_get_the_blocks_of_two_in_turn(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny")
    with limited_group(4 * GIB) as group:
        in_turn, quiet = pair(group, folder, at_once=False)
        at_once, told = pair(group, folder, at_once=True)

    assert in_turn == at_once
    assert in_turn[1] < 0.6 * in_turn[0]  # the second one saw what the first has reserved
    assert "Waiting for process" not in quiet
    # A machine that is slow enough starts the second one when the first has measured.
    waited_for = re.findall(r"Waiting for process (\d+), which measures the free RAM", told)
    assert {*waited_for} <= {*re.findall(r"EngineCore pid=(\d+)", told)}


@pytest.mark.slow
def test_what_one_has_reserved_and_not_used_is_refused_to_the_other(tmp_path: Path) -> None:
    folder, ports = write_tiny_llama(tmp_path / "tiny"), (free_port(), free_port())
    with limited_group(4 * GIB) as group, ExitStack() as stack:
        servers = [
            stack.enter_context(
                started(
                    group.command(engine(folder, port, "--kv-cache-memory-bytes", "2G")),
                    port,
                    wait=False,
                )
            )
            for port in ports
        ]
        wait_for(lambda: any(server.process.poll() is not None for server in servers), 120)
        (refused,) = (server for server in servers if server.process.poll() is not None)
        (serving,) = (server for server in servers if server is not refused)
        wait_until_ready(serving)

    assert "--kv-cache-memory-bytes 2147483648 (2.0 GiB) is more than the" in refused.text
    assert refused.process.returncode == 1
