"""`stoker models list|pull|rm|show`: parse and print only; the work is engine.model_store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from app.command_line import GroupedCommand, new_app
from engine.machine.sizes import human_bytes

if TYPE_CHECKING:
    from engine.model_store.files import StoredModel
    from engine.model_store.store import ModelStore

app = new_app(
    help="""List, get, show and remove models.

\b
Examples:
  stoker models list
  stoker models pull smollm2-135m
  stoker models pull HuggingFaceTB/SmolLM2-360M-Instruct
  stoker models show smollm2-135m --json
  stoker models rm smollm2-135m
""",
)

_JSON = typer.Option(False, "--json", help="One JSON document on stdout.")
_PLAIN = typer.Option(False, "--plain", help="Tab-separated lines on stdout.")


@app.command("list", cls=GroupedCommand)
def list_models(json: bool = _JSON, plain: bool = _PLAIN) -> None:
    """Models on this machine and the built-in ones."""
    from app import output
    from engine.model_store.files import list_hub_models

    models = (*_store().list_models(), *list_hub_models())
    if json:
        output.print_json("stoker.models", {"models": [_as_dict(model) for model in models]})
    elif plain:
        output.print_plain((m.name, m.state, m.size_bytes, m.source, m.path) for m in models)
    else:
        _print_table(models)


@app.command("pull", cls=GroupedCommand)
def pull(
    name: str = typer.Argument(..., metavar="NAME", help="Built-in name or Hugging Face id."),
) -> None:
    """Get a model, so that serving it needs no network later."""
    from app import output
    from app.launch.engine_programs import require_engine_extra, resolve_model
    from engine.model_store.catalogue import require_model_name

    require_engine_extra()
    require_model_name(name)
    store = _store()
    builtin = store.builtin(name)
    if builtin is None:
        path = resolve_model(name)
    else:
        from app.views.progress import ModelProgress

        with ModelProgress(name) as progress:
            path = store.ensure(builtin, progress)
    print(path)
    output.say(f"next: stoker serve {name}")


@app.command("rm", cls=GroupedCommand)
def remove(
    name: str = typer.Argument(..., metavar="NAME", help="A model of Stoker's cache."),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would go, delete nothing."),
) -> None:
    """Delete a model from Stoker's cache (never from the Hugging Face cache)."""
    from app import output
    from app.errors import StokerError, UsageError
    from engine.model_store.files import NOT_DOWNLOADED

    store = _store()
    known = {model.name: model for model in store.list_models()}
    model = known.get(name)
    if model is not None and model.state == NOT_DOWNLOADED:
        raise StokerError(f"{name} is not on this machine, so there is nothing to delete")
    if dry_run and model is not None:
        size = human_bytes(model.size_bytes)
        print(output.one_line(f"would delete {model.path} ({size})"))
        return
    if not yes and model is not None:
        if not output.is_interactive():
            raise UsageError(f"deleting {name} needs a yes", hint="add --yes")
        if not output.confirm(f"Delete {name} ({human_bytes(model.size_bytes)})?"):
            raise StokerError("nothing was deleted")
    folder = store.remove(name)
    output.say(f"deleted {folder}")


@app.command("show", cls=GroupedCommand)
def show(
    name: str = typer.Argument(..., metavar="MODEL", help="Built-in name, folder or hub id."),
    json: bool = _JSON,
    plain: bool = _PLAIN,
) -> None:
    """Shape, parameters, size and licence of a model on this machine."""
    from app import output
    from engine.model_store.store import describe_model

    facts = describe_model(_store(), name)
    if json:
        output.print_json("stoker.model", facts)
    elif plain:
        output.print_plain(facts.items())
    else:
        width = max(len(key) for key in facts)
        for key, value in facts.items():
            print(output.one_line(f"{key.replace('_', ' '):<{width}}  {_shown(key, value)}"))


def _store() -> ModelStore:
    from engine.model_store.store import ModelStore

    return ModelStore()


def _as_dict(model: StoredModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "source": model.source,
        "path": None if model.path is None else str(model.path),
        "size_bytes": model.size_bytes,
        "state": model.state,
    }


def _print_table(models: tuple[StoredModel, ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    from app import output

    table = Table(box=None, pad_edge=False)
    for title in ("name", "state", "size", "where"):
        table.add_column(title, overflow="fold", justify="right" if title == "size" else "left")
    for model in models:
        where = f"{model.source}: {model.path}" if model.path else model.source
        cells = (model.name, model.state, human_bytes(model.size_bytes), where)
        table.add_row(*(Text(output.one_line(cell)) for cell in cells))
    output.data_console().print(table)


def _shown(key: str, value: object) -> str:

    if value is None:
        return "-"
    if key.endswith("_bytes") and isinstance(value, int):
        return human_bytes(value)
    return f"{value:,}" if isinstance(value, int) else str(value)
