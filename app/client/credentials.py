"""Where the API key comes from: a file named by the user, then the environment; never argv."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from app.client.errors import InvalidKeyFile

KEY_VARIABLES = ("STOKER_API_KEY", "VLLM_API_KEY")
KEY_FILE_VARIABLE = "STOKER_API_KEY_FILE"


def find_api_key(key_file: Path | None, environ: Mapping[str, str]) -> str | None:
    """The key from `key_file`, else from the first variable above that is set, else None."""
    source = find_key_source(key_file, environ)
    if isinstance(source, Path):
        return read_key_file(source)
    return environ[source].strip() if source else None


def find_key_source(key_file: Path | None, environ: Mapping[str, str]) -> Path | str | None:
    """Where that key is: in a file, or in the variable of this name."""
    if key_file is not None:
        return key_file
    for name in KEY_VARIABLES:
        if environ.get(name, "").strip():
            return name
    named = environ.get(KEY_FILE_VARIABLE)
    return Path(named) if named else None


def read_key_file(path: Path) -> str:
    """The one line of a key file; InvalidKeyFile when it is not one."""
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise InvalidKeyFile(f"cannot read the API key file {path}: {reason}") from error
    if not key or not key.isascii() or any(char.isspace() for char in key):
        raise InvalidKeyFile(f"the API key file {path} must hold one key on one line")
    return key
