"""What is deployed: one server's command line, and the numbers that every kind of unit shares.

A drain of N seconds becomes systemd's stop timeout, Slurm's signal time, Kubernetes' grace period
and compose's stop_grace_period; the start's length becomes the start timeout and the startup probe.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from app.errors import ExitCode
from app.launch.engines import LLAMA_CPP, STOKER, VLLM

PERMANENT_EXIT_CODES = (ExitCode.USAGE, ExitCode.NOT_EXECUTABLE, ExitCode.NOT_FOUND)
"""Ends that the next start would repeat: wrong flags, a program that is not there."""

RESTART_DELAY_S = 3
RESTARTS = 5
RESTART_WINDOW_S = 600
PROBE_PERIOD_S = 10
PROBE_TIMEOUT_S = 5
PRE_STOP_S = 5
"""What a pod waits before its signal, until every load balancer has heard that it goes."""

_STOP_MARGIN_S = 15  # after the drain: processes end, GPU memory is looked at
_SIGNAL_MARGIN_S = 30
_LEAST_START_S = 600
_START_FACTOR = 5  # a cold disk and a first compilation, against the usual start
_TRITON = {"TRITON_CACHE_DIR": "triton"}
# By engine: where each keeps what it made, as its own variables have it.
_CACHES = {
    STOKER: _TRITON,
    VLLM: {
        **_TRITON,
        "VLLM_CACHE_ROOT": "vllm",
        "VLLM_CONFIG_ROOT": "vllm-config",
        "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    },
    LLAMA_CPP: {"LLAMA_CACHE": "llama.cpp"},
}
_NAME_LENGTH = 50  # of the 63 of a label, so that suffixes fit


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of a server's life; every kind of unit takes them from here.

    `usual_start_s` is what earlier starts of this model took on this machine, None without any.
    """

    drain_s: float
    stall_s: float = 60.0
    usual_start_s: float | None = None

    @property
    def stop_timeout_s(self) -> int:
        """From the first signal to the kill."""
        return math.ceil(self.drain_s) + _STOP_MARGIN_S

    @property
    def grace_s(self) -> int:
        """From the decision to end a pod to its kill."""
        return PRE_STOP_S + self.stop_timeout_s

    @property
    def signal_lead_s(self) -> int:
        """How long before a job's end its signal comes."""
        return math.ceil(self.drain_s) + _SIGNAL_MARGIN_S

    @property
    def start_timeout_s(self) -> int:
        """What a start may take before it counts as failed."""
        return max(_LEAST_START_S, math.ceil((self.usual_start_s or 0.0) * _START_FACTOR))

    @property
    def startup_failures(self) -> int:
        """Failed startup probes that a start may have."""
        return math.ceil(self.start_timeout_s / PROBE_PERIOD_S)

    @property
    def watchdog_s(self) -> int:
        """Silence after which a server counts as hung; the supervisor itself judges earlier."""
        return math.ceil(self.stall_s * 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One server to be deployed.

    `program` is the absolute path of `stoker` on this machine, `python` of the interpreter that
    runs it, and `command` the words behind it, from `serve` on, without a key; `engine_words` go to
    its end, behind `--`. `image` and `container_args` are the same for a container;
    `is_supervised` says whether Stoker's supervisor runs in there. `gpus` are those of one node, 0
    on a CPU. `uds` is the socket file that it listens on, in place of the port.
    """

    name: str
    engine: str
    program: str
    python: str
    command: tuple[str, ...]
    engine_words: tuple[str, ...]
    image: str
    container_args: tuple[str, ...]
    is_supervised: bool
    port: int
    status_port: int
    timing: Timing
    is_open: bool
    needs_hub_token: bool
    gpus: int
    nodes: int = 1
    user: str = "stoker"
    cache_gib: int = 50
    uds: str | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def caches(self, folder: str) -> dict[str, str]:
        """Variables that put below `folder` what engines fetch and compile.

        Left out, it would go below the home folder: closed to a service, small on a cluster, and
        gone with a container.
        """
        found = {"HF_HOME": "huggingface", **_CACHES.get(self.engine, {})}
        return {variable: f"{folder}/{name}" for variable, name in found.items()}

    def line(self, *more: str) -> list[str]:
        """The whole command with `more` flags, which stand before what is the engine's alone."""
        end = ["--", *self.engine_words] if self.engine_words else []
        return [self.program, *self.command, *more, *end]

    @property
    def unit_name(self) -> str:
        """The name in file names and labels: lower case, digits and dashes."""
        words = re.sub(r"[^a-z0-9]+", "-", f"stoker-{self.name}".lower()).strip("-")
        return words[:_NAME_LENGTH].strip("-")


@dataclass(frozen=True, slots=True)
class GeneratedFile:
    """A file that `stoker unit` writes; `mode` is 0600 where a secret will be put into it."""

    path: str
    text: str
    mode: int = 0o644
