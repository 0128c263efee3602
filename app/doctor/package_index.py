"""One release of a package on the user's own package index, by the simple API.

The index, its certificate and its credentials come from pip's settings; nothing of them is printed.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from app.doctor.facts import Release
from app.errors import ExitCode, StokerError

_DEFAULT_INDEX = "https://pypi.org/simple"  # pip's own when nothing is configured
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_TIMEOUT_S = 15


def find_release(package: str, version: str, environ: Mapping[str, str]) -> Release:
    """The files of `version`, from the first index that has them."""
    settings = pip_settings(environ)
    unreachable = 0
    for index in _indexes(environ, settings):
        try:
            files = _files(index, package, settings.get("cert"))
        except OSError as error:
            # A folder or an index that answers 404 is there, it only lacks this package.
            is_there = isinstance(error, FileNotFoundError) or getattr(error, "code", 0) == 404
            unreachable += not is_there
            continue
        if release := choose_files(package, version, files):
            return release
    raise StokerError(
        f"the package index has no {package} {version}"
        + (f" ({unreachable} of its addresses did not answer)" if unreachable else ""),
        hint=f"pip index versions {package} lists those that it has",
        exit_code=ExitCode.UNREACHABLE if unreachable else ExitCode.USAGE,
    )


def choose_files(package: str, version: str, files: list[tuple[str, str | None]]) -> Release | None:
    """Those of `files` (name, Requires-Python) that are this version."""
    wanted = [
        (name, python)
        for name, python in files
        if name.startswith(
            (f"{package}-{version}-", f"{package}-{version}.tar", f"{package}-{version}.zip")
        )
        or re.match(rf"{re.escape(f'{package}-{version}')}\+[\w.]+-", name)
    ]
    if not wanted:
        return None
    python = next((python for _, python in wanted if python), None)
    return Release(
        package=package,
        version=version,
        requires_python=python or ">=3.0",
        files=tuple(name for name, _ in wanted),
    )


def read_page(text: str, content_type: str) -> list[tuple[str, str | None]]:
    """(file name, Requires-Python) of every file that a page of the simple API lists."""
    if "json" in content_type:
        document: Any = json.loads(text)
        return [(one["filename"], one.get("requires-python")) for one in document["files"]]
    import html

    found = []
    for attributes, name in re.findall(r"<a\s([^>]*)>\s*([^<]+?)\s*</a>", text):
        python = re.search(r'data-requires-python="([^"]*)"', attributes)
        found.append((html.unescape(name), html.unescape(python[1]) if python else None))
    return found


def pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """pip's settings from its files and variables; the later ones win, as in pip."""
    parser = configparser.RawConfigParser()
    for path in _config_files(environ):
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue
    settings: dict[str, str] = {}
    for section in ("global", "index", "install", "download"):
        if parser.has_section(section):
            settings.update({k.replace("_", "-"): v for k, v in parser.items(section)})
    for name, value in environ.items():
        if name.startswith("PIP_") and value:
            settings[name[4:].lower().replace("_", "-")] = value
    return settings


def _config_files(environ: Mapping[str, str]) -> Iterator[Path]:
    home = Path.home()
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    yield from (Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf"))
    yield from (home / ".pip/pip.conf", config / "pip/pip.conf", Path(sys.prefix) / "pip.conf")
    if (chosen := environ.get("PIP_CONFIG_FILE")) and chosen != os.devnull:
        yield Path(chosen)


def _indexes(environ: Mapping[str, str], settings: Mapping[str, str]) -> Iterator[str]:
    uv = environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL")
    yield settings.get("index-url") or uv or _DEFAULT_INDEX
    yield from settings.get("extra-index-url", "").split()


def _files(index: str, package: str, cert: str | None) -> list[tuple[str, str | None]]:
    import ssl
    import urllib.parse
    import urllib.request

    parts = urllib.parse.urlsplit(index)
    address = parts._replace(
        netloc=parts.netloc.rpartition("@")[2], path=f"{parts.path.rstrip('/')}/{package}/"
    )
    if parts.scheme == "file":
        page = Path(urllib.request.url2pathname(address.path)) / "index.html"
        return read_page(page.read_text(encoding="utf-8"), "text/html")
    request = urllib.request.Request(address.geturl(), headers={"Accept": _ACCEPT})
    if parts.username:
        request.add_unredirected_header("Authorization", _basic(parts.username, parts.password))
    context = ssl.create_default_context(cafile=cert)
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context) as answer:
        text = answer.read().decode("utf-8", errors="replace")
        return read_page(text, answer.headers.get("Content-Type", ""))


def _basic(user: str, password: str | None) -> str:
    import base64
    import urllib.parse

    pair = f"{urllib.parse.unquote(user)}:{urllib.parse.unquote(password or '')}"
    return "Basic " + base64.b64encode(pair.encode()).decode()
