"""`stoker sleep`, `stoker wake`: free a server's memory for a while; its processes stay."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.servers import serve_again
from app.commands.shared_options import ApiKeyFile

if TYPE_CHECKING:
    from app.targets.servers import ServerTarget

_FLAG = "--enable-sleep-mode"
_MODES = ("wait", "abort", "keep")
_Name = Annotated[
    str | None,
    typer.Argument(
        metavar="[SERVER]", help="Name, pid, :port or URL; not needed when one server runs."
    ),
]


def sleep(
    name: _Name = None,
    level: Annotated[
        int,
        typer.Option(
            min=1,
            max=2,
            metavar="1|2",
            help="1: weights go from the GPU to the host's memory; 2: they are dropped, and read "
            "again at waking.",
        ),
    ] = 1,
    mode: Annotated[
        str,
        typer.Option(
            metavar="|".join(_MODES),
            help="Its requests: wait until they end, abort them, or keep them until it wakes.",
        ),
    ] = _MODES[0],
    api_key_file: ApiKeyFile = None,
) -> int:
    """Free a server's memory: the KV cache, and what --level says of the weights.

    Its processes and its port stay. New requests are refused (503) until `stoker wake`. For our
    engine and vLLM, where they were started with --enable-sleep-mode.

    \b
    Examples:
      stoker sleep tiny
      stoker sleep tiny --level 2 --mode abort
    """
    from app.client.sleep_mode import is_sleeping, put_to_sleep, sleep_level
    from app.errors import StokerError, UsageError
    from app.output import say
    from app.targets.servers import find_target

    if mode not in _MODES:
        raise UsageError(f"--mode {mode!r} is not known", hint=f"use {', '.join(_MODES)}")
    target = find_target(name)
    api_key = target.api_key(api_key_file)
    with _sleep_errors(target, api_key):
        was_asleep = is_sleeping(target.url, api_key=api_key)
        put_to_sleep(target.url, level, mode, api_key=api_key)
        now = sleep_level(target.url, api_key=api_key)
    if now == 0:
        raise StokerError(f"{target.name} was woken at once", hint="`stoker sleep` tries again")
    if now is None and not was_asleep:
        now = level
    how = "sleeps already" if now is None else f"sleeps (level {now})"
    say(f"{target.name} {how}; `stoker wake {_word(target)}` wakes it")
    return 0


def wake(name: _Name = None, api_key_file: ApiKeyFile = None) -> int:
    """Wake a server that sleeps, or is about to; returns when it serves again.

    \b
    Examples:
      stoker wake tiny
    """
    from app.client.sleep_mode import is_sleeping, wake_up
    from app.errors import StokerError
    from app.output import say
    from app.targets.servers import find_target

    target = find_target(name)
    api_key = target.api_key(api_key_file)
    with _sleep_errors(target, api_key):
        was_asleep = is_sleeping(target.url, api_key=api_key)
        # One that is awake may wait for its requests to sleep, and refuses new ones meanwhile.
        wake_up(target.url, api_key=api_key)
        if is_sleeping(target.url, api_key=api_key):
            raise StokerError(
                f"{target.name} sleeps still", hint=f"`stoker logs {_word(target)}` says why"
            )
    say(f"{target.name} {'is awake' if was_asleep else 'was awake already'}")
    return 0


@contextlib.contextmanager
def _sleep_errors(target: ServerTarget, api_key: str | None) -> Iterator[None]:
    """The client's errors as the command's; of a server that cannot sleep, how it could."""
    from app.client.errors import BadStatus, ClientError
    from app.errors import StokerError
    from app.targets.server_errors import explained

    try:
        yield
    except ClientError as error:
        # vLLM without its flag fails with 500; in older releases the endpoints are there then.
        is_lacking = isinstance(error, BadStatus) and error.status in (400, 404, 405, 500, 501)
        if not is_lacking:
            raise explained(error, api_key) from error
        raise StokerError(
            f"{target.name} cannot be put to sleep: {error}", hint=_how_to_start(target)
        ) from error


def _how_to_start(target: ServerTarget) -> str:
    """What to type so that it can sleep."""
    from app.launch.engines import LLAMA_CPP, VLLM

    record = target.record
    if record is None:
        return (
            "start it with --enable-sleep-mode; vLLM needs VLLM_SERVER_DEV_MODE=1 in its "
            "environment, too"
        )
    if record.engine == LLAMA_CPP:
        return f"llama-server has no sleep; `stoker stop {record.name}` frees its memory"
    more = () if _FLAG in record.serve_args else (_FLAG,)
    again = serve_again(record, *more)
    if record.engine == VLLM:  # its endpoints are there in its development mode alone
        again = f"export VLLM_SERVER_DEV_MODE=1; {again}"
    return f"stoker stop {record.name}; {again}"


def _word(target: ServerTarget) -> str:
    return target.name if target.record is not None else target.url
