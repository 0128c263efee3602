"""What `stoker unit` writes, against golden files and with the tools of those who read them.

WRITE_GOLDEN=1 writes the golden files anew.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import kubernetes_validate
import pytest
import yaml

from app.cli import run
from app.errors import ExitCode
from app.units.build import ENGINE_IMAGES
from app.units.deployment import PERMANENT_EXIT_CODES
from tests.debian_packages import require_programs
from tests.places import DATA
from tests.tiny_model import write_tiny_llama

_GOLDEN = DATA / "units"
_BIN = str(Path(sys.executable).parent)
_SECRET = "hf_PlantedSecret0123456789"
_PROFILES = """
[profiles.small]
model = "smollm2-135m"
port = 8001
drain = 20

[profiles.gated]
model = "google/gemma-3-4b-it"
host = "0.0.0.0"
max-model-len = 2048
max-num-seqs = 1
restart = "on-failure"
exit-when-idle = 45

[profiles.large]
model = "Qwen/Qwen2.5-7B-Instruct"
engine = "vllm"
name = "My Qwen $HOME %h"
port = 9000
gpu-memory-utilization = 0.8
engine-args = ["--tensor-parallel-size", "2"]
"""
PROFILES = ("small", "gated", "large")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the profiles, and an environment full of secrets."""
    monkeypatch.chdir(tmp_path)
    Path("stoker.toml").write_text(_PROFILES)
    monkeypatch.setenv("STOKER_STATE_DIR", str(tmp_path / "state"))
    for name in ("STOKER_API_KEY", "VLLM_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.setenv(name, _SECRET)
    return tmp_path


def write(profile: str, *words: str, kind: str = "all") -> Path:
    """Write the units of a profile; the folder."""
    out = Path("out")
    code = run(["unit", kind, f"@{profile}", "--user", "stoker", "-o", str(out), *words])
    assert code == ExitCode.OK
    return out


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("profile", PROFILES)
def test_each_text_is_the_golden_one(profile: str) -> None:
    out, golden = write(profile), _GOLDEN / profile
    found = {
        str(path.relative_to(out)): path.read_text().replace(_BIN, "/opt/stoker/bin")
        for path in files_of(out)
    }
    if os.environ.get("WRITE_GOLDEN"):
        shutil.rmtree(golden, ignore_errors=True)
        for name, text in found.items():
            (golden / name).parent.mkdir(parents=True, exist_ok=True)
            (golden / name).write_text(text)
    wanted = {str(path.relative_to(golden)): path.read_text() for path in files_of(golden)}
    if _BIN.startswith("/tmp/"):  # a unit that is to find its program there has no private /tmp
        wanted = {name: text.replace("PrivateTmp=yes\n", "") for name, text in wanted.items()}
    assert found == wanted


def check(profile: str, capsys: pytest.CaptureFixture[str], kind: str = "all") -> list[list[str]]:
    """[verdict, file, tool] of each line of `stoker unit KIND --check`, which finds no fault."""
    code = run(["unit", kind, f"@{profile}", "--user", "root", "--check"])
    shown = capsys.readouterr()
    assert code == ExitCode.OK, shown.out
    return [re.split(r"  +|: | is ", line) for line in shown.out.splitlines()]


@pytest.mark.parametrize("profile", PROFILES)
def test_the_tools_find_no_fault(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    good = {tool for verdict, _, tool, *_ in check(profile, capsys) if verdict == "good"}
    assert {"bash", "shellcheck", "kubernetes-validate"} <= good


@pytest.mark.parametrize("profile", PROFILES)
def test_systemd_finds_no_fault(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    require_programs(("systemd-analyze",), "systemd")
    for words in ([], ["--user-unit"]):
        assert run(["unit", "systemd", f"@{profile}", "--user", "root", "--check", *words]) == 0
        assert re.match(r"good .*\.service: systemd-analyze", capsys.readouterr().out)


def test_what_is_to_be_typed_begins_in_the_folder_of_the_files(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = write("small").absolute()
    steps = re.findall(r"next, for (\w+):\n  cd (.+)\n", capsys.readouterr().err)
    assert steps == [(kind, str(out / kind)) for kind, _ in steps]
    assert {kind for kind, _ in steps} == {path.name for path in out.iterdir()}


def test_files_that_are_nowhere_yet_are_not_to_be_used_next(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["unit", "slurm", "@small"]) == ExitCode.OK
    said = capsys.readouterr().err
    assert "next: the same command with -o FOLDER writes the files" in said
    assert "sbatch" not in said


@pytest.mark.parametrize("profile", PROFILES)
def test_no_secret_of_the_environment_gets_in(
    profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = write(profile, "--api-key", _SECRET)
    shown = capsys.readouterr()
    texts = [path.read_text() for path in files_of(out)]
    assert not any(_SECRET in text for text in (*texts, shown.out, shown.err))


def test_a_file_for_secrets_is_private_and_keeps_what_was_put_into_it() -> None:
    (path,) = (path for path in files_of(write("gated", kind="systemd")) if path.suffix == ".env")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "#HF_TOKEN=" in path.read_text()
    path.write_text("HF_TOKEN=mine\n")
    write("gated", kind="systemd")
    assert path.read_text() == "HF_TOKEN=mine\n"


def test_permanent_ends_are_not_restarted() -> None:
    unit = next(write("small", kind="systemd").glob("*.service")).read_text()
    codes = " ".join(str(int(code)) for code in PERMANENT_EXIT_CODES)
    assert f"RestartPreventExitStatus={codes}\n" in unit


@pytest.mark.parametrize("image", [*ENGINE_IMAGES.values()])
def test_no_image_is_whatever_is_newest(image: str) -> None:
    assert image.rpartition(":")[2] not in ("", "latest", image)


# What `leaderworkerset.x-k8s.io/v1` says of the fields that are written, in the words of its API's
# documentation; its own schema is in no package. Pods are checked as pods.
_LEADER_WORKER_SET = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "leaderworkerset.x-k8s.io/v1"},
        "kind": {"const": "LeaderWorkerSet"},
        # Services are named after it: a label of DNS.
        "metadata": {"properties": {"name": {"pattern": "^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"}}},
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["leaderWorkerTemplate"],
            "properties": {
                "replicas": {"type": "integer", "minimum": 1},
                "leaderWorkerTemplate": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["workerTemplate"],
                    "properties": {
                        "size": {"type": "integer", "minimum": 1},
                        "restartPolicy": {
                            "enum": [
                                *("RecreateGroupOnPodRestart", "RecreateGroupAfterStart"),
                                *("None", "Default"),
                            ]
                        },
                        "leaderTemplate": {"type": "object"},
                        "workerTemplate": {"type": "object"},
                    },
                },
            },
        },
    },
}


