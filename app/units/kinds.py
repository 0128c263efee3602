"""The kinds of units by name, and what each writes for one deployment."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

from app.errors import UsageError
from app.units.compose import compose_files, compose_steps
from app.units.deployment import Deployment, GeneratedFile
from app.units.kubernetes import kubernetes_files, kubernetes_steps
from app.units.slurm import SlurmChoices, slurm_files, slurm_steps
from app.units.systemd import systemd_files, systemd_steps

ALL = "all"
CONTAINERS = ("kubernetes", "compose")
"""Kinds whose server does not see this machine's files."""


@dataclass(frozen=True, slots=True)
class WrittenUnit:
    """The files of one kind, and the commands that bring them to life."""

    kind: str
    files: list[GeneratedFile]
    steps: list[str]


@dataclass(frozen=True, slots=True)
class KindChoices:
    """What single kinds want to know beyond the deployment."""

    slurm: SlurmChoices
    is_user_unit: bool
    version: str


Writer = Callable[[Deployment, KindChoices], WrittenUnit]


def _systemd(deployment: Deployment, choices: KindChoices) -> WrittenUnit:
    _require_one_node("systemd", deployment)
    is_user = choices.is_user_unit
    files = systemd_files(deployment, is_user=is_user)
    return WrittenUnit("systemd", files, systemd_steps(deployment, is_user=is_user))


def _slurm(deployment: Deployment, choices: KindChoices) -> WrittenUnit:
    _require_one_node("slurm", deployment)
    _require_port("slurm", deployment)
    return WrittenUnit("slurm", slurm_files(deployment, choices.slurm), slurm_steps(deployment))


def _kubernetes(deployment: Deployment, choices: KindChoices) -> WrittenUnit:
    _require_port("kubernetes", deployment)
    files = kubernetes_files(deployment, choices.version)
    return WrittenUnit("kubernetes", files, kubernetes_steps(deployment))


def _compose(deployment: Deployment, choices: KindChoices) -> WrittenUnit:
    _require_one_node("compose", deployment)
    _require_port("compose", deployment)
    files = compose_files(deployment, choices.version)
    return WrittenUnit("compose", files, compose_steps(deployment))


def _require_one_node(kind: str, deployment: Deployment) -> None:
    if deployment.nodes > 1:
        raise UsageError(
            f"a {kind} unit is one node's, and --nodes says {deployment.nodes}",
            hint="`stoker unit kubernetes` writes a group of pods",
        )


def _require_port(kind: str, deployment: Deployment) -> None:
    if deployment.uds is not None:
        raise UsageError(
            f"--uds: the clients of a {kind} unit are outside of its machine or container, where a "
            "socket file is not",
            hint="leave --uds out, or write a systemd unit",
        )


KINDS: dict[str, Writer] = {
    "systemd": _systemd,
    "slurm": _slurm,
    "kubernetes": _kubernetes,
    "compose": _compose,
}


def kinds_called(word: str) -> list[str]:
    """The kinds that a word names; StokerError for an unknown one."""
    if word == ALL:
        return list(KINDS)
    if word in KINDS:
        return [word]
    near = difflib.get_close_matches(word, [*KINDS, ALL], n=1, cutoff=0.5)
    raise UsageError(
        f"no such kind of unit: {word}",
        hint=f"did you mean {near[0]}?" if near else f"kinds: {', '.join([*KINDS, ALL])}",
    )
