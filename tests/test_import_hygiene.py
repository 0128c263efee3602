"""The import rules, held by fresh interpreters: what a command or a package really loads."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from app.cli import COMMANDS
from tests.import_contracts import contracts
from tests.loaded_modules import HEAVY, OURS, loaded_by, third_party, top_level
from tests.places import ROOT


def modules_of(package: str) -> Iterator[str]:
    """Every module that lies in a package, those of new files too."""
    for path in sorted((ROOT / package.replace(".", "/")).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        yield name.removesuffix(".__init__")


def forbidden_to(package: str) -> list[str]:
    """What the import contracts keep away from a package as a whole."""
    return [
        name
        for contract in contracts()
        if contract["type"] == "forbidden" and contract["source_modules"] == [package]
        for name in contract["forbidden_modules"]
    ]


# The engine's facade: all of it but its machinery. Standard library only, so that planning needs no
# extra.
FACADE = tuple(
    name for name in modules_of("engine") if not name.startswith(tuple(forbidden_to("app")))
)


def test_no_test_takes_anything_from_another_test() -> None:
    taken = [
        f"{path.relative_to(ROOT)}: {node.module}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and any(part.startswith("test_") for part in (node.module or "").split("."))
    ]
    assert taken == []


@pytest.mark.parametrize(
    "args",
    [["--version"], ["--help"], *([entry.name, "--help"] for entry in COMMANDS)],
    ids=lambda args: " ".join(args),
)
def test_help_loads_nothing_heavy(args: list[str]) -> None:
    modules = loaded_by(f"from app.cli import main; main({args!r})")

    assert top_level(modules) & set(HEAVY) == set()
    assert third_party(modules) <= {"typer", "click", "annotated_doc", "shellingham"}
    assert "logparse.parser" not in modules


def test_the_root_loads_neither_typer_nor_a_command() -> None:
    modules = loaded_by("from app.cli import main; main(['--help'])")

    assert third_party(modules) == set()
    assert {name for name in modules if name.startswith("app")} == {"app", "app.cli", "app.errors"}


@pytest.mark.parametrize("name", ["models", "models list", "models pull", "models show"])
def test_help_of_sub_commands(name: str) -> None:
    args = [*name.split(), "--help"]
    modules = loaded_by(f"from app.cli import main; main({args!r})")

    assert top_level(modules) & set(HEAVY) == set()


def test_logparse_is_the_standard_library_alone() -> None:
    modules = loaded_by("from logparse import *")

    assert "logparse.parser" in modules
    assert third_party(modules) == set()
    assert top_level(modules) & {"app", "engine", "tui"} == set()


def test_the_client_is_a_leaf() -> None:
    modules = loaded_by("; ".join(f"import {name}" for name in modules_of("app.client")))

    assert third_party(modules) == set()
    of_ours = {name for name in modules if name.startswith(OURS)}
    door = ("app.client", "engine.machine")  # the machine, and the packages' own names
    assert {name for name in of_ours if not name.startswith(door)} == {
        *("app", "engine", "engine.version"),
    }


@pytest.mark.parametrize("module", FACADE)
def test_the_engine_facade_is_the_standard_library_alone(module: str) -> None:
    modules = loaded_by(f"import {module}")

    assert third_party(modules) == set()
    assert top_level(modules) & {"app", "tui", "logparse"} == set()


def test_checking_a_command_line_loads_no_engine_part_behind_the_facade() -> None:
    modules = loaded_by("import app.launch.launch_specs as s; s.parse_serve_request(['a/b'])")

    behind = {name for name in modules if name.startswith("engine.")} - set(FACADE)
    assert behind == set()
    assert top_level(modules) & set(HEAVY) == set()


def test_doctor_runs_without_heavy_modules() -> None:
    modules = loaded_by(
        "from app.doctor.gather import *; from app.doctor.report import check_facts; "
        "check_facts(gather(Question()))"
    )

    assert top_level(modules) & set(HEAVY) == set()


def test_the_tables_of_flags_load_no_log_parser() -> None:
    modules = loaded_by("import logparse.problems.flags")
    assert not {name for name in modules if name.startswith(("logparse.parser", "logparse.rules"))}
