from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders
from tokenizers.models import BPE

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


def test_token_bytes_join_to_the_text(byte_tokenizer: Tokenizer) -> None:
    text = "né 日本 \U0001f600\n\x00"
    ids = byte_tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(map(byte_tokenizer.token_bytes, ids)) == text.encode()
    assert byte_tokenizer.token_bytes(EOS) == b"</s>"
    assert byte_tokenizer.token_bytes(10**6) == b""


def test_token_bytes_of_a_sentencepiece_vocabulary() -> None:
    vocabulary = {"<unk>": 0, "\u2581Hi": 1, "<0xF0>": 2, "é": 3}
    fast = FastTokenizer(BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    fast.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback()])
    tokenizer = Tokenizer(fast, {})
    assert [tokenizer.token_bytes(i) for i in (1, 2, 3)] == [b" Hi", b"\xf0", "é".encode()]
