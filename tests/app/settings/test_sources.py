"""Precedence, names and types of settings: files and variables as a user writes them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from app.command_line import build_command, run_command
from app.commands.serve import app as serve_app
from app.errors import StokerError
from app.launch.engine_flags import with_engine_settings
from app.launch.launch_specs import ServeRequest, parse_serve_request
from app.settings.options import effective_settings, settings_for
from app.settings.sources import (
    Settings,
    SettingsFile,
    read_settings,
    variable,
    writable_by_others,
)
from tests.places import ROOT

SERVE = ("serve",)
SOURCES = ("flag", "variable", "profile", "project", "user")  # the strongest first
# What stoker.toml and config.toml say, and which line does.
MISTAKES = [
    ("[serve]\nprot = 1", "stoker.toml:2: no such setting: [serve] prot", "did you mean port?"),
    ("[serve]\n\nport = 'x'", "stoker.toml:3: --port: invalid int value: 'x'", None),
    ("[serve]\nport = true", "stoker.toml:2: [serve] port must be a text or a number", None),
    ("[serve]\nport = 99999", "stoker.toml:2: --port 99999 is out of range", "1024"),
    ("[serve]\nenforce-eager = 'so'", "stoker.toml:2: [serve] enforce-eager must be true or", None),
    ("[serve]\ndetach = 'so'", "stoker.toml:2: [serve] detach must be true or false", None),
    ("[serve]\ndrain = [1]", "stoker.toml:2: [serve] drain must be a text or a number", None),
    ("[serve]\napi-key = 'sk-1'", "stoker.toml:2: a secret does not belong into", "api-key-file"),
    ("[serve]\nmodel = './none'", "stoker.toml:2: no such model folder or file: ./none", None),
    ("serve = 1", "stoker.toml:1: no such setting: serve", None),
    ("[sevre]\nport = 1", "stoker.toml:1: no such section: sevre", "did you mean serve?"),
    ("colour = 'x'", "stoker.toml:1: no such setting: colour", "did you mean color?"),
]


def settings_of(project: str = "", user: str = "", **environ: str) -> Settings:
    import importlib
    import sys

    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    texts = {Path("stoker.toml"): project, Path("config.toml"): user}
    files = (SettingsFile(path, text, toml.loads(text)) for path, text in texts.items() if text)
    return Settings(environ, tuple(files))


def served(settings: Settings, *words: str) -> ServeRequest:
    """What `stoker serve WORDS` would ask the engine for."""
    chosen = settings_for(build_command(serve_app), SERVE, words, settings)
    return parse_serve_request(with_engine_settings(chosen.args, chosen.extra))


def checked_and_served(settings: Settings) -> None:
    settings.require_sections(["serve"])
    served(settings)


def echoed(settings: Settings, *words: str) -> Any:
    """What a command with the option `--size` gets."""

    def echo(size: int = typer.Option(0, "--size")) -> int:
        return size

    with patch.dict(os.environ, dict(settings.environ)):
        return run_command(build_command(echo), list(words), "stoker echo", settings)


def stated(values: Mapping[str, int], section: str, key: str) -> Settings:
    """Each source says its value, where it has one."""
    texts = {
        source: f"[{name}]\n{key} = {values[source]}\n" if source in values else ""
        for source, name in (("project", section), ("user", section), ("profile", "profiles.p"))
    }
    profile = texts["profile"] or "[profiles.p]\n"
    name = variable((section,), key)
    environ = {name: str(values["variable"])} if "variable" in values else {}
    return settings_of(f"{texts['project']}{profile}", texts["user"], **environ)


@given(st.dictionaries(st.sampled_from(SOURCES), st.integers(1024, 65535)))
def test_an_engine_flag_has_the_value_of_the_strongest_source(values: dict[str, int]) -> None:
    settings = stated(values, "serve", "port")
    flag = [f"--port={values['flag']}"] if "flag" in values else []
    wanted = next((values[source] for source in SOURCES if source in values), 8000)

    assert served(settings, "@p", *flag).args.port == wanted
    without = next((values[source] for source in SOURCES[1:] if source in values), 8000)
    shown = effective_settings(build_command(serve_app), SERVE, settings, "p")
    assert int(next(row.value for row in shown if row.key == "port")) == without


@given(st.dictionaries(st.sampled_from([*SOURCES[:2], *SOURCES[3:]]), st.integers(1, 99)))
def test_an_option_has_the_value_of_the_strongest_source(values: dict[str, int]) -> None:
    settings = stated(values, "echo", "size")
    flag = ["--size", str(values["flag"])] if "flag" in values else []

    wanted = next((values[source] for source in SOURCES if source in values), 0)
    assert echoed(settings, *flag) == wanted


def test_spellings_lists_and_switches() -> None:
    settings = settings_of(
        "[serve]\nmax_model_len = '4k'\nenforce-eager = true\ncudagraph-capture-sizes = [1, 2]\n"
        "allowed-origins = ['https://a.example']\n",
        STOKER_SERVE__ENABLE_PREFIX_CACHING="0",
        STOKER_SERVE__BLOCK_SIZE="",
    )
    args = served(settings, "smollm2-135m").args

    assert (args.max_model_len, args.enforce_eager) == (4000, True)
    assert (args.enable_prefix_caching, args.block_size) == (False, None)
    assert args.cudagraph_capture_sizes == (1, 2)
    assert args.allowed_origins == ("https://a.example",)
    assert served(settings, "--no-enforce-eager").args.enforce_eager is False


def test_a_profile_brings_model_flags_and_words_for_the_engine() -> None:
    profile = "[profiles.coder]\nmodel = 'org/coder'\nport = 9000\nengine-args = ['-ngl', 99]\n"
    settings = settings_of(profile + "[serve]\nmodel = 'org/other'\nseed = 3\n")
    request = served(settings, "@coder", "--port", "9001", "--", "--mlock")

    assert (request.model, request.args.port, request.args.seed) == ("org/coder", 9001, 3)
    assert request.engine_words == ("-ngl", "99", "--mlock")
    assert served(settings, "@coder", "org/third").model == "org/third"
    assert served(settings, "smollm2-135m").model == "smollm2-135m"
    both = settings_of("[profiles.my-coder]\nport = 1025\n", "[profiles.my-coder]\nseed = 7\n")
    args = served(both, "@my-coder").args
    assert (args.port, args.seed) == (1025, 7)
    assert served(settings).model == "org/other"


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("@code",), "no such profile: @code", "profiles: @coder"),
        (("--port", "1", "@coder"), "the profile @coder has to come first", "serve @coder"),
    ],
)
def test_profiles_that_cannot_be_meant(words: tuple[str, ...], message: str, hint: str) -> None:
    with pytest.raises(StokerError, match=message) as caught:
        served(settings_of("[profiles.coder]\nport = 9000\n"), *words)

    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(("text", "message", "hint"), MISTAKES)
def test_a_mistake_is_named_with_its_line(text: str, message: str, hint: str | None) -> None:
    settings = settings_of(text)
    with pytest.raises(StokerError) as caught:
        checked_and_served(settings)

    assert str(caught.value).startswith(message)
    assert caught.value.exit_code == 2
    assert "sk-1" not in f"{caught.value} {caught.value.hint}"
    if hint is not None:
        assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("STOKER_SERVE__PROT", "STOKER_SERVE__PROT: no such setting: [serve] prot"),
        ("STOKER_SREVE__PORT", "STOKER_SREVE__PORT: no such section: sreve"),
        ("STOKER_SERVE__API_KEY", "STOKER_SERVE__API_KEY: a secret does not belong"),
    ],
)
def test_a_mistake_in_a_variable_is_named(name: str, message: str) -> None:
    settings = settings_of(**{name: "hush"})
    with pytest.raises(StokerError) as caught:
        checked_and_served(settings)

    assert str(caught.value).startswith(message)


def test_files_that_are_no_settings(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    environ = {"STOKER_CONFIG_FILE": str(path)}
    assert read_settings(environ).files == ()

    for content, message in ((b"a = \nb = 1", "line 1"), (b"\xff", "utf-8")):
        path.write_bytes(content)
        with pytest.raises(StokerError, match=message) as caught:
            read_settings(environ)
        assert str(path) in str(caught.value)


def test_a_file_that_others_can_change_is_said(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[serve]\nport = 9000\n")
    settings = read_settings({"STOKER_CONFIG_FILE": str(path)})
    path.chmod(0o664)
    assert list(writable_by_others(settings.files)) == []
    path.chmod(0o666)
    assert "chmod go-w" in next(writable_by_others(settings.files))


def test_general_keys_become_variables_that_are_not_set() -> None:
    project = 'url = ":9000"\napi-key-file = "~/key"\nlog-stats-interval = 2\n'
    environ = {"STOKER_URL": ":1", "HOME": "/home/me"}
    with patch.dict(os.environ, environ):
        settings_of(project, 'cache-dir = "/c"\nurl = ":2"').put_general_into(environ)

    assert environ["STOKER_URL"] == ":1"
    assert environ["STOKER_API_KEY_FILE"] == "/home/me/key"
    assert (environ["STOKER_LOG_STATS_INTERVAL"], environ["STOKER_CACHE_DIR"]) == ("2", "/c")


def test_a_key_in_the_environment_is_stronger_than_a_key_file_in_a_file() -> None:
    text, command = "[serve]\napi-key-file = 'key'\n", build_command(serve_app)

    assert settings_for(command, SERVE, [], settings_of(text)).default_map
    settings = settings_of(text, STOKER_API_KEY="hush")
    assert settings_for(command, SERVE, [], settings).default_map == {}


def test_every_switch_of_a_file_can_be_turned_off_by_a_flag() -> None:
    command = build_command(serve_app)
    settings = settings_of("[serve]\nno-tui = true\ndetach = true\nenforce-eager = true\n")
    given = {"default_map": settings_for(command, SERVE, [], settings).default_map}

    with command.make_context("stoker serve", [], **given) as context:
        assert (context.params["no_tui"], context.params["detach"]) == (True, True)
    with command.make_context("stoker serve", ["--tui", "--no-detach"], **given) as context:
        assert (context.params["no_tui"], context.params["detach"]) == (False, False)
        assert context.args == []
    assert served(settings, "--no-enforce-eager").args.enforce_eager is False


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("STOKER_FOO", "those of a command have its name"),
        ("STOKER_CACHE_DIRR", "did you mean STOKER_CACHE_DIR?"),
        ("STOKER_PORT", "STOKER_SERVE__PORT is"),
    ],
)
def test_a_variable_that_nobody_reads_is_refused(name: str, hint: str) -> None:
    with pytest.raises(StokerError, match=f"no such variable: {name}") as refused:
        settings_of(**{name: "1"}).require_sections(["serve"])

    assert refused.value.exit_code == 2
    assert hint in str(refused.value.hint)


def test_variables_that_a_cluster_sets_for_its_services_pass() -> None:
    names = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "CHAT_SERVICE_HOST")
    addresses = ("PORT_8000_TCP_ADDR", "PORT_8000_TCP", "CHAT_PORT_8000_TCP_PROTO")
    environ = {f"STOKER_{name}": "10.0.0.1" for name in (*names, *addresses)}
    environ |= {"STOKER_PORT": "tcp://10.0.0.1:8000", "STOKER_CHAT_PORT": "tcp://10.0.0.2:8000"}

    settings_of(**environ, STOKER_EMPTY="").require_sections(["serve"])


def test_every_variable_of_the_source_is_known() -> None:
    names = {
        name
        for package in ("app", "engine", "tui")
        for path in (ROOT / package).rglob("*.py")
        for name in re.findall(r"[\"'](STOKER_[A-Z][A-Z_]*[A-Z])[\"']", path.read_text())
    }

    assert "STOKER_PACKED_CACHE_GIB" in names
    settings_of(**dict.fromkeys(names, "1")).require_sections(["serve"])