def _group() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The other objects of a server on two nodes, and its LeaderWorkerSet."""
    out = write("large", "--nodes", "2", kind="kubernetes")
    objects = list(yaml.safe_load_all(next(out.glob("stoker-*.yaml")).read_text()))
    group = next(one for one in objects if one["kind"] == "LeaderWorkerSet")
    return [one for one in objects if one is not group], group


def test_several_nodes_are_a_group_of_pods() -> None:
    others, group = _group()
    spec = group["spec"]["leaderWorkerTemplate"]
    leader, worker = spec["leaderTemplate"], spec["workerTemplate"]
    args = worker["spec"]["containers"][0]["args"]
    assert spec["size"] == 2
    assert args[-3:] == ["--node-rank", "$(LWS_WORKER_INDEX)", "--headless"]
    assert leader["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert leader["metadata"]["labels"] != worker["metadata"]["labels"], "clients go to the leader"
    assert "readinessProbe" not in worker["spec"]["containers"][0]
    claim = next(one for one in others if one["kind"] == "PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"], "two nodes mount it"


def test_a_group_of_pods_has_the_fields_of_its_api() -> None:
    _, group = _group()
    jsonschema_rs.validate(_LEADER_WORKER_SET, group)
    for role in ("leaderTemplate", "workerTemplate"):
        pod = {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": group["metadata"],
            "template": group["spec"]["leaderWorkerTemplate"][role],
        }
        kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)


def test_a_kind_that_no_tool_knows_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["unit", "kubernetes", "@large", "--nodes", "2", "--check"]
    assert run(words) == ExitCode.OK
    out = capsys.readouterr().out
    assert re.search(r"^not checked .* has no schema for LeaderWorkerSet", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["systemctl", "smollm2-135m"], "no such kind of unit: systemctl"),
        (["systemd", "smollm2-135m", "--detach"], "--detach is about one start by hand"),
        (["systemd", "smollm2-135m", "--max-model-length", "4k"], "no such flag"),
        (["kubernetes", "smollm2-135m", "--nodes", "2"], "--nodes 2: units of several nodes"),
        (["slurm", "@large", "--nodes", "2"], "a slurm unit is one node's"),
        (["compose", "."], "lies on this machine, and a container does not see it"),
    ],
)
def test_what_makes_no_unit_is_refused(
    words: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["unit", *words]) == ExitCode.USAGE
    shown = capsys.readouterr()
    assert error in shown.err
    assert shown.out == ""


def test_a_tool_that_is_missing_is_named(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(place))
    monkeypatch.setattr("app.units.check.sys.executable", str(place / "python"))
    assert run(["unit", "all", "--check", "@small"]) == ExitCode.OK
    out = capsys.readouterr().out
    for tool in ("systemd-analyze", "shellcheck", "sbatch", "kubernetes-validate", "docker"):
        assert f"{tool} is not here" in out


def test_the_command_of_a_unit_is_one_that_serve_takes() -> None:
    unit = next(write("large", kind="systemd").glob("*.service")).read_text()
    command = unit.partition("ExecStart=")[2].partition("\nExecReload")[0]
    assert command.endswith("-- --tensor-parallel-size 2")
    assert '--name "My Qwen $$HOME %%h"' in command
    job = write("gated", kind="slurm") / "stoker-gemma-3-4b-it.sbatch"
    text = job.read_text()
    script = text[: text.index("exec ")] + "printf '%s\\n' " + text[text.index("exec ") + 5 :]
    environment = {"PATH": os.environ["PATH"], "HOME": str(job.parent), "SLURM_JOB_ID": "7"}
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=environment, check=True
    )
    words = done.stdout.split("\n")
    assert words[1:3] == ["serve", "google/gemma-3-4b-it"]
    assert words[words.index("--endpoint-file") + 1] == "job:7"
    assert run([*words[1:-1], "--dry-run", "--help"]) == ExitCode.OK


def _service(*words: str) -> str:
    assert run(["unit", "systemd", "--user", "root", "-o", "out", *words]) == ExitCode.OK
    (path,) = Path("out").glob("*.service")
    return path.read_text()


def test_a_unit_names_files_by_their_whole_path(place: Path) -> None:
    write_tiny_llama(place / "smollm2-135m")
    write_tiny_llama(place / "tiny")
    (place / "t.jinja").touch()
    words = ["--enforce-eager", "./tiny", "--chat_template=t.jinja", "--uds", "it.sock"]
    text = _service(*words, "--served-model-name", "tiny")
    assert f"--enforce-eager {place}/tiny \\\n" in text
    assert f"--chat-template={place}/t.jinja \\\n" in text
    assert f"--uds {place}/it.sock \\\n" in text
    assert "--served-model-name tiny \\\n" in text, "a name is no file"


@pytest.mark.parametrize(
    ("uds", "line", "is_private"),
    [
        ("/run/tiny/it.sock", "RuntimeDirectory=tiny", True),
        ("/srv/my sockets/it.sock", 'ReadWritePaths="-/srv/my sockets"', True),
        ("/tmp/it.sock", 'ReadWritePaths="-/tmp"', False),
    ],
)
def test_a_closed_in_service_may_make_its_socket(
    uds: str, line: str, *, is_private: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["--uds", uds], [f"--uds={uds}"]):
        text = _service("smollm2-135m", *words)
        assert line in text.splitlines()
        is_hidden = is_private and not _BIN.startswith("/tmp/")  # where the program itself lies
        assert ("PrivateTmp=yes" in text) == is_hidden, "a /tmp of its own hides it from clients"
    assert f"unix:{uds}" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["slurm", "kubernetes", "compose"])
def test_a_socket_file_is_for_clients_of_its_own_machine(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["unit", kind, "smollm2-135m", "--uds", "it.sock"]) == ExitCode.USAGE
    assert f"the clients of a {kind} unit are outside of its machine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("engine", "variables"),
    [
        ("stoker", {"HF_HOME", "STOKER_CACHE_DIR", "TRITON_CACHE_DIR"}),
        ("vllm", {"HF_HOME", "TRITON_CACHE_DIR", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT"}),
        ("llama.cpp", {"HF_HOME", "LLAMA_CACHE"}),
    ],
)
def test_what_an_engine_keeps_lies_where_a_closed_in_service_may_write(
    engine: str, variables: set[str]
) -> None:
    text = _service("org/model", "--engine", engine, "--name", "it")
    found = dict(re.findall(r'^Environment="(\w+)=(.*)"$', text, re.MULTILINE))
    assert variables <= set(found)
    own = ("/var/cache/stoker-it", "/var/lib/stoker-it", "/run/stoker-of-root/")
    assert all(value.startswith(own) for value in found.values())
    assert "RuntimeDirectory=stoker-of-root\n" in text
