"""`stoker complete`: let a model go on with a raw prompt, without its chat template."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer


def complete(
    prompt: Annotated[
        str | None, typer.Argument(help="Text to go on with; without it, or for -, the input.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", "-u", help="Server address or name. Default: $STOKER_URL, else port 8000."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model id. Default: the first that the server lists.")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens", "-n", min=1, help="Most tokens to add. Default: the server's, often 16."
        ),
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0.0, max=2.0, help="0 always takes the likeliest token.")
    ] = 0.0,
    top_p: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Share of the likeliest tokens.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text; repeatable.")
    ] = None,
    echo: Annotated[bool, typer.Option("--echo", help="Print the prompt first.")] = False,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="File with the API key. Default: $STOKER_API_KEY, $VLLM_API_KEY."),
    ] = None,
) -> None:
    """Print how a model goes on with a text.

    `stoker complete "def add(a, b):" -n 40`; the continuation alone goes to stdout.
    """
    from app.chat_lines import print_answer
    from app.chat_target import find_target
    from app.client.answers import AnswerBuilder
    from app.client.completions import stream_completion
    from app.client.served_model import served_model
    from app.client.terminal_text import strip_escapes
    from app.server_errors import client_errors

    text = _prompt(prompt)
    base_url, api_key = find_target(url, api_key_file)
    with client_errors(api_key):
        served = served_model(base_url, model, api_key=api_key)
        if echo:
            typer.echo(strip_escapes(text), nl=False)
        deltas = stream_completion(
            base_url,
            text,
            model=served.id,
            api_key=api_key,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            stop=stop or None,
        )
        with contextlib.closing(deltas):
            # A raw continuation may hold any tag; nothing of it is set apart.
            print_answer(deltas, AnswerBuilder(splits_thinking=False))


def _prompt(prompt: str | None) -> str:
    """The argument, else the input without the newline that `echo` adds."""
    from app.chat_target import read_stdin
    from app.errors import ExitCode, StokerError

    text = prompt
    if prompt is None or prompt == "-":
        text = "" if sys.stdin.isatty() else read_stdin().removesuffix("\n")
    if not text:
        raise StokerError(
            "there is no prompt",
            hint='give one: stoker complete "Once upon a time" -n 40',
            exit_code=ExitCode.USAGE,
        )
    return text
