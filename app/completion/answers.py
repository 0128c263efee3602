"""What a shell asks while somebody types: `stoker __complete servers models ...`.

Prints a word, a tab and its meaning on each line. A key press waits for it: next to nothing is
imported beyond the standard library, and what cannot be read is left out.
"""

from __future__ import annotations

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
    from app.settings.sources import read_settings

    read_settings(os.environ).put_general_into(os.environ)


def _servers() -> Iterator[tuple[str, str]]:
    from app.registry.server_registry import open_registry

    for record in open_registry().all():
        yield record.name, f"{record.state}, {record.model} at {record.url}"


def _models() -> Iterator[tuple[str, str]]:
    from engine.env import models_dir
    from engine.machine.hub import hub_cache
    from engine.model_store.catalogue import CATALOGUE

    names = {model.name: f"{model.title}, built in" for model in CATALOGUE}
    for folder in sorted(models_dir().glob("[!.]*")):
        if folder.is_dir():
            names.setdefault(folder.name, "in Stoker's cache")
    for folder in sorted(hub_cache(os.environ).glob("models--*--*")):
        names.setdefault("/".join(folder.name.split("--")[1:]), "in the Hugging Face cache")
    yield from names.items()


def _profiles() -> Iterator[tuple[str, str]]:
    from app.settings.sources import read_settings

    settings = read_settings(os.environ)
    for name in sorted(settings.profiles()):
        model = settings.in_files(("profiles", name)).get("model")
        yield f"@{name}", f"profile, {model.value}" if model else "profile"


def _none() -> Iterator[tuple[str, str]]:
    yield from ()


_WORDS = {"servers": _servers, "models": _models, "profiles": _profiles}
