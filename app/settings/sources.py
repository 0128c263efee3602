"""Settings outside the command line: variables, ./stoker.toml, the user's config.toml, profiles.

Owns names, places and precedence: flag > environment > profile > project file > user file >
default. Which keys a command has, and what a value must be, is known to `app.settings.options`.
"""

from __future__ import annotations

import importlib
import os
import re
import stat
import sys
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.errors import StokerError, UsageError

PROJECT_FILE = Path("stoker.toml")
USER_FILE_VARIABLE = "STOKER_CONFIG_FILE"
PROFILES = "profiles"
GENERAL: Section = ()
# Keys above the first section: each is the variable of its name, for all commands and the engine.
GENERAL_KEYS = (
    *("url", "api_key_file", "color", "cache_dir", "state_dir"),
    *("theme", "logging_level", "log_stats_interval"),
)
_SECRET_KEYS = ("api_key", "hf_token")
# Variables that are no settings: read by one command or the engine, or set by Stoker itself.
_OTHER_VARIABLES = (
    *("STOKER_API_KEY", "STOKER_CONFIG_FILE", "STOKER_ASCII", "STOKER_PROMETHEUS_LOGIN"),
    *("STOKER_NATIVE_ISA", "STOKER_PACKED_CACHE_GIB", "STOKER_SERVER_MARK", "STOKER_SELFTEST"),
    *("STOKER_DEVICES_DIR", "STOKER_NODE_KEY"),
)
_TEST_VARIABLES = ("STOKER_TEST_", "STOKER_FUZZ_", "STOKER_REWRITE_")
# What Kubernetes puts into every pod of a namespace with a service called `stoker` or `stoker-...`.
_SERVICE_LINK = re.compile(
    r"STOKER_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)"
)

