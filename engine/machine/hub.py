"""Where huggingface_hub keeps models and the token, and whether it may ask the hub: its own rule.

The rule of its `constants.py` and `utils/_auth.py`, for a base install that lacks the library and
for commands that must not wait for its import; a test compares the two. A login by OIDC or Google
Colab is the library's business alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""The variables that are read, in their order; the second is the old name."""

OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")

_TRUE_WORDS = ("1", "ON", "YES", "TRUE")
_ENDPOINT = "https://huggingface.co"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class HubToken:
    """A token and where it stands: a variable's name, or a file's path."""

    source: str
    text: str = field(repr=False)


def hub_home(environ: Mapping[str, str]) -> Path:
    """The folder of huggingface_hub's own files."""
    cache = environ.get("XDG_CACHE_HOME", os.path.join(_home(environ), ".cache"))
    return Path(_expanded(environ.get("HF_HOME", os.path.join(cache, "huggingface")), environ))


def hub_cache(environ: Mapping[str, str]) -> Path:
    """The folder with `models--ORG--NAME`. HUGGINGFACE_HUB_CACHE is its variable's old name."""
    old = environ.get("HUGGINGFACE_HUB_CACHE", str(hub_home(environ) / "hub"))
    return Path(_expanded(environ.get("HF_HUB_CACHE", old), environ))


def token_path(environ: Mapping[str, str]) -> Path:
    """The file that `hf auth login` writes."""
    return Path(_expanded(environ.get("HF_TOKEN_PATH", str(hub_home(environ) / "token")), environ))


def hub_token(environ: Mapping[str, str]) -> HubToken | None:
    """The token that would be sent; None when there is none, or its file cannot be read."""
    for name in TOKEN_VARIABLES:
        if environ.get(name):  # the first that is set decides, even with blanks alone
            text = _cleaned(environ[name])
            return HubToken(name, text) if text else None
    path = token_path(environ)
    try:
        text = _cleaned(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    return HubToken(str(path), text) if text else None


def hub_endpoint(environ: Mapping[str, str]) -> str:
    """The address of the hub, or of its mirror, without a slash at its end."""
    return environ.get("HF_ENDPOINT", _ENDPOINT).rstrip("/")


def offline_variable(environ: Mapping[str, str]) -> str | None:
    """The variable that forbids asking the hub; None when it may be asked."""
    name = next((name for name in OFFLINE_VARIABLES if environ.get(name)), None)
    return name if name is not None and environ[name].upper() in _TRUE_WORDS else None


def is_hub_id(text: str) -> bool:
    """Whether it is written like org/name."""
    return _HUB_ID.fullmatch(text) is not None and not text.endswith((".gguf", ".safetensors"))


def gated_steps(repo_id: str, environ: Mapping[str, str]) -> str:
    """What whoever was refused a gated model has to do: the page, then the token."""
    page = f"https://huggingface.co/{repo_id}"
    token = hub_token(environ)
    if token is None:
        return (
            f"accept them at {page}, make a read token at https://huggingface.co/settings/tokens, "
            "and give it by `stoker models login` (or in the variable HF_TOKEN)"
        )
    return (
        f"accept them at {page} with the account whose token stands in {token.source} (`stoker "
        "models whoami` names it; a fine-grained token must allow gated repositories), or give "
        "another account's by `stoker models login` (or in the variable HF_TOKEN)"
    )


def _home(environ: Mapping[str, str]) -> str:
    return environ.get("HOME") or str(Path.home())


def _expanded(path: str, environ: Mapping[str, str]) -> str:
    if path == "~" or path.startswith("~/"):
        path = _home(environ) + path[1:]
    path = os.path.expanduser(path)  # of another user
    return re.sub(
        r"\$(?:(\w+)|\{([^}]*)\})",
        lambda match: environ.get(match[1] or match[2], match[0]),
        path,
        flags=re.ASCII,
    )


def _cleaned(token: str) -> str:
    return token.replace("\r", "").replace("\n", "").strip()
