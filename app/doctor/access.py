"""Network and access: the port, the token, a gated model, proxies, offline mode, open servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.doctor.facts import (
    AccessFacts,
    DoctorFacts,
    ModelAccess,
    OpenServer,
    PortFacts,
    TokenFacts,
)
from app.doctor.report import Check, Result, command_line

_LOGIN = "stoker models login"


def checks(facts: DoctorFacts) -> Sequence[Check]:
    access = facts.access
    if access is None:
        return [Check("token", "Hugging Face token", Result.SKIPPED, "the facts do not say")]
    found = [
        check_port(access.port),
        check_token(access.token, access.ignored_token),
        check_model(access.model, access.token),
        check_proxies(access),
        check_offline(access),
        *check_open_servers(access.open_servers, access.network),
    ]
    return [check for check in found if check is not None]


def check_port(port: PortFacts | None) -> Check | None:
    """The port that a server would listen on."""
    if port is None:
        return None
    title = f"Port {port.port}"
    if port.is_free:
        return Check("port", title, Result.OK, "free")
    seen = f"in use by {port.program} (pid {port.pid})" if port.pid else "in use"
    other = port.port + 1 if port.port < 65535 else port.port - 1
    commands: tuple[str, ...] = (f"stoker serve --port {other}",)
    if not port.pid:
        commands += (f"sudo ss -ltnp | grep :{port.port}",)
    return Check("port", title, Result.WARNING, seen, "use another, or end that one", commands)


def check_token(token: TokenFacts | None, ignored: str | None) -> Check:
    """Present, readable, private; its text is never shown."""
    title = "Hugging Face token"
    if token is None and ignored is not None:
        seen = f"{ignored} is set, but huggingface_hub does not read it"
        commands = (f'export HF_TOKEN="${ignored}"',) if ignored.isidentifier() else (_LOGIN,)
        return Check("token", title, Result.WARNING, seen, None, commands)
    if token is None:
        return Check("token", title, Result.SKIPPED, "none; gated models need one", _LOGIN)
    if not token.is_readable:
        seen = f"{token.source} cannot be read"
        commands = (command_line('sudo chown "$USER" {}', token.source),)
        return Check("token", title, Result.PROBLEM, seen, None, commands)
    if not token.is_well_formed:
        seen = f"{token.source} does not look like a token (hf_...)"
        todo = "copy it again, without spaces or quotes"
        return Check("token", title, Result.WARNING, seen, todo, (_LOGIN,))
    if not token.is_private:
        seen = f"{token.source} can be read by other users"
        commands = (command_line("chmod 600 {}", token.source),)
        return Check("token", title, Result.WARNING, seen, None, commands)
    return Check("token", title, Result.OK, f"present in {token.source}")


def check_model(model: ModelAccess | None, token: TokenFacts | None) -> Check | None:
    """May this user download the model."""
    if model is None:
        return None
    title, status = f"Access to {model.model}", model.status
    cached = ", a copy is in the cache" if model.is_cached else ""
    if status is not None and status < 400:
        return Check("model", title, Result.OK, f"granted{cached}")
    if status is None:
        seen = f"not asked: {model.reason}{cached}"
        if model.is_cached:
            return Check("model", title, Result.OK, seen)
        todo = "check the network and offline mode, or serve a local folder"
        commands = (
            "unset HF_HUB_OFFLINE TRANSFORMERS_OFFLINE",
            command_line("hf download {}", model.model),
        )
        return Check("model", title, Result.PROBLEM, seen, todo, commands)
    return _refused(title, model, has_token=token is not None)


def check_proxies(access: AccessFacts) -> Check:
    """A proxy must not get the requests to a server on this machine."""
    if not access.proxies:
        return Check("proxy", "Proxy", Result.OK, "none set")
    seen = f"{', '.join(access.proxies)} set"
    if access.skips_proxy_for_localhost:
        return Check("proxy", "Proxy", Result.OK, seen)
    seen += ", no_proxy does not name 127.0.0.1"
    todo = "curl and clients would ask the proxy for the server on this machine"
    commands = ('export no_proxy="${no_proxy:+$no_proxy,}localhost,127.0.0.1"',)
    return Check("proxy", "Proxy", Result.WARNING, seen, todo, commands)


def check_offline(access: AccessFacts) -> Check:
    """Offline mode is a choice; it only has to be known."""
    if not access.offline:
        return Check("offline", "Offline mode", Result.OK, "off")
    seen = f"on ({', '.join(access.offline)}): models come from the cache or from folders only"
    return Check("offline", "Offline mode", Result.OK, seen)


def check_open_servers(servers: Sequence[OpenServer], network: str | None) -> Iterator[Check]:
    """Servers that other machines can reach, and whether a key is asked of them."""
    title = "Open servers"
    if not servers:
        yield Check("open-server", title, Result.OK, "none listens on every interface")
    for server in servers:
        seen = f"{server.program} (pid {server.pid}) listens on every interface, port {server.port}"
        if server.has_key:
            yield Check("open-server", title, Result.OK, f"{seen}, with a key")
            continue
        near = network or "192.168.1.0/24"
        examples = (
            f"{_serve(server)} --host 127.0.0.1",
            command_line(f"sudo ufw allow from {{}} to any port {server.port} proto tcp", near),
        )
        todo = "anyone who reaches this port can use it: listen here only, set a key, or filter"
        seen += ", without a key"
        yield Check("open-server", title, Result.WARNING, seen, todo, examples=examples)


def _refused(title: str, model: ModelAccess, *, has_token: bool) -> Check:
    commands: tuple[str, ...] = (_LOGIN,)
    if model.status in (401, 403) and has_token:
        seen = f"refused (HTTP {model.status}): gated or private"
        todo = "accept the terms on the model's page with the account of the token"
        commands = ("stoker models whoami", _download_config(model))
    elif model.status in (401, 403):
        seen = f"refused (HTTP {model.status}): gated, private, or no such model"
        todo = "accept the terms on the model's page, then log in"
    elif model.status == 404:
        seen = "not found (HTTP 404)"
        todo, commands = "check the spelling, org/name", (_download_config(model),)
    else:
        seen = f"the hub answers HTTP {model.status}"
        todo = "try again later, logged in"
    return Check("model", title, Result.PROBLEM, seen, todo, commands)


def _download_config(model: ModelAccess) -> str:
    return command_line("hf download {} config.json", model.model)


def _serve(server: OpenServer) -> str:
    return {"vllm": "vllm serve MODEL", "stoker": "stoker serve MODEL"}.get(
        server.program, server.program
    )
