"""`engine/__main__.py`: started by path it is always this package; its command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.version import __version__


@pytest.fixture
def script(repo_root: Path) -> str:
    return str(repo_root / "engine" / "__main__.py")


@pytest.fixture
def decoy(tmp_path: Path) -> Path:
    """A folder with an `engine` that must never be imported."""
    package = tmp_path / "decoy" / "engine"
    package.mkdir(parents=True)
    for name in ("__init__", "__main__", "args", "version"):
        (package / f"{name}.py").write_text("raise SystemExit('decoy imported')\n")
    return package.parent


def _run(*command: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_folder_called_engine_is_never_taken(script: str, decoy: Path) -> None:
    for env in ({}, {"PYTHONPATH": str(decoy)}):
        done = _run(script, "--version", cwd=decoy, **env)
        assert (done.returncode, done.stdout) == (0, f"stoker engine {__version__}\n"), done
        done = _run(script, "serve", "./absent", "--port", "0", cwd=decoy, **env)
        assert done.returncode == 1, done
        assert "ModelNotFoundError: " in done.stdout


def test_package_folder_is_not_on_the_path(script: str, tmp_path: Path) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text(
        "import runpy, sys\n"
        f"sys.path.insert(0, {str(Path(script).parent)!r})\n"
        "sys.argv = ['x', '--version']\n"
        "try:\n"
        f"    runpy.run_path({script!r}, run_name='__main__')\n"
        "except SystemExit:\n"
        "    pass\n"
        f"print({str(Path(script).parent)!r} in sys.path)\n"
    )
    assert _run(str(probe)).stdout.splitlines()[-1] == "False"


def test_also_runs_as_a_module(repo_root: Path) -> None:
    done = _run("-m", "engine", "--version", cwd=repo_root)
    assert done.stdout == f"stoker engine {__version__}\n"


def test_usage_errors_end_with_code_two(script: str) -> None:
    for arguments in ([], ["serve"], ["serve", "m", "--no-such-flag"], ["serve", "m", "--port=x"]):
        assert _run(script, *arguments).returncode == 2, arguments


def test_underscores_are_dashes(script: str, tmp_path: Path) -> None:
    done = _run(script, "serve", str(tmp_path / "no"), "--max_model_len=1k", "--port", "0")
    assert done.returncode == 1
    assert "'max_model_len': 1000" in done.stdout


def test_key_from_the_environment_is_masked(script: str, tmp_path: Path) -> None:
    done = _run(script, "serve", str(tmp_path / "no"), "--port", "0", STOKER_API_KEY="k-987654")
    assert "'api_key': '***'" in done.stdout
    assert "k-987654" not in done.stdout + done.stderr


def test_a_folder_of_counts_that_is_not_ours_stays_empty(script: str, tmp_path: Path) -> None:
    folder = tmp_path / "counts"
    folder.mkdir()
    done = _run(
        script, "serve", str(tmp_path / "no"), "--port", "0", PROMETHEUS_MULTIPROC_DIR=str(folder)
    )
    assert "ModelNotFoundError: " in done.stdout
    assert list(folder.iterdir()) == []


def test_help_needs_no_heavy_library(repo_root: Path) -> None:
    code = (
        "import sys, engine.__main__ as m\n"
        "try:\n"
        "    m.main(['serve', '--help'])\n"
        "except SystemExit:\n"
        "    pass\n"
        "heavy = {'torch', 'transformers', 'fastapi', 'uvicorn', 'pydantic', 'tokenizers', 'zmq'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = _run("-c", code, cwd=repo_root)
    assert done.stdout.splitlines()[-1] == "[]", done
    assert "--max-num-batched-tokens" in done.stdout


def test_server_process_never_imports_torch(repo_root: Path) -> None:
    code = (
        "import sys, engine.server.launch, engine.core.client, engine.models.resolve\n"
        "print(sorted({'torch', 'transformers', 'numpy', 'triton'} & set(sys.modules)))\n"
    )
    done = _run("-c", code, cwd=repo_root)
    assert done.stdout == "[]\n", done
