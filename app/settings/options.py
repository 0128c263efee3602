"""Settings applied to one command: which keys it has, click's default map and variables, checks.

click itself decides between flag, variable, file and default. What a command takes beyond its
options (the flags of the engine, for `serve`) it names in `setting_defaults`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.errors import StokerError, UsageError
from app.settings.sources import (
    GENERAL,
    GENERAL_KEYS,
    Section,
    Setting,
    Settings,
    is_overruled,
    require_known,
    text_of,
    variable,
    writable_by_others,
    wrong_type,
)
from engine.machine.hub import TOKEN_VARIABLES
from engine.machine.secrets import SERVER_KEYS


@dataclass(frozen=True, slots=True)
class CommandSettings:
    """What settings give to one command line: click's part, and the `extra` that is none of it.

    `given` is the command line itself, a profile included.
    """

    args: list[str]
    default_map: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)  # parameter -> place in a file
    extra: dict[str, Setting] = field(default_factory=dict)
    given: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """A value as a command gets it without a flag; `kind` is environment, file or default."""

    section: Section
    key: str
    value: Any
    kind: str
    origin: str


def settings_for(
    command: Any, section: Section, args: Sequence[str], settings: Settings
) -> CommandSettings:
    """Check and collect the settings of `command`; names its options' variables to click."""
    extra_keys: Mapping[str, Any] = getattr(command, "setting_defaults", {})
    profile = _profile(args, settings) if extra_keys else None
    options, files = options_by_key(command), settings.in_files(section, profile)
    in_environment = settings.in_environment(section)
    for found in (files, in_environment):
        for key, setting in found.items():
            require_known(section, key, setting, [*options, *extra_keys])
    chosen = CommandSettings(list(args[1:] if profile else args), given=tuple(args))
    _add_off_switches(options)
    for key, param in options.items():
        param.envvar, param.show_envvar = variable(section, key), False
        if key in files and not (key == "api_key_file" and is_overruled(key, settings.environ)):
            chosen.default_map[param.name] = _for_click(section, key, files[key], param)
            chosen.origins[param.name] = files[key].origin
    chosen.extra.update({k: s for k, s in {**files, **in_environment}.items() if k in extra_keys})
    return chosen


def say_who_can_write(settings: Settings) -> None:
    """Warn of settings files that are not the user's alone."""
    from app.output import say

    for warning in writable_by_others(settings.files):
        say(warning)


def origin_of(error: Any) -> str | None:
    """Where the value of click's complaint stands, if it was no flag."""
    context, param = getattr(error, "ctx", None), getattr(error, "param", None)
    if context is None or param is None or not isinstance(context.obj, CommandSettings):
        return None
    source = context.get_parameter_source(param.name)
    if source is not None and source.name == "ENVIRONMENT":
        return str(param.envvar)
    is_file = source is not None and source.name == "DEFAULT_MAP"
    return context.obj.origins.get(param.name) if is_file else None


def leaf_commands(command: Any, section: Section) -> Iterator[tuple[Section, Any]]:
    """The command, or those below it, each with its section."""
    below = getattr(command, "commands", None)
    if not below:
        yield section, command
        return
    for name, inner in below.items():
        yield from leaf_commands(inner, (*section, name))


def effective_settings(
    command: Any, section: Section, settings: Settings, profile: str | None = None
) -> Iterator[EffectiveSetting]:
    """Every setting of a command, also those that nobody set; StokerError for one that is wrong."""
    args = [f"@{profile}"] if profile else []
    settings_for(command, section, args, settings)
    files, variables = settings.in_files(section, profile), settings.in_environment(section)
    defaults = {key: param.default for key, param in options_by_key(command).items()}
    defaults |= getattr(command, "setting_defaults", {})
    for key, default in defaults.items():
        if key in variables:
            yield _effective(section, key, variables[key], "environment")
        elif key in files and not (key == "api_key_file" and is_overruled(key, settings.environ)):
            yield _effective(section, key, files[key], "file")
        else:
            yield EffectiveSetting(section, key, default, "default", "default")


