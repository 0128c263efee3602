from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from engine.errors import CorruptModelError, ModelStoreError
from engine.model_store.files import count_parameters
from engine.model_store.store import ModelStore, describe_model, find_local_model
from tests.fakes.programs import CONFIG


def write_weights(path: Path, shapes: dict[str, list[int]]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(end))


def model_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_weights(folder / "model-1.safetensors", {"embed": [100, 8], "norm": [8]})
    write_weights(folder / "model-2.safetensors", {"head": [100, 8]})
    return folder


def test_parameters_are_counted_from_the_headers(tmp_path: Path) -> None:
    assert count_parameters(model_folder(tmp_path / "m")) == 1608
    assert count_parameters(tmp_path) is None


@pytest.mark.parametrize("raw", [b"", b"\xff" * 8 + b"{}", (2).to_bytes(8, "little") + b"[]"])
def test_a_damaged_header_is_refused(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(raw)

    with pytest.raises(CorruptModelError, match=r"model\.safetensors"):
        count_parameters(tmp_path)


def test_a_folder_is_described(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    facts = describe_model(ModelStore(tmp_path / "store"), str(folder))

    assert facts["parameters"] == 1608
    assert facts["architecture"] == "LlamaForCausalLM"
    assert facts["max_model_len"] == 512
    assert facts["licence"] is None


def test_models_are_found_in_the_store_and_in_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    store = ModelStore(tmp_path / "store")
    mine = model_folder(tmp_path / "store" / "mine")
    theirs = model_folder(tmp_path / "hub" / "models--org--name" / "snapshots" / "abc")

    assert find_local_model(store, "mine") == mine
    assert find_local_model(store, "org/name") == theirs
    with pytest.raises(ModelStoreError, match="not on this machine yet"):
        find_local_model(store, "smollm2-135m")
    with pytest.raises(ModelStoreError, match="no model org/other"):
        find_local_model(store, "org/other")
