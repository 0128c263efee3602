"""Secrets of a user's shell and files are planted, and a real server runs with them.

All that Stoker writes, prints, starts and answers is searched for them.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from app.cli import run
from tests.e2e.running_server import STOKER, free_port
from tests.fakes.terminal import Terminal
from tests.tiny_model import write_tiny_llama
from tests.waiting import is_running, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_RUN = f"{os.getpid():x}"  # all processes of the machine are searched, those of other runs too
KEY = f"sk-planted-9f3c1d7e5b-{_RUN}"
HUB_TOKEN = f"hf_plantedByVariable77xq{_RUN}"
FILE_TOKEN = f"hf_plantedInTheFile5k2z{_RUN}"
PLANTED = {
    "HF_TOKEN": HUB_TOKEN,
    "OPENAI_API_KEY": f"sk-planted-of-somebody-else-{_RUN}",
    "AWS_SECRET_ACCESS_KEY": f"planted-storage-secret-{_RUN}",
    "STOKER_PROMETHEUS_LOGIN": f"planted-user:planted-word-{_RUN}",
}
SECRETS = tuple(value.encode() for value in (KEY, FILE_TOKEN, *PLANTED.values()))
SHORT_BENCH = (
    *("--concurrency", "1", "--num-prompts", "1", "--prompt-tokens", "8", "--output-tokens", "8"),
    *("--repeat", "1", "--warmup", "1"),
)


class Place:
    """A home of a user who keeps secrets, and a model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = write_tiny_llama(folder / "tiny")
        self.port, self.status_port = free_port(), free_port()
        self.key_file = folder / "key"
        self.token_file = folder / "hub" / "token"
        self.token_file.parent.mkdir()
        for path, text in ((self.key_file, KEY), (self.token_file, FILE_TOKEN)):
            path.write_text(f"{text}\n")
            path.chmod(0o600)
        (folder / "config.toml").write_text(f'api-key-file = "{self.key_file}"\n')
        self.work = folder / "work"
        self.work.mkdir()
        self.environment = {
            **os.environ,
            **PLANTED,
            "HF_HOME": str(self.token_file.parent),
            "STOKER_STATE_DIR": str(folder / "state"),
            "STOKER_CONFIG_FILE": str(folder / "config.toml"),
            "TMPDIR": str(folder / "tmp"),
        }
        (folder / "tmp").mkdir()

    def stoker(self, *words: str, **variables: str) -> str:
        """What the command prints, on both streams; a traceback is a failure."""
        done = subprocess.run(
            [STOKER, *words],
            capture_output=True,
            text=True,
            cwd=self.work,
            env={**self.environment, **variables},
            timeout=300,
            check=False,
        )
        text = done.stdout + done.stderr
        assert "Traceback" not in text, (words, text)
        assert_clean(text.encode(), words)
        return text

    def serve(self, name: str, *flags: str, **variables: str) -> str:
        words = ("serve", str(self.model), "--port", str(self.port), "--name", name, "-d")
        text = self.stoker(*words, "--dtype", "float32", *flags, **variables)
        assert "ready at" in text, text
        return text

    def written(self) -> Iterator[Path]:
        """Every file below, without the ones that keep the secrets."""
        kept = {self.key_file, self.token_file}
        for path in self.folder.rglob("*"):
            if path not in kept and stat.S_ISREG(path.lstat().st_mode):
                yield path


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    found.stoker("stop", "--all", "--now")


def assert_clean(content: bytes, where: object) -> None:
    for secret in SECRETS:
        assert secret not in content, f"{secret!r} in {where}"


def read(path: Path) -> bytes:
    with suppress(OSError):  # a process that has ended, or somebody else's
        return path.read_bytes()
    return b""


def processes_with_secrets() -> dict[str, set[bytes]]:
    """Which secrets the environments of all processes hold, ours apart; none may be in an argv."""
    found: dict[str, set[bytes]] = {}
    for pid in psutil.pids():
        if pid == os.getpid():
            continue
        command = read(Path(f"/proc/{pid}/cmdline"))
        assert_clean(command, f"argv of {pid}")
        environment = read(Path(f"/proc/{pid}/environ"))
        held = {secret for secret in SECRETS if secret in environment}
        if held:
            words = command.replace(b"\0", b" ").decode(errors="replace")
            found[words] = found.get(words, set()) | held
    return found


def answer(url: str, key: str | None = None) -> bytes:
    request = urllib.request.Request(url)
    if key is not None:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return bytes(response.read()) + str(response.headers).encode()
    except urllib.error.HTTPError as error:
        with error:
            return error.read() + str(error.headers).encode()


