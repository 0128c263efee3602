"""A server that other machines reach: it has a key, and what stays open in spite of it is said.

Without a key of the user's, one is made and kept in a private file; it is never printed.
"""

from __future__ import annotations

import ipaddress
import secrets
import shlex
from pathlib import Path

from app.errors import UsageError
from app.launch.engines import LLAMA_CPP, STOKER, VLLM
from app.launch.launch_specs import ServeRequest
from app.paths import file_name, keys_path, private_folder
from app.registry.json_records import read_own_file
from engine.machine.addresses import is_loopback, outward_host
from engine.machine.private_files import replace_file

_KEY_BYTES = 32
_NETWORK = "NETWORK"  # where this machine's own cannot be told
OPEN_ROUTES = {
    STOKER: (
        *("/health", "/ping", "/load", "/version", "/metrics"),
        *("/", "/tokenize", "/detokenize", "/tokenizer_info", "/openapi.json"),
    ),
    # 0.30.0 guards what begins with /v1, /v2, /inference and /cohere (its middleware
    # authenticate.py), older ones /v1 alone. Newer ones guard all but the first row and pages.
    VLLM: (
        *("/health", "/ping", "/load", "/version", "/metrics"),
        *("/docs", "/redoc", "/openapi.json"),
        *("/invocations", "/tokenize", "/detokenize", "/generative_scoring"),
        *("/pooling", "/classify", "/score", "/rerank"),
        *("/scale_elastic_ep", "/is_scaling_elastic_ep"),
    ),
    # Its list of public endpoints (tools/server/server-http.cpp), with the files of its web page.
    LLAMA_CPP: ("/", "/health", "/v1/health", "/models", "/v1/models"),
}
"""What answers without the key, by engine."""


def is_exposed(request: ServeRequest) -> bool:
    """Whether other machines reach the server."""
    args = request.args
    return not args.is_headless and not args.uds and not is_loopback(args.host)


def key_file_of(name: str) -> Path:
    """Where the key lies that is made for a server of this name."""
    return keys_path() / f"{file_name(name)}.key"


def made_key(path: Path, host: str) -> str:
    """The key in `path`, made on the first start; UsageError names the ways out without it."""
    try:
        if path.exists() and (key := read_own_file(path).strip()):
            return key
        key = secrets.token_urlsafe(_KEY_BYTES)
        private_folder(path.parent)
        replace_file(path, f"{key}\n".encode())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"--host {host} needs a key, and none can be kept in {path}: {why}",
            hint="give one (STOKER_API_KEY or --api-key-file FILE), or leave --host out and reach "
            "it by `ssh -L`",
        ) from error
    return key


def exposure_lines(request: ServeRequest, key_file: Path | None) -> list[str]:
    """What to know of a server that others reach; empty for one that they do not."""
    if not is_exposed(request):
        return []
    routes = ", ".join(OPEN_ROUTES[request.engine])
    lines = [] if key_file is None else [f"clients need the key: cat {shlex.quote(str(key_file))}"]
    return [
        *lines,
        f"open without the key: {routes}",
        f"where ufw guards this machine: sudo ufw allow from {_network(request.args.host)} "
        f"to any port {request.args.port} proto tcp",
    ]


def _network(host: str) -> str:
    """The network of the address at which others find it, e.g. 192.168.1.0/24."""
    import psutil

    outward = (outward_host(host) or "").strip("[]")
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            if one.address == outward and one.netmask:
                try:
                    return str(ipaddress.ip_network(f"{outward}/{one.netmask}", strict=False))
                except ValueError:  # IPv6, whose netmask psutil writes as an address
                    return _NETWORK
    return _NETWORK
