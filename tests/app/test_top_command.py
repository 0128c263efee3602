from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli import run
from tests.client.local_server import Answer, LocalServer, serving

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
    assert document["reasons"]["requests_waiting"] == "this server does not expose it"
    assert (document["kv_blocks_used"], document["kv_blocks_total"]) == (50, 101)
    assert document["time_to_first_token_s"] == {
        "n": 4,
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
    assert "50.0 % used, 50 / 101 blocks" in out
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
