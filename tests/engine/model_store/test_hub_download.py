"""Downloads by the real client of huggingface_hub, in own processes, from a hub on this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.model_store.progress import StoreProgress, told_by_tenth
from tests.fakes.hub import COMMIT, FakeHub, running_hub
from tests.places import ROOT
from tests.tiny_model import write_tiny_llama
from tests.waiting import wait_for

RESOLVE = [sys.executable, str(ROOT / "engine" / "__main__.py"), "resolve"]
REPO = "org/tiny"
WEIGHTS = "model.safetensors"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    folder = write_tiny_llama(tmp_path / "upstream", vocab_size=9000)  # 1.1 MiB of weights
    (folder / "modeling.py").write_text("raise SystemExit('never fetched')\n")
    hub = FakeHub({REPO: folder}, tokens={"hf_member": "member", "hf_guest": "guest"})
    with running_hub(hub):
        yield hub


def environment(hub: FakeHub, home: Path, **variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return {**kept, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), **variables}


def resolve(hub: FakeHub, home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RESOLVE, REPO],
        env=environment(hub, home, **variables),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def blobs(home: Path) -> list[Path]:
    return sorted((home / "hub" / "models--org--tiny" / "blobs").glob("*"))


def test_a_killed_download_goes_on_where_it_stopped(hub: FakeHub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    write_tiny_llama(hub.repositories[REPO], vocab_size=190_000)  # the client takes 10 MiB at once
    size = (hub.repositories[REPO] / WEIGHTS).stat().st_size
    hub.stop_after = size // 2
    with subprocess.Popen([*RESOLVE, REPO], env=environment(hub, home)) as process:
        try:
            wait_for(lambda: any(path.stat().st_size > size // 4 for path in blobs(home)))
        finally:
            process.send_signal(signal.SIGKILL)
    (partial,) = (path for path in blobs(home) if path.name.endswith(".incomplete"))
    have = partial.stat().st_size
    hub.go_on.set()
    hub.stop_after = None
    hub.requests.clear()

    done = resolve(hub, home)

    assert done.returncode == 0, done.stderr
    assert hub.sent(WEIGHTS) == size - have
    assert [one.range for one in hub.requests if one.sent and WEIGHTS in one.path] == [
        f"bytes={have}-"
    ]
    assert f"Downloading {REPO}: {100 * have // size}% (" in done.stderr
    assert f"Downloading {REPO}: 100% (" in done.stderr
    snapshot = Path(done.stdout.splitlines()[-1])
    assert snapshot == home / "hub" / "models--org--tiny" / "snapshots" / COMMIT
    assert (snapshot / WEIGHTS).read_bytes() == (hub.repositories[REPO] / WEIGHTS).read_bytes()
    assert not (snapshot / "modeling.py").exists()

    hub.requests.clear()
    assert resolve(hub, home).returncode == 0
    assert hub.requests == []  # what is whole needs no network


def test_damage_on_the_way_is_no_model(hub: FakeHub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert resolve(hub, home).returncode == 0
    (blob,) = (path for path in blobs(home) if len(path.name) == 64)
    content = blob.read_bytes()
    blob.unlink()
    partial = blob.with_name(f"{blob.name}.stoker.incomplete")
    partial.write_bytes(b"\xff" + content[1:])

    done = resolve(hub, home)

    assert done.returncode == 1
    assert "arrived damaged" in done.stderr
    assert "Traceback" not in done.stderr
    assert not blob.exists()
    assert not partial.exists()
    assert resolve(hub, home).returncode == 0


def test_a_token_never_reaches_the_storage(hub: FakeHub, tmp_path: Path) -> None:
    assert resolve(hub, tmp_path / "home", HF_TOKEN="hf_member").returncode == 0

    tokens = {one.path.startswith("/storage"): one.token for one in hub.requests}
    assert tokens == {False: "hf_member", True: None}


@pytest.mark.parametrize(
    ("token", "words"),
    [
        (None, ("settings/tokens", "stoker models login")),
        ("hf_guest", ("stands in HF_TOKEN", "stoker models whoami")),
    ],
)
def test_a_gate_names_its_page_and_the_command(
    token: str | None, words: tuple[str, ...], hub: FakeHub, tmp_path: Path
) -> None:
    hub.gated[REPO] = ("member",)
    variables = {} if token is None else {"HF_TOKEN": token}

    done = resolve(hub, tmp_path / "home", **variables)

    assert done.returncode == 1
    assert f"https://huggingface.co/{REPO}" in done.stderr
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert resolve(hub, tmp_path / "home", HF_TOKEN="hf_member").returncode == 0


def test_too_little_room_is_said_before_a_byte_is_fetched(hub: FakeHub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    hub.claimed_sizes[WEIGHTS] = 1 << 60

    done = resolve(hub, home)

    assert done.returncode == 1, done.stderr
    assert re.search(r"org/tiny needs 1073741824\.\d\d GiB of disk", done.stderr)
    assert re.search(rf"{home}/hub has [\d.]+ GiB free", done.stderr)
    assert "HF_HOME=FOLDER" in done.stderr
    assert hub.sent(WEIGHTS) == 0


def test_a_slow_download_is_told_of() -> None:
    lines: list[str] = []
    now = [0.0]
    tell = told_by_tenth("org/x", lines.append, lambda: now[0])
    for seconds, done in ((0, 0), (1, 1), (19, 2), (21, 3), (22, 3), (50, 3), (51, 100)):
        now[0] = seconds
        tell(StoreProgress("download", done << 20, 1000 << 20))

    assert lines == [
        "Downloading org/x: 0% (0 B of 1000.0 MiB)",
        "Downloading org/x: 0% (3.0 MiB of 1000.0 MiB)",
        "Downloading org/x: 10% (100.0 MiB of 1000.0 MiB)",
    ]
