"""vLLM as a LaunchSpec: where it is installed, and what our flags are called there.

The flags are vLLM's own, so nearly all pass as they are; those that only Stoker's engine knows are
refused by name. vLLM is never imported here, it has an environment of its own.
"""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from app.errors import ExitCode, StokerError, UsageError
from app.launch.engines import VLLM
from app.launch.launch_specs import LaunchSpec, ServeRequest, as_flags
from engine.args import EngineArgs, with_dashes
from engine.machine.secrets import HUB_SECRETS, STORAGE_SECRETS

API_KEY_VARIABLE = "VLLM_API_KEY"
_DEFAULTS = EngineArgs()
_UDS_FIELD = "uds:"
_OURS_ALONE = {
    "device": "the vLLM build decides it; CUDA_VISIBLE_DEVICES picks GPUs",
    "num_threads": "name the cores in VLLM_CPU_OMP_THREADS_BIND, e.g. 0-7",
    "enable_debug_endpoints": "leave it out; `stoker top` shows what vLLM exposes",
    "allowed_hosts": "leave it out; vLLM answers under every name",
    "node_key_file": "leave it out; vLLM's nodes have no secret",
    "show_prompts": "leave it out; vLLM has no /debug",
    "record_traffic": "leave it out; what vLLM exposes has no lengths of single requests",
    "record_traffic_max_bytes": "leave it out, with --record-traffic",
    "data_parallel_routing": "leave it out; vLLM sends requests to the least loaded copy",
    "ttft_target_ms": "bound the queue itself: --max-num-queued-reqs N",
    "kernels": "choose one of vLLM's own: -- --attention-backend NAME",
}
_OUR_VALUES = {
    ("model_impl", "stoker"): "leave it out, or use transformers",
    ("allowed_media_domains", "*"): "leave it out; vLLM fetches images from any host",
    ("chat_template", "chatml"): "give a file that holds the template",
    ("tool_call_parser", "json"): "use hermes or llama3_json, or: -- --tool-call-parser NAME",
    ("reasoning_parser", "kimi_vl"): "leave it out, or: -- --reasoning-parser NAME",
}


def find_vllm(engine_python: str | None) -> tuple[str, ...]:
    """The words that run `vllm`: beside the interpreter that the user names, or found on PATH."""
    if engine_python is None:
        found = shutil.which("vllm")
        if found is None:
            raise StokerError(
                "vLLM is not on PATH",
                hint="name the Python it is installed in: --engine-python ENVIRONMENT/bin/python",
                exit_code=ExitCode.NOT_FOUND,
            )
        return (str(Path(found).absolute()),)
    # Not resolved: an environment's python is a link, and what it links to knows no environment.
    python = Path(engine_python).expanduser().absolute()
    if not python.is_file() or not os.access(python, os.X_OK):
        is_there = python.exists()
        raise StokerError(
            f"--engine-python {engine_python} is {'no program' if is_there else 'not there'}",
            hint="give the interpreter itself, e.g. ENVIRONMENT/bin/python",
            exit_code=ExitCode.NOT_EXECUTABLE if is_there else ExitCode.NOT_FOUND,
        )
    script = python.with_name("vllm")
    if not script.is_file():
        raise StokerError(
            f"vLLM is not installed beside {engine_python}",
            hint=f"{engine_python} -m pip install vllm",
            exit_code=ExitCode.NOT_FOUND,
        )
    return (str(python), str(script))


def require_vllm_uds(program: tuple[str, ...]) -> None:
    """StokerError where the vLLM beside `program` is too old for --uds.

    Its own table of flags says so; where that is not to be found, vLLM itself will tell.
    """
    for folder in packages_beside(program):
        tables = list(folder.glob("vllm/entrypoints/**/cli_args.py"))
        if tables and not any(_UDS_FIELD in table.read_text() for table in tables):
            raise UsageError(
                f"vLLM {_release_in(folder) or 'here'} has no --uds",
                hint="use a newer vLLM, or leave --uds out and give a key: STOKER_API_KEY",
            )


def installed_version(engine_python: str | None) -> str | None:
    """The release of the vLLM that would run, by its package's folder; None when none is found."""
    try:
        program = find_vllm(engine_python)
    except StokerError:
        return None
    return next(filter(None, map(_release_in, packages_beside(program))), None)


