"""A Slurm batch script and its interactive variant.

The script ends in `exec`, so the job's signal reaches the supervisor itself. Clients find the
server through an endpoint file: `stoker chat job:ID`.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from app.units.deployment import Deployment, GeneratedFile
from app.units.words import environment_file, one_flag_a_line, shell_comment

_FREE_PORT = 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'


@dataclass(frozen=True, slots=True)
class SlurmChoices:
    """What a cluster wants to be told; None leaves a line out.

    `scratch` is a folder on the cluster's fast file system; variables in it are the shell's.
    """

    time: str = "08:00:00"
    cpus: int = 8
    memory_gib: int = 32
    partition: str | None = None
    account: str | None = None
    gres: str | None = None
    modules: tuple[str, ...] = ()
    scratch: str = "${SCRATCH:-$HOME/scratch}"


def slurm_files(deployment: Deployment, choices: SlurmChoices) -> list[GeneratedFile]:
    """The batch script and the variant for `salloc`."""
    name = deployment.unit_name
    return [
        GeneratedFile(f"{name}.sbatch", _batch_script(deployment, choices), 0o755),
        GeneratedFile(f"{name}-interactive.sh", _interactive(deployment, choices), 0o755),
        environment_file(deployment),
    ]


def slurm_steps(deployment: Deployment) -> list[str]:
    """What to type on the login node, and on a laptop."""
    name = deployment.unit_name
    port = deployment.port
    return [
        f"sbatch {name}.sbatch          # prints the job's number; no GPU is needed on this node",
        "stoker chat job:NUMBER          # on the login node",
        f"ssh -N -L {port}:NODE:PORT LOGIN-NODE   # on a laptop; NODE:PORT is in the endpoint file",
    ]


def _batch_script(deployment: Deployment, choices: SlurmChoices) -> str:
    lines = ["#!/bin/bash", *_directives(deployment, choices), "", *_body(deployment, choices)]
    return "\n".join(lines) + "\n"


def _directives(deployment: Deployment, choices: SlurmChoices) -> list[str]:
    asked = {
        "job-name": deployment.unit_name,
        "partition": choices.partition,
        "account": choices.account,
        "nodes": deployment.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": choices.cpus,
        "mem": f"{choices.memory_gib}G",
        "gres": _gres(deployment, choices),
        "time": choices.time,
        "signal": f"B:TERM@{deployment.timing.signal_lead_s}",
        "output": f"{deployment.unit_name}-%j.log",
        "export": "NONE",
    }
    return [f"#SBATCH --{key}={value}" for key, value in asked.items() if value is not None]


def _gres(deployment: Deployment, choices: SlurmChoices) -> str | None:
    return choices.gres or (f"gpu:{deployment.gpus}" if deployment.gpus else None)


def _body(deployment: Deployment, choices: SlurmChoices) -> list[str]:
    name = deployment.unit_name
    scratch = choices.scratch
    return [
        "set -euo pipefail",
        "umask 077",
        *_modules(choices),
        *[f'export {key}="{value}"' for key, value in deployment.caches(scratch).items()],
        f'export STOKER_CACHE_DIR="{scratch}/stoker"',
        *[f"export {key}={shlex.quote(value)}" for key, value in deployment.environment.items()],
        'mkdir -p "$HF_HOME" "$STOKER_CACHE_DIR"',
        "",
        shell_comment("Secrets come from files that only you can read, never from this script."),
        f'secrets="$HOME/.config/stoker/{name}.env"',
        'if [ -r "$secrets" ]; then',
        "  set -a",
        f"  {shell_comment('shellcheck source=/dev/null')}",
        '  . "$secrets"',
        "  set +a",
        "fi",
        *_hub_mode(deployment),
        "",
        shell_comment("A node is shared: the port is one that is free on it now."),
        f"port=$({shlex.quote(deployment.python)} -c {shlex.quote(_FREE_PORT)})",
        "",
        shell_comment("exec: the signal before the time limit reaches the server, which drains."),
        f"exec {_command(deployment)}",
    ]


def _modules(choices: SlurmChoices) -> list[str]:
    if not choices.modules:
        return []
    # Site set-ups read variables that may not be there.
    loads = [f"module load {shlex.quote(module)}" for module in choices.modules]
    return ["set +u", "module purge", *loads, "set -u"]


def _hub_mode(deployment: Deployment) -> list[str]:
    if not deployment.needs_hub_token:
        return []
    return [
        shell_comment(
            "Many compute nodes have no way out: fetch on the login node (stoker models pull) and "
            "then uncomment this."
        ),
        shell_comment("export HF_HUB_OFFLINE=1"),
    ]


def _command(deployment: Deployment) -> str:
    own = ('--port "$port"', '--host "$(hostname -f)"', '--endpoint-file "job:$SLURM_JOB_ID"')
    words = [word if word in own else shlex.quote(word) for word in deployment.line(*own)]
    return " \\\n  ".join(one_flag_a_line(words))


def _interactive(deployment: Deployment, choices: SlurmChoices) -> str:
    asked = [
        f"--{key}={value}"
        for key, value in (
            ("job-name", deployment.unit_name),
            ("partition", choices.partition),
            ("account", choices.account),
            ("cpus-per-task", choices.cpus),
            ("mem", f"{choices.memory_gib}G"),
            ("gres", _gres(deployment, choices)),
            ("time", choices.time),
        )
        if value is not None
    ]
    lines = [
        "#!/bin/bash",
        shell_comment("The same server while you watch: a node is asked for, then a shell on it."),
        "set -euo pipefail",
        f"exec salloc {' '.join(shlex.quote(word) for word in asked)} \\",
        f'  srun --pty bash "$(dirname "$0")/{deployment.unit_name}.sbatch"',
    ]
    return "\n".join(lines) + "\n"
