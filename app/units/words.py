"""What all kinds of units share: secrets a server may need, comments in scripts, YAML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.client.terminal_text import one_line
from app.launch.launch_specs import API_KEY_VARIABLE
from app.launch.vllm_spec import API_KEY_VARIABLE as VLLM_KEY_VARIABLE
from app.units.deployment import Deployment, GeneratedFile

HUB_TOKEN_VARIABLE = "HF_TOKEN"


@dataclass(frozen=True, slots=True)
class Secret:
    """One secret that a server can use, by the variable that brings it."""

    variable: str
    purpose: str
    is_required: bool


def secrets_of(deployment: Deployment, *, in_container: bool = False) -> list[Secret]:
    """The secrets of this server; their values are never ours to know.

    A container's server listens to every other one of its network.
    """
    key = VLLM_KEY_VARIABLE if not deployment.is_supervised else API_KEY_VARIABLE
    found = [Secret(key, "The key that clients must send.", deployment.is_open or in_container)]
    if deployment.needs_hub_token:
        found.append(Secret(HUB_TOKEN_VARIABLE, "Token for gated models of the hub.", False))
    return found


def environment_file(deployment: Deployment) -> GeneratedFile:
    """Where the secrets go: only the owner reads it, and it comes without values."""
    lines = [shell_comment("Secrets of this server. Keep this file at mode 600.")]
    for secret in secrets_of(deployment):
        lines += [shell_comment(secret.purpose), f"#{secret.variable}="]
    return GeneratedFile(f"{deployment.unit_name}.env", "\n".join(lines) + "\n", 0o600)


def shell_comment(text: str) -> str:
    """One line of comment, whatever the text holds."""
    return f"# {one_line(text)}"


def yaml_text(*documents: dict[str, Any]) -> str:
    """Documents as YAML, keys in the order in which they were given."""
    import yaml

    class Plain(yaml.SafeDumper):
        """Writes a value again instead of an alias, which some readers do not know."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    return str(
        yaml.dump_all(documents, Dumper=Plain, sort_keys=False, allow_unicode=True, width=100)
    )


def one_flag_a_line(words: Sequence[str]) -> list[str]:
    """Lines of a long command: `program serve model`, each flag with its value, all behind `--`."""
    lines: list[str] = []
    for word in words:
        is_end = bool(lines) and lines[-1].split(" ")[0] == "--"
        if lines and (is_end or not word.startswith("--")):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines
