"""A hub of the Hugging Face kind on this machine: the routes that huggingface_hub's client asks.

It serves folders as repositories. Weights are redirected to a second origin, as the real one does;
`requests` tells what was asked, with which token, and how many bytes were sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_WEIGHTS = (".safetensors", ".gguf")
_CHUNK = 1 << 16


@dataclass
class Asked:
    """One request; `sent` grows while the answer does."""

    method: str
    path: str
    token: str | None
    range: str | None
    sent: int = 0


@dataclass
class FakeHub:
    """`tokens` are names by token. A gated repository is open to the users that are named.

    `claimed_sizes` are told of files in place of their own.

    After `stop_after` bytes any answer waits until `go_on` is set.
    """

    repositories: dict[str, Path] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    gated: dict[str, tuple[str, ...]] = field(default_factory=dict)
    private: dict[str, tuple[str, ...]] = field(default_factory=dict)
    requests: list[Asked] = field(default_factory=list)
    claimed_sizes: dict[str, int] = field(default_factory=dict)
    stop_after: int | None = None
    go_on: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage_url(self) -> str:
        """The same server under another name: no token may get there."""
        return f"http://localhost:{self.port}"

    def sent(self, name: str) -> int:
        """Bytes of all files so called that went out."""
        return sum(one.sent for one in self.requests if one.path.endswith(name))


@contextlib.contextmanager
def running_hub(hub: FakeHub) -> Iterator[FakeHub]:
    """`hub` answers until the end of the block."""

    class Handler(_Handler):
        ours: ClassVar[FakeHub] = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    ours: ClassVar[FakeHub]

    def do_GET(self) -> None:
        token = (self.headers.get("authorization") or "").removeprefix("Bearer ") or None
        path = unquote(urlsplit(self.path).path)
        self.asked = Asked(self.command, path, token, self.headers.get("range"))
        self.ours.requests.append(self.asked)
        words = path.strip("/").split("/")
        if path == "/api/whoami-v2":
            self._whoami()
        elif words[:2] == ["api", "models"] and len(words) >= 4:
            self._api("/".join(words[2:4]), words[4:])
        elif words[0] == "storage":
            self._file(Path("/", *words[1:]), {})
        elif words[2:3] == ["resolve"]:
            self._resolve("/".join(words[:2]), words[3], "/".join(words[4:]))
        else:
            self._refuse(404, "", "Not Found")

    do_HEAD = do_GET

    def _whoami(self) -> None:
        name = self.ours.tokens.get(self.asked.token or "")
        if name is None:
            self._refuse(401, "", "Invalid username or password.")
            return
        access = {"displayName": "of the test", "role": "read"}
        self._json({"type": "user", "name": name, "orgs": [], "auth": {"accessToken": access}})

    def _api(self, repo: str, rest: list[str]) -> None:
        folder = self._folder(repo)
        if folder is None:
            return
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        if rest[:1] == ["tree"]:
            self._json([_tree_entry(folder, path) for path in files])
            return
        siblings = [self._sibling(folder, path) for path in files]
        gated = "manual" if repo in self.ours.gated else False
        self._json({"id": repo, "sha": COMMIT, "gated": gated, "siblings": siblings})

    def _sibling(self, folder: Path, path: Path) -> dict[str, Any]:
        name = path.relative_to(folder).as_posix()
        size = self.ours.claimed_sizes.get(name, path.stat().st_size)
        entry: dict[str, Any] = {"rfilename": name, "size": size, "blobId": _blob_id(path)}
        if path.suffix in _WEIGHTS:
            entry["lfs"] = {"sha256": _sha256(path), "size": size, "pointerSize": 134}
        return entry

    def _resolve(self, repo: str, revision: str, name: str) -> None:
        folder = self._folder(repo)
        if folder is None:
            return
        members = self.ours.gated.get(repo)
        user = self.ours.tokens.get(self.asked.token or "")
        if members is not None and user not in members:
            status = 401 if user is None else 403
            self._refuse(status, "GatedRepo", f"Access to model {repo} is restricted.")
            return
        path = folder / name
        if revision not in ("main", COMMIT) or not path.is_file():
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{_blob_id(path)}"'}
        if path.suffix in _WEIGHTS:
            headers["X-Linked-Size"] = str(path.stat().st_size)
            headers["X-Linked-ETag"] = f'"{_sha256(path)}"'
            headers["Location"] = f"{self.ours.storage_url}/storage{path}"
            self._answer(302, headers)
            return
        self._file(path, headers)

    def _folder(self, repo: str) -> Path | None:
        user = self.ours.tokens.get(self.asked.token or "")
        is_hidden = repo in self.ours.private and user not in self.ours.private[repo]
        folder = self.ours.repositories.get(repo)
        if folder is None or is_hidden:
            self._refuse(401 if user is None else 404, "RepoNotFound", "Repository not found")
            return None
        return folder

    def _file(self, path: Path, headers: dict[str, str]) -> None:
        content = path.read_bytes()
        begin = 0
        if self.asked.range is not None:
            first, _, last = self.asked.range.removeprefix("bytes=").partition("-")
            begin = int(first)
            end = int(last) + 1 if last else len(content)
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
            content = content[begin:end]
        headers["Accept-Ranges"] = "bytes"
        self._answer(200 if self.asked.range is None else 206, headers, content)

    def _json(self, document: Any) -> None:
        content = json.dumps(document).encode()
        self._answer(200, {"Content-Type": "application/json"}, content)

    def _refuse(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})}
        self._answer(status, headers, json.dumps({"error": message}).encode())

    def _answer(self, status: int, headers: dict[str, str], content: bytes = b"") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        limit = self.ours.stop_after
        with contextlib.suppress(OSError):  # a client that was killed
            while content:
                if limit is not None and self.asked.sent >= limit:
                    self.wfile.flush()
                    self.ours.go_on.wait()
                    limit = None
                piece = content[:_CHUNK]
                self.wfile.write(piece)
                self.asked.sent += len(piece)
                content = content[_CHUNK:]

    def log_message(self, format: str, *args: object) -> None:
        """Stay quiet."""


def _tree_entry(folder: Path, path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    entry: dict[str, Any] = {"type": "file", "oid": _blob_id(path), "size": size}
    entry["path"] = path.relative_to(folder).as_posix()
    if path.suffix in _WEIGHTS:
        entry["lfs"] = {"oid": _sha256(path), "size": size, "pointerSize": 134}
    return entry


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _blob_id(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