def packages_beside(program: tuple[str, ...]) -> Iterator[Path]:
    """Where the packages of a `vllm` script lie; the one on PATH may be a link into its place."""
    return Path(program[-1]).resolve().parent.parent.glob("lib*/python3*/site-packages")


def _release_in(packages: Path) -> str | None:
    """`vllm-0.30.0.dist-info` or `vllm-0.30.0+cpu.dist-info`: what stands behind the name."""
    found = (path.name.removesuffix(".dist-info") for path in packages.glob("vllm-*.dist-info"))
    return next((name.removeprefix("vllm-") for name in found), None)


def download_dir(engine_words: Sequence[str]) -> Path | None:
    """Where vLLM would keep a model that it fetches; None: in the hub's cache."""
    flags = [with_dashes(word) for word in engine_words]
    for number, word in enumerate(flags):
        flag, equals, value = word.partition("=")
        if flag == "--download-dir":
            found = value if equals else next(iter(flags[number + 1 : number + 2]), "")
            return Path(found).expanduser().absolute() if found else None
    return None


def vllm_flags(request: ServeRequest) -> list[str]:
    """Flags for `vllm serve`; StokerError names one that vLLM has no equal for."""
    args = request.args
    if args.headless or args.node_rank:
        raise UsageError(
            "`stoker serve` watches node 0 of vLLM, and the others have no API server",
            hint="start vLLM itself there; `stoker plan MODEL --engine vllm` with --tp, --pp and "
            "--nnodes prints the command of each",
        )
    for name, hint in _OURS_ALONE.items():
        if getattr(args, name) != getattr(_DEFAULTS, name):
            raise _no_equal(name, None, hint)
    for (name, value), hint in _OUR_VALUES.items():
        if getattr(args, name) in (value, (value,)):
            raise _no_equal(name, value, hint)
    flags = [f"--host={args.host}", f"--port={args.port}"]  # vLLM would listen on all addresses
    if request.uds:
        flags = [f"--uds={request.uds}"]
    if args.shutdown_timeout != _DEFAULTS.shutdown_timeout:
        flags.append(f"--shutdown-timeout={math.ceil(args.shutdown_timeout)}")
    said = dataclasses.replace(
        args,
        host=_DEFAULTS.host,
        port=_DEFAULTS.port,
        uds=None,
        shutdown_timeout=_DEFAULTS.shutdown_timeout,
        served_model_name=request.served_name,
    )
    return [*flags, *as_flags(said), *request.engine_words]


def vllm_spec(
    request: ServeRequest, program: tuple[str, ...], model_path: str, api_key: str | None
) -> LaunchSpec:
    """`vllm serve` on `model_path`, a folder or an id that vLLM finds itself."""
    folder = str(Path(program[-1]).parent)  # as after `activate`: vLLM calls ninja and others
    path = os.environ.get("PATH", os.defpath)
    return LaunchSpec(
        engine=VLLM,
        argv=(*program, "serve", model_path, *vllm_flags(request)),
        model=request.model,
        served_name=request.served_name,
        host=request.args.host,
        port=request.args.port,
        uds=request.uds,
        shutdown_timeout_s=request.args.shutdown_timeout,
        variables={"PATH": f"{folder}{os.pathsep}{path}"},
        secrets={API_KEY_VARIABLE: api_key} if api_key else {},
        # Its tokenizer, adapters or draft model may be on the hub where the model is not.
        needed_secrets=(API_KEY_VARIABLE, *HUB_SECRETS, *STORAGE_SECRETS),
    )


def require_vllm_model(path: Path) -> None:
    """Refuse a model file that vLLM cannot read."""
    if path.suffix == ".gguf":
        raise UsageError(
            f"vLLM has no GGUF loader, so it cannot serve {path.name}",
            hint="--engine llama.cpp or --engine stoker can; vLLM wants a folder or an id",
        )


def _no_equal(name: str, value: str | None, hint: str) -> StokerError:
    flag = f"--{name.replace('_', '-')}{f' {value}' if value else ''}"
    return UsageError(f"vLLM has no equal of {flag}", hint=hint)
