"""From the words behind `stoker unit KIND`, which are those of `stoker serve`, to a Deployment."""

from __future__ import annotations

import dataclasses
import getpass
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.errors import UsageError
from app.launch.engines import LLAMA_CPP, STOKER, VLLM
from app.launch.launch_specs import ServeRequest, engine_flags
from app.units.deployment import Deployment, Timing
from engine.args import with_dashes
from engine.machine.addresses import is_loopback

ENGINE_IMAGES = {
    VLLM: "vllm/vllm-openai:v0.30.0",
    LLAMA_CPP: "ghcr.io/ggml-org/llama.cpp:server-cuda-b7780",
}
"""Pinned: `latest` would be another program after the next pull."""

_ALL_ADDRESSES = "0.0.0.0"
_STATUS_PORT_ABOVE = 1000
_CPU_DEVICES = ("cpu",)
_MODEL = "MODEL"
_MADE_BY_THE_SERVER = "--uds"
_FILE_KINDS = (_MODEL, "FILE", "FOLDER")
_THIS_START_ONLY = ("detach", "exit_when_ready", "dry_run", "endpoint_file")
_NOT_IN_CONTAINERS = ("status_host", "exit_when_idle", "api_key_file")


@dataclass(frozen=True, slots=True)
class ServeLine:
    """A `stoker serve` command line that was read and checked, but starts nothing.

    `options` are serve's own by parameter name, `words` MODEL and the engine's flags.
    """

    request: ServeRequest
    options: Mapping[str, Any]
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnitChoices:
    """What only a unit wants to know; None is for us to find out."""

    gpus: int | None = None
    image: str | None = None
    user: str | None = None
    nodes: int = 1


def deployment_of(
    line: ServeLine, choices: UnitChoices, usual_start_s: float | None, version: str
) -> Deployment:
    """The deployment of a server; StokerError for what makes no sense in a unit."""
    _refuse_single_starts(line.options)
    request = line.request
    if choices.nodes > 1 and request.engine != VLLM:
        raise UsageError(
            f"--nodes {choices.nodes}: units of several nodes are written for vLLM alone",
            hint="leave --nodes out, or choose --engine vllm; docs/scaling.md has --nnodes",
        )
    drain = line.options.get("drain")
    name = str(line.options.get("name") or request.served_name.rsplit("/", 1)[-1])
    port = request.args.port
    status_port = line.options.get("status_port") or _status_port(port)
    gpus = _gpus(line, choices)
    return Deployment(
        name=name,
        engine=request.engine,
        program=_program(),
        python=sys.executable,
        command=("serve", *_own_words(line), *_own_options(line, name)),
        engine_words=request.engine_words,
        image=choices.image or _image(line, version),
        container_args=_container_args(line, name, status_port),
        is_supervised=request.engine == STOKER,
        port=port,
        status_port=status_port,
        timing=Timing(
            drain_s=request.args.shutdown_timeout if drain is None else float(drain),
            stall_s=float(line.options.get("stall_after") or Timing(0).stall_s),
            usual_start_s=usual_start_s,
        ),
        is_open=not is_loopback(request.args.host),
        needs_hub_token="/" in request.model and not Path(request.model).expanduser().exists(),
        gpus=gpus,
        nodes=choices.nodes,
        user=choices.user or getpass.getuser(),
        uds=request.uds,
    )


def _image(line: ServeLine, version: str) -> str:
    """The pinned one; of vLLM the release that is asked for."""
    image = ENGINE_IMAGES.get(line.request.engine, f"stoker:{version}")
    release = line.options.get("vllm_version")
    return f"{image.partition(':')[0]}:v{str(release).removeprefix('v')}" if release else image


def _own_words(line: ServeLine) -> tuple[str, ...]:
    """MODEL and the flags that both know; what is for the engine alone stands behind all others.

    A unit starts in another folder, so files are named by their whole path.
    """
    words = line.words
    own = words[: words.index("--")] if "--" in words else words
    kinds = {flag.name: flag.word for flag in engine_flags()}
    found: list[str] = []
    before = ""  # the flag whose value comes next
    for word in own:
        if not word.startswith("-"):
            found.append(_in_full(before, word, kinds.get(before) or _MODEL))
            before = ""
            continue
        flag, sign, value = with_dashes(word).partition("=")
        before = "" if sign else flag
        found.append(f"{flag}{sign}{_in_full(flag, value, kinds.get(flag, ''))}" if sign else flag)
    return tuple(found)


