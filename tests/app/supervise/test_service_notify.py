from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.supervise.service_notify import ServiceManager


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(10)
        yield sock


def test_each_word_is_one_datagram(listener: socket.socket, tmp_path: Path) -> None:
    manager = ServiceManager(str(tmp_path / "notify"))
    manager.status("loading\nweights")
    manager.more_time(1.5)
    manager.ready()
    manager.alive()
    manager.stopping()
    words = [listener.recv(1000).decode() for _ in range(5)]
    assert words == [
        "STATUS=loading weights",
        "EXTEND_TIMEOUT_USEC=1500000",
        "READY=1",
        "WATCHDOG=1",
        "STOPPING=1",
    ]
    manager.reloading()
    first, second = listener.recv(1000).decode().split("\n")
    assert first == "RELOADING=1"
    assert second.startswith("MONOTONIC_USEC=")


def test_an_abstract_address() -> None:
    name = f"stoker-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("\0" + name)
        sock.settimeout(10)
        ServiceManager("@" + name).ready()
        assert sock.recv(100) == b"READY=1"


def test_children_do_not_inherit_it() -> None:
    environ = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "3000000", "A": "b"}
    manager = ServiceManager.from_environment(environ)
    assert (manager.address, manager.watchdog_s) == ("/run/x", 3.0)
    assert environ == {"A": "b"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ServiceManager()),
        ({"NOTIFY_SOCKET": ""}, ServiceManager()),
        ({"NOTIFY_SOCKET": "vsock:1:2"}, ServiceManager()),
        ({"NOTIFY_SOCKET": "/s", "WATCHDOG_USEC": "x"}, ServiceManager("/s")),
        (
            {"NOTIFY_SOCKET": "/s", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"},
            ServiceManager("/s"),
        ),
    ],
)
def test_what_is_not_for_us(environ: dict[str, str], expected: ServiceManager) -> None:
    assert ServiceManager.from_environment(environ) == expected


def test_a_manager_that_is_gone_is_no_error(tmp_path: Path) -> None:
    ServiceManager(str(tmp_path / "nobody")).ready()
