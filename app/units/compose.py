"""A compose project: the engine's official image, or ours from the Dockerfile written beside it."""

from __future__ import annotations

from typing import Any

from app.units.deployment import (
    PROBE_PERIOD_S,
    PROBE_TIMEOUT_S,
    Deployment,
    GeneratedFile,
)
from app.units.words import environment_file, shell_comment, yaml_text

_MODELS = "/models"


def compose_files(deployment: Deployment, version: str) -> list[GeneratedFile]:
    """compose.yaml, the file for secrets, and for our own engine a Dockerfile."""
    return [
        GeneratedFile("compose.yaml", _compose(deployment)),
        environment_file(deployment),
        *image_files(deployment, version),
    ]


def image_files(deployment: Deployment, version: str) -> list[GeneratedFile]:
    """The Dockerfile of an image that nobody publishes: our own."""
    if not deployment.is_supervised:
        return []
    return [GeneratedFile("Dockerfile", _dockerfile(version))]


def compose_steps(deployment: Deployment) -> list[str]:
    """The commands that start it and look at it."""
    build = " --build" if deployment.is_supervised else ""
    return [
        f"chmod 600 {deployment.unit_name}.env   # and put the secrets into it",
        f"docker compose up -d{build}",
        "docker compose logs -f | stoker logs --follow -",
        f"stoker top :{deployment.port}",
    ]


def _compose(deployment: Deployment) -> str:
    document = {
        "name": deployment.unit_name,
        "services": {"server": _service(deployment)},
        "volumes": {"models": {}},
    }
    return yaml_text(document)


def _service(deployment: Deployment) -> dict[str, Any]:
    timing = deployment.timing
    origin: dict[str, Any] = {"image": deployment.image}
    if deployment.is_supervised:
        origin["build"] = "."
    service = {
        **origin,
        "command": [word.replace("$", "$$") for word in deployment.container_args],
        # Loopback of the host: opening it to the network is a choice of whoever edits this line.
        "ports": [f"127.0.0.1:{deployment.port}:{deployment.port}"],
        "environment": {
            **deployment.caches(_MODELS),
            "STOKER_CACHE_DIR": f"{_MODELS}/stoker",
            **deployment.environment,
        },
        "env_file": [f"{deployment.unit_name}.env"],
        "volumes": [f"models:{_MODELS}"],
        "ipc": "private",
        "shm_size": "8gb",
        "init": True,
        "restart": "on-failure",
        "stop_grace_period": f"{timing.stop_timeout_s}s",
        "healthcheck": _health_check(deployment),
        "security_opt": ["no-new-privileges:true"],
    }
    if deployment.gpus:
        device = {"driver": "nvidia", "count": deployment.gpus, "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return service


def _health_check(deployment: Deployment) -> dict[str, Any]:
    port = deployment.status_port if deployment.is_supervised else deployment.port
    path = "livez" if deployment.is_supervised else "health"
    code = f"import urllib.request as u; u.urlopen('http://127.0.0.1:{port}/{path}')"
    return {
        # Images have python3 for their server, and not always curl.
        "test": ["CMD", "python3", "-c", code],
        "interval": f"{PROBE_PERIOD_S}s",
        "timeout": f"{PROBE_TIMEOUT_S}s",
        "retries": 3,
        "start_period": f"{deployment.timing.start_timeout_s}s",
    }


def _dockerfile(version: str) -> str:
    return f"""\
{shell_comment("Stoker with its engine, not as root; g++ builds the CPU kernels once.")}
FROM python:3.12-slim
RUN apt-get update \\
 && apt-get install -y --no-install-recommends g++ \\
 && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 stoker \\
 && install -d -o stoker {_MODELS}
RUN pip install --no-cache-dir 'stoker[engine]=={version}'
USER stoker
VOLUME {_MODELS}
ENTRYPOINT ["stoker"]
"""
