"""Settings of `serve` that are flags of the engine: their defaults, and the words they become."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

from app.errors import StokerError
from app.launch.launch_specs import parse_serve_request
from app.settings.schema import schema_of
from app.settings.sources import Setting, text_of, wrong_type
from engine.args import EngineArgs, with_dashes
from engine.model_store.catalogue import DEFAULT_MODEL

_SECTION = ("serve",)
_MODEL, _ENGINE_WORDS, _PORT = "model", "engine_args", "port"


def engine_setting_defaults() -> dict[str, Any]:
    """MODEL, every flag of the engine but the key, and the words that go behind `--`."""
    flags = {entry.name: entry.default for entry in dataclasses.fields(EngineArgs)}
    del flags["api_key"]
    return {_MODEL: DEFAULT_MODEL, **flags, _ENGINE_WORDS: None}


def engine_setting_schemas() -> dict[str, Any]:
    """The same as JSON Schema says it."""
    kinds = get_type_hints(EngineArgs)
    found: dict[str, Any] = {_MODEL: schema_of(str, DEFAULT_MODEL, "MODEL of the command line.")}
    for entry in dataclasses.fields(EngineArgs):
        meta, default = entry.metadata, entry.default
        is_list = meta["nargs"] or isinstance(default, tuple)
        kind = str if meta["parse"] and not is_list else kinds[entry.name]
        schema = schema_of(kind, default, meta["help"])
        found[entry.name] = {**schema, "enum": meta["choices"]} if meta["choices"] else schema
    del found["api_key"]
    return {**found, _ENGINE_WORDS: schema_of(list[str], None, "Words that stand behind `--`.")}


def check_engine_setting(key: str, setting: Setting) -> None:
    """StokerError says where a value stands that the engine would refuse."""
    try:
        parse_serve_request(_words(key, setting))
    except StokerError as error:
        if str(error).startswith(setting.origin):
            raise
        raise StokerError(
            f"{setting.origin}: {error}", hint=error.hint, exit_code=error.exit_code
        ) from error


def with_engine_settings(words: Sequence[str], extra: Mapping[str, Setting]) -> list[str]:
    """The words of a `serve` command line with those of the settings before them.

    Of a flag that is there twice, the later one counts: the user's.
    """
    end = words.index("--") if "--" in words else len(words)
    own, behind = list(words[:end]), list(words[end + 1 :])
    left = _not_given(extra, own)
    for key, setting in left.items():
        check_engine_setting(key, setting)
    flags = {key: setting for key, setting in left.items() if key not in (_MODEL, _ENGINE_WORDS)}
    if any(map(_takes_list, flags)):  # a list ends where the next flag begins
        port = flags.pop(_PORT, Setting(EngineArgs().port, "default"))
        flags = {**flags, _PORT: port}
    ordered = sorted(flags.items(), key=lambda item: not _takes_list(item[0]))
    said = [word for key, setting in ordered for word in _words(key, setting)] + own
    if _MODEL in left:
        said = [*_words(_MODEL, left[_MODEL]), *said]
    if _ENGINE_WORDS in left:
        behind = [*_words(_ENGINE_WORDS, left[_ENGINE_WORDS])[1:], *behind]
    return [*said, "--", *behind] if behind else said


def _not_given(extra: Mapping[str, Setting], words: Sequence[str]) -> dict[str, Setting]:
    """The settings that no word of the command line replaces."""
    said = {with_dashes(word).partition("=")[0] for word in words}
    left = {
        key: setting
        for key, setting in extra.items()
        if not {_flag(key), f"--no-{_flag(key)[2:]}"} & said
    }
    if _MODEL in left and _names_model(words):
        del left[_MODEL]
    return left


def _names_model(words: Sequence[str]) -> bool:
    return DEFAULT_MODEL in words or parse_serve_request(words).model != DEFAULT_MODEL


def _words(key: str, setting: Setting) -> list[str]:
    """`--port=9000`, `--enforce-eager`, `--no-enforce-eager`, or MODEL itself."""
    flag = _flag(key)
    if key == _MODEL:
        return [text_of(_SECTION, key, setting)]
    if key == _ENGINE_WORDS:
        return ["--", *_texts(key, setting)]
    if isinstance(engine_setting_defaults()[key], bool):
        return [flag if _is_true(key, setting) else f"--no-{flag[2:]}"]
    if _takes_list(key):
        return [flag, *_texts(key, setting)]
    if isinstance(setting.value, list) and isinstance(engine_setting_defaults()[key], tuple):
        return [f"{flag}={json.dumps(_texts(key, setting))}"]
    return [f"{flag}={text_of(_SECTION, key, setting)}"]


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def _texts(key: str, setting: Setting) -> list[str]:
    """A list, or text with spaces between its parts."""
    value = setting.value
    values = value if isinstance(value, list) else str(value).split()
    return [text_of(_SECTION, key, Setting(one, setting.origin)) for one in values]


def _takes_list(key: str) -> bool:
    fields = {entry.name: entry for entry in dataclasses.fields(EngineArgs)}
    return fields[key].metadata["nargs"] is not None


def _is_true(key: str, setting: Setting) -> bool:
    value = str(setting.value).lower()
    if value in ("1", "true", "yes", "on"):
        return True
    if value in ("0", "false", "no", "off"):
        return False
    raise wrong_type(_SECTION, key, setting, "must be true or false")
