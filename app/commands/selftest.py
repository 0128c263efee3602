"""`stoker selftest`: tries the life of a server on this machine and prints what held."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.command_line import GroupedCommand, new_app
from app.commands.shared_options import AsJson

if TYPE_CHECKING:
    from app.selftest.run import TrialResult

app = new_app(help="Try on this machine what Stoker promises; needs no download.")

_Fake = Annotated[bool, typer.Option("--fake-only", help="Leave our own engine out.")]
_Model = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder for our own engine. Default: the built-in model, if it is here.",
    ),
]


@app.command(cls=GroupedCommand)
def lifecycle(
    as_json: AsJson = False,
    fake_only: _Fake = False,
    model: _Model = None,
    cycles: Annotated[int, typer.Option(min=0, help="Starts and stops in a row.")] = 10,
) -> int:
    """Start, stop and kill servers in every way; after each, nothing may be left.

    \b
    Examples:
      stoker selftest lifecycle
      stoker selftest lifecycle --fake-only --cycles 100
    """
    from app.selftest import trials as selftest_trials

    own_model = _own_model(fake_only, model)
    return _report(selftest_trials.lifecycle(own_model, cycles, show_dashboard), as_json)


@app.command(cls=GroupedCommand)
def stall(as_json: AsJson = False, fake_only: _Fake = False, model: _Model = None) -> int:
    """See idle, busy, stalled and dead servers for what they are.

    \b
    Examples:
      stoker selftest stall
    """
    from app.selftest import trials as selftest_trials

    return _report(selftest_trials.stall(_own_model(fake_only, model)), as_json)


def show_dashboard(log_path: Path, should_go_on: Callable[[], bool]) -> str:
    """The real one, in front of a server that it need not find."""
    from app.commands.top import open_dashboard

    return open_dashboard(
        "http://127.0.0.1:9", log_path=log_path, server_alive=should_go_on, is_owner=True
    )


def _own_model(fake_only: bool, model: Path | None) -> Path | None:
    from app.output import say
    from engine.model_store.catalogue import DEFAULT_MODEL
    from engine.model_store.store import ModelStore

    if fake_only or model is not None:
        return None if fake_only else model
    found = ModelStore().ready_path(DEFAULT_MODEL)
    if found is None:
        say(f"our own engine is left out: {DEFAULT_MODEL} is not here (stoker models pull)")
    return found


def _report(results: Iterable[TrialResult], as_json: bool) -> int:
    from dataclasses import asdict

    from app.errors import ExitCode
    from app.output import print_json, printable

    done = []
    for result in results:
        done.append(result)
        if not as_json:
            mark = "ok  " if result.problem is None else "FAIL"
            print(f"{mark}  {result.title}  ({result.seconds:.1f} s)", flush=True)
            if result.problem is not None:
                print(f"      {printable(result.problem)}", flush=True)
    num_failed = sum(result.problem is not None for result in done)
    if as_json:
        print_json("stoker.selftest", {"trials": [asdict(one) for one in done]})
    else:
        print(f"{len(done) - num_failed} of {len(done)} held")
    return ExitCode.NO if num_failed else ExitCode.OK
