"""Looks at the port, the Hugging Face token, proxies, open servers and, if asked, one model.

A token's text is read to see whether it is well formed, and sent to the hub when a model was asked
for; it is returned by nothing here.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator, Mapping, Sequence

from app.doctor.facts import AccessFacts, ModelAccess, OpenServer, PortFacts, TokenFacts
from engine.machine.hub import (
    TOKEN_VARIABLES,
    hub_cache,
    hub_endpoint,
    hub_token,
    offline_variable,
    token_path,
)
from engine.machine.ports import Listener, is_port_free, port_holder
from engine.machine.processes import engine_kind
from engine.machine.secrets import SERVER_KEYS

_IGNORED_TOKEN_VARIABLES = ("HUGGINGFACE_HUB_TOKEN", "HUGGINGFACE_TOKEN", "HF_API_TOKEN")
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")
_TIMEOUT_S = 10


def read_access(
    environ: Mapping[str, str], port: int, model: str | None, listeners: Sequence[Listener]
) -> AccessFacts:
    """The facts of this user on this machine."""
    return AccessFacts(
        port=read_port(port),
        token=read_token(environ),
        ignored_token=next((name for name in _IGNORED_TOKEN_VARIABLES if environ.get(name)), None),
        proxies=tuple(_set_variables(environ, _PROXY_VARIABLES)),
        skips_proxy_for_localhost=_skips_localhost(environ),
        offline=tuple(filter(None, [offline_variable(environ)])),
        open_servers=tuple(_open_servers(listeners)),
        network=_own_network(),
        model=None if model is None else read_model_access(model, environ),
    )


def read_port(port: int) -> PortFacts:
    """Is it free; if not, who listens, as far as this user may know."""
    if is_port_free("127.0.0.1", port):
        return PortFacts(port=port, is_free=True)
    holder = port_holder(port)
    pid, program = holder or (None, None)
    return PortFacts(port=port, is_free=False, pid=pid, program=program)


def read_token(environ: Mapping[str, str]) -> TokenFacts | None:
    """Where the token comes from, in the order that huggingface_hub looks."""
    for name in TOKEN_VARIABLES:
        if environ.get(name):
            return TokenFacts(source=name, is_well_formed=_is_well_formed(environ[name]))
    path = token_path(environ)
    if not path.is_file():
        return None
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return TokenFacts(source=str(path), is_readable=False)
    is_private = os.name == "nt" or path.stat().st_mode & 0o077 == 0
    return TokenFacts(source=str(path), is_well_formed=_is_well_formed(text), is_private=is_private)


def read_model_access(model: str, environ: Mapping[str, str]) -> ModelAccess:
    """Ask the hub for the model's config.json, with the token if there is one."""
    folder = hub_cache(environ) / f"models--{model.replace('/', '--')}"
    is_cached = any(folder.glob("snapshots/*/config.json"))
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        return ModelAccess(model=model, reason="not a hub id like org/name")
    if offline_variable(environ) is not None:
        return ModelAccess(model=model, reason="offline mode is on", is_cached=is_cached)
    token = hub_token(environ)
    url = f"{hub_endpoint(environ)}/{model}/resolve/main/config.json"
    status, reason = _head(url, None if token is None else token.text)
    return ModelAccess(model=model, status=status, reason=reason, is_cached=is_cached)


def _head(url: str, token: str | None) -> tuple[int | None, str | None]:
    """Status of the answer; a redirect is one, since following it would send the token along."""
    import urllib.error
    import urllib.request

    class _Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    request = urllib.request.Request(url, method="HEAD")
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.build_opener(_Stay).open(request, timeout=_TIMEOUT_S) as answer:
            return answer.status, None
    except urllib.error.HTTPError as error:
        return error.code, None
    except (urllib.error.URLError, OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        return None, str(getattr(why, "strerror", None) or why)


def _is_well_formed(token: str) -> bool:
    return re.fullmatch(r"(hf|api)_[A-Za-z0-9_-]{8,}", token.strip()) is not None


def _set_variables(environ: Mapping[str, str], names: Sequence[str]) -> Iterator[str]:
    for name in names:
        yield from (one for one in (name, name.upper()) if environ.get(one))


def _skips_localhost(environ: Mapping[str, str]) -> bool:
    """http_proxy would get even a request to this machine, unless no_proxy names it."""
    if not environ.get("http_proxy") and not environ.get("all_proxy"):
        return True
    skipped = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    names = {name.strip().lstrip(".") for name in skipped.split(",")}
    return "*" in names or bool({"127.0.0.1", "localhost", "127.0.0.0/8"} & names)


def _open_servers(listeners: Sequence[Listener]) -> Iterator[OpenServer]:
    for listener in listeners:
        kind = engine_kind(listener.words)
        if kind is None or listener.address not in ("0.0.0.0", "::"):
            continue
        yield OpenServer(
            pid=listener.pid, program=kind, port=listener.port, has_key=_has_key(listener)
        )


def _has_key(listener: Listener) -> bool:
    """Only whether there is one: its text is not kept."""
    import psutil

    if any(word.split("=")[0] in ("--api-key", "--api-key-file") for word in listener.words):
        return True
    try:
        environ = psutil.Process(listener.pid).environ()
    except psutil.Error:
        return False
    return any(environ.get(name) for name in SERVER_KEYS)


def _own_network() -> str | None:
    """The private network of this machine, e.g. 192.168.1.0/24, containers' bridges left out."""
    import socket

    import psutil

    for name, addresses in sorted(psutil.net_if_addrs().items()):
        if name.startswith(("docker", "br-", "veth", "virbr", "lo", "cni", "podman")):
            continue
        for one in addresses:
            if one.family == socket.AF_INET and one.netmask:
                network = ipaddress.ip_network(f"{one.address}/{one.netmask}", strict=False)
                if network.is_private and network.prefixlen >= 8:
                    return str(network)
    return None
