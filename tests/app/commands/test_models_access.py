"""`stoker models login|whoami|logout|pull|verify` against a hub on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.machine.ports import free_port
from tests.fakes.hub import FakeHub, running_hub
from tests.fakes.programs import program
from tests.fakes.terminal import Terminal
from tests.tiny_model import write_tiny_llama
from tests.waiting import wait_for

STOKER = str(Path(sys.executable).with_name("stoker"))
REPO = "org/tiny"
TOKEN = "hf_member0123456789"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """With its address and a home of its own in the environment."""
    hub = FakeHub({REPO: write_tiny_llama(tmp_path / "upstream")}, tokens={TOKEN: "member"})
    with running_hub(hub):
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.delenv("HF_HUB_OFFLINE")
        yield hub


def models(*words: str, given: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [STOKER, "models", *words],
        input=given,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert TOKEN not in done.stdout + done.stderr
    return done


def damage(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def kept(tmp_path: Path) -> Path:
    return tmp_path / "home" / "token"


def test_a_token_is_checked_kept_and_forgotten(hub: FakeHub, tmp_path: Path) -> None:
    done = models("login", given=f"  {TOKEN}\n")
    assert (done.returncode, done.stdout) == (0, "member, token for read\n"), done.stderr
    assert kept(tmp_path).read_text() == TOKEN
    assert stat.S_IMODE(kept(tmp_path).stat().st_mode) == 0o600
    assert stat.S_IMODE(kept(tmp_path).parent.stat().st_mode) == 0o700

    shown = json.loads(models("whoami", "--json").stdout)
    assert (shown["name"], shown["role"]) == ("member", "read")
    assert shown["source"] == str(kept(tmp_path))

    assert f"removed {kept(tmp_path)}" in models("logout").stderr
    assert not kept(tmp_path).exists()
    nobody = models("whoami")
    assert (nobody.returncode, "stoker models login" in nobody.stderr) == (1, True)


def test_huggingface_hub_finds_the_token_that_is_kept(hub: FakeHub) -> None:
    assert models("login", given=TOKEN).returncode == 0

    code = "from huggingface_hub import get_token, whoami; print(get_token(), whoami()['name'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == f"{TOKEN} member\n"


def test_a_token_that_the_hub_does_not_know_is_not_kept(hub: FakeHub, tmp_path: Path) -> None:
    assert models("login", given=TOKEN).returncode == 0
    done = models("login", given="hf_revoked\n")

    assert done.returncode == 4
    assert "nothing was kept" in done.stderr
    assert "hf_revoked" not in done.stdout + done.stderr
    assert kept(tmp_path).read_text() == TOKEN


def test_without_a_hub_the_token_is_kept_unchecked(hub: FakeHub, tmp_path: Path) -> None:
    for variables in ({"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}):
        kept(tmp_path).unlink(missing_ok=True)
        done = models("login", given=TOKEN, **variables)
        assert done.returncode == 0
        assert "kept unchecked; later: stoker models whoami" in done.stderr
        assert kept(tmp_path).read_text() == TOKEN
    assert models("whoami", HF_HUB_OFFLINE="1").returncode == 4


def test_what_is_no_token_is_refused(hub: FakeHub, tmp_path: Path) -> None:
    typed = models("login", "hf_typedOnTheCommandLine")
    assert typed.returncode == 2
    assert "hf_typed" not in typed.stdout + typed.stderr
    assert "read by every user" in typed.stderr
    for given in ("", "\n", "two words\n", "hf_ä\n"):
        assert models("login", given=given).returncode == 2
    assert not kept(tmp_path).exists()


def test_a_variable_that_goes_before_the_file_is_named(hub: FakeHub) -> None:
    done = models("login", given=TOKEN, HF_TOKEN="hf_another")
    assert "HF_TOKEN is set and goes before it" in done.stderr
    assert "goes before" not in models("login", given=TOKEN, HF_TOKEN=TOKEN).stderr


def test_a_terminal_shows_nothing_of_the_token(hub: FakeHub) -> None:
    terminal = Terminal("models", "login")
    terminal.wait_for("not shown): ")
    terminal.type(f"{TOKEN}\n")
    assert terminal.wait_for_end() == 0
    assert "member, token for read" in terminal.seen
    assert TOKEN not in terminal.seen
    terminal.close()


def test_what_is_damaged_is_named_and_fetched_again(hub: FakeHub, tmp_path: Path) -> None:
    pulled = models("pull", REPO)
    assert pulled.returncode == 0, pulled.stderr
    assert re.search(rf"{REPO}: downloading \(\d+\.\d KiB\)", pulled.stderr)
    folder = Path(pulled.stdout.strip())
    whole = models("verify", "--json")
    assert whole.returncode == 0, whole.stdout
    (found,) = json.loads(whole.stdout)["models"]
    assert (found["state"], found["files_compared"]) == ("whole", 4)

    for name in ("model.safetensors", "tokenizer.json"):
        damage((folder / name).resolve())
    done = models("verify", REPO)
    assert done.returncode == 1
    assert f"damaged: {folder / 'model.safetensors'}" in done.stderr
    assert f"damaged: {folder / 'tokenizer.json'}" in done.stderr
    (command,) = (line for line in done.stderr.splitlines() if line.startswith("repair it: "))
    assert command == f"repair it: stoker models pull --repair {REPO}"

    away = models(*command.split()[4:], HF_ENDPOINT="http://127.0.0.1:9")
    assert (away.returncode, "nothing of it was removed" in away.stderr) == (4, True)
    assert (folder / "tokenizer.json").exists()

    hub.requests.clear()
    assert models(*command.split()[4:]).returncode == 0
    assert hub.sent("model.safetensors") > 0
    assert hub.sent("tokenizer_config.json") == 0
    assert models("verify", REPO).returncode == 0

    (folder / "config.json").resolve().unlink()
    gone = models("verify", REPO, "--plain")
    assert gone.returncode == 1
    assert f"missing: {folder / 'config.json'}" in gone.stderr


def test_a_model_of_our_own_cache_is_compared_with_what_was_written_down(
    hub: FakeHub, tmp_path: Path
) -> None:
    from engine.model_store.file_hashes import note_hashes

    folder = write_tiny_llama(tmp_path / "cache" / "models" / "mine")
    unknown = models("verify", "mine")
    assert unknown.returncode == 3
    assert "no hashes were written down" in unknown.stdout
    note_hashes(folder)
    assert models("verify", "mine").returncode == 0

    weights = folder / "model.safetensors"
    damage(weights)
    done = models("verify", "mine")
    assert done.returncode == 1
    assert f"damaged: {weights}" in done.stderr
    assert "repair it: stoker models rm mine" in done.stderr
    assert models("verify", "no/such").returncode != 0


def test_a_server_that_fetches_its_model_itself_has_the_room_looked_for(
    hub: FakeHub, tmp_path: Path
) -> None:
    """vLLM into the hub's cache or its --download-dir, llama-server into its own."""
    upstream = hub.repositories[REPO]
    for name in ("model-Q8_0.gguf", "model-Q4_K_M.gguf"):
        (upstream / name).write_bytes(b"GGUF")
    hub.claimed_sizes.update(
        {"model.safetensors": 1 << 60, "model-Q4_K_M.gguf": 1 << 59, "model-Q8_0.gguf": 1 << 60}
    )
    program(tmp_path / "bin" / "vllm")
    vllm = ["--engine", "vllm", "--engine-python", str(program(tmp_path / "bin" / "python"))]
    llama = ["--engine", "llama.cpp", "--engine-binary", str(program(tmp_path / "llama-server"))]
    cache = str(tmp_path / "llama-cache")
    for words, figures, place in (
        ([*vllm], "1073741824", tmp_path / "home" / "hub"),
        ([*vllm, "--", "--download-dir", str(tmp_path / "big")], "1073741824", tmp_path / "big"),
        ([*llama], "536870912", cache),
    ):
        port = ["--port", str(free_port())]
        done = subprocess.run(
            [STOKER, "serve", REPO, "--dry-run", *port, *words],
            env={**os.environ, "LLAMA_CACHE": cache},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 1, done.stderr
        assert f"needs {figures}." in done.stderr
        assert f"{place} has " in done.stderr
    assert sum(one.sent for one in hub.requests if "/resolve/" in one.path) == 0


def test_ctrl_c_ends_a_download_that_stands_still(hub: FakeHub, tmp_path: Path) -> None:
    hub.stop_after = 1 << 16
    process = subprocess.Popen([STOKER, "models", "pull", REPO], stderr=subprocess.DEVNULL)
    with process:
        wait_for(lambda: any("/storage/" in one.path for one in hub.requests))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert not hub.go_on.is_set()