Section = tuple[str, ...]
"""`("serve",)` is [serve], `("models", "rm")` [models.rm], `("profiles", "x")` [profiles.x]."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A value, and where it stands: the name of a variable, or FILE:LINE."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """One file, read and parsed."""

    path: Path
    text: str
    tables: Mapping[str, Any]

    def section(self, section: Section) -> dict[str, Setting]:
        """The keys of a section, with underscores; what is deeper in it is left as a table."""
        table: Any = self.tables
        for name in section:
            table = table.get(name, {}) if isinstance(table, Mapping) else {}
        if not isinstance(table, Mapping):
            raise UsageError(f"{self.path}: {'.'.join(section)} must be a section, [{section[-1]}]")
        return {
            _plain(key): Setting(value, self._place(section, key)) for key, value in table.items()
        }

    def _place(self, section: Section, key: str) -> str:
        """Where the key stands, as far as that can be seen without a parser."""
        wanted = re.compile(rf"""\s*["']?{re.escape(key)}["']?\s*[=.]""")
        current: Section = ()
        for number, line in enumerate(self.text.splitlines(), 1):
            header = re.match(r"\s*\[([^\[\]]+)\]", line)
            if header is not None:
                current = tuple(part.strip(" \"'") for part in header[1].split("."))
            if (*section, key) == current or (current == section and wanted.match(line)):
                return f"{self.path}:{number}"
        return str(self.path)


@dataclass(frozen=True, slots=True)
class Settings:
    """The environment and the files, the strongest first."""

    environ: Mapping[str, str]
    files: tuple[SettingsFile, ...] = ()

    def in_files(self, section: Section, profile: str | None = None) -> dict[str, Setting]:
        """What the files say in a section; a profile's keys are stronger."""
        found: dict[str, Setting] = {}
        for name in [(PROFILES, profile), section] if profile else [section]:
            for file in self.files:
                found = {**file.section(name), **found}
        return found

    def in_environment(self, section: Section) -> dict[str, Setting]:
        """What variables say: STOKER_SERVE__PORT is `port` of [serve]; empty ones say nothing."""
        prefix = variable(section, "")
        return {
            name[len(prefix) :].lower(): Setting(value, name)
            for name, value in self.environ.items()
            if name.startswith(prefix) and "__" not in name[len(prefix) :] and value
        }

    def profiles(self) -> frozenset[str]:
        tables = (file.tables.get(PROFILES) for file in self.files)
        return frozenset(name for table in tables if isinstance(table, Mapping) for name in table)

    def require_sections(self, commands: Collection[str]) -> None:
        """Refuse sections and general keys that nobody reads."""
        for name in self.environ:
            head, separator, _ = name.partition("__")
            if separator and head.startswith("STOKER_"):
                _require_section(name, head[len("STOKER_") :].lower(), commands)
            elif head.startswith("STOKER_") and self.environ[name]:
                _require_variable(name, self.environ[name])
        for file in self.files:
            general = file.section(GENERAL)
            tables = {key for key, setting in general.items() if isinstance(setting.value, Mapping)}
            for key in general.keys() - tables:
                require_known(GENERAL, key, general[key], GENERAL_KEYS)
            for key in tables:
                _require_section(general[key].origin, key, [*commands, PROFILES])

    def put_general_into(self, environ: MutableMapping[str, str]) -> None:
        """Keys above the first section become the variables they stand for; those set stay."""
        for key, setting in self.in_files(GENERAL).items():
            if key in GENERAL_KEYS and not is_overruled(key, environ):
                environ[variable(GENERAL, key)] = text_of(GENERAL, key, setting)


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Read the files that are there; StokerError (2) for one that is no TOML."""
    paths = (PROJECT_FILE, user_file(environ))
    return Settings(environ, tuple(read_file(path) for path in paths if path.is_file()))


def user_file(environ: Mapping[str, str]) -> Path:
    """Where the user's own file is, or would be."""
    named = environ.get(USER_FILE_VARIABLE)
    if named:
        return Path(named).expanduser()
    import platformdirs

    return platformdirs.user_config_path("stoker", appauthor=False) / "config.toml"


def read_file(path: Path) -> SettingsFile:
    """One file; StokerError (2) names it and, in a damaged one, the line."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        text = path.read_text(encoding="utf-8")
        return SettingsFile(path, text, toml.loads(text))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # of the encoding, or of TOML, which names the line
        raise UsageError(f"{path}: {error}", hint="`stoker config check` tries it again") from error


def variable(section: Section, key: str) -> str:
    """Its environment variable: `serve`, `port` -> STOKER_SERVE__PORT."""
    return "STOKER_" + "__".join([*section, key]).upper().replace("-", "_")


def is_overruled(key: str, environ: Mapping[str, str]) -> bool:
    """True when a variable that is stronger than any file answers what `key` would."""
    names = ["STOKER_API_KEY", "VLLM_API_KEY"] if key == "api_key_file" else []
    return any(environ.get(name) for name in [*names, variable(GENERAL, key)])


def require_known(section: Section, key: str, setting: Setting, known: Collection[str]) -> None:
    """Refuse a key that nobody reads, and a secret in plain text."""
    if key in _SECRET_KEYS:
        raise UsageError(
            f"{setting.origin}: a secret does not belong into settings",
            hint="put it into a file that only you can read, and name that: api-key-file = ..."
            if key == "api_key"
            else "the variable HF_TOKEN, or `hf auth login`",
        )
    if key not in known:
        import difflib  # for a mistake only: it costs every start some milliseconds

        near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
        shown = f"`{' '.join(['stoker config show', *section[:1]])}` lists the settings"
        hint = f"did you mean {near[0].replace('_', '-')}?" if near else shown
        raise UsageError(f"{setting.origin}: no such setting: {title_of(section, key)}", hint=hint)


def text_of(section: Section, key: str, setting: Setting) -> str:
    """A single value as one would type it; `~` in front of a path is the home folder."""
    value = setting.value
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise wrong_type(section, key, setting, "must be a text or a number")
    text = str(value)
    return os.path.expanduser(text) if text.startswith("~/") else text


def wrong_type(section: Section, key: str, setting: Setting, must: str) -> StokerError:
    """The error for a value that cannot be meant."""
    return UsageError(f"{setting.origin}: {title_of(section, key)} {must}")


def title_of(section: Section, key: str) -> str:
    """As it stands in a file: `[serve] max-model-len`."""
    head = f"[{'.'.join(section)}] " if section else ""
    return head + key.replace("_", "-")


def writable_by_others(files: Collection[SettingsFile]) -> Iterator[str]:
    """Files that somebody else could have changed; a group of one's own is not somebody else."""
    if os.name != "posix":
        return
    for file in files:
        found = file.path.stat()
        own_group = found.st_gid == os.getgid()
        open_bits = stat.S_IWOTH | (0 if own_group else stat.S_IWGRP)
        if found.st_uid not in (0, os.getuid()) or found.st_mode & open_bits:
            yield f"warning: others can change {file.path}; chmod go-w {file.path}"


def _require_variable(name: str, value: str) -> None:
    """Refuse a variable without a section that nobody reads."""
    known = [variable(GENERAL, key) for key in GENERAL_KEYS] + [*_OTHER_VARIABLES]
    is_service_link = _SERVICE_LINK.fullmatch(name) or re.match("(?:tcp|udp|sctp)://", value)
    if name in known or name.startswith(_TEST_VARIABLES) or is_service_link:
        return
    import difflib  # for a mistake only: it costs every start some milliseconds

    words = {one[len("STOKER_") :]: one for one in known}  # all begin alike
    near = difflib.get_close_matches(name[len("STOKER_") :], words, n=1, cutoff=0.6)
    example = "STOKER_SERVE__PORT is `port` of `stoker serve`"
    hint = (
        f"did you mean {words[near[0]]}?"
        if near
        else f"those of a command have its name: {example}"
    )
    raise UsageError(f"no such variable: {name}", hint=hint)


def _require_section(origin: str, name: str, known: Collection[str]) -> None:
    if name in known:
        return
    import difflib  # for a mistake only: it costs every start some milliseconds

    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "sections are named like commands"
    raise UsageError(f"{origin}: no such section: {name}", hint=hint)


def _plain(key: str) -> str:
    return key.replace("-", "_")
