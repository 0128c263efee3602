"""Facts as JSON: `stoker doctor --dump` writes the file, `--host` reads it.

The document follows the dataclasses of `app.doctor.facts`; a key that they lack is refused.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

from app.doctor.facts import DoctorFacts
from app.errors import UsageError

SCHEMA = "stoker.doctor.facts"
SCHEMA_VERSION = 1
_D = TypeVar("_D")


def write_facts(facts: DoctorFacts, path: Path) -> None:
    """Write the file, for its owner only: it names users, programs and folders."""
    document = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, **dataclasses.asdict(facts)}
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", hint="give another file"
        ) from error


def read_facts(path: Path) -> DoctorFacts:
    """Read a file of `--dump`, or one written by hand; sections may be left out."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        hint = "stoker doctor --dump FACTS.json writes one"
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=hint) from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}", hint="write it with --dump") from error
    if not isinstance(document, dict) or document.pop("schema", None) != SCHEMA:
        raise UsageError(
            f"{path} holds no facts of a host", hint=f'it must say "schema": "{SCHEMA}"'
        )
    if (version := document.pop("schema_version", None)) != SCHEMA_VERSION:
        raise UsageError(
            f"{path} has schema_version {version}", hint=f"this Stoker reads {SCHEMA_VERSION}"
        )
    try:
        facts = from_json(DoctorFacts, document)
        _require_versions(facts)
        return facts
    except ValueError as error:
        raise UsageError(
            f"{path}: {error}", hint="compare it with a file that --dump writes"
        ) from error


def from_json(kind: type[_D], document: object, where: str = "facts") -> _D:
    """The dataclass `kind` from parsed JSON; ValueError names the place that does not fit."""
    if not isinstance(document, dict):
        raise ValueError(f"{where} must be an object")
    fields = {field.name: field for field in dataclasses.fields(typing.cast(Any, kind))}
    for key in document:
        if key not in fields:
            near = difflib.get_close_matches(key, list(fields), n=1)
            raise ValueError(f"{where}.{key} is not known" + (f" ({near[0]}?)" if near else ""))
    hints = typing.get_type_hints(kind)
    values = {key: _value(hints[key], value, f"{where}.{key}") for key, value in document.items()}
    missing = [
        name
        for name, field in fields.items()
        if name not in values and field.default is dataclasses.MISSING
    ]
    if missing:
        raise ValueError(f"{where}.{missing[0]} is missing")
    return kind(**values)


def _require_versions(facts: DoctorFacts) -> None:
    """The rules of the packaging library are applied to these: they must be what they claim."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    if facts.machine is not None:
        Version(facts.machine.python)
    if facts.vllm_release is not None:
        SpecifierSet(facts.vllm_release.requires_python)


def _value(hint: Any, value: object, where: str) -> object:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        return _value(next(one for one in arguments if one is not type(None)), value, where)
    if origin is tuple:
        return _tuple(arguments, value, where)
    if dataclasses.is_dataclass(hint):
        return from_json(typing.cast(type, hint), value, where)
    allowed = (int, float) if hint is float else (hint,)
    if not isinstance(value, allowed) or (isinstance(value, bool) and hint is not bool):
        raise ValueError(f"{where} must be {hint.__name__}, not {json.dumps(value)}")
    return value


def _tuple(arguments: tuple[Any, ...], value: object, where: str) -> object:
    if not isinstance(value, list):
        raise ValueError(f"{where} must be a list")
    is_open = len(arguments) == 2 and arguments[1] is Ellipsis
    kinds = [arguments[0]] * len(value) if is_open else list(arguments)
    if len(kinds) != len(value):
        raise ValueError(f"{where} must have {len(kinds)} entries, not {len(value)}")
    return tuple(
        _value(kind, one, f"{where}[{place}]")
        for place, (kind, one) in enumerate(zip(kinds, value, strict=True))
    )
