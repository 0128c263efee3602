"""`stoker complete`: let a model go on with a raw prompt, without its chat template."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer

from app.commands.shared_options import ApiKeyFile, Seed, TopP


def complete(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SERVER] [TEXT]",
            help="Server (name, pid, :port or URL) and text to go on with; without a text, or "
            "for -, the input. Default server: $STOKER_URL, else the one that runs here.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--url", "-u", metavar="SERVER", help="The server, as an option."),
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
    top_p: TopP = None,
    seed: Seed = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text; repeatable.")
    ] = None,
    echo: Annotated[bool, typer.Option("--echo", help="Print the prompt first.")] = False,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Print how a model goes on with a text.

    `stoker complete "def add(a, b):" -n 40`; the continuation alone goes to stdout.
    """
    from app.client.chat.answers import AnswerBuilder
    from app.client.chat.stream import stream_completion
    from app.client.served_model import served_model
    from app.client.terminal_text import strip_escapes
    from app.targets.server_errors import client_errors
    from app.targets.servers import find_target
    from app.views.chat_lines import print_answer

    server, prompt = _server_and_prompt(words or [], url)
    text = _prompt(prompt)
    found = find_target(server)
    base_url, api_key = found.url, found.api_key(api_key_file)
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


def _server_and_prompt(words: list[str], url: str | None) -> tuple[str | None, str | None]:
    """With --url every word is text."""
    from app.errors import UsageError
    from app.targets.prompt_words import server_and_text

    if url is None:
        return server_and_text(words)
    if len(words) > 1:
        raise UsageError(
            f"{len(words)} texts; one can be continued",
            hint='put the text into quotes: stoker complete "Once upon a time"',
        )
    return url, (words[0] if words else None)


def _prompt(prompt: str | None) -> str:
    """The argument, else the input without the newline that `echo` adds."""
    from app.errors import UsageError
    from app.targets.prompt_words import read_stdin

    text = prompt
    if prompt is None or prompt == "-":
        text = "" if sys.stdin.isatty() else read_stdin().removesuffix("\n")
    if not text:
        raise UsageError(
            "there is no prompt", hint='give one: stoker complete "Once upon a time" -n 40'
        )
    return text
