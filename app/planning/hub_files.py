"""Reads small files and file beginnings of a Hugging Face repository, by range request.

The endpoint, the token and offline mode are huggingface_hub's; the token goes to that host alone,
never to the storage host that it redirects to. Keeps nothing.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from typing import IO, Any
from urllib.parse import quote, urlsplit

from app.errors import ExitCode, StokerError
from engine.machine.hub import gated_steps, hub_endpoint, hub_token, offline_variable
from engine.model_files.checkpoint import INDEX_NAME, index_files
from engine.model_files.config_values import parse_config
from engine.model_files.json_objects import LIMIT_BYTES
from engine.model_files.safetensors_header import (
    LENGTH_BYTES,
    Header,
    header_length,
    parse_header,
)

_TIMEOUT_S = 20.0
_FIRST_BYTES = 256 << 10  # holds most headers whole
_CONNECTIONS = 8


class _KeepTokenHome(urllib.request.HTTPRedirectHandler):
    """Drops the key when the answer sends us to another host."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Message,
        newurl: str,
    ) -> urllib.request.Request | None:
        request = super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]
        if request is not None and urlsplit(newurl).netloc != urlsplit(req.full_url).netloc:
            request.remove_header("Authorization")
        return request


class HubRepository:
    """One model repository; every error is a StokerError that says what to do."""

    def __init__(self, repo_id: str) -> None:
        self._repo_id = repo_id
        token = hub_token(os.environ)
        self._endpoint = hub_endpoint(os.environ)
        self._token = None if token is None else token.text
        self._opener = urllib.request.build_opener(_KeepTokenHome)

    def config(self) -> dict[str, Any]:
        """What config.json says; CorruptModelError if that has not the form of one."""
        return parse_config(self._required("config.json"), f"config.json of {self._repo_id}")

    def safetensors_headers(self) -> list[Header]:
        """The header of each weight file."""
        index = self._get(INDEX_NAME, None)
        source = f"{INDEX_NAME} of {self._repo_id}"
        names = ["model.safetensors"] if index is None else index_files(index, source)
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            return list(pool.map(self._header, names))

    def _header(self, name: str) -> Header:
        source = f"{self._repo_id}/{name}"
        first = self._required(name, _FIRST_BYTES)
        end = LENGTH_BYTES + header_length(first, source)
        if len(first) < end:
            first = self._required(name, end)
        return parse_header(first[LENGTH_BYTES:end], source)

    def _required(self, name: str, num_bytes: int | None = None) -> bytes:
        content = self._get(name, num_bytes)
        if content is None:
            raise StokerError(
                f"the hub has no {self._repo_id} that you may see, or it holds no {name}",
                hint="check the spelling; for a private model: stoker models login, or HF_TOKEN",
            )
        return content

    def _get(self, name: str, num_bytes: int | None) -> bytes | None:
        """The file, or its first `num_bytes`; None when there is none."""
        url = f"{self._endpoint}/{self._repo_id}/resolve/main/{quote(name)}"
        request = urllib.request.Request(url, headers={"User-Agent": "stoker"})
        if num_bytes is not None:
            request.add_header("Range", f"bytes=0-{num_bytes - 1}")
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                content: bytes = answer.read(num_bytes or LIMIT_BYTES + 1)
                return content
        except urllib.error.HTTPError as error:
            with error:
                self._require_absent(error)
            return None
        except (urllib.error.URLError, OSError) as error:
            raise StokerError(
                f"{self._repo_id} is not in the local cache and the Hugging Face hub cannot be "
                "reached",
                hint="check the network (HTTPS_PROXY, HF_ENDPOINT), or give a folder or a "
                "built-in shape (`stoker plan --shapes`)",
                exit_code=ExitCode.UNREACHABLE,
            ) from error

    def _require_absent(self, error: urllib.error.HTTPError) -> None:
        """Raise unless the answer says that there is no such file."""
        if error.code == 404:
            return
        # The hub says 401 for what does not exist, unless it names the gate.
        if error.code == 401 and error.headers.get("X-Error-Code") != "GatedRepo":
            return
        if error.code in (401, 403):
            raise StokerError(
                f"{self._repo_id} is gated: its owners ask everyone to accept terms first",
                hint=f"{gated_steps(self._repo_id, os.environ)}; many gated models are built-in "
                "shapes (`stoker plan --shapes`)",
                exit_code=ExitCode.UNREACHABLE,
            ) from error
        raise StokerError(
            f"the hub answered {error.code} for {self._repo_id}; try again later",
            exit_code=ExitCode.UNREACHABLE,
        ) from error


def open_repository(repo_id: str) -> HubRepository:
    """The repository, unless offline mode forbids to ask."""
    if (name := offline_variable(os.environ)) is not None:
        raise StokerError(
            f"{repo_id} is not in the local cache, and {name} forbids asking the hub",
            hint=f"unset {name}, or give a folder or a built-in shape (`stoker plan --shapes`)",
            exit_code=ExitCode.UNREACHABLE,
        )
    return HubRepository(repo_id)
