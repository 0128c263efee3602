from __future__ import annotations

from pathlib import Path

import pytest

from app.client.credentials import find_api_key
from app.client.errors import InvalidKeyFile


def test_order(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("from-file\n")
    everything = {
        "STOKER_API_KEY": "own",
        "VLLM_API_KEY": "vllm",
        "STOKER_API_KEY_FILE": str(file),
    }
    assert find_api_key(file, everything) == "from-file"
    assert find_api_key(None, everything) == "own"
    del everything["STOKER_API_KEY"]
    assert find_api_key(None, everything) == "vllm"
    del everything["VLLM_API_KEY"]
    assert find_api_key(None, everything) == "from-file"
    assert find_api_key(None, {}) is None


@pytest.mark.parametrize("content", ["", "two\nlines", "é"])
def test_a_file_that_holds_no_key(tmp_path: Path, content: str) -> None:
    file = tmp_path / "key"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidKeyFile) as caught:
        find_api_key(file, {})
    assert not content or content not in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidKeyFile, match="No such file"):
        find_api_key(tmp_path / "absent", {})
