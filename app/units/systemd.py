"""A systemd service: the unit file, the environment file for its secrets, and what to type.

`stoker serve` speaks the notify protocol itself, so the unit is `Type=notify`.
"""

from __future__ import annotations

import getpass
import re
import shlex
from pathlib import PurePosixPath

from app.units.deployment import (
    PERMANENT_EXIT_CODES,
    RESTART_DELAY_S,
    RESTART_WINDOW_S,
    RESTARTS,
    Deployment,
    GeneratedFile,
)
from app.units.words import environment_file, one_flag_a_line
from engine.env import DEVICES_VARIABLE

# Everything that is closed leaves /dev/nvidia*, /dev/kfd and /dev/dri reachable: a PrivateDevices
# or a DeviceAllow list would hide the cards, whose names differ from machine to machine.
_PRIVATE_TMP = "PrivateTmp=yes"
_HARDENING = (
    "NoNewPrivileges=yes",
    _PRIVATE_TMP,
    "ProtectSystem=strict",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectControlGroups=yes",
    "RestrictSUIDSGID=yes",
    "RestrictRealtime=yes",
    "LockPersonality=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
)
_TEMPORARY = ("/tmp/", "/var/tmp/")
# A user's own systemd may not mount, so these would keep the unit from starting.
_NOT_FOR_USERS = ("PrivateTmp", "ProtectSystem", "ProtectKernel", "ProtectControlGroups")


def systemd_files(deployment: Deployment, *, is_user: bool = False) -> list[GeneratedFile]:
    """The unit and its environment file; `is_user` for `systemctl --user`."""
    return [
        GeneratedFile(f"{deployment.unit_name}.service", _unit(deployment, is_user)),
        environment_file(deployment),
    ]


def systemd_steps(deployment: Deployment, *, is_user: bool = False) -> list[str]:
    """The commands that put the files in their place and start the unit."""
    name = deployment.unit_name
    uds = deployment.uds
    address = f":{deployment.port}" if uds is None else shlex.quote(f"unix:{uds}")
    if is_user:
        return [
            "mkdir -p ~/.config/systemd/user ~/.config/stoker",
            f"install -m 600 {name}.env ~/.config/stoker/{name}.env",
            f"install -m 644 {name}.service ~/.config/systemd/user/{name}.service",
            f"systemctl --user daemon-reload && systemctl --user enable --now {name}",
            "loginctl enable-linger   # it goes on when you log out",
        ]
    return [
        "sudo mkdir -p /etc/stoker",
        f"sudo install -m 600 {name}.env /etc/stoker/{name}.env",
        f"sudo install -m 644 {name}.service /etc/systemd/system/{name}.service",
        f"sudo systemctl daemon-reload && sudo systemctl enable --now {name}",
        f"{_as_user(deployment.user)}STOKER_STATE_DIR=/var/lib/{name} "
        f"{shlex.quote(deployment.program)} status   # or: stoker top {address}",
    ]


def _as_user(name: str) -> str:
    """Only who runs the service, and nobody else, may look into its state."""
    return "" if name == getpass.getuser() else f"sudo -u {shlex.quote(name)} env "


def _unit(deployment: Deployment, is_user: bool) -> str:
    timing = deployment.timing
    folder = "%h/.config/stoker" if is_user else "/etc/stoker"
    state = "%h/.cache/stoker" if is_user else f"/var/cache/{deployment.unit_name}"
    lines = [
        "[Unit]",
        f"Description=Stoker server {escaped(deployment.name)}",
        "After=network-online.target",
        "Wants=network-online.target",
        f"StartLimitIntervalSec={RESTART_WINDOW_S}",
        f"StartLimitBurst={RESTARTS}",
        "",
        "[Service]",
        "Type=notify",
        "NotifyAccess=main",
        *_identity(deployment, is_user),
        *_environment_lines(deployment, is_user, state),
        f"EnvironmentFile=-{folder}/{deployment.unit_name}.env",
        f"ExecStart={_exec_line(deployment)}",
        # The shell's own kill: the program of that name is of a package that may be missing.
        'ExecReload=/bin/sh -c "kill -HUP ${MAINPID}"',
        "Restart=on-failure",
        f"RestartSec={RESTART_DELAY_S}",
        f"RestartPreventExitStatus={' '.join(str(int(code)) for code in PERMANENT_EXIT_CODES)}",
        f"TimeoutStartSec={timing.start_timeout_s}",
        f"TimeoutStopSec={timing.stop_timeout_s}",
        f"WatchdogSec={timing.watchdog_s}",
        "KillMode=mixed",
        "OOMPolicy=stop",
        "LimitNOFILE=65535",
        "LimitMEMLOCK=infinity",
        *_hardening(deployment, is_user),
        "",
        "[Install]",
        f"WantedBy={'default.target' if is_user else 'multi-user.target'}",
    ]
    return "\n".join(lines) + "\n"


def _identity(deployment: Deployment, is_user: bool) -> list[str]:
    """Who runs it, and the folders that systemd makes for it."""
    if is_user:
        return []
    name = deployment.unit_name
    return [
        f"User={deployment.user}",
        f"StateDirectory={name}",
        f"CacheDirectory={name}",
        f"RuntimeDirectory={_shared_folder(deployment)}",
        "RuntimeDirectoryMode=0700",
        "RuntimeDirectoryPreserve=yes",
    ]


def _shared_folder(deployment: Deployment) -> str:
    """Below /run, for all services of a user: there they take turns to measure a device."""
    return "stoker-of-" + re.sub(r"[^\w.-]", "-", deployment.user)


def _environment_lines(deployment: Deployment, is_user: bool, cache: str) -> list[str]:
    found = {"HF_HOME": f"{cache}/huggingface", "STOKER_CACHE_DIR": cache}
    if not is_user:
        found |= deployment.caches(cache)
        found["STOKER_STATE_DIR"] = f"/var/lib/{deployment.unit_name}"
        found[DEVICES_VARIABLE] = f"/run/{_shared_folder(deployment)}/devices"
    return [
        f'Environment="{key}={value if key in found else escaped(value)}"'
        for key, value in {**found, **deployment.environment}.items()
    ]


def _hardening(deployment: Deployment, is_user: bool) -> list[str]:
    """What closes the service in, but for the places that it was told to use."""
    lines = list(_HARDENING)
    values = (word.partition("=")[2] or word for word in deployment.line())
    if any(value.startswith(_TEMPORARY) for value in values):
        lines.remove(_PRIVATE_TMP)  # it would see another folder there
    if is_user:
        return [line for line in lines if not line.startswith(_NOT_FOR_USERS)]
    return [*lines, *_socket_folder(deployment)]


def _socket_folder(deployment: Deployment) -> list[str]:
    """What lets it make its socket file; a folder right below /run is made with the service."""
    if deployment.uds is None:
        return []
    folder = PurePosixPath(deployment.uds).parent
    if folder.parent == PurePosixPath("/run"):
        return [f"RuntimeDirectory={escaped(folder.name)}"]
    return [f'ReadWritePaths="-{escaped(str(folder))}"']


def _exec_line(deployment: Deployment) -> str:
    words = [quoted(word) for word in deployment.line()]
    return " \\\n  ".join(one_flag_a_line(words))


def escaped(text: str) -> str:
    """Text inside a double-quoted word of a unit file; `%` and `$` are systemd's own signs."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"')
    return plain.replace("%", "%%")


def quoted(word: str) -> str:
    """A word of ExecStart as systemd splits it."""
    text = escaped(word).replace("$", "$$")
    needs = not word or any(char in " \t\"'\\;" for char in word)
    return f'"{text}"' if needs else text
