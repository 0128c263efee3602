from __future__ import annotations

import resource
from pathlib import Path

import pytest

from engine.machine.private_files import replace_file


def test_a_file_is_replaced_whole_and_private(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for content in (b"one", b"two"):
        replace_file(path, content)
        assert path.read_bytes() == content
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x"
    replace_file(path, b"one")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            replace_file(path, b"longer")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]
