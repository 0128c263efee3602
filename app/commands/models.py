"""`stoker models ...`: parse and print only; the work is engine.model_store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.command_line import GroupedCommand, new_app
from engine.machine.sizes import human_bytes

if TYPE_CHECKING:
    from engine.model_store.files import StoredModel
    from engine.model_store.hub_login import HubAccount
    from engine.model_store.store import ModelStore
    from engine.model_store.verify import Verification

app = new_app(
    help="""List, get, show, check and remove models; the token for the hub.

\b
Examples:
  stoker models list
  stoker models pull smollm2-135m
  stoker models pull HuggingFaceTB/SmolLM2-360M-Instruct
  stoker models show smollm2-135m --json
  stoker models verify
  stoker models rm smollm2-135m
  stoker models login
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
    repair: bool = typer.Option(
        False, "--repair", help="First look at every file; get those again that are damaged."
    ),
) -> None:
    """Get a model, so that serving it needs no network later.

    What was interrupted goes on where it stopped.
    """
    from app import output
    from app.launch.engine_programs import require_engine_extra, resolve_model
    from app.views.progress import ModelProgress
    from engine.machine.hub import is_hub_id
    from engine.model_store.catalogue import require_model_name
    from engine.model_store.files import find_hub_model

    require_engine_extra()
    require_model_name(name)
    store = _store()
    is_damaged = repair and _take_out_damaged(store, name)
    builtin = store.builtin(name)
    if builtin is not None:
        make = store.make_again if is_damaged else store.ensure
        with ModelProgress(name) as progress:
            path = make(builtin, progress)
    else:
        is_hubs = is_hub_id(name) and not Path(name).exists() and store.folder(name) is None
        if is_hubs and (is_damaged or find_hub_model(name) is None):
            from engine.model_store.hub_download import fetch_weights

            with ModelProgress(name) as progress:
                fetch_weights(name, progress)
        path = resolve_model(name)
    print(path)
    output.say(f"next: stoker serve {name}")


@app.command("verify", cls=GroupedCommand)
def verify(
    name: str = typer.Argument(None, metavar="[MODEL]", help="Default: all on this machine."),
    json: bool = _JSON,
    plain: bool = _PLAIN,
) -> int:
    """Compare every file of a model with its hash; exit code 1: damaged, 3: no hash is known."""
    from app import output
    from app.errors import ExitCode
    from engine.model_store.verify import DAMAGED, WHOLE, names_on_this_machine, verify_model

    store = _store()
    names = [name] if name else names_on_this_machine(store)
    found = []
    for one in names:
        result = verify_model(store, one)
        found.append(result)
        if plain:
            output.print_plain([(result.name, result.state, result.num_checked, result.path)])
        elif not json:
            print(output.one_line(f"{result.name}: {result.state} ({_checked_words(result)})"))
        _say_faults(result)
    if json:
        output.print_json("stoker.models.verify", {"models": [_verified(one) for one in found]})
    states = {one.state for one in found}
    if DAMAGED in states:
        return ExitCode.NO
    return ExitCode.OK if states <= {WHOLE} else ExitCode.NOT_ENOUGH_EVIDENCE


