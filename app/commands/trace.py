"""`stoker trace PROMPT`: sends one request and prints its walk through the 13 hops, with times."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.shared_options import ApiKeyFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from app.client.debug.trace import Hop
    from app.client.debug.traced_request import TracedRequest

SCHEMA = "stoker.trace"


def trace(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[SERVER] PROMPT",
            help="Server (name, pid, :port or URL) and what to ask; - reads it from stdin. "
            "Default server: $STOKER_URL, else the one that runs here.",
        ),
    ],
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens that the answer may have at most.")
    ] = 32,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON document; what was not measured is null.")
    ] = False,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Follow one request through server, scheduler, model and back.

    The engine's part needs `stoker serve --enable-debug-endpoints`; the client's part works
    with every OpenAI-compatible server.
    """
    from app.client.debug.traced_request import trace_request
    from app.errors import UsageError
    from app.targets.prompt_words import server_and_text
    from app.targets.server_errors import client_errors
    from app.targets.servers import find_target

    server, prompt = server_and_text(words) if len(words) > 1 else (None, words[0])
    found = find_target(server)
    url, api_key = found.url, found.api_key(api_key_file)
    text = sys.stdin.read() if prompt == "-" else prompt or ""
    if not text.strip():
        raise UsageError(
            "the prompt is empty", hint='write it as one word: stoker trace "Why is the sky blue?"'
        )
    with client_errors(api_key):
        traced = trace_request(url, text, max_tokens=max_tokens, api_key=api_key)
    if as_json:
        _print_json(url, traced)
    else:
        typer.echo("\n".join(_report(traced)))


def _print_json(url: str, traced: TracedRequest) -> None:
    from app.output import print_json

    engine = traced.trace
    payload = {
        "url": url,
        "request_id": traced.request_id,
        "text": traced.text,
        "finish_reason": traced.finish_reason,
        "prompt_tokens": traced.prompt_tokens,
        "output_tokens": traced.output_tokens,
        "client_times_s": {name: round(at, 6) for name, at in traced.times.items()},
        "client_gaps_s": [round(gap, 6) for gap in traced.gaps_s],
        "hops": [_entry(hop) for hop in traced.hops],
        "states": [[name, at] for name, at in engine.states] if engine else None,
        "num_steps": engine.num_steps if engine else None,
        "prefix_miss": asdict(engine.prefix_miss) if engine and engine.prefix_miss else None,
        "reason": traced.reason or None,
    }
    print_json(SCHEMA, payload)


def _entry(hop: Hop) -> dict[str, object]:
    entry = asdict(hop)
    for name in ("start_s", "duration_s", "later_mean_s"):
        value = entry[name]
        entry[name] = None if value is None else round(value, 6)
    return entry


def _report(traced: TracedRequest) -> Iterator[str]:
    from app.output import printable

    yield "  ".join(part for part in (traced.request_id, _tokens(traced)) if part)
    yield from ("", "client", *_client_rows(traced), "")
    if traced.trace is None:
        yield f"engine       its 13 hops are not measured: {traced.reason}"
    else:
        yield f"{'engine':<11} {'at':>10} {'took':>10} {'later steps':>11}"
        for hop in traced.hops:
            yield from _hop_rows(hop)
    if traced.trace and traced.trace.states:
        yield ""
        yield "status: " + " -> ".join(name for name, _ in traced.trace.states)
        yield f"hops 6 to 11 were walked {traced.trace.num_steps} times, once per step"
    if traced.trace and traced.trace.prefix_miss:
        yield f"prefix cache: {traced.trace.prefix_miss.sentence()}"
    yield ""
    yield f"answer: {printable(' '.join(traced.text.split()))}"


def _tokens(traced: TracedRequest) -> str:
    if traced.prompt_tokens is None or traced.output_tokens is None:
        return "token counts not reported"
    counts = f"{traced.prompt_tokens:,} prompt tokens, {traced.output_tokens:,} generated"
    return f"{counts}, finish_reason = {traced.finish_reason}"


def _client_rows(traced: TracedRequest) -> Iterator[str]:
    for name, at_s in traced.times.items():
        yield f"   {name:<20} {_ms(at_s):>10}"
    if traced.gaps_s:
        yield f"   {'between texts':<20} {_ms(_mean(traced.gaps_s)):>10}  mean of " + (
            f"{len(traced.gaps_s):,}; longest {_ms(max(traced.gaps_s))}"
        )


def _hop_rows(hop: Hop) -> Iterator[str]:
    times = (_ms(hop.start_s), _ms(hop.duration_s), _ms(hop.later_mean_s))
    columns = "{:>10} {:>10} {:>11}".format(*times)
    yield f"{hop.number:>2} {hop.process:<10}{columns[1:]}  {hop.what}"
    note = f" ({hop.note})" if hop.note else ""
    yield f"   {'':<41}{hop.file}{note}"


def _ms(value_s: float | None) -> str:
    return "-" if value_s is None else f"{value_s * 1000:.2f} ms"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
