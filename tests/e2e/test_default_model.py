"""`stoker serve` as a user starts it: the default model, a chat, a crowd, a stop, a crash."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from engine.model_config import ModelConfig
from tests.e2e.running_server import (
    STOKER,
    Server,
    free_port,
    gauge,
    get_json,
    health,
    started,
    wait_for_gauge,
    wait_until_supervised,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SEED_LINE = re.compile(
    r"^\((\w+) pid=(\d+)\) (?:(INFO|WARNING|ERROR) \S+ \S+ \[([\w.]+):(\d+)\] )?(.*)$"
)


def serve(port: int, *flags: str) -> list[str]:
    return [str(STOKER), "serve", "--no-tui", "--port", str(port), *flags]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("serve")
    port = free_port()
    env = {"STOKER_STATE_DIR": str(folder / "state"), "XDG_RUNTIME_DIR": str(folder / "run")}
    with started(serve(port), port, env=env) as running:
        yield running


def raw_log(server: Server) -> Path:
    """The log file that `stoker serve` names."""
    match = re.search(r"(/\S+\.log)", server.text)
    assert match, server.text
    return Path(match[1])


def run_stoker(*words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(STOKER), *words], input=stdin, capture_output=True, text=True, timeout=240
    )


def test_the_capital_of_france(server: Server) -> None:
    done = run_stoker("chat", server.url, stdin="What is the capital of France?")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout


def test_thirty_two_streams_finish_and_the_cache_is_empty_again(server: Server) -> None:
    before = gauge(server.url, "vllm:generation_tokens_total")
    options = "--concurrency 32 --num-prompts 32 --output-tokens 24 --warmup 0 --repeat 1 --json"
    run = subprocess.run(
        [str(STOKER), "bench", server.url, *options.split()], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["results"][0]["total_output_tokens"] == 32 * 24
    wait_for_gauge(server.url, "vllm:kv_cache_usage_perc", 0.0)
    wait_for_gauge(server.url, "vllm:num_requests_running", 0.0)
    assert gauge(server.url, "vllm:generation_tokens_total") - before == 32 * 24


def test_models_and_version(server: Server) -> None:
    models = get_json(f"{server.url}/v1/models")["data"]
    assert isinstance(models, list)
    assert models[0]["id"] == "smollm2-135m"
    assert models[0]["max_model_len"] == 8192
    assert get_json(f"{server.url}/version")["version"]


def test_the_log_is_read_by_the_lessons_expression_and_tells_the_truth(server: Server) -> None:
    lines = raw_log(server).read_text().splitlines()
    start = lines[: next(i for i, line in enumerate(lines) if "startup complete" in line)]
    assert all(SEED_LINE.match(line) for line in start), start
    done = run_stoker("logs", str(raw_log(server)), "--plain")
    assert done.returncode == 0, done.stderr
    values = dict(line.split("\t", 1) for line in done.stdout.splitlines() if "\t" in line)
    blocks = int(gauge_label(server, "num_gpu_blocks"))
    assert values["engine"] == "stoker"
    # The head is tied: the embedding stays for lookups, beside its copy packed for the product.
    weight_bytes = (134_515_008 + 49_152 * 576) * 2
    assert float(values["weights_gib"]) == pytest.approx(weight_bytes / 2**30, abs=0.01)
    assert int(values["kv_tokens"]) == blocks * 16
    assert int(values["max_model_len"]) == 8192
    assert values["ready_url"] == server.url
    assert float(values["engine_init_s"]) > 0
    page_gib = 30 * 16 * 3 * 64 * 2 * 2 / 2**30
    assert float(values["kv_memory_gib"]) == pytest.approx(blocks * page_gib, abs=0.006)


def gauge_label(server: Server, label: str) -> str:
    import urllib.request

    with urllib.request.urlopen(f"{server.url}/metrics", timeout=120) as response:
        text = response.read().decode()
    match = re.search(rf'^vllm:cache_config_info{{[^\n]*\b{label}="([^"]*)"', text, re.MULTILINE)
    assert match, text
    return match[1]


def test_top_prints_one_sample(server: Server) -> None:
    done = run_stoker("top", server.url, "--once", "--plain")
    assert done.returncode == 0, done.stderr
    assert "smollm2-135m" in done.stdout


def test_ctrl_c_ends_every_process_with_requests_in_flight(tmp_path: Path) -> None:
    port = free_port()
    with started(serve(port, "--shutdown-timeout", "1"), port) as server:
        tree = server.tree()
        assert len(tree) == 4, [item.cmdline() for item in tree]  # with the guard
        wait_until_supervised(server)
        load = subprocess.Popen(
            [str(STOKER), "bench", server.url, "--concurrency", "8", "--output-tokens", "4000"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for_gauge(server.url, "vllm:num_requests_running", 8.0)
        assert server.stop(signal.SIGINT) == 0, server.text
        load.wait(timeout=120)
        assert psutil.wait_procs(tree, timeout=60)[1] == []
        assert health(server.url) is None
        assert re.search(r"stopped", server.text)


def test_a_killed_engine_core_fails_requests_at_once_and_serve_exits_6(tmp_path: Path) -> None:
    port = free_port()
    with started(serve(port), port) as server:
        wait_until_supervised(server)  # or the request that runs may be its own
        chat = subprocess.Popen(
            [
                str(STOKER),
                "chat",
                server.url,
                "--max-tokens",
                "4000",
                "-m",
                "Count from one to one thousand.",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_for_gauge(server.url, "vllm:num_requests_running", 1.0)
        tree = server.tree()
        server.engine_core().send_signal(signal.SIGKILL)
        _, error = chat.communicate(timeout=120)
        assert chat.returncode not in (0, None)
        assert "EngineCore" in error or "engine" in error.lower(), error
        assert server.process.wait(timeout=120) == 6, server.text
        assert "was killed from outside" in server.text
        _, alive = psutil.wait_procs(tree, timeout=60)
        assert alive == []


def test_killing_stoker_itself_leaves_no_server_behind(tmp_path: Path) -> None:
    port = free_port()
    with started(serve(port), port) as server:
        tree = server.tree()
        server.process.kill()
        _, alive = psutil.wait_procs(tree, timeout=60)
        assert alive == []


def test_folders_with_our_names_in_the_working_directory_are_not_imported(tmp_path: Path) -> None:
    for name in ("app", "engine", "tui", "logparse"):
        package = tmp_path / name
        package.mkdir()
        (package / "__init__.py").write_text("raise SystemExit('the wrong package was imported')")
        (package / "__main__.py").write_text("raise SystemExit('the wrong package was imported')")
    port = free_port()
    with started(serve(port), port, cwd=tmp_path) as server:
        assert "wrong package" not in server.text
        assert health(server.url) == 200


def test_the_converted_model_is_bf16_safetensors_with_the_right_shape() -> None:
    from tests.default_model import default_model_folder

    folder = default_model_folder()
    config = ModelConfig.from_folder(folder, "smollm2-135m")
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
    assert config.tie_word_embeddings
    assert list(folder.glob("*.safetensors"))
    assert not list(folder.glob("*.bin"))
