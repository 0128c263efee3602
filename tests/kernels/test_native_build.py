"""Building the native library: one build per source, compiler and CPU, and reasons when none."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from engine.kernels.native import build
from engine.kernels.native.build import BuildError, build_library
from engine.kernels.native.library import open_library
from tests.kernels.native_models import native_library


@pytest.fixture(autouse=True)
def _no_chosen_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)


def fake_compiler(folder: Path, version: str = "fake 1.0") -> Path:
    """Notes each build in `builds` and writes the name of its process to the output."""
    script = folder / "fake-cxx"
    script.write_text(
        f"""#!/bin/sh
for last; do :; done
if [ "$last" = --version ]; then echo "{version}"; exit 0; fi
echo build >> {folder}/builds
echo $$ > "$last"
"""
    )
    script.chmod(0o755)
    return script


def num_builds(folder: Path) -> int:
    return len((folder / "builds").read_text().splitlines())


def test_the_second_call_does_not_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path)))
    first = build_library(tmp_path / "cache")
    assert build_library(tmp_path / "cache") == first
    assert num_builds(tmp_path) == 1
    assert os.listdir(first.parent) == [first.name]  # nothing half-made is left


def test_another_compiler_cpu_or_flag_builds_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = fake_compiler(tmp_path)
    monkeypatch.setenv("CXX", str(compiler))
    paths = {build_library(tmp_path / "cache")}
    monkeypatch.setenv("CXX", f"{compiler} -DX")
    paths.add(build_library(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, version="fake 2.0")))
    paths.add(build_library(tmp_path / "cache"))
    monkeypatch.setattr(build, "cpu_flags", lambda: frozenset({"avx512_bf16", "other"}))
    paths.add(build_library(tmp_path / "cache"))
    assert len(paths) == num_builds(tmp_path) == 4


def test_a_changed_source_builds_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path)))
    before = build_library(tmp_path / "cache")
    for source in build._SOURCE.parent.glob("*.[ch]*"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(build, "_SOURCE", tmp_path / "step.cpp")
    assert build_library(tmp_path / "cache") == before
    (tmp_path / "gemm.h").write_text("// changed")
    assert build_library(tmp_path / "cache") != before


def test_builds_at_the_same_time_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path)))
    paths: list[Path] = []
    threads = [
        threading.Thread(target=lambda: paths.append(build_library(tmp_path / "cache")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 8
    assert len(set(paths)) == 1
    assert os.listdir(tmp_path / "cache") == [paths[0].name]


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path)))
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert build_library().parent == tmp_path / "elsewhere" / "kernels"


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = fake_compiler(tmp_path)
    script.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exit 0\n'
        "echo 'In file included from x:' >&2\necho 'step.cpp:1: error: no such thing' >&2\nexit 3\n"
    )
    monkeypatch.setenv("CXX", str(script))
    with pytest.raises(BuildError, match=r"failed with code 3: .*error: no such thing"):
        build_library(tmp_path / "cache")
    assert os.listdir(tmp_path / "cache") == []


def test_without_a_compiler_the_names_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"no C\+\+ compiler on the PATH .*g\+\+, clang\+\+"):
        build_library(tmp_path / "cache")
    monkeypatch.setenv("CXX", "strange-cxx -O1")
    with pytest.raises(BuildError, match="CXX names, strange-cxx, is not there"):
        build_library(tmp_path / "cache")


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path)))
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="file/kernels cannot be written"):
        build_library(tmp_path / "file" / "kernels")


@pytest.mark.slow
def test_a_real_build_compiles_without_warnings_and_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native_library()
    compiler = build.find_compiler()[0]
    monkeypatch.setenv("CXX", f"{compiler} -Wall -Wextra -Werror")
    path = build_library(tmp_path / "cache")
    assert open_library(path).stoker_model_create is not None
