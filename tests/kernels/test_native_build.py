"""Building the native library: one build per source, compiler and CPU, whatever goes wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.kernels.native import build
from engine.kernels.native.build import BuildError, Formats, built_library, start_build
from engine.kernels.native.instruction_sets import (
    INSTRUCTION_SETS,
    InstructionSet,
    choose_instruction_set,
)
from engine.kernels.native.library import open_library
from tests.kernels.native_models import native_library
from tests.waiting import wait_for

PORTABLE = INSTRUCTION_SETS[-1]


@pytest.fixture(autouse=True)
def _no_chosen_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)


def fake_compiler(folder: Path, version: str = "fake 1.0", before_output: str = "") -> Path:
    """Notes each build in `builds`, writes some output, runs `before_output`, writes the rest.

    Of a build's calls it is the last, which links, that counts.
    """
    script = folder / "fake-cxx"
    script.write_text(
        f"""#!/bin/sh
for last; do :; done
if [ "$last" = --version ]; then echo "{version}"; exit 0; fi
case " $* " in *" -c "*) echo "object" > "$last"; exit 0;; esac
echo build >> {folder}/builds
echo "half of $last" > "$last"
{before_output}
echo $$ >> "$last"
"""
    )
    script.chmod(0o755)
    return script


def num_builds(folder: Path) -> int:
    return len((folder / "builds").read_text().splitlines())


def built(cache: Path, isa: InstructionSet = PORTABLE, formats: Formats = Formats.ALL) -> Path:
    with built_library(isa, cache, formats) as path:
        assert path.is_file()
        return path


def libraries(cache: Path) -> list[str]:
    """Everything in the folder but its lock."""
    return [name for name in os.listdir(cache) if name != "build.lock"]


def start_build_in_process(cache: Path, *before: str) -> subprocess.Popen[str]:
    """A process of its own, as at a start of the server; prints what it logs, then the path."""
    code = f"""
import logging, sys
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
from pathlib import Path
from engine.kernels.native.build import built_library
from engine.kernels.native.instruction_sets import INSTRUCTION_SETS
with built_library(INSTRUCTION_SETS[-1], Path({str(cache)!r})) as path:
    print("BUILT", path, path.is_file())
"""
    command = [*before, sys.executable, "-c", code]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_the_second_call_does_not_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path)))
    first = built(tmp_path / "cache")
    assert built(tmp_path / "cache") == first
    assert num_builds(tmp_path) == 1
    assert libraries(first.parent) == [first.name]  # nothing half-made is left


def test_another_compiler_cpu_flag_level_or_format_builds_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = fake_compiler(tmp_path)
    monkeypatch.setenv("CXX", str(compiler))
    paths = {built(tmp_path / "cache")}
    monkeypatch.setenv("CXX", f"{compiler} -DX")
    paths.add(built(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, version="fake 2.0")))
    paths.add(built(tmp_path / "cache"))
    paths.add(built(tmp_path / "cache", INSTRUCTION_SETS[-2]))
    paths.add(built(tmp_path / "cache", formats=Formats.BF16))
    monkeypatch.setattr(build, "cpu_flags", lambda: frozenset({"avx512_bf16", "other"}))
    paths.add(built(tmp_path / "cache"))
    assert len(paths) == num_builds(tmp_path) == 6


def test_a_changed_source_builds_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path)))
    before = built(tmp_path / "cache")
    for source in build._FOLDER.glob("*.[ch]*"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(build, "_FOLDER", tmp_path)
    assert built(tmp_path / "cache") == before
    (tmp_path / "gemm.h").write_text("// changed")
    assert built(tmp_path / "cache") != before


def test_old_builds_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = fake_compiler(tmp_path)
    for number in range(build._KEPT_BUILDS + 3):
        monkeypatch.setenv("CXX", f"{compiler} -DX={number}")
        newest = built(tmp_path / "cache")
    left = libraries(tmp_path / "cache")
    assert len(left) == build._KEPT_BUILDS
    assert newest.name in left


def test_a_damaged_file_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path)))
    first = built(tmp_path / "cache")
    first.write_bytes(first.read_bytes()[:5])
    second = built(tmp_path / "cache")
    assert libraries(tmp_path / "cache") == [second.name]
    assert "are damaged and are built again" in logged.text


def test_a_build_outlives_its_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path)))
    first = built(tmp_path / "cache")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert built(tmp_path / "cache") == first


def test_starts_at_the_same_time_build_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    wait = f"while [ ! -e {go} ]; do sleep 0.02; done"
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, before_output=wait)))
    starts = [start_build_in_process(tmp_path / "cache") for _ in range(2)]
    wait_for((tmp_path / "builds").exists)
    go.touch()
    said = [start.communicate(timeout=60)[0] for start in starts]
    paths = {text.split("BUILT ")[1] for text in said}
    assert len(paths) == num_builds(tmp_path) == 1
    assert paths.pop().endswith("True\n")


def test_a_child_waits_without_a_word_for_what_its_parent_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the engine does for its API server; a stranger is told."""
    go = tmp_path / "go"
    wait = f"while [ ! -e {go} ]; do sleep 0.02; done"
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, before_output=wait)))
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("STOKER_NATIVE_ISA", PORTABLE.name)
    start_build(Formats.ALL)
    wait_for((tmp_path / "builds").exists)
    child = start_build_in_process(tmp_path / "kernels")
    stranger = start_build_in_process(tmp_path / "kernels", "bash", "-c", '"$@"; true', "-")
    assert stranger.stdout is not None
    assert "Another start builds the CPU kernels" in stranger.stdout.readline()
    go.touch()
    said = [process.communicate(timeout=60)[0] for process in (child, stranger)]
    assert said[0] == said[1]  # only where it is
    assert num_builds(tmp_path) == 1


