"""The import contracts cover every module, and a new file or folder cannot escape them."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.import_contracts import PACKAGES, contracts
from tests.places import ROOT


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_is_layered_without_exceptions_for_new_rooms(package: str) -> None:
    (layered,) = [one for one in contracts() if one.get("containers") == [package]]

    assert layered["exhaustive"] is True
    assert "exhaustive_ignores" not in layered


def test_circles_are_looked_for_in_every_package() -> None:
    (acyclic,) = [one for one in contracts() if one["type"] == "acyclic_siblings"]

    assert set(acyclic["ancestors"]) == set(PACKAGES)
    assert "depth" not in acyclic
    assert "skip_descendants" not in acyclic


# New files, what stands in them, and what the linter then has to name.
ESCAPES = (
    ("app/attic/__init__.py", "", "- app.attic"),
    ("engine/cellar.py", "", "- engine.cellar"),
    ("tui/loft/__init__.py", "", "- tui.loft"),
    ("logparse/shed.py", "", "- logparse.shed"),
    ("app/watch/one.py", "import app.supervise.supervisor", "app.watch.one -> app.supervise"),
    ("app/client/one.py", "import app.errors", "app.client.one -> app.errors"),
    ("app/client/two.py", "import engine.env", "app.client.two -> engine.env"),
    ("app/views/one.py", "import engine.core.client", "app.views.one -> engine.core.client"),
    ("app/views/two.py", "import textual", "app.views.two -> textual"),
    ("tui/widgets/one.py", "import app.paths", "tui.widgets.one -> app.paths"),
    ("engine/sched/one.py", "import torch", "engine.sched.one -> torch"),
    ("engine/machine/one.py", "import engine.config", "engine.machine.one -> engine.config"),
    ("logparse/rules/one.py", "import httpx", "logparse.rules.one -> httpx"),
    ("app/registry/one.py", "import app.registry.two.x", "- .two -> .one"),
    ("app/registry/two/__init__.py", "import app.registry.one", "in app.registry."),
)


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the linter says of a copy of our sources with those files in it."""
    folder = tmp_path_factory.mktemp("sources")
    shutil.copy(ROOT / "pyproject.toml", folder)
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, folder / package, ignore=lambda _, names: _not_source(names)
        )
    for new, text, _ in ESCAPES:
        (folder / new).parent.mkdir(exist_ok=True)
        (folder / new).write_text(text)
    (folder / "app" / "registry" / "two" / "x.py").touch()
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    return done.stdout


@pytest.mark.parametrize(("new", "complaint"), [(new, named) for new, _, named in ESCAPES])
def test_a_new_file_cannot_escape(complaints: str, new: str, complaint: str) -> None:
    assert complaint in complaints, new


def _not_source(names: list[str]) -> list[str]:
    return [name for name in names if "." in name and not name.endswith(".py")] + ["__pycache__"]
