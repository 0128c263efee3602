"""Addresses of this machine: which only it reaches, and how a server is called from elsewhere."""

from __future__ import annotations

import contextlib
import ipaddress
import socket


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def url_host(host: str) -> str:
    """The host to connect to for a server that listens on `host`, written as in a URL."""
    reachable = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{reachable}]" if ":" in reachable else reachable


def outward_host(host: str) -> str | None:
    """Where other machines find a server that listens on `host`, written as in a URL.

    None for the loopback, and where this machine has no way to another one.
    """
    if is_loopback(host):
        return None
    if host not in ("0.0.0.0", "", "::"):
        return url_host(host)
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        if family == socket.AF_INET6 and host != "::":
            continue
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as route:
            route.connect((far, 9))  # of a datagram nothing is sent: the kernel picks the way
            return url_host(route.getsockname()[0])
    return None


def interface_of(host: str) -> str | None:
    """The network interface of this machine with that address, for gloo and NCCL."""
    import psutil

    wanted = ipaddress.ip_address(host.partition("%")[0])
    for name, addresses in psutil.net_if_addrs().items():
        for one in addresses:
            with contextlib.suppress(ValueError):
                found = ipaddress.ip_address(one.address.partition("%")[0])
                if found == wanted or (found.is_loopback and wanted.is_loopback):
                    return str(name)
    return None
