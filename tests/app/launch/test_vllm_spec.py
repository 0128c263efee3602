from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.errors import ExitCode, StokerError
from app.launch.engines import VLLM
from app.launch.launch_specs import LaunchSpec, parse_serve_request
from app.launch.vllm_spec import (
    find_vllm,
    installed_version,
    require_vllm_model,
    require_vllm_uds,
    vllm_flags,
    vllm_spec,
)
from tests.fakes.programs import program


def spec(*words: str, api_key: str | None = None) -> LaunchSpec:
    request = parse_serve_request(words, VLLM)
    return vllm_spec(request, ("/env/bin/python", "/env/bin/vllm"), "/models/x", api_key)


def flags(*words: str) -> list[str]:
    """What follows `vllm serve MODEL` and the address."""
    argv = spec("org/model", *words).argv
    assert argv[:4] == ("/env/bin/python", "/env/bin/vllm", "serve", "/models/x")
    assert argv[4:6] == ("--host=127.0.0.1", "--port=8000")
    return [word for word in argv[6:] if word != "--served-model-name=org/model"]


def refusal(*words: str) -> StokerError:
    with pytest.raises(StokerError) as caught:
        spec("org/model", *words)
    assert caught.value.exit_code == ExitCode.USAGE
    return caught.value


def test_address_and_name_are_always_said() -> None:
    made = spec("org/model", "--port", "9001", "--host", "0.0.0.0")

    assert made.argv[4:] == ("--host=0.0.0.0", "--port=9001", "--served-model-name=org/model")
    assert (made.engine, made.model, made.served_name) == ("vllm", "org/model", "org/model")
    assert made.url == "http://127.0.0.1:9001"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), []),
        (("--max-model-len", "4k"), ["--max-model-len=4000"]),
        (("--max-model-len", "auto"), ["--max-model-len=-1"]),
        (("--kv-cache-memory-bytes", "2GiB"), ["--kv-cache-memory-bytes=2147483648"]),
        (("--no-enable-prefix-caching",), ["--no-enable-prefix-caching"]),
        (("--model-impl", "transformers"), ["--model-impl=transformers"]),
        (("--shutdown-timeout", "7.5"), ["--shutdown-timeout=8"]),  # vLLM takes whole seconds
        (("--allowed-media-domains", "a", "b"), ["--allowed-media-domains", "a", "b"]),
        (("--", "-tp", "2", "--max_model_len"), ["-tp", "2", "--max_model_len"]),
    ],
)
def test_flags_keep_their_name(words: tuple[str, ...], expected: list[str]) -> None:
    assert flags(*words) == expected


@pytest.mark.parametrize(
    ("words", "flag", "hint"),
    [
        (("--num-threads", "4"), "--num-threads", "VLLM_CPU_OMP_THREADS_BIND"),
        (("--device", "cpu"), "--device", "build"),
        (("--kernels", "native"), "--kernels", "-- --attention-backend"),
        (("--model-impl", "stoker"), "--model-impl stoker", "transformers"),
        (("--tool-call-parser", "json"), "--tool-call-parser json", "hermes"),
        (("--allowed-media-domains", "*"), "--allowed-media-domains *", "leave it out"),
    ],
)
def test_what_vllm_has_no_equal_for_is_refused(
    words: tuple[str, ...], flag: str, hint: str
) -> None:
    error = refusal(*words)

    assert str(error) == f"vLLM has no equal of {flag}"
    assert hint in str(error.hint)


@pytest.mark.parametrize("words", [("--node-rank", "1"), ("--headless",)])
def test_another_node_than_the_first_is_no_server(words: tuple[str, ...]) -> None:
    error = refusal("--nnodes", "2", *words)
    assert "watches node 0" in str(error)
    assert "--engine vllm" in str(error.hint)


def test_a_flag_of_vllm_alone_is_shown_its_place() -> None:
    assert "-- --enable-expert-parallel" in str(refusal("--enable-expert-parallel").hint)


def test_parallel_sizes_are_called_alike() -> None:
    made = spec("org/model", "--tensor-parallel-size", "2", "-pp", "2")
    assert {"--tensor-parallel-size=2", "--pipeline-parallel-size=2"} <= set(made.argv)


def test_the_key_reaches_vllm_by_its_environment_alone() -> None:
    made = spec("org/model", api_key="topsecret")

    assert made.environment()["VLLM_API_KEY"] == "topsecret"
    assert made.api_key == "topsecret"
    assert "topsecret" not in " ".join(made.argv) + repr(made)


