"""Who is given which secret: the rule, processes that are really started, and the whole tree."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from app.doctor.gather import read_environment
from app.errors import StokerError
from app.launch.launch_specs import parse_serve_request, stoker_spec
from app.launch.llama_spec import llama_spec
from app.launch.vllm_spec import vllm_spec
from app.supervise.child_process import start_guard
from engine.core.core_process import CoreProcess
from engine.core.handshake import CoreAddresses
from engine.kernels.native import build
from engine.machine.children import spawn
from engine.machine.secrets import (
    HUB_SECRETS,
    child_environment,
    is_secret,
    masked,
    secret_values,
)
from tests.places import ROOT

SECRETS = (
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HF_OIDC_ID_TOKEN"),
    *("STOKER_API_KEY", "VLLM_API_KEY", "LLAMA_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_CLIENT_SECRET"),
    *("GITHUB_TOKEN", "WANDB_API_KEY", "PGPASSWORD", "GOOGLE_APPLICATION_CREDENTIALS"),
    "STOKER_PROMETHEUS_LOGIN",
)
ORDINARY = (
    *("PATH", "HOME", "HF_HOME", "HF_TOKEN_PATH", "STOKER_API_KEY_FILE", "LD_LIBRARY_PATH"),
    *("TOKENIZERS_PARALLELISM", "KEYBOARD", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"),
)


@pytest.fixture(autouse=True)
def _full_of_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, f"value-of-{name}")
    monkeypatch.setenv("HARMLESS", "yes")


def held(environ: dict[str, str]) -> set[str]:
    assert environ["HARMLESS"] == "yes"
    return {name for name in SECRETS if name in environ}


def environment_of(pid: int) -> dict[str, str]:
    return psutil.Process(pid).environ()


def test_names() -> None:
    assert [name for name in SECRETS if not is_secret(name)] == []
    assert [name for name in ORDINARY if is_secret(name)] == []


def test_a_child_gets_what_it_is_named() -> None:
    assert held(child_environment()) == set()
    assert held(child_environment("HF_TOKEN", "AWS_")) == {
        *("HF_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    }


def test_a_password_in_an_address_is_a_secret() -> None:
    environ = {
        "DATABASE_URL": "postgres://me:word@db/x",
        "HTTPS_PROXY": "http://me:word@proxy:3128",
        "http_proxy": "http://proxy:3128",
        "HF_ENDPOINT": "http://[::1]:8080/@x",
    }
    assert set(child_environment(environ=environ)) == {"http_proxy", "HF_ENDPOINT"}
    hub = child_environment(*HUB_SECRETS, environ=environ)
    assert set(hub) == {"http_proxy", "HF_ENDPOINT", "HTTPS_PROXY"}


def test_the_engine_core_gets_none() -> None:
    process = CoreProcess(CoreAddresses.create(), log_fd=os.open(os.devnull, os.O_WRONLY))
    try:
        assert held(environment_of(process.pid)) == set()
    finally:
        process.discard()


def test_the_guard_and_a_plain_child_get_none() -> None:
    guard = start_guard("MARK=1")
    code = "import os; print('\\n'.join(os.environ))"
    child = spawn([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert held(environment_of(guard.pid)) == set()
        names = child.communicate()[0].decode().split()
    finally:
        guard.kill()
        guard.communicate()

    assert held(dict.fromkeys(names, "yes")) == set()


def test_the_compiler_gets_none() -> None:
    names = build._run([sys.executable, "-c", "import os; print('\\n'.join(os.environ))"]).split()

    assert held(dict.fromkeys(names, "yes")) == set()


def test_a_foreign_interpreter_gets_none(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nenv > $0.env\n")
    python.chmod(0o700)
    with pytest.raises(StokerError):
        read_environment(python)
    lines = Path(f"{python}.env").read_text().splitlines()

    assert held(dict(line.split("=", 1) for line in lines if "=" in line)) == set()


def test_servers_get_the_hubs_token_and_their_own_key(tmp_path: Path) -> None:
    hub = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_ID_TOKEN"}
    request = parse_serve_request(["org/name"])
    ours = stoker_spec(request, "org/name", "topsecret")
    offline = stoker_spec(request, str(tmp_path), "topsecret")
    llama = llama_spec(request, "llama-server", "org/name", None)
    vllm = vllm_spec(request, ("/env/bin/python", "/env/bin/vllm"), "org/name", None)

    assert held(ours.environment()) == {*hub, "STOKER_API_KEY"}
    assert ours.environment()["STOKER_API_KEY"] == "topsecret"
    assert held(offline.environment()) == {"STOKER_API_KEY"}
    assert held(llama.environment()) == {*hub, "LLAMA_API_KEY"}
    storage = {name for name in SECRETS if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))}
    assert held(vllm.environment()) == {*hub, *storage, "VLLM_API_KEY"}


def test_every_start_of_a_process_says_what_it_gives() -> None:
    """Whoever leaves `env` out hands on everything."""
    silent = []
    for package in ("app", "engine", "tui", "logparse"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                starts = ("Popen", "run", "check_output", "check_call", "call")
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and isinstance(node.func.value, ast.Name)
                    and node.func.value.id == "subprocess"
                    and node.func.attr in starts
                    and "env" not in {keyword.arg for keyword in node.keywords}
                ):
                    silent.append(f"{path.relative_to(ROOT)}:{node.lineno}")

    assert silent == []


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ('GET /v1/models/hf_abcdefghij HTTP/1.1" 404', 'GET /v1/models/*** HTTP/1.1" 404'),
        ("GET /x?api_key=abc&n=1", "GET /x?api_key=***&n=1"),
        ("GET /sk-proj-abcdefgh", "GET /***"),
        ("Authorization: Bearer abc.def-1", "Authorization: Bearer ***"),
        ("the key topsecret is wrong", "the key *** is wrong"),
        ("hf_home and sk-learn, 3 tokens, key=4", "hf_home and sk-learn, 3 tokens, key=4"),
    ],
)
def test_what_has_the_shape_of_a_secret_is_masked(text: str, safe: str) -> None:
    assert masked(text, ("topsecret",)) == safe


def test_values_for_masking_are_no_ordinary_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "on")
    monkeypatch.setenv("STOKER_API_KEY", "abc")

    assert "on" not in secret_values()
    assert {"abc", "value-of-HF_TOKEN"} <= set(secret_values())
