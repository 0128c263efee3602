"""What a benchmark asks of a server besides load, and the fingerprint of where it ran."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from app.bench.round import BenchTarget, scrape
from app.client.errors import BadStatus, ClientError
from app.targets.server_errors import client_errors


def proved_target(
    url: str, model: str | None, api_key: str | None, is_chat: bool, timeout_s: float
) -> BenchTarget:
    """The server, proved to answer, and the model it serves."""
    from app.client.served_model import served_model

    with client_errors(api_key):
        served = served_model(url, model, api_key=api_key)
    return BenchTarget(url, served.id, api_key, is_chat, timeout_s)


@contextlib.contextmanager
def token_counter(target: BenchTarget) -> Iterator[Callable[[str], int] | None]:
    """Counts the tokens of a prompt by the server's /tokenize; None where there is no such thing.

    One body serves vLLM and Stoker (`prompt`, `messages`) and llama-server (`content`), which has
    no chat template there.
    """
    from app.client.transport import connection_errors, open_client

    def count(text: str) -> int:
        body: dict[str, object] = {"model": target.model, "content": text, "add_special": True}
        if target.is_chat:
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = text
        with connection_errors(target.url):
            response = client.post("/tokenize", json=body)
        if response.is_error:
            raise BadStatus(f"{target.url}/tokenize", response.status_code, "")
        return len(response.json()["tokens"])

    with open_client(target.url, api_key=target.api_key) as client:
        try:
            count("a")
        except (ClientError, ValueError, LookupError, TypeError):
            yield None
        else:
            yield count


def fingerprint(targets: tuple[BenchTarget, ...]) -> dict[str, Any]:
    """The machine that the client ran on and the servers; what is not known is null."""
    import psutil

    from app import __version__
    from engine.machine.cores import usable_cores

    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "stoker_version": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": _cpu_name(),
        "cores": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "servers": [_server(target) for target in targets],
    }


def _server(target: BenchTarget) -> dict[str, Any]:
    from app.client.server import server_version
    from app.client.transport import connection_errors, open_client

    sample = scrape(target)
    version, card = None, {}
    try:
        version = server_version(target.url, api_key=target.api_key)
        with (
            connection_errors(target.url),
            open_client(target.url, api_key=target.api_key) as client,
        ):
            card = client.get("/v1/models").json()["data"][0]
    except (ClientError, ValueError, LookupError, TypeError):
        pass
    return {
        "url": target.url,
        "engine": sample.engine if sample else None,
        "version": version,
        "model_id": target.model,
        "max_model_len": card.get("max_model_len"),
        "kv_capacity_tokens": sample.kv_capacity_tokens if sample else None,
    }


def _cpu_name() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or None
