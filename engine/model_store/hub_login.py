"""The user's token for the Hugging Face hub, kept where huggingface_hub keeps it.

The token is never printed, and never part of an error.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from engine.errors import GatedModelError, OfflineError
from engine.machine.hub import TOKEN_VARIABLES, hub_endpoint, hub_home, hub_token, token_path
from engine.machine.ownership import make_private
from engine.machine.private_files import replace_file

_STORED_TOKENS = "stored_tokens"  # of huggingface_hub: the tokens of all accounts, by name


@dataclass(frozen=True, slots=True)
class HubAccount:
    """Who a token belongs to, and what it allows (`read`, `write`, `fineGrained`; None: unsaid)."""

    name: str
    role: str | None


def ask_account(token: str) -> HubAccount:
    """Whose token it is. GatedModelError: the hub does not know it. OfflineError: none answers."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise OfflineError("huggingface_hub is not installed here (pip install 'stoker[engine]')")
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        HfHubHTTPError,
        HTTPError,
        OfflineModeIsEnabled,
    )

    try:
        told = HfApi().whoami(token)
    except HfHubHTTPError as error:
        if error.response.status_code in (401, 403):
            raise GatedModelError(f"{hub_endpoint(os.environ)} does not know this token") from None
        raise OfflineError(f"the hub answers {error.response.status_code}") from None
    except (HTTPError, OfflineModeIsEnabled, OSError) as error:
        raise OfflineError(f"the hub cannot be asked ({type(error).__name__})") from None
    access = (told.get("auth") or {}).get("accessToken") or {}
    return HubAccount(str(told.get("name")), access.get("role"))


def keep_token(token: str) -> Path:
    """Write it (0600) where `hf auth login` does; OSError when it cannot be."""
    path = token_path(os.environ)
    make_private(path.parent)
    replace_file(path, token.encode())
    return path


def forget_token() -> list[Path]:
    """Remove what `hf auth login` or `keep_token` wrote; the files that were there."""
    files = (token_path(os.environ), hub_home(os.environ) / _STORED_TOKENS)
    found = [path for path in files if path.is_file()]
    for path in found:
        path.unlink()
    return found


def overriding_variable(token: str | None = None) -> str | None:
    """The variable whose token is sent in place of the file's, unless it is the same one."""
    found = hub_token(os.environ)
    if found is None or found.source not in TOKEN_VARIABLES or found.text == token:
        return None
    return found.source