def _in_full(flag: str, value: str, kind: str) -> str:
    """A file by its whole path, as far as it is one: a model may be an id, a template a name."""
    path = os.path.abspath(os.path.expanduser(value))
    is_there = any(word in kind for word in _FILE_KINDS) and os.path.exists(path)
    return path if value and (is_there or flag == _MADE_BY_THE_SERVER) else value


def _refuse_single_starts(options: Mapping[str, Any]) -> None:
    for name in _THIS_START_ONLY:
        if options.get(name):
            flag = "--" + name.replace("_", "-")
            raise UsageError(
                f"{flag} is about one start by hand and has no place in a unit",
                hint=f"leave {flag} out",
            )


def _program() -> str:
    """The `stoker` command of this environment, which a unit must name by its whole path."""
    return str(Path(sys.executable).with_name("stoker"))


def _status_port(port: int) -> int:
    above = port + _STATUS_PORT_ABOVE
    return above if above <= 65535 else port - _STATUS_PORT_ABOVE


def _own_options(line: ServeLine, name: str, without: Sequence[str] = ()) -> list[str]:
    """serve's options as words; a unit's server has a name and no dashboard."""
    words = ["--name", name, "--no-tui"]
    if line.request.engine != STOKER:
        words += ["--engine", line.request.engine]
    left_out = ("name", "no_tui", "engine", *_THIS_START_ONLY, *without)
    for key, value in line.options.items():
        if key in left_out or value in (None, False):
            continue
        flag = "--" + key.replace("_", "-")
        words += [flag] if value is True else [flag, _text(key, value)]
    return words


def _text(key: str, value: object) -> str:
    """A file is named by its whole path: a unit starts in another folder."""
    if key in ("api_key_file", "engine_python", "engine_binary"):
        return os.path.abspath(os.path.expanduser(str(value)))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _gpus(line: ServeLine, choices: UnitChoices) -> int:
    """As many as were asked for, else as the parallel sizes need; none for a CPU."""
    if choices.gpus is not None:
        return choices.gpus
    if line.request.args.device in _CPU_DEVICES or line.request.model.startswith("smollm2"):
        return 0
    args = line.request.args
    size = args.tensor_parallel_size * args.pipeline_parallel_size
    return math.ceil(size * _parallel_size(line.request.engine_words) / choices.nodes)


def _parallel_size(words: Sequence[str]) -> int:
    """tensor x pipeline size of the engine's own flags."""
    size, flags = 1, ("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp")
    for word, following in zip(words, [*words, ""][1:], strict=True):
        flag, _, value = word.partition("=")
        if flag in flags and (value or following).isdigit():
            size *= int(value or following)
    return size


def _container_args(line: ServeLine, name: str, status_port: int) -> tuple[str, ...]:
    """The same server inside a container, where loopback is the container's own."""
    request = dataclasses.replace(
        line.request, args=dataclasses.replace(line.request.args, host=_ALL_ADDRESSES)
    )
    if request.engine == VLLM:
        from app.launch.vllm_parsers import fill_in_parsers, folder_here
        from app.launch.vllm_spec import vllm_flags

        folder = folder_here(request.model)
        return (request.model, *vllm_flags(fill_in_parsers(request, folder).request))
    if request.engine == LLAMA_CPP:
        from app.launch.llama_spec import llama_flags

        source = "-m" if request.model.endswith(".gguf") else "-hf"
        return (source, request.model, *llama_flags(request))
    own = _own_options(line, name, _NOT_IN_CONTAINERS)
    status = ["--status-port", str(status_port), "--status-host", _ALL_ADDRESSES]
    given = "--status-port" in own
    return (
        "serve",
        *_own_words(line),
        "--host",
        _ALL_ADDRESSES,
        *own,
        *(status[2:] if given else status),
        *(("--", *request.engine_words) if request.engine_words else ()),
    )


def require_reachable_model(request: ServeRequest) -> None:
    """StokerError for a folder of this machine, which no container and no other node sees."""
    if Path(request.model).expanduser().exists():
        raise UsageError(
            f"{request.model} lies on this machine, and a container does not see it",
            hint="give the model's Hugging Face id, or copy the folder into the volume and name "
            "it as the container sees it: /models/...",
        )