def general_settings(settings: Settings) -> Iterator[EffectiveSetting]:
    """What holds for all commands: keys above the first section, and the API key, masked."""
    files = settings.in_files(GENERAL)
    for key in GENERAL_KEYS:
        name = variable(GENERAL, key)
        if settings.environ.get(name):
            value = Setting(settings.environ[name], name)
            yield _effective(GENERAL, key, value, "environment")
        elif key in files and not is_overruled(key, settings.environ):
            yield _effective(GENERAL, key, files[key], "file")
        else:
            yield EffectiveSetting(GENERAL, key, None, "default", "default")
    for name in (*SERVER_KEYS, *TOKEN_VARIABLES):
        if settings.environ.get(name):
            key = name.removeprefix("STOKER_").lower()
            yield EffectiveSetting(GENERAL, key, "***", "environment", name)


def check_values(command: Any, section: Section, settings: Settings) -> Iterator[StokerError]:
    """Each setting of `section` that a command could not take, in files and variables."""
    options, extra = options_by_key(command), getattr(command, "setting_defaults", {})
    found = [*settings.in_files(section).items(), *settings.in_environment(section).items()]
    for key, setting in found:
        try:
            require_known(section, key, setting, [*options, *extra])
            if key in options:
                _try_option(command, section, key, setting, options[key])
            else:
                command.check_setting(key, setting)
        except StokerError as error:
            yield error


def _effective(section: Section, key: str, setting: Setting, kind: str) -> EffectiveSetting:
    return EffectiveSetting(section, key, setting.value, kind, setting.origin)


def options_by_key(command: Any) -> dict[str, Any]:
    """Options by the key of their longest spelling; an argument is no setting."""
    options = (param for param in command.params if param.param_type_name == "option")
    return {max(p.opts, key=len).lstrip("-").replace("-", "_"): p for p in options}


def _add_off_switches(options: Mapping[str, Any]) -> None:
    """Give every switch its opposite, since a setting may have turned it on: --no-json, --tui."""
    for key, param in options.items():
        name = key.replace("_", "-")
        twin = name.removeprefix("no-") if name.startswith("no-") else f"no-{name}"
        is_switch = getattr(param, "is_flag", False) and not param.secondary_opts
        if is_switch and twin.replace("-", "_") not in options:
            param.secondary_opts = [f"--{twin}"]


def _profile(args: Sequence[str], settings: Settings) -> str | None:
    """The profile that is asked for, as the first word: `@coder`."""
    end = args.index("--") if "--" in args else len(args)
    word = next((word for word in args[:end] if word.startswith("@")), None)
    if word is None:
        return None
    known = settings.profiles()
    if word[1:] not in known:
        names = ", ".join(f"@{name}" for name in sorted(known))
        hint = f"profiles: {names}" if known else "write one: [profiles.NAME] in ./stoker.toml"
        raise UsageError(f"no such profile: {word}", hint=hint)
    if args[0] != word:
        raise UsageError(f"the profile {word} has to come first", hint=f"stoker serve {word} ...")
    return word[1:]


def _for_click(section: Section, key: str, setting: Setting, param: Any) -> Any:
    """A file's value as click takes it: as text, but for switches and lists."""
    if getattr(param, "is_flag", False):
        if not isinstance(setting.value, bool):
            raise wrong_type(section, key, setting, "must be true or false")
        return setting.value
    if param.multiple:
        values = setting.value if isinstance(setting.value, list) else [setting.value]
        return [text_of(section, key, Setting(value, setting.origin)) for value in values]
    return text_of(section, key, setting)


def _try_option(command: Any, section: Section, key: str, setting: Setting, param: Any) -> None:
    import typer

    is_variable = setting.origin == variable(section, key)
    value = setting.value if is_variable else _for_click(section, key, setting, param)
    context = command.make_context("stoker", [], resilient_parsing=True)
    try:
        param.process_value(context, value)
    except typer.BadParameter as error:
        message = f"{setting.origin}: {error.format_message().rstrip('.')}"
        raise UsageError(message) from error