def test_a_build_ahead_leaves_complaints_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path)))
    for variable, value in (("STOKER_CACHE_DIR", "/proc/self"), ("STOKER_NATIVE_ISA", "none")):
        monkeypatch.setenv(variable, value)
        start_build(Formats.BF16).join(60)
    assert logged.text == ""
    assert not (tmp_path / "builds").exists()


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_build_is_repeated(
    stop: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler that the first start leaves behind goes on, and must do no harm."""
    go = tmp_path / "go"
    wait = f"while [ ! -e {go} ]; do sleep 0.02; done"
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, before_output=wait)))
    cache = tmp_path / "cache"
    first = start_build_in_process(cache)
    wait_for((tmp_path / "builds").exists)
    first.send_signal(stop)
    first.communicate(timeout=60)
    assert len(libraries(cache)) == 1  # the folder of the build
    second = start_build_in_process(cache)
    go.touch()
    text, _ = second.communicate(timeout=60)
    assert "left by a build that was killed" in text
    assert libraries(cache) == [Path(text.split()[-2]).name]
    assert num_builds(tmp_path) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="folders of /proc cannot be written")
def test_a_read_only_cache_builds_for_one_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path)))
    with built_library(PORTABLE, Path("/proc/self/kernels")) as path:
        assert path.is_file()
    assert not path.exists()
    assert "/proc/self/kernels cannot be written" in logged.text
    assert "STOKER_CACHE_DIR" in logged.text
    fake_compiler(tmp_path, before_output="exit 1")
    with pytest.raises(BuildError, match="failed with code 1"):
        built(Path("/proc/self/kernels"))


def test_a_library_that_others_can_change_is_never_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path)))
    cache = tmp_path / "cache"
    first = built(cache)
    assert first.stat().st_mode & 0o777 == 0o700

    first.chmod(0o777)  # the file alone: built again in its place
    second = built(cache)
    assert second.stat().st_mode & 0o777 == 0o700
    assert "can be changed by other users (mode 777)" in logged.text
    assert num_builds(tmp_path) == 2

    cache.chmod(0o777)  # the folder: nothing of it is used, and it is said what to do
    with built_library(PORTABLE, cache) as path:
        assert path.parent != cache
    assert second.is_file()
    assert f"chmod go-w {cache}" in logged.text
    assert "STOKER_CACHE_DIR" in logged.text


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path)))
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "elsewhere"))
    with built_library(PORTABLE) as path:
        assert path.parent == tmp_path / "elsewhere" / "kernels"


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = fake_compiler(tmp_path)
    script.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exit 0\n'
        "echo 'In file included from x:' >&2\necho 'step.cpp:1: error: no such thing' >&2\nexit 3\n"
    )
    monkeypatch.setenv("CXX", str(script))
    with pytest.raises(BuildError, match=r"failed with code 3: .*error: no such thing"):
        built(tmp_path / "cache")
    assert libraries(tmp_path / "cache") == []


def test_without_a_compiler_the_remedy_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"no C\+\+ compiler on the PATH .*apt install g\+\+"):
        built(tmp_path / "cache")
    monkeypatch.setenv("CXX", "strange-cxx -O1")
    with pytest.raises(BuildError, match="CXX names, strange-cxx, is not there"):
        built(tmp_path / "cache")


def test_a_cache_below_a_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path)))
    (tmp_path / "file").write_text("")
    built(tmp_path / "file" / "kernels")
    assert "file/kernels cannot be written (Not a directory)" in logged.text


@pytest.mark.slow
@pytest.mark.parametrize("formats", Formats)
def test_a_real_build_compiles_without_warnings_and_loads(
    formats: Formats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native_library()
    compiler = build.find_compiler()[0]
    monkeypatch.setenv("CXX", f"{compiler} -Wall -Wextra -Werror")
    with built_library(choose_instruction_set(), tmp_path / "cache", formats) as path:
        assert open_library(path).stoker_model_create is not None