def test_secrets_stay_where_they_are_needed(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    place.serve("planted", "--status-port", str(place.status_port), "--enable-debug-endpoints")
    url = f"http://127.0.0.1:{place.port}"

    # Work of every kind: a grammar starts processes of its own.
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"a": {"type": "boolean"}}}')
    place.stoker("chat", "planted", "-m", "hello", "--max-tokens", "3")
    place.stoker("chat", "planted", "-m", "x", "--max-tokens", "4", "--json-schema", str(schema))

    # Who holds what. The supervisor was given all by the shell that started it; the API server asks
    # for the key. Its model is a folder, so it downloads nothing and needs no token.
    held = processes_with_secrets()
    supervisors = {words for words in held if "stoker" in words and " serve " in words}
    servers = {words for words in held if "engine/__main__.py serve" in words}
    assert set(held) == supervisors | servers, held
    assert len(servers) == 1
    assert held[servers.pop()] == {KEY.encode()}

    for page in ("/metrics", "/health", "/version", "/v1/models", "/debug/requests"):
        assert_clean(answer(url + page, KEY), page)
    assert_clean(answer(f"{url}/v1/models", "wrong"), "a refusal")
    assert_clean(answer(f"http://127.0.0.1:{place.status_port}/metrics"), "the status pages")

    # In this process from here on: each command would read all its modules anew.
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(place.work)
    recording = place.work / "recorded.jsonl"
    for words in (
        ("status", "planted", "--json"),
        ("ps", "--json"),
        ("doctor", "--json"),
        ("report", "-o", "-"),
        ("report", "-o", "report.md"),
        ("bench", "planted", *SHORT_BENCH, "--json"),
        ("trace", "planted", "hello", "--max-tokens", "3", "--json"),
        ("top", "planted", "--once", "--json"),
        ("top", "planted", "--record", str(recording), "--steps", "2", "--interval", "0.2"),
        ("top", "--replay", str(recording), "--json"),
        ("logs", "planted", "--json"),
        ("logs", "planted", "--raw"),
        ("config", "show", "serve", "--origin"),
        ("paths",),
        ("unit", "all", "org/name", "--engine", "vllm"),
        ("unit", "systemd", str(place.model)),
        ("unit", "slurm", str(place.model)),
        ("serve", str(place.model), "--port", str(free_port()), "--dry-run"),
        ("plan", "--history", "--json"),
    ):
        capfd.readouterr()
        code = run(list(words))
        shown = "".join(capfd.readouterr())
        assert code in (0, 1, 3), (words, shown)
        assert_clean(shown.encode(), words)
    assert recording.stat().st_size > 0

    # The dashboard, and the picture that it saves.
    screen = Terminal("top", "planted", columns=120, rows=40)
    seen = screen.read_until(lambda text: "requests" in text)
    for keys in ("2", "3", "1", "P"):
        screen.type(keys)
        seen += screen.read_until(lambda text: len(text) > 200)
    seen += screen.read_until(lambda _: any(place.work.glob("*.svg")))
    screen.type("q")
    screen.wait_for_end()
    assert_clean((seen + screen.seen).encode(), "the dashboard")

    place.stoker("stop", "planted")
    for path in place.written():
        assert_clean(path.read_bytes(), path)


def test_a_key_of_the_environment_is_in_no_remains_of_a_crash(place: Place) -> None:
    variables = {"STOKER_API_KEY": KEY, "STOKER_API_KEY_FILE": ""}
    place.serve("crash", **variables)
    before = processes_with_secrets()
    assert any("engine/__main__.py serve" in words for words in before)
    core = next(
        process
        for process in psutil.process_iter(["cmdline"])
        if "--handshake" in (process.info["cmdline"] or [])
        and str(place.folder).encode() in read(Path(f"/proc/{process.pid}/environ"))
    )
    assert not any(secret in read(Path(f"/proc/{core.pid}/environ")) for secret in SECRETS)
    os.kill(core.pid, signal.SIGSEGV)
    wait_for(lambda: not is_running(core), 120.0)
    wait_for(lambda: "failed" in place.stoker("ps", "--plain"), 120.0)

    place.stoker("status", "crash", "--json")
    place.stoker("logs", "crash")
    place.stoker("report", "-o", "crash.md")
    # A start that cannot work, told with its traceback.
    missing = str(place.folder / "no-such-model")
    done = subprocess.run(
        [STOKER, "--debug", "serve", missing],
        capture_output=True,
        env={**place.environment, **variables},
        check=False,
    )
    assert b"Traceback" in done.stderr
    assert_clean(done.stdout + done.stderr, "a traceback")
    for path in place.written():
        assert_clean(path.read_bytes(), path)