@app.command("login", cls=GroupedCommand)
def login(words: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
    """Keep your token for the Hugging Face hub: typed without echo, or the first line of stdin.

    It lies where huggingface_hub and vLLM look for it, for you alone. The hub is asked whose it is.
    """
    from app import output
    from app.errors import ExitCode, StokerError
    from engine.errors import GatedModelError, OfflineError
    from engine.model_store.hub_login import ask_account, keep_token, overriding_variable

    token = _typed_token(words)
    try:
        account = ask_account(token)
    except GatedModelError as error:
        raise StokerError(
            f"{error}; nothing was kept",
            hint="make a read token at https://huggingface.co/settings/tokens",
            exit_code=ExitCode.UNREACHABLE,
        ) from None
    except OfflineError as error:
        account = None
        output.say(f"note: {error}, so the token is kept unchecked; later: stoker models whoami")
    path = keep_token(token)
    if account is not None:
        print(_account_words(account))
    output.say(f"the token is kept in {path} (only you can read it)")
    if (variable := overriding_variable(token)) is not None:
        output.say(f"warning: {variable} is set and goes before it; unset {variable}")


@app.command("whoami", cls=GroupedCommand)
def whoami(json: bool = _JSON, plain: bool = _PLAIN) -> None:
    """Whose token the hub is sent, and where it stands."""
    import os

    from app import output
    from app.errors import ExitCode, StokerError
    from engine.errors import ModelError
    from engine.machine.hub import hub_token
    from engine.model_store.hub_login import ask_account

    token = hub_token(os.environ)
    if token is None:
        raise StokerError("there is no token for the hub", hint="stoker models login")
    try:
        account = ask_account(token.text)
    except ModelError as error:
        raise StokerError(
            f"{error} (the token stands in {token.source})",
            hint="stoker models login",
            exit_code=ExitCode.UNREACHABLE,
        ) from None
    facts = {"name": account.name, "role": account.role, "source": token.source}
    if json:
        output.print_json("stoker.models.whoami", facts)
    elif plain:
        output.print_plain(facts.items())
    else:
        print(output.one_line(_account_words(account)))
        output.say(f"the token stands in {token.source}")


@app.command("logout", cls=GroupedCommand)
def logout() -> None:
    """Remove the tokens that were kept for the hub from this machine."""
    from app import output
    from engine.model_store.hub_login import forget_token, overriding_variable

    removed = forget_token()
    for path in removed:
        output.say(f"removed {path}")
    if not removed:
        output.say("no token was kept")
    if (variable := overriding_variable()) is not None:
        output.say(f"warning: {variable} is still set; unset {variable}")


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


def _typed_token(words: list[str] | None) -> str:
    """The token, of the terminal or of a pipe; what is no token is refused and not repeated."""
    import getpass
    import sys

    from app.errors import UsageError

    if words:
        raise UsageError(
            "a token on the command line can be read by every user of this machine",
            hint="type it when `stoker models login` asks, or: stoker models login < FILE; if this "
            "was a token, make a new one and delete it on https://huggingface.co/settings/tokens",
        )
    prompt = "Token of https://huggingface.co/settings/tokens (not shown): "
    try:
        text = getpass.getpass(prompt) if sys.stdin.isatty() else sys.stdin.readline()
    except EOFError:
        text = ""
    token = text.strip()
    if not token or not token.isascii() or len(token.split()) > 1:
        problem = "there is no token" if not token else "that is no token: it is one word of ASCII"
        raise UsageError(problem, hint="it looks like hf_...; nothing was changed")
    return token


def _account_words(account: HubAccount) -> str:
    return f"{account.name}, token for {account.role}" if account.role else account.name


def _take_out_damaged(store: ModelStore, name: str) -> bool:
    """Whether files of it are damaged, which are named.

    In the hub's cache they are deleted, once the hub has answered.
    """
    from app.errors import ExitCode, StokerError
    from engine.errors import ModelError
    from engine.machine.hub import is_hub_id
    from engine.model_store.verify import DAMAGED, forget_damaged, verify_model

    try:
        found = verify_model(store, name)
    except ModelError:  # it is not here: got as any other
        return False
    _say_faults(found)
    if found.state != DAMAGED:
        return False
    if store.folder(name) is None and is_hub_id(name):
        from engine.model_store.hub_download import find_snapshot

        if find_snapshot(name) is None:
            raise StokerError(
                f"the hub cannot be asked for {name}, so nothing of it was removed",
                hint="check the network, HF_ENDPOINT and `stoker models whoami`",
                exit_code=ExitCode.UNREACHABLE,
            )
        forget_damaged(found)
    return True


def _checked_words(found: Verification) -> str:
    from engine.model_store.verify import UNKNOWN

    if found.state == UNKNOWN and not found.num_checked:
        return "no hashes were written down when it came here"
    parts = [f"{found.num_checked} files compared"]
    for count, word in ((len(found.damaged), "damaged"), (len(found.missing), "missing")):
        parts += [f"{count} {word}"] if count else []
    parts += [f"{len(found.unknown)} without a hash"] if found.unknown else []
    return ", ".join(parts)


def _say_faults(found: Verification) -> None:
    from app import output

    for word, names in (("damaged", found.damaged), ("missing", found.missing)):
        for one in names:
            output.say(f"{word}: {found.path / one}")
    if found.fault:
        output.say(f"damaged: {found.fault}")
    if found.repair:
        output.say(f"repair it: {found.repair}")


def _verified(found: Verification) -> dict[str, Any]:
    return {
        "name": found.name,
        "path": str(found.path),
        "state": found.state,
        "files_compared": found.num_checked,
        "damaged": list(found.damaged),
        "missing": list(found.missing),
        "without_hash": list(found.unknown),
        "fault": found.fault,
        "repair": found.repair,
    }


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
