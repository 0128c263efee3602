from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from engine.errors import CorruptModelError
from engine.frontend.tokenizer import Tokenizer, read_tokenizer_config
from tests.tiny_model import EOS


def test_round_trip_and_special_tokens(byte_tokenizer: Tokenizer) -> None:
    token_ids = byte_tokenizer.encode("hé</s>", add_special_tokens=False)
    assert token_ids[-1] == EOS
    assert len(token_ids) == 4
    assert byte_tokenizer.decode(token_ids, skip_special_tokens=True) == "hé"
    assert byte_tokenizer.decode(token_ids, skip_special_tokens=False) == "hé</s>"
    assert byte_tokenizer.eos_token_id == EOS
    assert byte_tokenizer.vocab_size == 258
    assert byte_tokenizer.token_strings([EOS, 9999]) == ["</s>", ""]


def test_folder_without_tokenizer_is_explained(tmp_path: Path) -> None:
    with pytest.raises(CorruptModelError, match=r"holds no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


def test_damaged_files_are_explained(tmp_path: Path, tiny_folder: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"version"')
    with pytest.raises(CorruptModelError, match="cannot be read as a tokenizer"):
        Tokenizer.from_folder(tmp_path)
    shutil.copy(tiny_folder / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(CorruptModelError, match="not valid JSON"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(CorruptModelError, match="holds list, not an object"):
        read_tokenizer_config(tmp_path)


def test_special_tokens_written_as_objects(tmp_path: Path, tiny_folder: Path) -> None:
    shutil.copy(tiny_folder / "tokenizer.json", tmp_path)
    config = {"eos_token": {"content": "</s>", "lstrip": False}, "bos_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.special_tokens == {"eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").unlink()
    assert Tokenizer.from_folder(tmp_path).eos_token_id is None


def test_truncation_of_the_training_run_is_off(tmp_path: Path, tiny_folder: Path) -> None:
    raw = json.loads((tiny_folder / "tokenizer.json").read_text())
    raw["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert len(tokenizer.encode("four", add_special_tokens=False)) == 4