@pytest.mark.parametrize("word", ["--api-key", "--api_key=x", "--hf-token=x"])
def test_a_secret_behind_the_dashes_is_refused(word: str) -> None:
    assert "would show a secret" in str(refusal("--", word))


@pytest.mark.parametrize("word", ["--port=9", "--host", "--uds=/tmp/x"])
def test_an_address_behind_the_dashes_is_refused(word: str) -> None:
    assert "belongs before `--`" in str(refusal("--", word))


def test_programs_of_its_environment_are_found_first() -> None:
    assert spec("org/model").environment()["PATH"].split(os.pathsep)[0] == "/env/bin"


def test_vllm_is_found_beside_the_named_python_without_following_links(tmp_path: Path) -> None:
    program(tmp_path / "base" / "python3")
    script = program(tmp_path / "env" / "bin" / "vllm")
    python = script.with_name("python")
    python.symlink_to(tmp_path / "base" / "python3")

    assert find_vllm(str(python)) == (str(python), str(script))
    script.unlink()
    with pytest.raises(StokerError, match="not installed beside") as missing:
        find_vllm(str(python))
    assert missing.value.hint == f"{python} -m pip install vllm"


@pytest.mark.parametrize(
    ("name", "code"), [("none", ExitCode.NOT_FOUND), (".", ExitCode.NOT_EXECUTABLE)]
)
def test_an_interpreter_that_is_none_is_refused(tmp_path: Path, name: str, code: ExitCode) -> None:
    with pytest.raises(StokerError, match="--engine-python") as caught:
        find_vllm(str(tmp_path / name))
    assert caught.value.exit_code == code


def test_without_a_named_python_the_path_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StokerError, match="vLLM is not on PATH") as missing:
        find_vllm(None)
    assert missing.value.exit_code == ExitCode.NOT_FOUND

    script = program(tmp_path / "vllm")
    assert find_vllm(None) == (str(script),)


def test_a_gguf_file_is_refused() -> None:
    with pytest.raises(StokerError, match="no GGUF loader") as caught:
        require_vllm_model(Path("model.gguf"))
    assert "--engine llama.cpp" in str(caught.value.hint)


def test_lists_of_words_pass_as_json() -> None:
    origins = '["https://a.example", "https://b.example"]'
    request = parse_serve_request(["org/m", "--allowed-origins", origins])
    assert f"--allowed-origins={origins}" in vllm_flags(request)


def test_a_socket_file_takes_the_place_of_host_and_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    made = spec("org/model", "--uds", "run/it.sock")
    assert made.argv[4:] == ("--uds=/run/it.sock", "--served-model-name=org/model")
    assert (made.uds, made.url) == ("/run/it.sock", "unix:/run/it.sock")


@pytest.mark.parametrize(
    ("table", "is_known"), [("    uds: str | None = None\n", True), ("", False)]
)
def test_a_vllm_without_socket_files_is_refused(
    tmp_path: Path, table: str, *, is_known: bool
) -> None:
    site = tmp_path / "lib" / "python3.12" / "site-packages"
    (site / "vllm-0.9.2.dist-info").mkdir(parents=True)
    folder = site / "vllm" / "entrypoints" / "openai"
    folder.mkdir(parents=True)
    (folder / "cli_args.py").write_text(f"class FrontendArgs:\n    port: int = 8000\n{table}")
    program_words = ("python", str(tmp_path / "bin" / "vllm"))
    if is_known:
        require_vllm_uds(program_words)
        return
    with pytest.raises(StokerError, match=r"vLLM 0\.9\.2 has no --uds") as caught:
        require_vllm_uds(program_words)
    assert "STOKER_API_KEY" in str(caught.value.hint)


def test_a_vllm_on_path_that_is_a_link_is_looked_at_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "tool" / "lib" / "python3.12" / "site-packages"
    (site / "vllm-0.9.2+cpu.dist-info").mkdir(parents=True)
    table = site / "vllm" / "entrypoints" / "cli_args.py"
    table.parent.mkdir(parents=True)
    table.touch()
    script = program(tmp_path / "tool" / "bin" / "vllm")
    link = tmp_path / "bin" / "vllm"
    link.parent.mkdir()
    link.symlink_to(script)
    monkeypatch.setenv("PATH", str(link.parent))
    assert installed_version(None) == "0.9.2+cpu"
    with pytest.raises(StokerError, match=r"vLLM 0\.9\.2\+cpu has no --uds"):
        require_vllm_uds(find_vllm(None))


def test_a_vllm_whose_flags_cannot_be_read_decides_itself(tmp_path: Path) -> None:
    require_vllm_uds(("python", str(tmp_path / "bin" / "vllm")))
