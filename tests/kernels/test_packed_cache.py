"""Packed weights on disk: read back bit for bit, and never in the way of a start."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from engine.errors import ConfigError
from engine.kernels.native import packed_cache
from engine.kernels.native.model_step import NativeKernels, NativeModelStep
from engine.kernels.native.packed_cache import PackedCache, packed_key
from engine.models.packed_decoder import load_native_decoder
from engine.models.registry import load_weights
from engine.models.weights import DecoderWeights
from engine.worker.kv_cache import cache_spec
from tests.kernels.native_models import group_windows, native_library, save_rounded
from tests.kernels.paged_sequences import PagedSequences
from tests.waiting import wait_for
from tests.worker.driver import engine_config

PARTS = (b"weights" * 5000, b"embedding" * 300)
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _anything_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_cache, "_WORTH_IT_BYTES", 0)


def store(cache: PackedCache, key: str, parts: tuple[bytes, ...] = PARTS) -> None:
    cache.store(key, [memoryview(part) for part in parts])


def stored(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*") if path.name != "write.lock")


def test_an_entry_reads_as_it_was_written(tmp_path: Path) -> None:
    cache = PackedCache(tmp_path / "packed", 10 * MIB)
    assert cache.open("k") is None
    store(cache, "k")
    found = cache.open("k")
    assert found is not None
    assert tuple(bytes(part) for part in found.parts) == PARTS
    contents = found.path.read_bytes()
    for part, offset in zip(PARTS, found.offsets, strict=True):
        assert contents[offset : offset + len(part)] == part
    assert cache.open("other") is None


def test_the_key_follows_files_facts_and_build(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("weights")
    keys = [packed_key([file], ["int8"], "one")]
    keys.append(packed_key([file], ["int8"], "two"))
    os.utime(file, (1, 1))
    keys.append(packed_key([file], ["int8"], "one"))
    file.write_text("other weights")
    os.utime(file, (1, 1))
    keys.append(packed_key([file], ["int8"], "one"))
    assert len(set(keys)) == 4
    (same,) = {key.partition("-")[0] for key in keys}
    assert packed_key([file], ["int8"], "one") == keys[-1]
    (tmp_path / "b").write_bytes(file.read_bytes())
    for other in (
        packed_key([file], ["int4"], "one"),
        packed_key([tmp_path / "b"], ["int8"], "one"),
    ):
        assert other.partition("-")[0] != same


def test_an_entry_replaces_its_older_states(tmp_path: Path) -> None:
    cache = PackedCache(tmp_path, 10 * MIB)
    for key in ("a-1", "b-1", "a-2"):
        store(cache, key)
    assert stored(tmp_path) == ["a-2.packed", "b-1.packed"]


@pytest.mark.parametrize("place", [3, 70, 5000, -3000, -1])
def test_a_damaged_entry_is_removed(
    place: int, tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    cache = PackedCache(tmp_path, 10 * MIB)
    store(cache, "k", (b"weights" * 500, b"x" * 4096))
    (path,) = tmp_path.glob("*.packed")
    contents = bytearray(path.read_bytes())
    contents[place] ^= 1
    path.write_bytes(contents)
    assert cache.open("k") is None
    assert stored(tmp_path) == []
    assert "are not used" in logged.text
    store(cache, "k")
    assert cache.open("k") is not None


@pytest.mark.parametrize("size", [0, 10, 4096, 20_000])
def test_half_an_entry_is_removed(size: int, tmp_path: Path) -> None:
    cache = PackedCache(tmp_path, 10 * MIB)
    store(cache, "k")
    (path,) = tmp_path.glob("*.packed")
    os.truncate(path, size)
    assert cache.open("k") is None
    assert stored(tmp_path) == []


def test_an_entry_under_another_name_is_refused(tmp_path: Path) -> None:
    cache = PackedCache(tmp_path, 10 * MIB)
    store(cache, "k")
    (tmp_path / "k.packed").rename(tmp_path / "other.packed")
    assert cache.open("other") is None


def test_the_least_used_entries_make_room(tmp_path: Path) -> None:
    cache = PackedCache(tmp_path, 4 * MIB)
    for age, key in enumerate(("a", "b", "c")):
        store(cache, key, (bytes(MIB),))
        os.utime(tmp_path / f"{key}.packed", (age, age))
    assert cache.open("a") is not None  # now the last used
    store(cache, "d", (bytes(MIB),))
    assert stored(tmp_path) == ["a.packed", "c.packed", "d.packed"]


def test_what_is_larger_than_the_limit_is_not_kept(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    cache = PackedCache(tmp_path, 4 * MIB)
    store(cache, "small", (bytes(MIB),))
    store(cache, "large", (bytes(5 * MIB),))
    assert stored(tmp_path) == ["small.packed"]
    assert "STOKER_PACKED_CACHE_GIB" in logged.text


def test_a_full_disk_costs_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": MIB}))
    store(PackedCache(tmp_path, 10 * MIB), "k", (bytes(MIB),))
    assert stored(tmp_path) == []
    (record,) = logged.records
    assert "has only 0.0 GiB left" in record.getMessage()


def test_a_disk_that_fills_up_leaves_nothing(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    """A limit on the size of files stands for the disk's end."""
    code = """
import resource, sys
from pathlib import Path
from engine.kernels.native import packed_cache
packed_cache._WORTH_IT_BYTES = 0
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
packed_cache.PackedCache(Path(sys.argv[1]), 1 << 30).store("k", [memoryview(bytes(1 << 20))])
print("went on")
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "went on\n"
    assert stored(tmp_path) == []


def test_a_folder_that_cannot_be_made_costs_one_line(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    cache = PackedCache(tmp_path / "file" / "packed", 10 * MIB)
    store(cache, "k")
    (record,) = logged.records
    assert "are not kept for the next start: Not a directory" in record.getMessage()


def test_what_a_killed_start_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "old.partial").write_text("half")
    store(PackedCache(tmp_path, 10 * MIB), "k")
    assert stored(tmp_path) == ["k.packed"]


def test_starts_at_the_same_time_agree(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from engine.kernels.native import packed_cache
packed_cache._WORTH_IT_BYTES = 0
cache = packed_cache.PackedCache(Path(sys.argv[1]), 1 << 30)
for _ in range(20):
    cache.store("k", [memoryview(b"0123" * 100_000)])
    found = cache.open("k")
    assert found is None or bytes(found.parts[0]) == b"0123" * 100_000
print("fine")
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    starts = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [start.communicate(timeout=60) for start in starts] == [("fine\n", "")] * 3
    assert stored(tmp_path) == ["k.packed"]


def test_the_limit_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("STOKER_PACKED_CACHE_GIB", "0")
    store(PackedCache.of_user(), "k")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("STOKER_PACKED_CACHE_GIB", "0.5")
    store(PackedCache.of_user(), "k")
    assert stored(tmp_path / "packed") == ["k.packed"]
    monkeypatch.setenv("STOKER_PACKED_CACHE_GIB", "much")
    with pytest.raises(ConfigError, match="STOKER_PACKED_CACHE_GIB=much is not a number"):
        PackedCache.of_user()


def test_small_models_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    store(PackedCache(tmp_path, 10 * MIB), "k")
    assert stored(tmp_path) == []


def load(folder: Path, cache: PackedCache) -> tuple[NativeModelStep, bool]:
    """The model, and whether the checkpoint was read; all that is kept of it is on disk then."""
    config = engine_config(folder, dtype="bfloat16")
    calls: list[DecoderWeights] = []

    def weights() -> DecoderWeights:
        calls.append(
            load_weights(config.model, torch.bfloat16, torch.device("cpu"), lambda *state: None)
        )
        return calls[0]

    kernels = NativeKernels(native_library(), 2)
    spec = cache_spec(config)
    model = load_native_decoder(config.model, weights, kernels, 256, spec, cache)
    wait_for(lambda: "packed-weights" not in [thread.name for thread in threading.enumerate()])
    return model, bool(calls)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_bias": True, "mlp_bias": True},
        {"family": "Mistral", "sliding_window": 24, "tie_word_embeddings": True},
        {"family": "Qwen3"},
    ],
)
def test_the_next_start_computes_the_same_without_the_checkpoint(
    changes: dict[str, object], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_rounded(folder, **changes)  # type: ignore[arg-type]
    cache = PackedCache(tmp_path / "packed", 100 * MIB)
    prompts = [list(range(1, 90)), list(range(7, 20))]
    windows = group_windows(folder)
    results = []
    for _ in range(2):
        model, was_read = load(folder, cache)
        logits = PagedSequences(model, prompts, 16, windows=windows).run([[89, 13]])
        results.append((torch.cat(logits), model.weight_bytes, was_read))
    assert [was_read for _, _, was_read in results] == [True, False]
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


def test_a_changed_checkpoint_is_packed_again(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_rounded(folder)
    cache = PackedCache(tmp_path / "packed", 100 * MIB)
    assert [load(folder, cache)[1], load(folder, cache)[1]] == [True, False]
    (weights,) = folder.glob("*.safetensors")
    os.utime(weights, (1, 1))
    assert load(folder, cache)[1]


def test_an_entry_that_others_could_write_is_not_read(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "packed"
    cache = PackedCache(folder, 10 * MIB)
    store(cache, "k")
    (entry,) = folder.glob("*.packed")
    assert entry.stat().st_mode & 0o777 == 0o600

    for path, mode in ((entry, 0o666), (folder, 0o777)):
        before = path.stat().st_mode
        path.chmod(mode)
        assert cache.open("k") is None
        path.chmod(before)
    assert cache.open("k") is not None
    assert logged.text.count("can be changed by other users") == 2

    folder.chmod(0o777)
    store(cache, "other")
    assert len(stored(folder)) == 1
