from __future__ import annotations

import json
import sys
from pathlib import Path

import psutil
import pytest

from app.errors import ExitCode, StokerError
from app.launch.launch_specs import (
    as_flags,
    check_fits_model,
    engine_called,
    engine_flag_help,
    parse_serve_request,
    stoker_spec,
    without_api_key,
)
from engine.machine.addresses import outward_host
from tests.fakes.programs import CONFIG


def refusal(*words: str) -> StokerError:
    with pytest.raises(StokerError) as caught:
        parse_serve_request(words)
    assert caught.value.exit_code == ExitCode.USAGE
    return caught.value


def test_without_words_the_builtin_model_is_served() -> None:
    request = parse_serve_request([])

    assert (request.model, request.served_name) == ("smollm2-135m", "smollm2-135m")
    assert as_flags(request.args) == []


def test_a_flag_value_is_not_taken_for_the_model() -> None:
    request = parse_serve_request(["--max-model-len", "2k", "--max_num_seqs=4", "org/model"])

    assert request.model == "org/model"
    assert as_flags(request.args) == ["--max-model-len=2000", "--max-num-seqs=4"]


def test_booleans_keep_their_twin() -> None:
    request = parse_serve_request(["--no-enable-prefix-caching", "--disable-log-stats"])

    assert as_flags(request.args) == ["--no-enable-prefix-caching", "--disable-log-stats"]


def test_a_flag_with_several_values_stays_whole() -> None:
    request = parse_serve_request(["org/model", "-O1", "--cudagraph-capture-sizes", "1", "2"])

    flags = ["--optimization-level=1", "--cudagraph-capture-sizes", "1", "2"]
    assert as_flags(request.args) == flags
    assert parse_serve_request(["org/model", *flags]).args == request.args


@pytest.mark.parametrize(
    ("word", "engine"),
    [
        ("stoker", "stoker"),
        ("vLLM", "vllm"),
        ("llama.cpp", "llama.cpp"),
        ("llamacpp", "llama.cpp"),
        ("llama-server", "llama.cpp"),
    ],
)
def test_an_engine_has_one_name_however_it_is_spelled(word: str, engine: str) -> None:
    assert engine_called(word) == engine


def test_an_unknown_engine_is_refused_with_those_there_are() -> None:
    with pytest.raises(StokerError, match="no such engine: ollama") as caught:
        engine_called("ollama")
    assert caught.value.hint == "known engines: stoker, vllm, llama.cpp"


def test_words_behind_the_dashes_reach_the_engine_as_they_are() -> None:
    request = parse_serve_request(["org/model", "--port", "9001", "--", "--seed", "x_y", "word"])

    assert (request.model, request.args.port) == ("org/model", 9001)
    assert request.engine_words == ("--seed", "x_y", "word")
    assert stoker_spec(request, "/m", None).argv[-3:] == ("--seed", "x_y", "word")


def test_a_near_flag_is_suggested() -> None:
    error = refusal("--max-modl-len", "2048")

    assert str(error) == "no such flag: --max-modl-len"
    assert error.hint == "did you mean --max-model-len?"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a", "b"), "one model is served, but 2 were named: a b"),
        (("--port", "0"), "--port 0 is out of range"),
        (("--port", "70000"), "--port 70000 is out of range"),
        (("--dtype", "int3"), "--dtype: invalid choice: 'int3'"),
        (("--max-num-seqs", "many"), "--max-num-seqs: invalid int value: 'many'"),
        (("./no-such-folder",), "no such model folder or file: ./no-such-folder"),
        (("missing.gguf",), "no such model folder or file: missing.gguf"),
    ],
)
def test_what_cannot_work_is_refused(words: tuple[str, ...], message: str) -> None:
    assert str(refusal(*words)).startswith(message)


def test_the_key_reaches_the_child_by_the_environment_alone() -> None:
    request = parse_serve_request(["--api-key", "topsecret", "org/model"])
    spec = stoker_spec(request, "org/model", request.api_key)

    assert request.api_key == "topsecret"
    assert spec.environment()["STOKER_API_KEY"] == "topsecret"
    assert "topsecret" not in " ".join(spec.argv)
    assert "topsecret" not in repr(request) + repr(spec)


