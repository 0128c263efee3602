"""`stoker config`, and settings through the whole command line."""

from __future__ import annotations

import dataclasses
import importlib
import json
import subprocess
import sys
from pathlib import Path

import jsonschema_rs
import pytest

from app.cli import COMMANDS
from engine.args import EngineArgs
from tests.stoker_command import run_stoker

PROJECT = """\
url = "http://me:secret-word@host:9000"
[serve]
port = 9000
max-model-len = "4k"
startup-timeout = 120
[models.list]
json = true
[profiles.coder]
port = 9009
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with a stoker.toml, beside a user file."""
    (tmp_path / "stoker.toml").write_text(PROJECT)
    (tmp_path / "user.toml").write_text("[serve]\nport = 8100\ndrain = 9\n")
    return tmp_path


def stoker(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    own = {"STOKER_CONFIG_FILE": str(folder / "user.toml"), **variables}
    return run_stoker(*words, variables=own, cwd=folder)


def test_show_says_value_and_origin_of_each(folder: Path) -> None:
    done = stoker(folder, "config", "show", "serve", "--origin", STOKER_SERVE__STALL_AFTER="7")
    lines = done.stdout.splitlines()

    assert done.returncode == 0, done.stderr
    assert "[serve]" in lines
    assert "port = 9000  # stoker.toml:3" in lines
    assert f"drain = 9  # {folder / 'user.toml'}:2" not in lines
    assert f"drain = 9  # {folder / 'user.toml'}:3" in lines
    assert 'stall-after = "7"  # STOKER_SERVE__STALL_AFTER' in lines
    assert 'dtype = "auto"  # default' in lines
    assert "# max-num-seqs is not set  # default" in lines


def test_show_as_json_masks_secrets(folder: Path) -> None:
    done = stoker(folder, "config", "show", "--json", STOKER_API_KEY="hush-hush")
    document = json.loads(done.stdout)
    found = {(row["section"], row["key"]): row for row in document["settings"]}

    assert document["schema"] == "stoker.config"
    assert document["files"] == ["stoker.toml", str(folder / "user.toml")]
    assert document["profiles"] == ["coder"]
    assert found["serve", "port"]["value"] == 9000
    assert found["serve", "port"]["kind"] == "file"
    assert found["models.list", "json"]["value"] is True
    assert found["", "api-key"] == {
        "section": "",
        "key": "api-key",
        "value": "***",
        "kind": "environment",
        "origin": "STOKER_API_KEY",
    }
    assert "hush" not in done.stdout + done.stderr
    assert "secret-word" not in done.stdout + done.stderr


def test_show_of_a_profile(folder: Path) -> None:
    shown = stoker(folder, "config", "show", "@coder", "--origin").stdout

    assert "port = 9009  # stoker.toml:9" in shown
    plain = stoker(folder, "config", "show", "@coder", "--plain").stdout
    assert "serve\tport\t9009\tstoker.toml:9\n" in plain
    assert stoker(folder, "config", "show", "@none").returncode == 2
    assert stoker(folder, "config", "show", "nothing").returncode == 2


def test_paths(folder: Path) -> None:
    (folder / "user.toml").unlink()
    done = stoker(folder, "config", "path")

    assert done.stdout.splitlines() == [
        str(folder / "stoker.toml"),
        f"{folder / 'user.toml'}  (not there)",
    ]


def test_check_names_every_mistake(folder: Path) -> None:
    assert stoker(folder, "config", "check").returncode == 0
    bad = folder / "bad.toml"
    bad.write_text(
        "[serve]\nport = [1]\nmax-model-len = 'x'\nstall-after = 0\n"
        "[chat]\nmax-tokens = 'a'\n[profiles.a]\nprot = 1\n"
    )
    done = stoker(folder, "config", "check", str(bad))

    assert done.returncode == 2
    for line in (2, 3, 4, 6, 8):
        assert f"error: {bad}:{line}: " in done.stderr
    assert stoker(folder, "config", "check", "none.toml").returncode == 2


def test_the_schema_takes_a_file_of_all_settings_and_no_mistakes(folder: Path) -> None:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    made = stoker(folder, "config", "schema")
    validator = jsonschema_rs.validator_for(json.loads(made.stdout))
    everything = toml.loads(stoker(folder, "config", "show").stdout)

    assert len(everything["serve"]) > 30
    validator.validate({**everything, "profiles": {"coder": everything["serve"]}})
    validator.validate({"serve": {"max_model_len": "4k"}, "profiles": {"a": {"port": 1}}})
    mistakes: tuple[dict[str, object], ...] = (
        {"serve": {"prot": 1}},
        {"serve": {"port": "x"}},
        {"serve": {"startup-timeout": 0}},
        {"serve": {"api-key": "sk-1"}},
        {"profiles": {"coder": {"dtype": "float7"}}},
        {"models": {"list": {"json": 1}}},
        {"sevre": {}},
        {"color": "blue"},
    )
    for wrong in mistakes:
        assert not validator.is_valid(wrong), wrong


def test_a_switch_of_a_file_is_turned_off_by_its_opposite(folder: Path) -> None:
    assert stoker(folder, "models", "list").stdout.startswith("{")
    assert not stoker(folder, "models", "list", "--no-json").stdout.startswith("{")


def test_a_dry_run_with_a_profile_flags_and_variables(folder: Path) -> None:
    words = ("serve", "@coder", "--dry-run", "smollm2-135m", "--seed", "5")
    done = stoker(folder, *words, STOKER_SERVE__MAX_NUM_SEQS="2")

    assert done.returncode == 0, done.stderr
    for flag in ("--port=9009", "--max-model-len=4000", "--max-num-seqs=2", "--seed=5"):
        assert flag in done.stdout
    assert "--shutdown-timeout=9.0" in done.stdout


def test_a_wrong_value_of_an_option_is_named_with_its_place(folder: Path) -> None:
    by_variable = stoker(folder, "serve", STOKER_SERVE__STARTUP_TIMEOUT="soon")
    (folder / "stoker.toml").write_text("[serve]\nstartup-timeout = 'soon'\n")
    by_file = stoker(folder, "serve")

    assert (by_variable.returncode, by_file.returncode) == (2, 2)
    place = "error: STOKER_SERVE__STARTUP_TIMEOUT: invalid value for '--startup-timeout'"
    assert by_variable.stderr.startswith(place)
    assert by_file.stderr.startswith(
        "error: stoker.toml:2: invalid value for '--startup-timeout': "
    )


def test_a_broken_file_stops_commands_but_not_their_help(folder: Path) -> None:
    (folder / "stoker.toml").write_text("serve = [")

    assert stoker(folder, "ps").returncode == 2
    assert stoker(folder, "ps", "--help").returncode == 0
    assert stoker(folder, "config", "path").returncode == 0
    assert stoker(folder, "--version").returncode == 0


def test_sub_commands_have_sections(folder: Path) -> None:
    done = stoker(folder, "models", "list")

    assert json.loads(done.stdout)["schema"] == "stoker.models"


def test_every_option_and_every_engine_flag_is_a_setting(folder: Path) -> None:
    shown = json.loads(stoker(folder, "config", "show", "--json").stdout)["settings"]
    found = {(row["section"], row["key"].replace("-", "_")) for row in shown}
    flags = {entry.name for entry in dataclasses.fields(EngineArgs)} - {"api_key"}

    assert {("serve", name) for name in flags} <= found
    assert {section.partition(".")[0] for section, _ in found} - {""} == {
        entry.name for entry in COMMANDS if entry.name not in ("config", "completion")
    }
    for section, key in (("plan", "tensor_parallel_size"), ("stop", "all"), ("models.rm", "yes")):
        assert (section, key) in found
