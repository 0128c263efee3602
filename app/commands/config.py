"""`stoker config show|path|check|schema`: settings, where they come from, what they may be."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.command_line import GroupedCommand, new_app
from app.commands.shared_options import AsJson

if TYPE_CHECKING:
    from app.errors import StokerError
    from app.settings.options import EffectiveSetting
    from app.settings.sources import Section, Settings

app = new_app(
    help="""Settings: flag > STOKER_* variable > profile > ./stoker.toml > your config.toml.

\b
Examples:
  stoker config show serve --origin
  stoker config show @coder --json
  stoker config path
  stoker config check ./stoker.toml
  stoker config schema > stoker.schema.json   (first line: "#:schema ./stoker.schema.json")
""",
)


@app.command("show", cls=GroupedCommand)
def show(
    section: Annotated[
        str | None,
        typer.Argument(
            metavar="COMMAND|@PROFILE",
            help="A command, or a profile: serve, models.rm, @coder.",
        ),
    ] = None,
    origin: Annotated[
        bool, typer.Option("--origin", help="Say where each value comes from.")
    ] = False,
    as_json: AsJson = False,
    as_plain: Annotated[
        bool, typer.Option("--plain", help="SECTION<TAB>KEY<TAB>VALUE<TAB>ORIGIN; unknown is -.")
    ] = False,
) -> None:
    """Print the values that commands get without a flag, as TOML; secrets are masked."""
    from app import output
    from app.settings.sources import read_settings

    output.require_one_form(as_json, as_plain)
    settings = read_settings(os.environ)
    rows = list(_rows(settings, section))
    if as_plain:
        fields = ("section", "key", "value", "origin")
        output.print_plain([record[name] for name in fields] for record in map(_record, rows))
        return
    if as_json:
        files = [str(file.path) for file in settings.files]
        document = {"files": files, "profiles": sorted(settings.profiles())}
        output.print_json("stoker.config", {**document, "settings": list(map(_record, rows))})
        return
    current: Section | None = None
    for row in rows:
        if row.section != current:
            current = row.section
            if current:
                print(f"\n[{'.'.join(current)}]")
        place = f"  # {row.origin}" if origin else ""
        print(output.printable(_line(row) + place))


@app.command("path", cls=GroupedCommand)
def path(
    as_json: AsJson = False,
    as_plain: Annotated[
        bool, typer.Option("--plain", help="PATH<TAB>yes|no (is it there).")
    ] = False,
) -> None:
    """Print the files that are looked for, the strongest first."""
    from app import output
    from app.settings.sources import PROJECT_FILE, user_file

    output.require_one_form(as_json, as_plain)
    paths = [Path.cwd() / PROJECT_FILE, user_file(os.environ)]
    rows = [{"path": str(path), "exists": path.is_file()} for path in paths]
    if as_json:
        output.print_json("stoker.config.path", {"files": rows})
        return
    if as_plain:
        output.print_plain((row["path"], "yes" if row["exists"] else "no") for row in rows)
        return
    for row in rows:
        print(f"{row['path']}{'' if row['exists'] else '  (not there)'}")


@app.command("schema", cls=GroupedCommand)
def schema() -> None:
    """Print the JSON Schema of a settings file, for editors."""
    from app.settings.schema import settings_schema

    print(json.dumps(settings_schema(_commands(None)), indent=2, ensure_ascii=False))


@app.command("check", cls=GroupedCommand)
def check(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Default: the files in use.")
    ] = None,
) -> int:
    """Check every section, key and value; exit code 2 when one is wrong."""
    from app import output
    from app.errors import ExitCode
    from app.settings.sources import Settings, read_file, read_settings, writable_by_others

    settings = read_settings(os.environ)
    if file is not None:
        settings = Settings({}, (read_file(file),))
    errors = list(_errors(settings))
    for error in errors:
        output.say(f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""))
    for warning in writable_by_others(settings.files):
        output.say(warning)
    if errors:
        return ExitCode.USAGE
    names = " and ".join(str(file.path) for file in settings.files)
    output.say(f"{names}: no mistakes" if names else "there is no settings file")
    return ExitCode.OK


def _rows(settings: Settings, wanted: str | None) -> Iterator[EffectiveSetting]:
    """All settings, or those of one section; StokerError when there is no such section."""
    from app.errors import UsageError
    from app.settings.options import effective_settings, general_settings

    if wanted is not None and wanted.startswith("@"):
        (section, command), *_ = _commands("serve")
        yield from effective_settings(command, section, settings, wanted[1:])
        return
    if wanted is None:
        settings.require_sections(list(_command_names()))
        yield from general_settings(settings)
    found = list(_commands(wanted))
    if not found:
        hint = "sections are named like commands: serve, models.rm; profiles: @NAME"
        raise UsageError(f"no such section: {wanted}", hint=hint)
    for section, command in found:
        yield from effective_settings(command, section, settings)


def _errors(settings: Settings) -> Iterator[StokerError]:
    from app.errors import StokerError
    from app.settings.options import check_values
    from app.settings.sources import PROFILES

    try:
        settings.require_sections(list(_command_names()))
    except StokerError as error:
        yield error
    for section, command in _commands(None):
        yield from check_values(command, section, settings)
        if section == ("serve",):
            for profile in sorted(settings.profiles()):
                yield from check_values(command, (PROFILES, profile), settings)


def _command_names() -> Iterator[str]:
    from app.cli import COMMANDS

    return (entry.name for entry in COMMANDS)


def _commands(wanted: str | None) -> Iterator[tuple[Section, Any]]:
    """Each command with its section; of `models`, those below it."""
    from app.cli import COMMANDS, load_command
    from app.settings.options import leaf_commands

    for entry in COMMANDS:
        if entry.name == "config" or (wanted and wanted.partition(".")[0] != entry.name):
            continue
        for section, leaf in leaf_commands(load_command(entry), (entry.name,)):
            if wanted is None or section[: wanted.count(".") + 1] == tuple(wanted.split(".")):
                yield section, leaf


def _record(row: EffectiveSetting) -> dict[str, object]:
    return {
        "section": ".".join(row.section),
        "key": row.key.replace("_", "-"),
        "value": _masked(row.value),
        "kind": row.kind,
        "origin": row.origin,
    }


def _line(row: EffectiveSetting) -> str:
    key, value = row.key.replace("_", "-"), _masked(row.value)
    if value is None:
        return f"# {key} is not set"
    return f"{key} = {json.dumps(value, ensure_ascii=False)}"


def _masked(value: Any) -> Any:
    """Plain values for TOML and JSON; what looks like a secret becomes ***."""
    from logparse.redact import mask_secrets

    if isinstance(value, list | tuple):
        return [_masked(one) for one in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return mask_secrets(str(value))