def test_the_engine_is_started_by_its_own_path() -> None:
    request = parse_serve_request(["--port", "9001", "--host", "0.0.0.0"])
    spec = stoker_spec(request, "/models/x", None)

    assert spec.argv[0] == sys.executable
    assert Path(spec.argv[1]).parts[-2:] == ("engine", "__main__.py")
    assert Path(spec.argv[1]).is_absolute()
    assert spec.argv[2:4] == ("serve", "/models/x")
    assert "--served-model-name=smollm2-135m" in spec.argv
    assert spec.url == "http://127.0.0.1:9001"
    assert "STOKER_API_KEY" not in spec.secrets


def test_flags_are_checked_against_the_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    check_fits_model(parse_serve_request([str(tmp_path), "--max-model-len", "512"]), tmp_path)

    with pytest.raises(StokerError, match="above the 512 positions") as too_long:
        check_fits_model(parse_serve_request([str(tmp_path), "--max-model-len", "513"]), tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(StokerError, match="not valid JSON") as damaged:
        check_fits_model(parse_serve_request([str(tmp_path)]), tmp_path)

    assert too_long.value.exit_code == ExitCode.USAGE
    assert damaged.value.exit_code == ExitCode.ENGINE_FAILED_TO_START


def test_a_bare_word_is_a_builtin_model_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refusal("smollm2").hint == "did you mean smollm2-135m?"
    assert str(refusal("zzz")) == "no such model: zzz"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zzz").mkdir()
    assert parse_serve_request(["zzz"]).model == "zzz"


def test_an_empty_key_is_no_key_and_is_refused() -> None:
    assert str(refusal("--api-key", "")) == "--api-key is empty"


def test_bytes_that_are_no_text_are_refused() -> None:
    error = refusal("--served-model-name", "caf\udce9")

    assert str(error) == r"caf\udce9 is not valid text"
    assert "LC_ALL=C.UTF-8" in str(error.hint)


def test_the_help_names_every_flag_once() -> None:
    flags = [flag.split()[0] for flag, _ in engine_flag_help()]

    assert len(set(flags)) == len(flags)
    assert "--max-model-len" in flags
    assert "--[no-]enable-prefix-caching" in flags


@pytest.mark.parametrize("engine", ["stoker", "vllm"])
@pytest.mark.parametrize(
    ("flag", "advice"),
    [
        ("--task", "what took its place: --runner"),
        ("--swap-space", "leave it out"),
        ("--guided-decoding-backend", "-- --structured-outputs-config"),
    ],
)
def test_a_flag_that_vllm_removed_is_not_passed_on(engine: str, flag: str, advice: str) -> None:
    with pytest.raises(StokerError) as caught:
        parse_serve_request([flag, "embed"], engine)
    hint = str(caught.value.hint)
    assert "vLLM has removed it" in hint
    assert advice in hint
    assert f"-- {flag}" not in hint


def test_the_address_for_other_machines() -> None:
    assert outward_host("127.0.0.1") is None
    assert outward_host("192.168.7.7") == "192.168.7.7"
    found = outward_host("0.0.0.0")
    own = {one.address for each in psutil.net_if_addrs().values() for one in each}
    assert found is None or found in own
    spec = stoker_spec(parse_serve_request(["--host", "0.0.0.0", "--port", "8989"]), "m", None)
    assert spec.url == "http://127.0.0.1:8989"
    if found not in (None, "127.0.0.1"):
        assert spec.addresses == f"http://127.0.0.1:8989 (others: http://{found}:8989)"
    words = ["--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.1"]
    assert stoker_spec(parse_serve_request(words), "m", None).addresses == "node 0 (10.0.0.1)"


@pytest.mark.parametrize(
    "words",
    [
        ["m", "--api-key", "secret", "--port", "1"],
        ["m", "--api-key=secret", "--port", "1"],
        ["m", "--api_key", "secret", "--port", "1"],
        ["m", "--port", "1", "--api-key"],
        ["--hf-token", "secret", "m", "--port", "1"],
    ],
)
def test_a_key_is_dropped_with_its_flag(words: list[str]) -> None:
    assert without_api_key(words) == ("m", "--port", "1")


def test_a_key_file_is_kept() -> None:
    assert without_api_key(["--api-key-file", "k"]) == ("--api-key-file", "k")
