"""The import rules, held by fresh interpreters: what a command or a package really loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

from app.cli import COMMANDS

HEAVY = (
    *("torch", "triton", "transformers", "tokenizers", "fastapi", "uvicorn", "starlette"),
    *("pydantic", "textual", "httpx", "zmq", "numpy", "msgspec", "safetensors", "gguf"),
    *("huggingface_hub", "prometheus_client", "rich", "openai"),
)
OURS = ("app", "engine", "tui", "logparse")

# Facade modules of the engine: standard library only, so that planning needs no extra.
FACADE = (
    *("engine", "engine.args", "engine.config", "engine.model_config", "engine.kv_sizing"),
    "engine.model_families",
    "engine.pooling_params",
    *("engine.sampling_params", "engine.errors", "engine.env", "engine.version"),
    *("engine.cuda_graph_sizes", "engine.machine.gpus"),
    *("engine.machine", "engine.machine.control_groups", "engine.machine.memory"),
    *("engine.model_files", "engine.model_files.bounds", "engine.model_files.checkpoint"),
    *("engine.model_files.config_values", "engine.model_files.gguf_header"),
    *("engine.model_files.json_objects", "engine.model_files.safetensors_header"),
    *("engine.machine.hub", "engine.machine.secrets", "engine.machine.ownership"),
    *("engine.machine.addresses", "engine.machine.nvml"),
    *("engine.machine.children", "engine.model_store", "engine.model_store.catalogue"),
    *("engine.model_store.files", "engine.model_store.store", "engine.model_store.wheels"),
    *("engine.machine.orphans", "engine.machine.ports", "engine.machine.processes"),
    "engine.step_budget",
)
_DUMP = "print('\\n'.join(sys.modules), file=sys.stderr)"


def loaded_by(code: str) -> set[str]:
    """Names of the modules in a fresh interpreter after `code`."""
    before = _modules("pass")
    return _modules(code) - before


def _modules(code: str) -> set[str]:
    script = (
        f"import sys\ntry:\n    {code}\nexcept SystemExit as end:\n    assert not end.code\n{_DUMP}"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stderr.split())


def top_level(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def third_party(modules: set[str]) -> set[str]:
    """Top-level names that are neither ours nor the standard library's."""
    standard = {*sys.stdlib_module_names, "__main__", "__mp_main__"}
    return {name for name in top_level(modules) - standard - set(OURS) if not name.startswith("_")}


@pytest.mark.parametrize(
    "args",
    [["--version"], ["--help"], *([entry.name, "--help"] for entry in COMMANDS)],
    ids=lambda args: " ".join(args),
)
def test_help_loads_nothing_heavy(args: list[str]) -> None:
    modules = loaded_by(f"from app.cli import main; main({args!r})")

    assert top_level(modules) & set(HEAVY) == set()
    assert third_party(modules) <= {"typer", "click", "annotated_doc", "shellingham"}


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
    modules = loaded_by("import logparse")

    assert third_party(modules) == set()
    assert top_level(modules) & {"app", "engine", "tui"} == set()


def test_the_client_is_a_leaf() -> None:
    names = (
        "chat.stream credentials errors metrics.exposition metrics.names metrics.sample server sse"
    )
    modules = loaded_by("; ".join(f"import app.client.{name}" for name in names.split()))

    assert third_party(modules) == set()
    door = {"engine", "engine.version", "engine.machine", "engine.machine.addresses"}
    assert {name for name in modules if name.split(".")[0] in OURS} - {"app"} - door == {
        name for name in modules if name.startswith("app.client")
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
