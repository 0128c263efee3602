from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from app.cli import run
from app.registry.server_registry import ServerRecord, open_registry
from app.targets.watched import SupervisedStates
from engine.machine.processes import process_identity
from tests.client.local_server import Answer, LocalServer, serving
from tests.places import DATA

RECORDINGS = DATA / "recordings"
METRICS = b"""\
vllm:num_requests_running{model_name="m",engine="0"} 3
vllm:kv_cache_usage_perc{model_name="m",engine="0"} 0.5
vllm:cache_config_info{engine="0",num_gpu_blocks="101",block_size="16"} 1
vllm:prompt_tokens_total{model_name="m",engine="0"} 1234
vllm:time_to_first_token_seconds_bucket{le="0.5"} 0
vllm:time_to_first_token_seconds_bucket{le="1.0"} 4
vllm:time_to_first_token_seconds_bucket{le="+Inf"} 4
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalServer]:
    for name in ("STOKER_URL", "STOKER_API_KEY", "VLLM_API_KEY", "STOKER_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    with serving({"/metrics": lambda _call: Answer([METRICS])}) as local:
        yield local


def test_json(server: LocalServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", server.url, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["schema_version"]) == ("stoker.metrics", 1)
    assert (document["engine"], document["model"], document["url"]) == ("vllm", "m", server.url)
    assert document["requests_running"] == 3
    assert document["requests_waiting"] is None
    assert "--disable-log-stats" in document["reasons"]["requests_waiting"]
    assert (document["kv_blocks_used"], document["kv_blocks_total"]) == (50, 101)
    assert document["time_to_first_token_s"] == {
        "n": 4,
        "mean": None,
        "p50": {"value": 0.75, "lower": 0.5, "upper": 1.0},
        "p90": {"value": 0.95, "lower": 0.5, "upper": 1.0},
        "p99": {"value": 0.995, "lower": 0.5, "upper": 1.0},
    }
    assert document["inter_token_latency_s"] is None


def test_plain(server: LocalServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", server.url, "--plain"]) == 0
    fields = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert fields["requests_running"] == "3.0"
    assert fields["requests_waiting"] == "-"
    assert fields["time_to_first_token_s.p50.value"] == "0.75"


def test_text_when_stdout_is_no_terminal(
    server: LocalServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_URL", f"127.0.0.1:{server.port}")
    assert run(["top"]) == 0
    out = capsys.readouterr().out
    assert "3 running, - waiting" in out
    assert "50.0 % used, 50 / 100 blocks" in out
    assert "1,234 tokens since start" in out
    assert "p50 ~750 ms" in out
    assert "\x1b" not in out


def test_unreachable_is_exit_4(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({}) as gone:
        url = gone.url
    assert run(["top", url, "--once"]) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"no server answers at {url} (connection refused)" in captured.err
    assert "stoker serve" in captured.err


def test_a_server_without_metrics_is_exit_4(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({}) as other:
        assert run(["top", other.url, "--json"]) == 4
    assert "answered 404" in capsys.readouterr().err


def test_a_refused_key_says_where_to_put_it(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({"/metrics": lambda _call: Answer([b""], status=401)}) as locked:
        assert run(["top", locked.url, "--once"]) == 4
    assert "STOKER_API_KEY" in capsys.readouterr().err


@pytest.mark.parametrize("args", [["ftp://h"], ["--json", "--plain"], ["--interval", "0"]])
def test_usage_errors(args: list[str], server: LocalServer) -> None:
    assert run(["top", *args]) == 2


def test_key_comes_from_a_file(server: LocalServer, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    assert run(["top", server.url, "--once", "--api-key-file", str(tmp_path / "key")]) == 0
    assert server.calls[0].headers["Authorization"] == "Bearer secret"


@pytest.fixture
def gone() -> str:
    with serving({}) as server:
        return server.url


def test_a_fleet_as_json_names_who_is_away(
    server: LocalServer, gone: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["top", server.url, gone, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["schema_version"]) == ("stoker.fleet", 1)
    live, away = document["servers"]
    assert (live["url"], live["requests_running"], live["error"]) == (server.url, 3, None)
    assert away == {"name": gone[7:], "url": gone, "error": away["error"]}
    assert "connection refused" in away["error"]


def test_a_fleet_as_text_and_fields(
    server: LocalServer, gone: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["top", server.url, gone, "--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "3/-" in lines[1]
    assert "away" in lines[2]
    assert run(["top", server.url, gone, "--plain"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [server.url[7:], "requests_running", "3.0"] in rows
    assert [gone[7:], "url", gone] in rows


def test_a_fleet_that_is_all_away_is_exit_4(gone: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", gone, "http://127.0.0.1:1", "--json"]) == 4
    assert len(json.loads(capsys.readouterr().out)["servers"]) == 2


def managed(server: LocalServer, name: str) -> None:
    """A record as `stoker serve` writes it; this process stands for the server."""
    me = psutil.Process()
    open_registry().add(
        ServerRecord(
            name=name,
            pid=me.pid,
            create_time=me.create_time(),
            identity=process_identity(me.pid),
            supervisor_pid=me.pid,
            url=server.url,
            model="m",
            engine="vllm",
            log_path=f"/logs/{name}.log",
            state="ready",
        )
    )


def test_servers_of_ours_by_name_and_all_of_them(
    server: LocalServer, capsys: pytest.CaptureFixture[str]
) -> None:
    managed(server, "tiny")
    assert run(["top", "tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "tiny"
    assert run(["top", "--json"]) == 0  # the only one
    assert json.loads(capsys.readouterr().out)["name"] == "tiny"
    with serving({"/metrics": lambda _call: Answer([METRICS])}) as second:
        managed(second, "other")
        assert run(["top", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in document["servers"]] == ["other", "tiny"]
    assert run(["top", "tinny", "--json"]) == 4
    assert "did you mean tiny?" in capsys.readouterr().err


def test_supervisors_are_asked_for_the_state(server: LocalServer) -> None:
    managed(server, "tiny")
    states = SupervisedStates()
    assert (states.of("tiny"), states.of("unknown")) == ("ready", "")


@pytest.mark.parametrize(
    "name", ["stoker.jsonl.gz", "vllm-0.30.0.jsonl.gz", "llama-server.jsonl.gz"]
)
def test_replay_prints_the_same_json_twice(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(RECORDINGS / name)
    assert run(["top", "--replay", path, "--json"]) == 0
    first = capsys.readouterr().out
    assert run(["top", "--replay", path, "--json"]) == 0
    assert capsys.readouterr().out == first
    document = json.loads(first)
    assert document["schema"] == "stoker.replay"
    assert len(document["steps"]) in (12, 14)
    engine = {"stoker": "stoker", "vllm": "vllm", "llama": "llama.cpp"}
    assert {s["engine"] for s in document["steps"]} == {engine[name.split("-")[0].split(".")[0]]}
    speeds = [s["rates"]["generation_tokens_per_s"] for s in document["steps"][1:]]
    assert max(speeds) > 10
    has_state = [s["engine_state"] is not None for s in document["steps"]]
    assert all(has_state) == (name == "stoker.jsonl.gz")


def test_replay_as_text_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(RECORDINGS / "vllm-0.30.0.jsonl.gz")
    assert run(["top", "--replay", path, "--once"]) == 0
    assert "8 running, 0 waiting" in capsys.readouterr().out
    assert run(["top", "--replay", path, "--plain"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert ["0.0", "vllm", "requests_running", "6.0"] in rows


def test_record_without_a_screen(
    server: LocalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.jsonl.gz"
    words = ["top", server.url, "--record", str(path), "--steps", "3", "--interval", "0.1"]
    assert run(words) == 0
    assert f"3 samples in {path}" in capsys.readouterr().err
    assert run(["top", "--replay", str(path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["steps"]) == 3
    assert run(words) == 2
    assert "exists already" in capsys.readouterr().err


def test_prometheus_without_an_engine(capsys: pytest.CaptureFixture[str]) -> None:
    body = json.dumps({"status": "success", "data": {"result": []}}).encode()
    with serving({"/api/v1/query": lambda _call: Answer([body])}) as server:
        assert run(["top", "--prometheus", server.url, "--json"]) == 1
        assert "scrapes no inference server" in capsys.readouterr().err
    assert run(["top", "--prometheus", server.url, "--json"]) == 4


def test_the_login_of_prometheus_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "login").write_text("from-file\n")
    with serving({"/api/v1/query": lambda _call: Answer([b""], 401)}) as server:
        words = ["top", "--prometheus", server.url, "--json"]
        assert run([*words, "--prometheus-login-file", str(tmp_path / "login")]) == 4
        monkeypatch.setenv("STOKER_PROMETHEUS_LOGIN", "from-env")
        assert run(words) == 4
        sent = [call.headers["Authorization"] for call in server.calls]
    assert sent == ["Bearer from-file", "Bearer from-env"]


def test_a_llama_server_without_metrics_is_told_the_flag(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving({"/metrics": lambda _call: Answer([b"off"], 501)}) as server:
        assert run(["top", server.url, "--once"]) == 4
    assert "start llama-server with --metrics" in capsys.readouterr().err


@pytest.mark.parametrize(
    "args",
    [
        ["--replay", "x", "--mock"],
        ["--replay", "x", "http://h:1"],
        ["--prometheus", "http://h:1", "--record", "x"],
        ["--steps", "3"],
        ["--replay", "missing.jsonl"],
    ],
)
def test_combinations_that_make_no_sense(args: list[str]) -> None:
    assert run(["top", *args]) == 2
