"""What a shell asks while somebody types: `stoker __complete servers models ...`.

Prints a word, a tab and its meaning on each line. A key press waits for it, so nothing is imported
beyond the standard library and nothing is asked of a process or a network; what cannot be read is
left out. Owns no rule about servers: a record whose processes are gone is another command's duty.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence

from app.errors import StokerError

COMMAND = "__complete"


def print_answers(kinds: Sequence[str]) -> int:
    """The words of all kinds; an unknown kind has none."""
    try:
        _apply_settings()
        for kind in kinds:
            for word, meaning in _WORDS.get(kind, _none)():
                if word.isprintable():
                    print(word, meaning if meaning.isprintable() else "", sep="\t")
    except (OSError, StokerError):
        pass  # a shell shows nothing of an error here
    return 0


def _apply_settings() -> None:
    """A settings file may say where the records and models are."""
    from app.settings import read_settings

    read_settings(os.environ).put_general_into(os.environ)


def _servers() -> Iterator[tuple[str, str]]:
    from app.paths import SERVERS, runtime_dir

    for path in sorted((runtime_dir() / SERVERS).glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            state, name = record["state"], str(record["name"])
            pids = (int(record["pid"]), int(record["supervisor_pid"]))
            if state == "failed" or any(map(_is_alive, pids)):
                yield name, f"{state}, {record['model']} at {record['url']}"
        except (OSError, ValueError, LookupError, TypeError):
            continue


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return pid > 0


def _models() -> Iterator[tuple[str, str]]:
    from app.ops.model_catalogue import CATALOGUE
    from app.paths import models_dir
    from engine.machine.hub import hub_cache

    names = {model.name: f"{model.title}, built in" for model in CATALOGUE}
    for folder in sorted(models_dir().glob("[!.]*")):
        if folder.is_dir():
            names.setdefault(folder.name, "in Stoker's cache")
    for folder in sorted(hub_cache(os.environ).glob("models--*--*")):
        names.setdefault("/".join(folder.name.split("--")[1:]), "in the Hugging Face cache")
    yield from names.items()


def _profiles() -> Iterator[tuple[str, str]]:
    from app.settings import read_settings

    settings = read_settings(os.environ)
    for name in sorted(settings.profiles()):
        model = settings.in_files(("profiles", name)).get("model")
        yield f"@{name}", f"profile, {model.value}" if model else "profile"


def _none() -> Iterator[tuple[str, str]]:
    yield from ()


_WORDS = {"servers": _servers, "models": _models, "profiles": _profiles}
