"""Which variables are secrets, who is given them, and what of a text must not be shown.

Every process that Stoker starts gets `child_environment`: no secrets but those it is named.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from engine.machine.hub import TOKEN_VARIABLES

SERVER_KEYS = ("STOKER_API_KEY", "VLLM_API_KEY", "LLAMA_API_KEY")
"""Keys that a server of ours, vLLM or llama-server asks of its clients."""

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
PROXY_VARIABLES = (*_PROXIES, *map(str.upper, _PROXIES))
"""Secrets where the proxy's address has a password in it."""

HUB_SECRETS = (*TOKEN_VARIABLES, "HF_OIDC_ID_TOKEN", *PROXY_VARIABLES)
"""What a process needs that downloads models from the Hugging Face hub."""

STORAGE_SECRETS = ("AWS_", "AZURE_", "GOOGLE_", "GCS_", "S3_", "MODELSCOPE_", "RUNAI_")
"""Beginnings of the variables with which vLLM reads models from other places."""

# Wide on purpose: a variable that is taken for a secret by mistake is kept from processes that do
# not look at it. TOKENIZERS_PARALLELISM, HF_TOKEN_PATH and STOKER_API_KEY_FILE are none.
_SECRET_NAME = re.compile(
    r".*(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|LOGIN|APIKEY|AUTH|(?:^|_)KEYS?)(?:_ID)?",
    re.IGNORECASE,
)
_URL_WITH_PASSWORD = re.compile(r"://[^/\s@]*:[^/\s@]+@")
_SHORTEST = 6  # the value of a variable that only looks like a secret's may be an ordinary word
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{10,}|sk-[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{16,})"
    r"|(?<=[?&])((?:api[_-]?key|access_token|token|key)=)[^&\s\"']+"
    r"|\b(Bearer\s+)[A-Za-z0-9._~+/=-]{4,}",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Whether a variable of this name holds a token, a key or a password."""
    return _SECRET_NAME.fullmatch(name) is not None


def child_environment(*needed: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment for a child: of the secrets only those that it needs.

    `needed` are names, or beginnings of names that end with an underscore.
    """
    source = os.environ if environ is None else environ
    return {
        name: value
        for name, value in source.items()
        if not (is_secret(name) or _URL_WITH_PASSWORD.search(value)) or _is_needed(name, needed)
    }


def secret_values(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Values of all secrets in the environment, for masking what others print."""
    source = os.environ if environ is None else environ
    certain = (*SERVER_KEYS, *HUB_SECRETS)
    return tuple(
        value
        for name, value in source.items()
        if is_secret(name) and (len(value) >= _SHORTEST or (value and name in certain))
    )


def masked(text: str, known: Iterable[str] = ()) -> str:
    """`text` with `***` for the known secrets and for whatever has the shape of one."""
    for secret in known:
        text = text.replace(secret, "***")
    return _SHAPES.sub(lambda match: f"{match[1] or match[2] or ''}***", text)


def _is_needed(name: str, needed: Iterable[str]) -> bool:
    return any(name == one or (one.endswith("_") and name.startswith(one)) for one in needed)
